"""The contract of :mod:`interlock.ports.store` as a suite that any store can be held to."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import trio

from interlock.domain.errors import Unavailable
from interlock.ports.store import Store, Tx
from interlock.testing.beside.desk import StoreDesk, close_store
from interlock.testing.conformance import promises, raised_by, skip
from interlock.testing.promises import must
from interlock.testing.store_suite_tx import StoreTxConformance
from interlock.testing.walks import Walk

WALKS = 6
SHORT = 0.05
"""Seconds in which somebody else would get in between."""


class Mishap(Exception):
    """A fault in somebody's work."""


def put(key: str, value: str | None = "x") -> Callable[[Tx], str]:
    """Work that writes ``key`` and says so."""

    def work(tx: Tx) -> str:
        tx.set_meta(key, value)
        return key

    return work


def failing(key: str, error: Exception) -> Callable[[Tx], None]:
    """Work that writes ``key`` and raises."""

    def work(tx: Tx) -> None:
        tx.set_meta(key, "x")
        raise error

    return work


def get(key: str) -> Callable[[Tx], str | None]:
    """Work that reads ``key``."""
    return lambda tx: tx.meta(key)


class StoreConformance(StoreTxConformance):
    """Every promise of the port to durable state, as a test.

    ::

        class TestMyStore(StoreConformance):
            async def make_store(self, folder):
                return await MyStore.open(folder)

    :meth:`make_store` opens the store that is kept in ``folder``, new or not. Two that are open on one folder stand for two
    processes. Override :meth:`open_after_a_crash` when what is durable is not in the folder, and :meth:`out_of_service` to have it
    checked how the store behaves when it cannot serve.
    """

    async def make_store(self, folder: Path) -> Store:
        """Open the store that is kept in ``folder``, and make it when there is none. To be overridden."""
        raise NotImplementedError(f"{type(self).__name__}.make_store is to open your store; see its docs")

    async def close_store(self, store: Store) -> None:
        """Close a store. By default its ``close()``, async or not, if it has one."""
        await close_store(store)

    async def open_after_a_crash(self, folder: Path) -> Store:
        """The store as it would be after a crash of the whole process at this moment. By default a copy of the folder is opened."""
        copy = folder.with_name(f"{folder.name}-after-a-crash")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy, ignore=_sockets)
        return await self.make_store(copy)

    def out_of_service(self, store: Store, folder: Path) -> AbstractAsyncContextManager[None] | None:  # noqa: ARG002 - for those who override it
        """A context in which ``store`` cannot serve (busy, full, read-only). None: it is not checked."""
        return None

    @asynccontextmanager
    async def opened(self, name: str = "data") -> AsyncIterator[Store]:
        """The store of a folder of that name."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        store = await self.make_store(folder)
        try:
            yield store
        finally:
            with trio.CancelScope(shield=True):
                await self.close_store(store)

    # writing

    @promises("write(work) returns what work returned, and another process sees what it wrote.")
    async def test_an_answered_write_is_there_for_all(self) -> None:
        async with self.opened() as store, self.opened() as other:
            for index in range(10):
                answer = await store.write(put(f"k{index}", str(index)))
                must(answer == f"k{index}", f"work returned 'k{index}' and write answered {answer!r}")
                seen = await other.read(get(f"k{index}"))
                must(seen == str(index), f"after the answer another store on the same folder reads {seen!r}")

    @promises("write(work) returns after the commit is on disk.")
    async def test_an_answered_write_survives_a_crash(self) -> None:
        async with self.opened() as store:
            for index in range(3):
                await store.write(put(f"k{index}"))
                again = await self.open_after_a_crash(self.folder / "data")
                try:
                    seen = await again.read(get(f"k{index}"))
                finally:
                    await self.close_store(again)
                must(seen == "x", f"of write {index}, which was answered, a crash right afterwards leaves nothing")

    @promises("Everything that was answered is there when the store is opened again.")
    async def test_a_closed_store_has_kept_everything(self) -> None:
        async with self.opened() as store:
            for index in range(20):
                await store.write(put(f"k{index}"))
        async with self.opened() as store:
            kept = await store.read(lambda tx: [index for index in range(20) if tx.meta(f"k{index}") == "x"])
        must(kept == list(range(20)), f"of 20 writes these are left: {kept}")

    @promises("write(work) runs work alone: no other writer, of this process or another, changes anything under it.")
    async def test_no_write_is_lost_between_writers(self) -> None:
        def one_more(tx: Tx) -> None:
            before = int(tx.meta("count") or 0)
            time.sleep(0)  # let another writer in, if it can
            tx.set_meta("count", str(before + 1))

        async def some(store: Store) -> None:
            for _ in range(10):
                await store.write(one_more)

        async with self.opened() as store, self.opened() as other:
            async with trio.open_nursery() as nursery:
                for each in (store, other, store, other):
                    nursery.start_soon(some, each)
            counted = await store.read(get("count"))
        must(counted == "40", f"40 increments by four writers of two stores came to {counted}")

    @promises("What work raises undoes all that it did, and is raised to the caller.")
    async def test_a_work_that_raises_is_undone(self) -> None:
        mishap = Mishap("no")

        def work(tx: Tx) -> None:
            tx.set_meta("a", "x")
            tx.hint()
            tx.set_meta("kept", "changed")
            raise mishap

        async with self.opened() as store:
            await store.write(put("kept", "as it was"))
            raised = await raised_by(lambda: store.write(work))
            must(raised is mishap, f"work raised {mishap!r}, the caller got {raised!r}")
            seen = await store.read(lambda tx: (tx.meta("a"), tx.meta("kept")))
            must(seen == (None, "as it was"), f"after the undoing these are {seen}")
            await store.write(put("next"))
            must(await store.read(get("next")) == "x", "the write after one that raised is not there")

    @promises("The work of others that shared a commit with one that raises is not touched.")
    async def test_one_that_raises_leaves_others_alone(self) -> None:
        outcomes: dict[int, object] = {}

        async def one(store: Store, index: int) -> None:
            mishap = Mishap(str(index))
            work: Callable[[Tx], object] = failing(f"k{index}", mishap) if index % 3 == 1 else put(f"k{index}")
            try:
                outcomes[index] = await store.write(work)
            except Mishap as error:
                outcomes[index] = error is mishap

        def slow(_: Tx) -> None:
            # The others wait behind it, so that a store with group commit takes them together.
            time.sleep(SHORT)

        async def first(store: Store) -> None:
            try:
                await store.write(slow)
            except Mishap as error:
                outcomes[-1] = error

        async with self.opened() as store:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first, store)
                for index in range(30):
                    nursery.start_soon(one, store, index)
            there = await store.read(lambda tx: [index for index in range(30) if tx.meta(f"k{index}")])
        wanted = [index for index in range(30) if index % 3 != 1]
        must(there == wanted, f"of 30 writes, every third of which raised, {there} are there; should be {wanted}")
        others = [index for index in wanted if outcomes[index] != f"k{index}"]
        must(not others, f"these did not get their own answer: {others}")
        must(-1 not in outcomes, f"one that raised nothing got the error of another: {outcomes.get(-1)!r}")
        own = [index for index in range(30) if index % 3 == 1 and outcomes[index] is not True]
        must(not own, f"these did not get the error that they raised: {own}")

    @promises("work may run more than once, and is committed once.")
    async def test_a_work_is_committed_once(self) -> None:
        def add_line(tx: Tx) -> None:
            tx.set_meta("lines", (tx.meta("lines") or "") + "x")

        async with self.opened() as store:
            async with trio.open_nursery() as nursery:
                for index in range(12):
                    nursery.start_soon(store.write, add_line)
                    nursery.start_soon(raised_by, lambda i=index: store.write(failing(f"k{i}", Mishap())))
            lines = await store.read(get("lines"))
        must(lines == "x" * 12, f"12 writes that add one character each left {lines!r}")

    # reading

    @promises("read(work) runs work on one snapshot.")
    async def test_a_read_sees_one_moment(self) -> None:
        written = threading.Event()

        async def write_meanwhile() -> None:
            async with self.opened() as other:
                await other.write(put("a", "2"))
            written.set()

        def look_twice(tx: Tx) -> tuple[str | None, str | None]:
            first = tx.meta("a")
            writer = threading.Thread(target=trio.run, args=(write_meanwhile,), daemon=True)
            writer.start()
            # A store whose readers keep writers out is as good: then nothing comes in between.
            writer.join(5)
            return first, tx.meta("a")

        async with self.opened() as store:
            await store.write(put("a", "1"))
            seen = await store.read(look_twice)
            must(seen == ("1", "1"), f"one read saw {seen[0]!r} and then {seen[1]!r}")
            await trio.to_thread.run_sync(written.wait)
            after = await store.read(get("a"))
            must(after == "2", f"a read after the other writer's commit sees {after!r}")

    @promises("Writing in read(work) is an error.")
    async def test_writing_in_a_read_is_refused(self) -> None:
        async with self.opened() as store:
            raised = await raised_by(lambda: store.read(put("a")))
            must(raised is not None, "a read that wrote was not refused")
            must(await store.read(get("a")) is None, "what a read wrote is there")

    @promises("What a read's work returns or raises comes to the caller as it is.")
    async def test_a_read_answers_what_its_work_returns_or_raises(self) -> None:
        mishap = Mishap("no")

        def fail(_: Tx) -> None:
            raise mishap

        async with self.opened() as store:
            must(await store.read(lambda _: 42) == 42, "a read that returns 42 answers something else")
            raised = await raised_by(lambda: store.read(fail))
            must(raised is mishap, f"a read's work raised {mishap!r}, the caller got {raised!r}")
            must(await store.read(lambda _: 43) == 43, "after a read that raised the next one does not work")

    @promises("peek(work) answers at once, and sees what is committed.")
    async def test_a_peek_sees_what_is_committed(self) -> None:
        async with self.opened() as store:
            for value in ("1", "2"):
                await store.write(put("a", value))
                seen = store.peek(get("a"))
                must(seen == value, f"{value!r} is committed, and a peek sees {seen!r}")

    # trouble

    @promises(
        "A store that cannot serve raises Unavailable; nothing of that write is kept, and it serves again afterwards."
    )
    async def test_out_of_service_is_unavailable(self) -> None:
        async with self.opened() as store:
            await store.write(put("before"))
            outage = self.out_of_service(store, self.folder / "data")
            if outage is None:
                raise skip("out_of_service() is not overridden")
            async with outage:
                raised = await raised_by(lambda: store.write(put("during")))
                must(isinstance(raised, Unavailable), f"a write to a store that cannot serve raised {raised!r}")
            seen = await store.read(lambda tx: (tx.meta("before"), tx.meta("during")))
            must(seen == ("x", None), f"afterwards the writes before and during are {seen}")
            await store.write(put("after"))
            must(await store.read(get("after")) == "x", "it does not serve again after the outage")

    # who hears of a commit

    @promises("changes() gives a hint after every commit that called Tx.hint, to everybody who listens.")
    async def test_a_hint_is_heard(self) -> None:
        async with self.opened() as store, store.changes() as one, store.changes() as another:
            for _ in range(3):
                await store.write(lambda tx: tx.hint())
                news = await one.wait()
                must(news.may_start, f"after a hint something may start, and the news are {news}")
                await another.wait()

    @promises("changes() gives a hint after commits of another process too.")
    async def test_another_process_is_heard(self) -> None:
        async with self.opened() as store, self.opened() as other, store.changes() as changes:
            for _ in range(3):
                await other.write(lambda tx: tx.hint())
                await changes.wait()

    @promises("A commit that came while nobody waited, but listened, is heard at the next wait.")
    async def test_a_commit_before_the_wait_is_not_missed(self) -> None:
        async with self.opened() as store, store.changes() as changes:
            for index in range(5):
                await store.write(put(f"k{index}"))
                await store.write(lambda tx: tx.hint())
            await changes.wait()
            must(await store.read(get("k4")) == "x", "a hint came before its commit could be read")

    # all of it together

    @promises("The service, on this store, does what the model of it does, whatever the order of commands.")
    async def test_the_service_does_on_it_what_its_model_does(self) -> None:
        def walk_some() -> None:
            walk = Walk(desk=lambda: StoreDesk(self._make, trio.from_thread.run, self.folder), count=40)
            for seed in range(WALKS):
                walk.take(seed)

        with trio.CancelScope(deadline=trio.current_time() + self.patience_seconds):
            await trio.to_thread.run_sync(walk_some)

    async def _make(self, folder: Path) -> Store:
        return await self.make_store(folder)


def _sockets(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if (Path(folder) / name).is_socket()}
