"""Makes a picture of a terminal's screen: ``tmux capture-pane -e -p | python docs/images/from_ansi.py live.svg``."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 100


def main() -> None:
    """Read ANSI text from standard input, write an SVG without anything from elsewhere in it."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in sys.stdin.read().rstrip().splitlines():
        console.print(Text.from_ansi(line), no_wrap=True, crop=True)
    svg = console.export_svg(title="interlock run", unique_id="interlock")
    # The fonts would come from a server of somebody else's; every machine has a monospaced one.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!-- Generated .*? -->\s*", "", svg)
    Path(sys.argv[1]).write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
