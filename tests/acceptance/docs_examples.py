"""Reads the examples of a Markdown page: which files it shows, which commands it tells the reader to type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^>]+) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Example:
    """A fenced block: ``mark`` is the comment above it (``run``, ``run: daemon``, ``file: NAME``, ``python``), or empty."""

    mark: str
    language: str
    body: str


def examples(page: Path) -> list[Example]:
    """The blocks of a page, in order."""
    found = _BLOCK.finditer(page.read_text("utf-8"))
    return [Example(match["mark"] or "", match["language"], match["body"]) for match in found]
