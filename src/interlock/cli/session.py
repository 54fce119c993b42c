"""What every command is given: the host, and the options that stand before (or behind) the command's name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from interlock.cli.host import Host, Opened

T = TypeVar("T")


class Session:
    """Host and global options of one call of the program. A command asks for it with :data:`pass_session`."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.data: Path | None = None
        self.config: Path | None = None
        self.verbose = False

    def open(
        self, *, create: bool = False, settings_changes: Mapping[str, object] | None = None
    ) -> AbstractAsyncContextManager[Opened]:
        """The data folder that the options name."""
        return self.host.open(data=self.data, config=self.config, create=create, settings_changes=settings_changes)

    def run(self, act: Callable[[Opened], Awaitable[T]], *, create: bool = False) -> T:
        """Open the data folder and do ``act`` with it, in a trio loop."""

        async def main() -> T:
            async with self.open(create=create) as il:
                return await act(il)

        return run_async(main)


def run_async(main: Callable[[], Awaitable[T]]) -> T:
    """``trio.run``; imported only when something is run, since ``--help`` should not wait for it."""
    import trio  # noqa: PLC0415

    return trio.run(main)


pass_session = click.make_pass_decorator(Session)


def session_of(ctx: click.Context) -> Session:
    """The session of a click context."""
    found = ctx.find_object(Session)
    assert found is not None, "the group makes it"
    return found
