"""What a command is given beside its arguments: the time, chance, and the settings in force."""

from __future__ import annotations

from random import Random

import msgspec

from interlock.domain.errors import NotFound
from interlock.domain.run import Run
from interlock.domain.settings import Settings
from interlock.ports.store import Tx

SYSTEM = "system"
OPERATOR = "operator"
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Time, chance and settings of one command."""

    now_ms: int
    rng: Random
    settings: Settings


def new_run_id(rng: Random) -> str:
    """``r`` and twelve characters of 5 bits each; none of them is mistaken for another."""
    bits = rng.getrandbits(60)
    return "r" + "".join(_ALPHABET[(bits >> shift) & 31] for shift in range(55, -1, -5))


def find_run(tx: Tx, ref: str | int) -> Run:
    """The run that ``ref`` names: ``42`` or ``#42`` is a number, everything else an id or a prefix that is unique.

    Raises :class:`NotFound`; its hint lists the candidates when a prefix fits several.
    """
    text = str(ref).strip()
    digits = text.removeprefix("#")
    if digits.isascii() and digits.isdigit() and len(digits) < 18:
        run = tx.run(int(digits))
        if run is not None:
            return run
        raise NotFound(f"there is no run #{digits}", hint="`interlock ps --all` lists them")
    run = tx.run_by_id(text)
    if run is not None:
        return run
    found = tx.runs_by_prefix(text.lower()) if text else []
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(f"#{run.number} {run.id}" for run in found)
        raise NotFound(f"'{text}' fits more than one run", hint=f"write more of it: {some}")
    raise NotFound(f"there is no run '{text}'", hint="name it by #NUMBER or id; `interlock ps --all` lists them")
