"""The part of the store's contract that is about one transaction: parts of it, quarantine, lists, news."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from random import SystemRandom
from typing import Any

import msgspec

from interlock.decide.outcome import Outcome, OutcomeKind
from interlock.domain.errors import Unavailable
from interlock.domain.run import AgentHealth, Event, Instance, Route, Run, Usage
from interlock.domain.settings import Agent, Limits, Settings
from interlock.domain.states import Note, Reason, StopKind
from interlock.domain.task import Task, TaskContext, UnreadableTask
from interlock.ports.store import Store, Tx, Undone
from interlock.service import claims, dispatching, operating, submitting, supervising
from interlock.service.context import Context
from interlock.service.reads import Filter
from interlock.testing.conformance import Conformance, promises, raised_by
from interlock.testing.promises import must

NOW = 1_700_000_000_000
OWNER = "host:1:a"
HOSTILE = (
    "",
    " ",
    'it\'s "quoted"\\',
    "nul\0inside",
    "\r\n\t\x1b[2J\x7f\x85\u2028",
    "\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe e\N{COMBINING ACUTE ACCENT} \U0001f9ea",
    "'; DROP TABLE runs; --",
    "x" * 5000,
)
SETTINGS = Settings(
    agents={"a": Agent(name="a", command="true")}, default_agent="a", limits=Limits(total=100, per_tag={"gpu": 1})
)


def context() -> Context:
    """What commands are given."""
    return Context(now_ms=NOW, rng=SystemRandom(), settings=SETTINGS)


def submitted(tx: Tx, *tasks: Task, batch: str | None = None) -> list[Run]:
    """New runs of these tasks."""
    done = submitting.submit(tx, context(), [submitting.Item(task=task, batch=batch) for task in tasks])
    return [made.run for made in done]


def claimed(tx: Tx, *tasks: Task) -> list[Run]:
    """Runs of these tasks, each under a local claim."""
    numbers = [run.number for run in submitted(tx, *tasks)]
    dispatching.dispatch(tx, context(), owner=OWNER, scope=None, bound=100)
    return [present(tx, number) for number in numbers]


def present(tx: Tx, number: int) -> Run:
    """A run that must be there."""
    run = tx.run(number)
    must(run is not None, f"run #{number} is not there")
    assert run is not None
    return run


class StoreTxConformance(Conformance):
    """Promises of :class:`interlock.ports.store.Tx`."""

    def opened(self, name: str = "data") -> AbstractAsyncContextManager[Store]:
        """The store of a folder of that name."""
        raise NotImplementedError

    # parts of a transaction

    @promises("Tx.apart: what is done in it is undone alone when it raises, as Undone with the cause; the rest stands.")
    async def test_a_part_is_undone_alone(self) -> None:
        mishap = ValueError("no")
        raised: list[object] = []

        def work(tx: Tx) -> None:
            tx.set_meta("before", "x")
            try:
                with tx.apart():
                    tx.set_meta("inside", "x")
                    tx.set_meta("before", "changed inside")
                    submitted(tx, Task(title="inside"))
                    raise mishap
            except Undone as undone:
                raised.append(undone.cause)
            with tx.apart():
                tx.set_meta("another", "x")
            tx.set_meta("after", "x")

        async with self.opened() as store:
            await store.write(work)
            must(raised[-1:] == [mishap], f"the part raised {mishap!r}, and Undone.cause is {raised[-1:]}")
            names = ("before", "inside", "another", "after")
            seen = await store.read(lambda tx: [tx.meta(name) for name in names])
            wanted = ["x", None, "x", "x"]
            must(seen == wanted, f"of {names} the store has {seen}, should be {wanted}")
            left = await store.read(lambda tx: tx.find_runs(Filter()))
            must(not left, f"the run that the undone part made is there: {[run.task.title for run in left]}")

    @promises("Tx.apart: parts can be undone one inside the other.")
    async def test_parts_inside_parts(self) -> None:
        def work(tx: Tx) -> None:
            with tx.apart():
                tx.set_meta("outer", "x")
                try:
                    with tx.apart():
                        tx.set_meta("inner", "x")
                        raise KeyError("inner")
                except Undone:
                    tx.set_meta("seen", "x")

        async with self.opened() as store:
            await store.write(work)
            seen = await store.read(lambda tx: [tx.meta(name) for name in ("outer", "inner", "seen")])
        must(seen == ["x", None, "x"], f"outer, inner and seen are {seen}, should be ['x', None, 'x']")

    @promises("Tx.apart: that the store cannot serve is no matter of one part, and is raised as it is.")
    async def test_no_service_is_no_matter_of_a_part(self) -> None:
        outage = Unavailable("the disk is full")

        def work(tx: Tx) -> None:
            with tx.apart():
                tx.set_meta("a", "x")
                raise outage

        async with self.opened() as store:
            raised = await raised_by(lambda: store.write(work))
            must(raised is outage, f"Unavailable came out of a part as {raised!r}")
            must(await store.read(lambda tx: tx.meta("a")) is None, "the write is there though it raised")

    # what stands apart

    @promises(
        "Tx.quarantine holds an unfinished run, takes it out of the reaper's sight until due_ms and answers its state; "
        "None when it is held already or gone."
    )
    async def test_quarantine(self) -> None:
        async with self.opened() as store:
            (queued,) = await store.write(lambda tx: submitted(tx, Task(title="queued", not_before_ms=NOW + 5)))
            (live,) = await store.write(lambda tx: claimed(tx, Task(title="live", timeout_ms=10)))
            (done,) = await store.write(lambda tx: claimed(tx, Task(title="done")))
            await store.write(lambda tx: _finished(tx, done))
            later = NOW + 60_000
            for run in (queued, live):
                answers = [
                    await store.write(lambda tx, n=run.number: tx.quarantine(n, later, "why"))  # type: ignore[misc]
                    for _ in range(2)
                ]
                must(answers == [run.state, None], f"quarantine of a {run.state} run, twice, answered {answers}")
                kept = await store.read(lambda tx, n=run.number: present(tx, n))  # type: ignore[misc]
                must(kept.held and not kept.ready, f"the {run.state} run is held={kept.held}, ready={kept.ready}")
            due = await store.read(lambda tx: tx.due(later - 1, 100))
            must(not due, f"before their time the reaper sees {due}")
            for number in (done.number, 10_000):
                answer = await store.write(lambda tx, n=number: tx.quarantine(n, later, "why"))  # type: ignore[misc]
                must(answer is None, f"quarantine of a run that has ended, or is not there, answered {answer}")

    @promises("A task that cannot be read is not written.")
    async def test_an_unreadable_task_is_not_written(self) -> None:
        async with self.opened() as store:
            (run,) = await store.write(lambda tx: submitted(tx, Task(title="as it was")))
            broken = msgspec.structs.replace(run, task=UnreadableTask(title="?", fault="noise"))
            raised = await raised_by(lambda: store.write(lambda tx: tx.save_run(run, broken)))
            must(raised is not None, "a run with an unreadable task was written")
            title = (await store.read(lambda tx: present(tx, run.number))).task.title
            must(title == "as it was", f"the task is {title!r} now")

    # values

    @promises("What is written is what is read: runs, attempts, events, and what stands beside them.")
    async def test_values_come_back_as_they_were(self) -> None:
        async with self.opened() as store:
            for words in HOSTILE:
                await store.write(lambda tx, w=words: tx.set_meta("words", w))  # type: ignore[misc]
                seen = await store.read(lambda tx: tx.meta("words"))
                must(seen == words, f"{words[:40]!r} came back as {seen!r}")
            for value, name, read in _beside_runs():
                await store.write(lambda tx, n=name, v=value: getattr(tx, n)(v))  # type: ignore[misc]
                found = await store.read(read)
                must(value in found, f"{value} was written by {name}, and this is there: {found}")
            task = _a_full_task()
            (run,) = await store.write(lambda tx: claimed(tx, task))
            kept = await store.read(lambda tx: present(tx, run.number))
            must(kept == run, f"a run came back as {kept}, was {run}")
            must(kept.task == task, f"a task came back as {kept.task}, was {task}")
            await store.write(lambda tx: _finished(tx, run))
            (attempt,) = await store.read(lambda tx: tx.attempts(run.number))
            wanted = ({"n": [1, None, "ü"]}, Usage(input_tokens=1, cost_usd=0.5), "it is done")
            got = (attempt.result, attempt.usage, attempt.message)
            must(got == wanted, f"an attempt's result, usage and message came back as {got}, were {wanted}")

    @promises("A run is found by number, id, prefix of its id, unique key and batch; and gone when it was deleted.")
    async def test_runs_are_found(self) -> None:
        async with self.opened() as store:
            one, two = await store.write(
                lambda tx: submitted(tx, Task(title="one", unique="u"), Task(title="two"), batch="B")
            )
            found = await store.read(
                lambda tx: [
                    tx.run_by_id(one.id),
                    *tx.runs_by_prefix(one.id[:8]),
                    tx.run_by_unique_key("u"),
                    *tx.batch_runs("B")[:1],
                ]
            )
            must(found == [one] * 4, f"#{one.number} by id, prefix, unique key and batch: {found}")
            await store.write(lambda tx: operating.cancel(tx, context(), present(tx, one.number)))
            must(
                await store.read(lambda tx: tx.run_by_unique_key("u")) is None, "an ended run still has its unique key"
            )
            await store.write(lambda tx: tx.delete_run(one.number))
            left = await store.read(lambda tx: (tx.run(one.number), tx.events_of(one.number), tx.batch_runs("B")))
            must(left == (None, [], [two]), f"after deleting #{one.number} this is left: {left}")

    # order

    @promises("Lists come in the order that their name implies.")
    async def test_lists_are_in_order(self) -> None:
        priorities = (0, 3, -1, 3, 7)
        async with self.opened() as store:
            tasks = [Task(title=str(index), priority=p, type=f"t{index}") for index, p in enumerate(priorities)]
            runs = await store.write(lambda tx: submitted(tx, *tasks, batch="B"))
            numbers = [run.number for run in runs]
            await self._in_order(store, "batch_runs", lambda tx: [run.number for run in tx.batch_runs("B")], numbers)
            newest = await store.read(lambda tx: [run.number for run in tx.find_runs(Filter())])
            must(newest == numbers[::-1], f"find_runs gives {newest}, the newest first is {numbers[::-1]}")
            wanted = sorted(numbers, key=lambda number: (-priorities[numbers.index(number)], number))
            await self._in_order(store, "lanes", lambda tx: [lane.head_number for lane in tx.lanes(100)], wanted)
            paged = await store.read(_by_pages)
            must(paged == wanted, f"lanes read by pages of two give {paged}, should be {wanted}")
            for number in (numbers[2], numbers[0]):
                due_ms = NOW + 100 - number
                await store.write(lambda tx, n=number, d=due_ms: _due_at(tx, n, d))  # type: ignore[misc]
            await self._in_order(store, "due", lambda tx: tx.due(NOW + 1000, 100), [numbers[2], numbers[0]])
            first = await store.read(lambda tx: tx.next_due_ms())
            must(first == NOW + 100 - numbers[2], f"the next is due at {first}")
            seqs = await store.read(lambda tx: [event.seq for event in tx.events_after(0, 1000)])
            must(seqs == sorted(set(seqs)), f"events come in the order {seqs}")

    @staticmethod
    async def _in_order(store: Store, name: str, read: Callable[[Tx], Sequence[int]], wanted: list[int]) -> None:
        seen = list(await store.read(read))
        must(seen == wanted, f"{name} gives {seen}, should be {wanted}")

    # slots

    @promises("Slots are counted as they are taken, and given back when a run leaves the states that hold them.")
    async def test_slots_are_given_back(self) -> None:
        async with self.opened() as store:
            one, _ = await store.write(lambda tx: claimed(tx, Task(title="one", tags=("gpu",)), Task(title="two")))
            keys = await store.read(lambda tx: tx.slots_of(one.number))
            must(keys == ["agent:a", "global", "tag:gpu"], f"a claimed run holds {keys}")
            await self._books(store, {"agent:a": 2, "global": 2, "tag:gpu": 1})
            await store.write(lambda tx: _finished(tx, one))
            await self._books(store, {"agent:a": 1, "global": 1})

    @staticmethod
    async def _books(store: Store, wanted: dict[str, int]) -> None:
        used, recount, faults = await store.read(lambda tx: (tx.used(), tx.recount(), tx.slot_faults()))
        must(used == wanted, f"in use are {used}, should be {wanted}")
        must(recount == wanted and not faults, f"a recount gives {recount}, with these faults: {faults}")

    # news

    @promises("changes() gives a hint after every commit that wrote an event, and its news leave nothing out.")
    async def test_news_leave_nothing_out(self) -> None:
        async with self.opened() as store:
            instance = Instance(id="i", host="h", pid=1, boot_id="b", ordinal=1, state="active")
            await store.write(lambda tx: tx.put_instance(instance))
            async with store.changes() as changes:
                (run,) = await store.write(lambda tx: submitted(tx, Task(title="ready")))
                news = await changes.wait()
                must(news.may_start, f"a run is ready, and the news are {news}")
                await store.write(lambda tx: submitted(tx, Task(title="later", not_before_ms=NOW + 5)))
                news = await changes.wait()
                must(news.due_ms is not None and news.due_ms <= NOW + 5, f"a deadline was set, and the news are {news}")
                await store.write(lambda tx: dispatching.dispatch(tx, context(), owner=OWNER, scope=None, bound=9))
                await changes.wait()
                await store.write(
                    lambda tx: supervising.request_stop(
                        tx, context(), present(tx, run.number), StopKind.CANCEL, reason="r", message="m", by="o"
                    )
                )
                news = await changes.wait()
                must(news.stops, f"an agent is to be stopped, and the news are {news}")
                await store.write(lambda tx: tx.set_instance_wanted("i", "drain"))
                news = await changes.wait()
                must(news.commands, f"a dispatcher is to end, and the news are {news}")
                await store.write(lambda tx: tx.add_event(_a_note(run)))
                await changes.wait()


def _finished(tx: Tx, run: Run) -> None:
    outcome = Outcome(
        kind=OutcomeKind.COMPLETED,
        reason=Reason.DONE,
        message="it is done",
        result={"n": [1, None, "ü"]},
        usage=Usage(input_tokens=1, cost_usd=0.5),
    )
    claims.finish(tx, context(), run.number, run.holder or "", run.fence, outcome)


def _by_pages(tx: Tx) -> list[int]:
    found: list[int] = []
    page = tx.lanes(2)
    while page:
        found += [lane.head_number for lane in page]
        page = tx.lanes(2, page[-1])
    return found


def _due_at(tx: Tx, number: int, due_ms: int) -> None:
    run = present(tx, number)
    tx.save_run(run, msgspec.structs.replace(run, ready=False, not_before_ms=due_ms, due_ms=due_ms))


def _a_note(run: Run) -> Event:
    state = str(run.state)
    return Event(seq=0, run=run.number, event=Note.NOTE, from_state=state, to_state=state, at_ms=NOW, by="o")


def _a_full_task() -> Task:
    return Task(
        title=HOSTILE[5],
        id="an id",
        content=HOSTILE[4],
        context=TaskContext(description=HOSTILE[3], files=("a b",), extra={"deep": [{"er": None}]}),
        priority=-5,
        tags=("gpu", "ü"),
        project=HOSTILE[2],
        tracker="t",
        role="r",
        timeout_ms=5000,
        metadata={"k": [1.5, True]},
    )


def _beside_runs() -> list[tuple[Any, str, Callable[[Tx], list[Any]]]]:
    """(value, what writes it, what reads all of its kind)."""
    return [
        (
            Route(
                workflow_type="t'", agent_id="a", priority=-1, max_concurrent=None, timeout_minutes=None, created_at=1
            ),
            "put_route",
            lambda tx: list(tx.routes().values()),
        ),
        (
            Instance(
                id="i'", host="h", pid=1, boot_id="b", ordinal=2, state="active", scope="B", total=3, note="n: \0"
            ),
            "put_instance",
            lambda tx: tx.instances(),
        ),
        (
            AgentHealth(agent="a'", reason=HOSTILE[4], since_ms=1, retry_ms=2, tries=3),
            "put_health",
            lambda tx: list(tx.healths().values()),
        ),
        (
            Agent(name="adhoc'", command=("sh", "-c", HOSTILE[4]), env={"A": "ü"}),
            "put_adhoc_agent",
            lambda tx: list(tx.adhoc_agents().values()),
        ),
    ]
