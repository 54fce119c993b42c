"""Where an attempt keeps its files. Pure paths: nothing here touches a disk."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

RUNS_PER_FOLDER = 1000


def attempt_folder(number: int, fence: int, generation: str) -> str:
    """Folder of an attempt, relative to the data folder.

    The generation is the database's: a restored backup has another one, so that its attempts never meet the files
    of those that the lost database had already handed out under the same fence.
    """
    return f"attempts/{number // RUNS_PER_FOLDER:05d}/{number}.{fence}.{generation}"


class AttemptFiles:
    """The files of one attempt, by purpose."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def prompt(self) -> Path:
        """The exact prompt; also the agent's standard input."""
        return self.folder / "prompt.md"

    @cached_property
    def log(self) -> Path:
        """The agent's output, written by the agent itself."""
        return self.folder / "output.log"

    @cached_property
    def lock(self) -> Path:
        """Locked (flock) by the agent's whole tree while any of it lives."""
        return self.folder / "lock"

    @cached_property
    def void(self) -> Path:
        """There once the attempt may never start again."""
        return self.folder / "void"

    @cached_property
    def identity(self) -> Path:
        """Which process the agent is, written before it becomes the agent."""
        return self.folder / "process"

    @cached_property
    def exit(self) -> Path:
        """The agent's exit status, written by its keeper."""
        return self.folder / "exit"

    @cached_property
    def result(self) -> Path:
        """What the agent itself says of its work (JSON)."""
        return self.folder / "result.json"


def attempt_variables(files: AttemptFiles, *, number: int, run_id: str, fence: int) -> dict[str, str]:
    """What an agent that is a command finds in its environment, wherever it runs."""
    return {
        "INTERLOCK_RUN_ID": run_id,
        "INTERLOCK_RUN_NUMBER": str(number),
        "INTERLOCK_ATTEMPT": str(fence),
        "INTERLOCK_FENCE": str(fence),
        "INTERLOCK_PROMPT_FILE": str(files.prompt),
        "INTERLOCK_RESULT_FILE": str(files.result),
    }
