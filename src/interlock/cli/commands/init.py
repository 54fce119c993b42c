"""``interlock init``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from interlock.cli.output import say
from interlock.cli.session import Session, pass_session, run_async
from interlock.domain.errors import Unavailable
from interlock.domain.places import CONFIG_FILE, DATA_FOLDER, DATABASE


@click.command()
@pass_session
def init(session: Session, /) -> None:
    """Make interlock.yaml, with every key explained, and the data folder. What is there already is left as it is.

    \b
    Example:
      interlock init
    """
    data = session.data or Path(os.environ.get("INTERLOCK_DATA") or DATA_FOLDER)
    data = data.absolute()
    config = (session.config or (Path.cwd() if data.parent == Path.cwd() else data.parent) / CONFIG_FILE).absolute()
    there = (data / DATABASE).exists()
    written = write_new(config, session.host.example_config())
    say(written or f"{config} is there already; it was left as it is.")

    async def make() -> None:
        async with session.host.open(data=data, config=None, create=True):
            pass

    run_async(make)
    say(f"{data} is there already." if there else f"Made {data}/.")
    if data.name == DATA_FOLDER and write_new(data / ".gitignore", "*\n") is not None and _in_git(data):
        say(f"git ignores it ({data.name}/.gitignore).")
    if written is None:
        say(
            "Next: `interlock config check` looks for faults, `interlock add TITLE` queues a task, `interlock up` runs it."
        )
    else:
        say(f"Next: name an agent under `agents:` in {config.name}, then `interlock add TITLE` and `interlock up`.")
        say("Or at once: `interlock run BACKLOG --agent 'CMD'`.")


def write_new(path: Path, text: str) -> str | None:
    """Write a file that is not there yet. What to say of it; None when something is there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return None
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", hint="check that the folder is yours to write") from error
    return f"Wrote {path}."


def _in_git(folder: Path) -> bool:
    return any((parent / ".git").exists() for parent in folder.parents)
