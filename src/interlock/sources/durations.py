"""Durations and sizes as people write them: ``1h30m``, ``500ms``, ``2GiB``.

A bare number is refused on purpose: ``timeout: 90`` is seconds to one reader and milliseconds to the next.
"""

from __future__ import annotations

import re

from interlock.domain.errors import InvalidInput

_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|[dhms])\s*)+", re.ASCII)
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[dhms])", re.ASCII)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
LONGEST_MS = 3650 * _UNITS["d"]
"""Ten years: longer is a slip, and would not fit what deadlines are counted with."""

_SIZES = {"b": 1} | {
    unit: base**power
    for power, letter in enumerate("kmgt", start=1)
    # a bare letter counts in 1024s, as in docker, systemd and free(1)
    for unit, base in ((letter, 1024), (f"{letter}ib", 1024), (f"{letter}b", 1000))
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", re.ASCII | re.IGNORECASE)
LARGEST_BYTES = 2**60


def parse_duration(text: str) -> int:
    """Milliseconds of ``90s``, ``5m``, ``1h30m``, ``1.5h``, ``500ms`` (units d, h, m, s, ms, each once,
    largest first).

    Raises InvalidInput with a hint: no unit, another form, more than ten years, less than a whole
    millisecond.
    """
    wanted = text.strip()
    if len(wanted) > 100 or not _DURATION.fullmatch(wanted):
        if len(wanted) <= 100 and _NUMBER.fullmatch(wanted):
            raise InvalidInput(f"{wanted} has no unit", hint=f"write {wanted}s, {wanted}m or {wanted}ms")
        raise InvalidInput("not a duration", hint="write it like 90s, 5m, 1h30m or 500ms")
    total = 0.0
    left = list(_UNITS)
    for number, unit in _DURATION_PART.findall(wanted):
        if unit not in left:
            raise InvalidInput("its units are doubled or out of order", hint="largest unit first, each once: 1h30m")
        left = left[left.index(unit) + 1 :]
        # whole numbers stay whole: float would round what is longer than 2**53 ms
        total += int(number) * _UNITS[unit] if "." not in number else round(float(number) * _UNITS[unit], 6)
    if total > LONGEST_MS:
        raise InvalidInput("longer than ten years", hint="leave it out for no limit")
    if total != int(total):
        raise InvalidInput("not a whole number of milliseconds", hint="write it in ms")
    return int(total)


def _parts(ms: int) -> list[tuple[int, str]]:
    parts = []
    for unit, size in _UNITS.items():
        count, ms = divmod(ms, size)
        if count:
            parts.append((count, unit))
    return parts


def exact_duration(ms: int) -> str:
    """The text that :func:`parse_duration` reads back to just this many milliseconds (>= 0): ``1h30m``,
    ``1s500ms``.
    """
    return "".join(f"{count}{unit}" for count, unit in _parts(ms)) or "0s"


def format_duration(ms: int) -> str:
    """Short form for people, two units at most: ``45ms``, ``1.2s``, ``1m30s``, ``1h30m``, ``2d3h``."""
    if ms < 0:
        return f"-{format_duration(-ms)}"
    if ms < 1000:
        return f"{ms}ms"
    if ms < 60_000:
        # cut, not rounded: 59.96 s is not yet a minute
        return f"{ms // 100 / 10:g}s"
    first, *rest = _parts(ms // 1000 * 1000)
    following = {"d": "h", "h": "m", "m": "s"}[first[1]]
    return f"{first[0]}{first[1]}" + "".join(f"{count}{unit}" for count, unit in rest if unit == following)


def parse_size(text: str) -> int:
    """Bytes of ``2GiB``, ``512MiB``, ``1.5GB``, ``512M``: ``GiB`` and ``G`` count in 1024s, ``GB`` in
    1000s; ``0`` is 0.

    Raises InvalidInput with a hint: no unit, an unknown unit, more than an exbibyte.
    """
    wanted = text.strip()
    if wanted == "0":
        return 0
    found = _SIZE.fullmatch(wanted) if len(wanted) <= 100 else None
    if found is None or found[2].lower() not in _SIZES:
        if len(wanted) <= 100 and _NUMBER.fullmatch(wanted):
            raise InvalidInput(f"{wanted} has no unit", hint=f"write {wanted}MiB or {wanted}GiB")
        raise InvalidInput("not a size", hint="write it like 512MiB, 2GiB or 1.5GB")
    unit = _SIZES[found[2].lower()]
    size = int(found[1]) * unit if "." not in found[1] else int(float(found[1]) * unit)
    if size > LARGEST_BYTES:
        raise InvalidInput("more than this program can count", hint="at most 1048576TiB")
    return size


def format_size(size: int) -> str:
    """Short form for people: ``0B``, ``512MiB``, ``1.5GiB``."""
    for unit, letter in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size * 10 // unit / 10:g}{letter}"
    return f"{size}B"
