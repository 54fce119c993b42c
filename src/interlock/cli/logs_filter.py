"""An agent's output on its way to a terminal: colours pass, everything else that a terminal would obey is shown."""

from __future__ import annotations

import codecs
import re

# A complete colour sequence; another escape; a control character that is neither tab nor line break.
_SGR = r"\x1b\[[0-9;:]*m"
_CONTROL = re.compile(rf"({_SGR})|\r\n?|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u2028-\u202e\u2066-\u2069]")
_UNFINISHED = re.compile(r"(?:\x1b(?:\[[0-9;:]{0,32})?|\r)\Z")
RESET = "\x1b[0m"


class TerminalFilter:
    """Feed it bytes as they come; a sequence or a character may be cut between two pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self.coloured = False

    def feed(self, data: bytes, *, last: bool = False) -> str:
        """The text to show for ``data``."""
        text = self._rest + self._decoder.decode(data, final=last)
        self._rest = ""
        if not last and (cut := _UNFINISHED.search(text)):
            self._rest = cut[0]
            text = text[: cut.start()]
        return _CONTROL.sub(self._replace, text)

    def _replace(self, found: re.Match[str]) -> str:
        if found[1]:
            self.coloured = True
            return found[1]
        if found[0].startswith("\r"):
            # A progress bar that draws over itself becomes one line per drawing.
            return "\n"
        code = ord(found[0])
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
