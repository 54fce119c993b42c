"""The contract of :mod:`interlock.ports.runtime` as a suite that any runtime can be held to."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.settings import Agent
from interlock.ports.runtime import Alive, CannotStart, Ended, Ending, Launch, NeverStarted, Recovery, Runtime
from interlock.testing.conformance import Conformance, promises, raised_by
from interlock.testing.promises import must
from interlock.testing.runtime_yard import SHELL, Deed, Yard, open_descriptors, zombies

GRACE_MS = 5000
QUIET_SECONDS = 0.3
"""Long enough to show that somebody who writes every 20 ms has gone."""
RACES = 15


class RuntimeConformance(Conformance):
    """Every promise of the port to agents, as a test.

    ::

        class TestMyRuntime(RuntimeConformance):
            async def make_runtime(self, nursery):
                return MyRuntime(...)

    :meth:`agent` says which agent does each :class:`Deed`; by default a shell command. ``stopped_status`` is the exit status of one
    that was stopped.
    """

    stopped_status: int | None = 143

    async def make_runtime(self, nursery: trio.Nursery) -> Runtime:
        """A new runtime; ``nursery`` outlives its agents. Two of them stand for two processes. To be overridden."""
        raise NotImplementedError(f"{type(self).__name__}.make_runtime is to make your runtime; see its docs")

    async def close_runtime(self, runtime: Runtime) -> None:
        """Let go of a runtime. By default its ``close()``, async or not, if it has one."""
        close = getattr(runtime, "close", None)
        closed = close() if close is not None else None
        if inspect.isawaitable(closed):
            await closed

    def agent(self, deed: Deed) -> Agent | None:
        """An agent that does this. None: there is nothing like it, and what needs it is skipped."""
        return Agent(name="tester", command=SHELL[deed])

    def agent_that_cannot_start(self) -> Agent:
        """An agent of which there is nothing that could run; why names ``no-such-thing``."""
        return Agent(name="tester", command="no-such-thing")

    # how an agent ends

    @promises("wait() returns when the agent has ended, with its exit status; asked again, it says the same.")
    async def test_an_ended_agent_has_one_status(self) -> None:
        async with self._yard() as yard:
            for deed, status in ((Deed.FINE, 0), (Deed.FAILING, 1), (Deed.DEFERRING, 75)):
                launch = yard.launch_of(deed)
                handle = await yard.launched(launch)
                wanted = Ending(exit_status=status)
                endings = [await handle.wait(), await handle.wait()]
                must(endings == [wanted] * 2, f"an agent that ends with {status} is reported as {endings}")
                await handle.stop(1000)
                await handle.stop(1000)
                must(await handle.wait() == wanted, "after stop() another ending is reported")
                handle.close()
                found = [await yard.runtime.recover(launch.folder) for _ in range(2)]
                must(found == [Ended(wanted)] * 2, f"recover() says {found} of an agent that ended with {status}")

    @promises("Several that wait at once get the same ending.")
    async def test_several_wait(self) -> None:
        endings: list[Ending] = []

        async with self._yard() as yard:
            handle = await yard.working(yard.launch_of(Deed.WAITING))

            async def wait() -> None:
                endings.append(await handle.wait())

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(wait)
                await trio.sleep(QUIET_SECONDS)
                must(not endings, f"an agent that goes on is reported as ended: {endings}")
                (yard.cwd / "go").touch()
            must(endings == [Ending(exit_status=7)] * 3, f"three that waited were told {endings}")

    @promises("The agent gets the prompt, and its output is the attempt's log.")
    async def test_prompt_and_log(self) -> None:
        prompt = "dö it\n\twell\n"
        async with self._yard() as yard:
            launch = yard.launch_of(Deed.REPEATING, prompt)
            handle = await yard.launched(launch)
            await handle.wait()
            await handle.stop(0)
            log = AttemptFiles(launch.folder).log.read_text("utf-8")
            must(log == prompt, f"the prompt was {prompt!r} and the log is {log!r}")
            said = handle.activity().output_bytes
            must(said == len(prompt.encode()), f"{len(prompt.encode())} bytes were written, activity() counts {said}")

    # stopping

    @promises("stop() returns when the agent is gone, wait() returns then, and recover() says the same.")
    async def test_stop(self) -> None:
        async with self._yard() as yard:
            launch = yard.launch_of(Deed.ENDLESS)
            handle = await yard.working(launch)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(handle.wait)
                nursery.start_soon(handle.wait)
                await handle.stop(GRACE_MS)
            ending = await handle.wait()
            must(ending.exit_status == self.stopped_status, f"a stopped agent is reported as {ending}")
            found = await yard.runtime.recover(launch.folder)
            must(found == Ended(ending), f"wait() says {ending}, recover() {found}")

    @promises("stop() may be called by two at once, again, and after the end.")
    async def test_several_stop(self) -> None:
        async with self._yard() as yard:
            handle = await yard.working(yard.launch_of(Deed.ENDLESS))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(handle.stop, GRACE_MS)
                nursery.start_soon(handle.stop, 0)
            await handle.stop(0)

    @promises("stop() ends an agent that does not heed TERM: KILL comes after the grace.")
    async def test_stop_of_a_deaf_agent(self) -> None:
        async with self._yard() as yard:
            launch = yard.launch_of(Deed.DEAF)
            handle = await yard.working(launch)
            await handle.stop(100)
            found = await yard.runtime.recover(launch.folder)
            must(isinstance(found, Ended), f"stop() returned, and recover() says {found}")

    @promises("wait() returns when the agent itself has ended; stop() when its whole tree is gone.")
    async def test_what_an_agent_leaves_behind_is_ended_too(self) -> None:
        async with self._yard() as yard:
            launch = yard.launch_of(Deed.LEAVING)
            handle = await yard.launched(launch)
            await yard.until((yard.cwd / "beat").exists)
            ending = await handle.wait()
            must(ending == Ending(exit_status=0), f"the agent ended with 0 and is reported as {ending}")
            found = await yard.runtime.recover(launch.folder)
            must(
                not isinstance(found, Ended | NeverStarted), f"something of the tree lives, and recover() says {found}"
            )
            await handle.stop(GRACE_MS)
            beat = (yard.cwd / "beat").stat().st_size
            await trio.sleep(QUIET_SECONDS)
            must((yard.cwd / "beat").stat().st_size == beat, "stop() returned, and what the agent left behind goes on")
            found = await yard.runtime.recover(launch.folder)
            must(found == Ended(ending), f"the tree is gone, and recover() says {found}")

    # once

    @promises("At most one agent ever runs for one attempt folder.")
    async def test_an_attempt_is_launched_once(self) -> None:
        async with self._yard() as yard:
            launch = yard.launch_of(Deed.ENDLESS)
            handle = await yard.working(launch)
            for when in ("while its agent runs", "after its agent was stopped"):
                for runtime in (yard.runtime, yard.other):
                    raised = await raised_by(lambda r=runtime: r.launch(launch))  # type: ignore[misc]
                    must(isinstance(raised, CannotStart), f"a second launch {when} answered {raised!r}")
                await handle.stop(GRACE_MS)

    @promises("Of launches at the same time one starts an agent, and the others raise CannotStart.")
    async def test_launches_at_once(self) -> None:
        async with self._yard() as yard:
            for _ in range(RACES):
                launch = yard.launch_of(Deed.FINE)
                raised: list[Exception | None] = []

                async def one(runtime: Runtime, launch: Launch, raised: list[Exception | None]) -> None:
                    raised.append(await raised_by(lambda: yard.launched(launch, runtime)))

                async with trio.open_nursery() as nursery:
                    for runtime in (yard.runtime, yard.other, yard.runtime):
                        nursery.start_soon(one, runtime, launch, raised)
                started = sum(error is None for error in raised)
                must(started == 1, f"three launches of one attempt started {started} agents")
                must(all(error is None or isinstance(error, CannotStart) for error in raised), f"they raised {raised}")
                for handle in yard.handles:
                    await handle.wait()
                await yard.stop_all()
                log = AttemptFiles(launch.folder).log.read_text()
                must(log == "working\n", f"the log of one attempt says {log!r}")

    @promises(
        "Once recover() has answered NeverStarted or Ended, no launch that was under way can still start an agent."
    )
    async def test_a_launch_against_a_recovery(self) -> None:
        async with self._yard() as yard:
            for number in range(RACES):
                launch = yard.launch_of(Deed.FINE)
                outcomes: dict[str, Any] = {}

                async def start(launch: Launch, outcomes: dict[str, Any]) -> None:
                    outcomes["raised"] = await raised_by(lambda: yard.launched(launch))

                async def look(launch: Launch, outcomes: dict[str, Any]) -> None:
                    outcomes["found"] = await yard.other.recover(launch.folder)

                async with trio.open_nursery() as nursery:
                    for act in (start, look) if number % 2 else (look, start):
                        nursery.start_soon(act, launch, outcomes)
                found, raised = outcomes["found"], outcomes["raised"]
                if isinstance(found, NeverStarted):
                    must(
                        isinstance(raised, CannotStart), f"recover() said NeverStarted, the launch answered {raised!r}"
                    )
                    log = AttemptFiles(launch.folder).log
                    must(not log.exists() or not log.read_bytes(), "recover() said NeverStarted, and an agent ran")
                await yard.stop_all()

    # found again

    @promises("launch() returns only when the agent can be found again by recover(), by whatever process.")
    async def test_a_running_agent_is_found(self) -> None:
        async with self._yard() as yard:
            launch = yard.launch_of(Deed.ENDLESS)
            handle = await yard.launched(launch)
            at_once = await yard.other.recover(launch.folder)
            must(isinstance(at_once, Alive), f"launch() has returned, and recover() says {at_once}")
            await yard.until(lambda: handle.activity().output_bytes > 0)
            for who, runtime in (("the same", yard.runtime), ("another", yard.other)):
                found = await runtime.recover(launch.folder)
                must(isinstance(found, Alive), f"an agent runs, and recover() of {who} runtime says {found}")
                assert isinstance(found, Alive)
                same = found.handle.identity == handle.identity
                must(same, f"it was {handle.identity} and is found as {found.handle.identity}")
                yard.handles.append(found.handle)
            await handle.stop(GRACE_MS)
            for runtime in (yard.runtime, yard.other):
                after = await runtime.recover(launch.folder)
                must(isinstance(after, Ended), f"the agent is gone, and recover() says {after}")

    @promises("An agent that was found again can be waited for and stopped like one that was launched.")
    async def test_a_found_agent_can_be_stopped(self) -> None:
        async with self._yard() as yard:
            launch = yard.launch_of(Deed.ENDLESS)
            handle = await yard.working(launch)
            found = await yard.runtime.recover(launch.folder)
            must(isinstance(found, Alive), f"an agent runs, and recover() says {found}")
            assert isinstance(found, Alive)
            await found.handle.stop(GRACE_MS)
            endings = [await found.handle.wait(), await handle.wait()]
            must(endings[0] == endings[1], f"the two handles of one agent report {endings}")
            await handle.stop(0)

    @promises("recover() answers NeverStarted of what never ran, and from then on it never will.")
    async def test_what_never_started_never_starts(self) -> None:
        async with self._yard() as yard:
            launch = yard.launch_of(Deed.FINE)
            never_made = yard.launch_of(Deed.FINE)
            shutil.rmtree(never_made.folder)
            for each, what in ((launch, "was not launched"), (never_made, "is not there")):
                found = await yard.runtime.recover(each.folder)
                must(found == NeverStarted(), f"recover() says {found} of a folder that {what}")
                each.folder.mkdir(parents=True, exist_ok=True)
                AttemptFiles(each.folder).prompt.write_text("late\n")
                for runtime in (yard.runtime, yard.other):
                    raised = await raised_by(lambda r=runtime, e=each: r.launch(e))  # type: ignore[misc]
                    must(isinstance(raised, CannotStart), f"a launch after recover() said NeverStarted: {raised!r}")
                again = await yard.other.recover(each.folder)
                must(again == NeverStarted(), f"recover() says {again} the second time")

    @promises("An attempt whose start was confirmed is never NeverStarted.")
    async def test_what_was_started_is_not_never_started(self) -> None:
        async with self._yard() as yard:
            launch = yard.launch_of(Deed.FINE)
            handle = await yard.launched(launch)
            identity = handle.identity
            await handle.wait()
            await handle.stop(0)
            for known in (identity, None):
                shutil.rmtree(launch.folder, ignore_errors=True)
                found = await yard.runtime.recover(launch.folder, known, started=True)
                must(not isinstance(found, NeverStarted), "a started attempt whose folder is gone is NeverStarted")

    @promises("With its folder removed, an agent is found, waited for and stopped all the same.")
    async def test_the_folder_is_removed(self) -> None:
        async with self._yard() as yard:
            launch = yard.launch_of(Deed.ENDLESS)
            handle = await yard.working(launch)
            shutil.rmtree(launch.folder)
            found = await yard.runtime.recover(launch.folder, handle.identity, started=True)
            must(isinstance(found, Alive), f"an agent whose folder is gone runs, and recover() says {found}")
            await handle.stop(GRACE_MS)
            await handle.wait()
            found = await yard.runtime.recover(launch.folder, handle.identity, started=True)
            must(isinstance(found, Ended), f"an agent whose folder is gone was stopped, and recover() says {found}")

    @promises("close() lets go, and the agent lives on; its output needs nobody here.")
    async def test_a_closed_handle_lets_the_agent_live(self) -> None:
        async with self._yard() as yard:
            launch = yard.launch_of(Deed.WAITING)
            handle = await yard.working(launch)
            handle.close()
            await trio.sleep(QUIET_SECONDS)
            found = await yard.runtime.recover(launch.folder)
            must(isinstance(found, Alive), f"its handle was closed, and recover() says {found} of the agent")
            (yard.cwd / "go").touch()
            ended: Recovery = await yard.until_async(lambda: yard.runtime.recover(launch.folder), Ended)
            must(ended == Ended(Ending(exit_status=7)), f"it ended with status 7, and recover() says {ended}")
            log = AttemptFiles(launch.folder).log.read_text()
            must(log == "working\n", f"it wrote 'working', and the log is {log!r}")

    # what cannot start

    @promises(
        "launch() raises CannotStart when there is nothing that could run, and then nothing runs or is left open."
    )
    async def test_what_cannot_start(self) -> None:
        async with self._yard() as yard:
            launch = yard.launch_of(Deed.FINE)
            broken = msgspec.structs.replace(launch, agent=self.agent_that_cannot_start())
            why = yard.runtime.check(broken.agent, broken.cwd)
            must(why and "no-such-thing" in why, f"check() says {why!r} of an agent that cannot be started")
            before = open_descriptors()
            raised = await raised_by(lambda: yard.runtime.launch(broken))
            must(isinstance(raised, CannotStart), f"the launch of what cannot start answered {raised!r}")
            must("no-such-thing" in str(raised), f"the reason does not name what is missing: {raised}")
            must(open_descriptors() == before, f"the failed launch left {open_descriptors() - before} descriptors open")
            must(
                yard.runtime.check(launch.agent, launch.cwd) is None, "check() has something against an agent that can"
            )
            handle = await yard.launched(launch)
            must((await handle.wait()).exit_status == 0, "after a launch that failed, a good one did not work")
            await handle.stop(0)

    @promises("A launch into a working folder or attempt folder that is not there is refused, and makes nothing.")
    async def test_missing_folders(self) -> None:
        async with self._yard() as yard:
            launch = yard.launch_of(Deed.FINE)
            homeless = msgspec.structs.replace(launch, cwd=self.folder / "nowhere")
            why = yard.runtime.check(homeless.agent, homeless.cwd)
            must(why and "nowhere" in why, f"check() says {why!r} of a working folder that is not there")
            raised = await raised_by(lambda: yard.runtime.launch(homeless))
            must(isinstance(raised, CannotStart), f"a launch without a working folder answered {raised!r}")
            lost = yard.launch_of(Deed.FINE)
            shutil.rmtree(lost.folder)
            raised = await raised_by(lambda: yard.runtime.launch(lost))
            must(isinstance(raised, CannotStart), f"a launch without an attempt folder answered {raised!r}")
            must(not lost.folder.exists(), "a launch into a folder that is not there made it")

    # what is left

    @promises("Nothing is left of an agent that ended: no descriptor, no zombie.")
    async def test_nothing_is_left(self) -> None:
        async with self._yard() as yard:

            async def once() -> None:
                handle = await yard.launched(yard.launch_of(Deed.FINE))
                await handle.wait()
                await handle.stop(1000)
                handle.close()

            await once()
            before = open_descriptors()
            for _ in range(5):
                await once()
            must(open_descriptors() == before, f"five agents left {open_descriptors() - before} descriptors open")
            must(not zombies(), f"these children have ended and nobody waited for them: {zombies()}")

    @asynccontextmanager
    async def _yard(self) -> AsyncIterator[Yard]:
        cancelled = False
        async with trio.open_nursery() as nursery:
            runtime, other = await self.make_runtime(nursery), await self.make_runtime(nursery)
            yard = Yard(self, runtime, other)
            try:
                yield yard
            except BaseException:
                cancelled = True
                raise
            finally:
                with trio.CancelScope(shield=True):
                    await yard.stop_all(quietly=cancelled)
                    for each in (runtime, other):
                        await self.close_runtime(each)
                nursery.cancel_scope.cancel()
