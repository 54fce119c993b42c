"""Values of options that several commands take."""

from __future__ import annotations

import click

from interlock.domain.errors import InvalidInput


def milliseconds(_: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Milliseconds of an option like ``90s``, ``5m``, ``24h``: one at least."""
    from interlock.sources.durations import parse_duration  # noqa: PLC0415

    if value is None:
        return None
    try:
        given = parse_duration(value)
    except InvalidInput as error:
        raise click.BadParameter(f"{value!r}: {error.message}; {error.hint}.", param=parameter) from None
    if given < 1:
        raise click.BadParameter(f"{value!r} is too short.", param=parameter)
    return given
