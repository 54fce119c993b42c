"""Runtimes that break one promise each, made of one that keeps them all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.ports.runtime import Activity, Alive, CannotStart, Ended, Ending, Launch, NeverStarted
from interlock.runtimes import CommandRuntime


class WholeHandle:
    """A handle that can be bent."""

    def __init__(self, inner: Any, runtime: Whole) -> None:
        self.inner = inner
        self.runtime = runtime

    @property
    def identity(self) -> Any:
        return self.inner.identity

    async def wait(self) -> Ending:
        ending: Ending = await self.inner.wait()
        return ending

    async def stop(self, grace_ms: int) -> None:
        await self.inner.stop(grace_ms)

    def activity(self) -> Activity:
        activity: Activity = self.inner.activity()
        return activity

    def close(self) -> None:
        self.inner.close()


class Whole:
    """Keeps every promise: the runtime for commands behind a wrapper. ``close`` ends whatever a broken one left running."""

    handle: type[WholeHandle] = WholeHandle

    def __init__(self) -> None:
        self.inner = CommandRuntime(cgroups=False)
        self.all: list[Any] = []

    def bend(self, inner: Any) -> Any:
        self.all.append(inner)
        return self.handle(inner, self)

    def check(self, agent: Any, cwd: Path) -> str | None:
        return self.inner.check(agent, cwd)

    async def launch(self, launch: Launch) -> Any:
        return self.bend(await self.inner.launch(launch))

    async def recover(self, folder: Path, known: Any = None, *, started: bool = False) -> Any:
        found = await self.inner.recover(folder, known, started=started)
        return Alive(self.bend(found.handle)) if isinstance(found, Alive) else found

    async def close(self) -> None:
        for handle in self.all:
            await handle.stop(0)
        self.inner.close()


class Changes(Whole):
    """Says another ending the second time."""

    class handle(WholeHandle):  # noqa: N801 - an attribute of the runtime
        said = False

        async def wait(self) -> Ending:
            ending = await super().wait()
            said, self.said = self.said, True
            return Ending(exit_status=None) if said else ending


class ForgetsTheStatus(Whole):
    """Of an ended agent recover() knows no status."""

    async def recover(self, folder: Path, known: Any = None, *, started: bool = False) -> Any:
        found = await super().recover(folder, known, started=started)
        return Ended(Ending(exit_status=None)) if isinstance(found, Ended) else found


class EndsTooSoon(Whole):
    """wait() does not wait."""

    class handle(WholeHandle):  # noqa: N801
        async def wait(self) -> Ending:
            await trio.lowlevel.checkpoint()
            return Ending(exit_status=7)


class OneWaiter(Whole):
    """The second who waits at the same time is told nothing."""

    class handle(WholeHandle):  # noqa: N801
        waiting = False

        async def wait(self) -> Ending:
            if self.waiting:
                await super().wait()
                return Ending(exit_status=None)
            self.waiting = True
            return await super().wait()


class LosesThePrompt(Whole):
    """The agent gets an empty prompt."""

    async def launch(self, launch: Launch) -> Any:
        AttemptFiles(launch.folder).prompt.write_text("")
        return await super().launch(launch)


class CountsWrongly(Whole):
    """activity() counts no output once the agent has ended."""

    class handle(WholeHandle):  # noqa: N801
        async def wait(self) -> Ending:
            ending = await super().wait()
            self.ended = True
            return ending

        def activity(self) -> Activity:
            activity = super().activity()
            return msgspec.structs.replace(activity, output_bytes=0) if hasattr(self, "ended") else activity


class StopsNothing(Whole):
    """stop() returns and the agent goes on."""

    class handle(WholeHandle):  # noqa: N801
        async def stop(self, grace_ms: int) -> None:
            await trio.lowlevel.checkpoint()


class StopsOnce(Whole):
    """The second stop() is an error."""

    class handle(WholeHandle):  # noqa: N801
        stopped = False

        async def stop(self, grace_ms: int) -> None:
            if self.stopped:
                raise AssertionError("it was stopped before")
            self.stopped = True
            await super().stop(grace_ms)


class OnlyAsks(Whole):
    """stop() sends TERM and trusts that it is heeded."""

    class handle(WholeHandle):  # noqa: N801
        async def stop(self, grace_ms: int) -> None:
            with trio.move_on_after(grace_ms / 1000):
                await super().wait()


class ForgetsTheChild(Whole):
    """stop() is content when the agent itself has ended."""

    class handle(WholeHandle):  # noqa: N801
        ended = False

        async def wait(self) -> Ending:
            ending = await super().wait()
            self.ended = True
            return ending

        async def stop(self, grace_ms: int) -> None:
            if not self.ended:
                await super().stop(grace_ms)


class SaysEndedTooSoon(Whole):
    """recover() looks at the exit status alone."""

    async def recover(self, folder: Path, known: Any = None, *, started: bool = False) -> Any:
        exit_file = AttemptFiles(folder).exit
        if exit_file.exists():
            return Ended(Ending(exit_status=int(exit_file.read_text())))
        return await super().recover(folder, known, started=started)


class LaunchesAgain(Whole):
    """Takes the folder of an attempt for a new one: its launch makes a clean start."""

    async def launch(self, launch: Launch) -> Any:
        files = AttemptFiles(launch.folder)
        for path in (files.lock, files.identity, files.exit, files.void):
            path.unlink(missing_ok=True)
        return await super().launch(launch)


class LaunchesBoth(Whole):
    """The second of two launches is given a handle as well, though nothing was started for it."""

    async def launch(self, launch: Launch) -> Any:
        try:
            return await super().launch(launch)
        except CannotStart:
            found = await super().recover(launch.folder)
            return found.handle if isinstance(found, Alive) else self.all[-1]


class GuessesNeverStarted(Whole):
    """recover() takes what has no exit status yet for what never started."""

    async def recover(self, folder: Path, known: Any = None, *, started: bool = False) -> Any:
        exit_file = AttemptFiles(folder).exit
        if not exit_file.exists():
            return NeverStarted()
        return await super().recover(folder, known, started=started)


class FindsAStranger(Whole):
    """recover() finds an agent that has another identity."""

    async def recover(self, folder: Path, known: Any = None, *, started: bool = False) -> Any:
        found = await super().recover(folder, known, started=started)
        if isinstance(found, Alive) and found.handle.identity is not None:
            identity = msgspec.structs.replace(found.handle.identity, pid=1)
            found.handle.__class__ = type("Stranger", (found.handle.__class__,), {"identity": identity})
        return found


class TwoTruths(Whole):
    """A handle that was found reports another ending than the one that was launched."""

    async def recover(self, folder: Path, known: Any = None, *, started: bool = False) -> Any:
        found = await super().recover(folder, known, started=started)
        if isinstance(found, Alive):

            async def wait(_: Any) -> Ending:
                await found.handle.inner.wait()
                return Ending(exit_status=0)

            found.handle.__class__ = type("Other", (found.handle.__class__,), {"wait": wait})
        return found


class MakesNothingVoid(Whole):
    """recover() answers NeverStarted and leaves it open whether it still may."""

    async def recover(self, folder: Path, known: Any = None, *, started: bool = False) -> Any:
        found = await super().recover(folder, known, started=started)
        if isinstance(found, NeverStarted):
            files = AttemptFiles(folder)
            files.void.unlink(missing_ok=True)
            files.lock.unlink(missing_ok=True)
        return found


class ForgetsThatItStarted(Whole):
    """recover() does not look at ``started``."""

    async def recover(self, folder: Path, known: Any = None, *, started: bool = False) -> Any:
        return await super().recover(folder, known, started=False)


class KnowsFoldersOnly(Whole):
    """Without its folder an agent is gone."""

    async def recover(self, folder: Path, known: Any = None, *, started: bool = False) -> Any:
        if not folder.exists():
            return Ended(Ending(exit_status=None))
        return await super().recover(folder, known, started=started)


class KillsAtClose(Whole):
    """close() ends the agent."""

    class handle(WholeHandle):  # noqa: N801
        def close(self) -> None:
            if self.identity is not None:
                os.killpg(self.identity.pid, 9)
            super().close()


class ChecksNothing(Whole):
    """check() has nothing against anything."""

    def check(self, agent: Any, cwd: Path) -> str | None:
        return None


class RaisesOSError(Whole):
    """What cannot start raises the system's own error."""

    async def launch(self, launch: Launch) -> Any:
        try:
            return await super().launch(launch)
        except CannotStart as error:
            raise OSError(str(error)) from error


class LeaksDescriptors(Whole):
    """Every launch leaves a descriptor open, also one that fails."""

    leaked: list[int]

    async def launch(self, launch: Launch) -> Any:
        self.__dict__.setdefault("leaked", []).append(os.open("/dev/null", os.O_RDONLY))
        return await super().launch(launch)

    async def close(self) -> None:
        for descriptor in self.__dict__.get("leaked", []):
            os.close(descriptor)
        await super().close()


class MakesFolders(Whole):
    """A launch makes the folder that it misses."""

    async def launch(self, launch: Launch) -> Any:
        launch.folder.mkdir(parents=True, exist_ok=True)
        return await super().launch(launch)


class LeavesZombies(Whole):
    """A helper process of each launch is never waited for."""

    helpers: list[Any]

    async def launch(self, launch: Launch) -> Any:
        helper = subprocess.Popen(["true"])
        self.__dict__.setdefault("helpers", []).append(helper)
        await trio.sleep(0.05)
        return await super().launch(launch)

    async def close(self) -> None:
        for helper in self.__dict__.get("helpers", []):
            helper.wait()
        await super().close()
