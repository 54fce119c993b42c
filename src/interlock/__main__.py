"""``python -m interlock``, and the ``interlock`` command.

The composition root imports every room of the house, which takes longer than ``interlock --help`` should. So it is imported when
a command asks it for something, and not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.cli.main import run_command_line

if TYPE_CHECKING:
    from interlock.app import AppHost
    from interlock.cli.host import Opened
    from interlock.domain.settings import Agent, Settings


class LazyHost:
    """The host of the command line, :class:`interlock.app.AppHost`, once it is needed."""

    @property
    def _host(self) -> AppHost:
        from interlock.app import AppHost  # noqa: PLC0415

        return AppHost()

    def open(
        self,
        *,
        data: Path | None,
        config: Path | None,
        create: bool = False,
        settings_changes: Mapping[str, object] | None = None,
    ) -> AbstractAsyncContextManager[Opened]:
        """Open a data folder; see :meth:`interlock.cli.host.Host.open`."""
        return self._host.open(data=data, config=config, create=create, settings_changes=settings_changes)

    def locate(self, data: Path | None) -> Path:
        """The data folder that :meth:`open` would use."""
        return self._host.locate(data)

    def check_config(self, path: Path) -> tuple[Settings, tuple[str, ...]]:
        """Settings of a configuration file, and what in it has no effect yet."""
        return self._host.check_config(path)

    def check_agent(self, agent: Agent, folder: Path) -> str | None:
        """Why an agent of a configuration in ``folder`` could not be started now, or None."""
        return self._host.check_agent(agent, folder)

    def example_config(self) -> str:
        """A commented interlock.yaml."""
        return self._host.example_config()

    def version(self) -> str:
        """Version of this program."""
        from importlib.metadata import version  # noqa: PLC0415

        return version("interlock")


def main() -> None:
    """Entry point of the ``interlock`` command."""
    run_command_line(LazyHost())


if __name__ == "__main__":
    main()
