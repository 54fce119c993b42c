"""The machines as pictures and tables, made from the table that decides, never from a copy.

``render("run", "mermaid")`` answers text, and so do ``md``, ``dot`` and ``svg``; ``png`` answers bytes. With
``taken`` and ``current`` the same picture shows the way of one run. ``python -m interlock.diagrams.generate``
keeps the committed folder ``state_diagrams/`` current.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from interlock.diagrams import dot, markdown, mermaid
from interlock.diagrams.picture import MACHINES, Picture, picture
from interlock.domain.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMATS: tuple[str, ...] = ("mermaid", "md", "dot", "svg", "png")

__all__ = ["FORMATS", "MACHINES", "Picture", "picture", "render"]

Step = tuple[str, str, str]


@overload
def render(
    machine: str,
    format: Literal["mermaid", "md", "dot", "svg"],
    *,
    taken: Sequence[Step] = (),
    current: str | None = None,
) -> str: ...


@overload
def render(
    machine: str, format: Literal["png"], *, taken: Sequence[Step] = (), current: str | None = None
) -> bytes: ...


@overload
def render(machine: str, format: str, *, taken: Sequence[Step] = (), current: str | None = None) -> bytes | str: ...


def render(
    machine: str,
    format: str,  # noqa: A002 - the word that the command line and its users have for it
    *,
    taken: Sequence[Step] = (),
    current: str | None = None,
) -> bytes | str:
    """Draw ``machine`` as ``format``; the same arguments always give the same bytes.

    ``taken`` is the path of one run as (from_state, event, to_state), oldest first; the step that makes a run
    comes from ``""``. ``current`` is the state where it stands. Raises ``InvalidInput`` for an unknown
    machine, format or state and for a step that the machine does not have, ``Unavailable`` when svg or png
    is asked for without graphviz.
    """
    drawn = picture(machine, taken=taken, current=current)
    match format:
        case "mermaid":
            return mermaid.text(drawn)
        case "md":
            return markdown.text(drawn)
        case "dot":
            return dot.text(drawn)
        case "svg":
            return dot.svg(drawn)
        case "png":
            return dot.png(drawn)
    raise InvalidInput(f"no such diagram format: {format}", hint=f"one of: {', '.join(FORMATS)}")
