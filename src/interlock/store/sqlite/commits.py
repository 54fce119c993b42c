"""Group commit: whoever writes waits together, and is answered once it is on disk.

The statements of a group run on the loop of the tasks that wait for it; only the commit, which waits for the disk, is done on
a thread beside it. A thread for both would have to fight the loop for the interpreter at every single statement. What takes
long (``bulk``), what finds another process writing, and what comes from a second loop runs on the thread altogether.
While a group is under way, the next one gathers.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import outcome
import trio

from interlock.domain.errors import Unavailable
from interlock.store.sqlite.transaction import SqliteTx
from interlock.store.sqlite.writer import Results, Writer

GROUP_LIMIT = 256


class Piece:
    """A piece of work on its way, and the task that waits for its result."""

    __slots__ = ("bulk", "result", "task", "token", "work")

    def __init__(
        self,
        work: Callable[[SqliteTx], Any],
        task: trio.lowlevel.Task,
        token: trio.lowlevel.TrioToken,
        *,
        bulk: bool = False,
    ) -> None:
        self.work = work
        self.task = task
        self.token = token
        self.bulk = bulk
        self.result: outcome.Outcome[Any] = outcome.Error(Unavailable("the writer never got to it"))


def _deliver(pieces: list[Piece]) -> None:
    for piece in pieces:
        trio.lowlevel.reschedule(piece.task, piece.result)


class Commits:
    """The way of all pieces of work through one :class:`Writer`. ``announce`` is called after every commit, before its answers."""

    def __init__(self, writer: Writer, announce: Callable[[], None]) -> None:
        self._writer = writer
        self._announce = announce
        self._lock = threading.Lock()
        # Held from the first statement of a group to its answers; taken on the loop, at times let go on the thread.
        self._in_use = threading.Lock()
        self._closed = False
        self._waiting: deque[Piece] = deque()
        self._under_way = False
        self._group: list[Piece] = []
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="interlock-writer", daemon=True)
        self._thread.start()

    def post(self, piece: Piece) -> None:
        """Take a piece on: its task is rescheduled with the result. Raises :class:`Unavailable` once it is closed."""
        with self._lock:
            if self._closed:
                raise Unavailable("the store is closed", hint="open it again")
            self._waiting.append(piece)
            if self._under_way:
                return
            self._under_way = True
        self._next_turn(piece)

    def close(self) -> None:
        """Finish what was taken on; the thread ends. From any thread, also that of the loop."""
        with self._lock:
            self._closed = True
        with self._in_use:
            while self._take(on_loop=False):
                self._conclude(self._all_at_once())
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _next_turn(self, first: Piece) -> None:
        """Begin a turn where ``first`` wants it: behind whatever its loop does now, or on the thread."""
        if not first.bulk:
            try:
                first.token.run_sync_soon(self._turn_on_loop, first.token)
            except trio.RunFinishedError:
                pass
            else:
                return
        self._jobs.put(self._turn_on_thread)

    def _take(self, *, on_loop: bool, token: trio.lowlevel.TrioToken | None = None) -> bool:
        """The next group: all that waits, up to a bound; on a loop what comes from it, up to the first that is not for it."""
        group: list[Piece] = []
        with self._lock:
            while self._waiting and len(group) < GROUP_LIMIT:
                first = self._waiting[0]
                if on_loop and (first.bulk or first.token is not token):
                    break
                group.append(self._waiting.popleft())
        self._group = group
        return bool(group)

    def _turn_on_loop(self, token: trio.lowlevel.TrioToken) -> None:
        if not self._enter():
            return
        if not self._take(on_loop=True, token=token):
            self._in_use.release()
            self._jobs.put(self._turn_on_thread)
            return
        try:
            results = self._writer.begin([piece.work for piece in self._group], patient=False)
        except BlockingIOError:
            self._jobs.put(lambda: self._end_turn(self._all_at_once()))
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it; the writer goes on
            self._end_turn(self._failed(error), token)
        else:
            if results is None:
                self._jobs.put(lambda: self._end_turn(self._finish()))
            else:
                self._end_turn(results, token)

    def _turn_on_thread(self) -> None:
        if self._enter():
            self._end_turn(self._all_at_once() if self._take(on_loop=False) else [])

    def _enter(self) -> bool:
        """Begin to use the writer. False once it is closed: who closes it does what is left."""
        self._in_use.acquire()
        if self._closed:
            self._in_use.release()
            return False
        return True

    def _finish(self) -> Results:
        try:
            return self._writer.finish()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it; the writer goes on
            return self._failed(error)

    def _all_at_once(self) -> Results:
        try:
            return self._writer.group([piece.work for piece in self._group])
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it; the writer goes on
            return self._failed(error)

    def _failed(self, error: BaseException) -> Results:
        return [outcome.Error(error) for _ in self._group]

    def _end_turn(self, results: Results, here: trio.lowlevel.TrioToken | None = None) -> None:
        """Answer, and begin the next turn if somebody waits. ``here``: the loop that this runs on, if it is one."""
        self._conclude(results, here)
        self._in_use.release()
        with self._lock:
            if not self._waiting or self._closed:
                self._under_way = False
                return
            first = self._waiting[0]
        self._next_turn(first)

    def _conclude(self, results: Results, here: trio.lowlevel.TrioToken | None = None) -> None:
        for piece, result in zip(self._group, results, strict=True):
            piece.result = result
        self._announce()
        self._answer(here)

    def _answer(self, here: trio.lowlevel.TrioToken | None) -> None:
        group, self._group = self._group, []
        by_loop: dict[trio.lowlevel.TrioToken, list[Piece]] = {}
        for piece in group:
            by_loop.setdefault(piece.token, []).append(piece)
        for token, pieces in by_loop.items():
            if token is here:
                _deliver(pieces)
                continue
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(_deliver, pieces)
