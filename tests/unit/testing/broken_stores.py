"""Stores that break one promise each, made of one that keeps them all."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import trio

from interlock.domain.errors import InterlockError
from interlock.domain.states import RunState
from interlock.ports.store import News, Undone
from interlock.store.sqlite import SqliteStore


class Whole:
    """Keeps every promise: the SQLite store without threads, behind a wrapper that can be bent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inner = SqliteStore(folder, create=True, inline=True, busy_ms=200)

    def tx(self, tx: Any) -> Any:
        """What work is given in place of ``tx``."""
        return tx

    async def write(self, work: Callable[[Any], Any], *, bulk: bool = False) -> Any:
        return await self.inner.write(lambda tx: work(self.tx(tx)))

    async def read(self, work: Callable[[Any], Any]) -> Any:
        return await self.inner.read(lambda tx: work(self.tx(tx)))

    def peek(self, work: Callable[[Any], Any]) -> Any:
        return self.inner.peek(lambda tx: work(self.tx(tx)))

    def changes(self) -> Any:
        return self.inner.changes()

    async def close(self) -> None:
        self.inner.close()


class Bent:
    """A transaction of which some methods are others."""

    def __init__(self, tx: Any, **methods: Callable[..., Any]) -> None:
        self._tx = tx
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return self._methods[name] if name in self._methods else getattr(self._tx, name)


class _Back(Exception):
    pass


class AnswersBeforeTheCommit(Whole):
    """What is written is committed with the next write."""

    pending: Callable[[Any], Any] | None = None

    async def write(self, work: Callable[[Any], Any], *, bulk: bool = False) -> Any:
        pending, self.pending = self.pending, None
        if pending is not None:
            await self.inner.write(pending)
        answers: list[Any] = []

        def probe(tx: Any) -> None:
            answers.append(work(tx))
            raise _Back

        try:
            await self.inner.write(probe)
        except _Back:
            self.pending = work
        return answers[0]

    async def close(self) -> None:
        if self.pending is not None:
            await self.inner.write(self.pending)
        self.inner.close()


class KeepsNothing(Whole):
    """Keeps its data anywhere but in its folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Path(mkdtemp(dir=folder)))


class TakesTurnsBadly(Whole):
    """Another writer gets in between reading and writing."""

    async def write(self, work: Callable[[Any], Any], *, bulk: bool = False) -> Any:
        late: list[tuple[str, str | None]] = []
        answer = await self.inner.read(
            lambda tx: work(Bent(tx, set_meta=lambda key, value: late.append((key, value)), hint=lambda: None))
        )
        await trio.sleep(0.001)
        await self.inner.write(lambda tx: [tx.set_meta(*one) for one in late])
        return answer


class UndoesNothing(Whole):
    """Commits what came before the error."""

    async def write(self, work: Callable[[Any], Any], *, bulk: bool = False) -> Any:
        errors: list[Exception] = []

        def kept(tx: Any) -> Any:
            try:
                return work(tx)
            except Exception as error:  # noqa: BLE001 - which is what is wrong with it
                errors.append(error)

        answer = await self.inner.write(kept)
        if errors:
            raise errors[0]
        return answer


class RaisesItsOwn(Whole):
    """Raises an error of its own in place of that of work."""

    async def write(self, work: Callable[[Any], Any], *, bulk: bool = False) -> Any:
        try:
            return await self.inner.write(work)
        except Exception as error:
            raise RuntimeError("the write failed") from error


class ScribblesOnRefusals(Whole):
    """What is refused leaves a mark."""

    async def write(self, work: Callable[[Any], Any], *, bulk: bool = False) -> Any:
        try:
            return await self.inner.write(work)
        except InterlockError:
            await self.inner.write(lambda tx: tx.set_meta("epoch", '["scribble", 1]'))
            raise


class DragsOthersAlong(Whole):
    """After a work that raised, the next one is undone as well."""

    spoiled: Exception | None = None

    async def write(self, work: Callable[[Any], Any], *, bulk: bool = False) -> Any:
        await trio.lowlevel.checkpoint()
        if self.spoiled is not None:
            error, self.spoiled = self.spoiled, None
            raise error
        try:
            return self.inner.write_now(work)
        except Exception as error:
            self.spoiled = error
            raise


class CommitsTwice(Whole):
    """Runs work again after a commit."""

    async def write(self, work: Callable[[Any], Any], *, bulk: bool = False) -> Any:
        await self.inner.write(work)
        return await self.inner.write(work)


class SeesEveryMoment(Whole):
    """A read has no snapshot."""

    async def read(self, work: Callable[[Any], Any]) -> Any:
        inner = self.inner
        return await inner.read(
            lambda tx: work(Bent(tx, meta=lambda key: SqliteStore.read_now(inner, lambda other: other.meta(key))))
        )


class WritesInReads(Whole):
    """A read may write."""

    async def read(self, work: Callable[[Any], Any]) -> Any:
        return await self.inner.write(work)


class WrapsWhatReadsRaise(Whole):
    """What a read raises comes as something else."""

    async def read(self, work: Callable[[Any], Any]) -> Any:
        try:
            return await self.inner.read(work)
        except Exception as error:
            raise RuntimeError("the read failed") from error


class PeeksAtThePast(Whole):
    """The first answer of a peek is the answer for ever."""

    seen: Any = None

    def peek(self, work: Callable[[Any], Any]) -> Any:
        self.seen = self.seen or super().peek(work)
        return self.seen


class SaysItsOwnTrouble(Whole):
    """The driver's own errors come through."""

    async def write(self, work: Callable[[Any], Any], *, bulk: bool = False) -> Any:
        try:
            return await self.inner.write(work)
        except Exception as error:
            if isinstance(error.__cause__, sqlite3.Error) or "busy" in str(error) or "locked" in str(error):
                raise OSError("database is locked") from error
            raise


class TellsNobody(Whole):
    """Nobody hears of a commit."""

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Any]:
        class Never:
            async def wait(self) -> News:
                await trio.sleep_forever()
                raise AssertionError

        yield Never()


class TellsOwnCommitsOnly(Whole):
    """A commit of another process is not heard."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.listening: set[Any] = set()

    async def write(self, work: Callable[[Any], Any], *, bulk: bool = False) -> Any:
        answer = await self.inner.write(work)
        for event in self.listening:
            event.set()
        return answer

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Any]:
        listening = self.listening

        class Own:
            def __init__(self) -> None:
                self.event = trio.Event()
                listening.add(self.event)

            async def wait(self) -> News:
                await self.event.wait()
                listening.discard(self.event)
                self.event = trio.Event()
                listening.add(self.event)
                return News(may_start=True, due_ms=0, stops=True, commands=True)

        yield Own()


class ForgetsWhatCameBefore(Whole):
    """Only a commit that comes during the wait is heard."""

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Any]:
        outer = self

        class Late:
            async def wait(self) -> News:
                async with outer.inner.changes() as changes:
                    return await changes.wait()

        yield Late()


class HasNoNews(Whole):
    """Hints come, and say nothing."""

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Any]:
        async with self.inner.changes() as changes:

            class Silent:
                async def wait(self) -> News:
                    await changes.wait()
                    return News()

            yield Silent()


class LosesSavepoints(Whole):
    """A part that raised is not undone."""

    def tx(self, tx: Any) -> Any:
        @contextmanager
        def apart() -> Iterator[None]:
            try:
                yield
            except Exception as error:
                raise Undone(error) from error

        return Bent(tx, apart=apart)


class UndoesTheRestToo(Whole):
    """Everything before a part is undone with it."""

    def tx(self, tx: Any) -> Any:
        @contextmanager
        def apart() -> Iterator[None]:
            try:
                yield
            except Exception as error:
                tx.set_meta("before", None)
                tx.set_meta("outer", None)
                raise Undone(error) from error

        return Bent(tx, apart=apart)


class SwallowsOutages(Whole):
    """That the store cannot serve is a matter of one part."""

    def tx(self, tx: Any) -> Any:
        @contextmanager
        def apart() -> Iterator[None]:
            try:
                with tx.apart():
                    yield
            except Undone:
                raise
            except Exception as error:
                raise Undone(error) from error

        return Bent(tx, apart=apart)


def bent(**methods: Callable[..., Any]) -> type[Whole]:
    """A store whose transactions have these methods; each is given the real transaction first."""

    class WithBentMethods(Whole):
        def tx(self, tx: Any) -> Any:
            def bound(method: Callable[..., Any]) -> Callable[..., Any]:
                return lambda *arguments, **named: method(tx, *arguments, **named)

            return Bent(tx, **{name: bound(method) for name, method in methods.items()})

    return WithBentMethods


def held_again(tx: Any, number: int, due_ms: int, message: str) -> RunState | None:
    """Quarantine that answers a state each time."""
    run = tx.run(number)
    tx.quarantine(number, due_ms, message)
    return None if run is None else RunState(run.state)


def not_held(tx: Any, number: int, due_ms: int, message: str) -> RunState | None:
    """Quarantine that does nothing but answer."""
    run = tx.run(number)
    return None if run is None or run.held else RunState(run.state)
