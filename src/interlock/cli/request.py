"""What `interlock run` was asked for."""

from __future__ import annotations

import shlex

import msgspec

from interlock.cli.text import plain
from interlock.sources.durations import exact_duration


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What `interlock run` was asked for. ``where``: the options that name data and configuration, as they were given."""

    backlog: str
    agent: str | None = None
    concurrency: int | None = None
    retry_failed: bool = False
    again: bool = False
    format: str | None = None
    max_retries: int | None = None
    timeout_ms: int | None = None
    as_json: bool = False
    where: tuple[str, ...] = ()
    next_steps: bool = True


def command_line(request: Request) -> str:
    """The command that goes on with this."""
    words = ["interlock", "run", request.backlog, *request.where]
    given = (
        ("--format", request.format),
        ("--agent", request.agent),
        ("--concurrency", request.concurrency),
        ("--max-retries", request.max_retries),
        ("--timeout", None if request.timeout_ms is None else exact_duration(request.timeout_ms)),
    )
    words += [word for option, value in given if value is not None for word in (option, str(value))]
    return plain(shlex.join(words))
