"""``python -m interlock``, and the ``interlock`` command.

The composition root imports every room of the house, which takes longer than ``interlock --help`` should. So it is imported when
a command asks it for something, and not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from interlock.cli.main import run_command_line

if TYPE_CHECKING:
    from interlock.cli.host import Host


class LazyHost:
    """The host of the command line, :class:`interlock.app.AppHost`, once it is needed for anything but its version."""

    def __getattr__(self, name: str) -> object:
        from interlock.app import AppHost  # noqa: PLC0415

        return getattr(AppHost(), name)

    def version(self) -> str:
        """Version of this program."""
        from importlib.metadata import version  # noqa: PLC0415

        return version("interlock")


def main() -> None:
    """Entry point of the ``interlock`` command."""
    run_command_line(cast("Host", LazyHost()))


if __name__ == "__main__":
    main()
