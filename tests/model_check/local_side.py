"""What a dispatcher does with a run whose agent is local, and what the agent's process does by itself.

The steps are those of :mod:`interlock.actors` and :mod:`interlock.runtimes`: each is what cannot be cut in two by a kill.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from commands import DONE, ENDINGS, Answer, Commands, outcome_of_end
from record import Owner, Who
from setting import Rule, Setting
from world import ALIVE, Actor, Around, At, Fault, Files, Proc, Saw, Shared, Step, Up

from interlock.decide.outcome import Outcome, OutcomeKind
from interlock.domain.settings import Mode
from interlock.domain.states import RunState, StopKind

OWN_WORDS = frozenset({OutcomeKind.COMPLETED, OutcomeKind.DEFERRED, OutcomeKind.BLOCKED, OutcomeKind.FAILED})


class LocalSide:
    """The steps of dispatchers and processes."""

    def __init__(self, setting: Setting, commands: Commands) -> None:
        self.setting = setting
        self.commands = commands
        self.outcomes: list[Outcome] = []

    def _outcome(self, outcome: Outcome) -> int:
        if outcome not in self.outcomes:
            self.outcomes.append(outcome)
        return self.outcomes.index(outcome)

    # processes

    def process_steps(self, around: Around) -> Iterator[Step]:
        """Wrappers and agents, whatever becomes of dispatchers."""
        for fence, files in enumerate(around.files, 1):
            if files is None or files.proc not in ALIVE:
                continue
            name = f"attempt {fence}"
            if files.proc == Proc.CHILD:
                if files.void and self.setting.on(Rule.VOID):
                    yield Step(f"{name}: the child sees the void mark", _file(around, fence, files, proc=Proc.GONE))
                elif self.setting.on(Rule.LOCK):
                    yield Step(f"{name}: the agent runs", _file(around, fence, files, proc=Proc.AGENT))
                else:
                    yield Step(f"{name}: the child sees no void mark", _file(around, fence, files, proc=Proc.PASSED))
            elif files.proc == Proc.PASSED:
                yield Step(f"{name}: the agent runs", _file(around, fence, files, proc=Proc.AGENT))
            else:
                early = around.record.stop is None
                for word in self.setting.words:
                    ended = _file(around, fence, files, proc=Proc.GONE, word=word, early=early)
                    yield Step(f"{name}: the agent ends: {word}", ended)
            if self.setting.vanishes:
                gone = _file(around, fence, files, proc=Proc.GONE)
                yield Step(f"{name}: its tree is killed from outside", gone, fair=False)

    # dispatchers

    def dispatcher_steps(self, around: Around, d: int, shared: Shared, *, room: bool) -> Iterator[Step]:
        """What dispatcher ``d``, which is up, may do next."""
        if around.record.fence < self.setting.fences:
            yield from self._dispatch(around, d, shared.paused, room=room)
        yield from self._take_up(around, d, shared)
        for actor in around.actors[d]:
            rest = tuple(other for other in around.actors[d] if other is not actor)
            for label, after, become, fault in self._act(around, actor, d, paused=shared.paused):
                to = _with_actors(after, d, rest if become is None else (*rest, become))
                yield Step(f"d{d}: {label}", to, fault)

    def _dispatch(self, around: Around, d: int, paused: bool, *, room: bool) -> Iterator[Step]:
        record = around.record
        if record.state not in (RunState.QUEUED, RunState.DISPATCHED):
            return
        modes = [Mode.PUSH] * self.setting.local + [Mode.PULL] * bool(self.setting.remote)
        for mode in modes:
            answer = self.commands.dispatch(record, d, mode, room=room, paused=paused)
            if answer.record == record and answer.said == DONE:
                continue
            label = "claims and commits" if answer.record.live else f"{' and '.join(answer.wrote)}"
            yield Step(f"d{d}: {label}", self._claimed(around, answer, d), broken(answer))

    def _claimed(self, around: Around, answer: Answer, d: int) -> Around:
        record = answer.record
        to = around._replace(record=record)
        if record.fence == around.record.fence:
            return to
        last = around.files[record.fence - 2] if record.fence > 1 else None
        files = Files()
        if not self.setting.on(Rule.FOLDER) and last is not None and record.failures + record.losts == 0:
            # Attempts numbered by what they cost: one that cost nothing leaves its number, and its folder, to the next.
            files = last._replace(proc=Proc.NEVER)
        actor = Actor(At.PREPARING, record.fence, child=True)
        return _with_actors(_put(to, record.fence, files), d, (*to.actors[d], actor))

    def _take_up(self, around: Around, d: int, shared: Shared) -> Iterator[Step]:
        record = around.record
        if not record.live or record.remote:
            return
        if any(actor.fence == record.fence for actor in around.actors[d]):
            return
        if record.owner == d:
            actor = Actor(At.RECOVERING, record.fence)
            yield Step(f"d{d}: takes up a claim of its own", _with_actors(around, d, (*around.actors[d], actor)))
            return
        lost_lock = self.setting.takeover and record.owner != Owner.GONE
        if lost_lock and shared.dispatchers[record.owner] is not Up.STOPPED:
            return
        if not self.setting.on(Rule.DEATH):
            answer = self.commands.forget(record)
            yield Step(f"d{d}: releases a dead dispatcher's run", around._replace(record=answer.record))
        elif record.owner == Owner.GONE and not self.setting.takeover:
            yield self._adopt(around, d, Owner.GONE)
        elif record.owner == Owner.GONE or lost_lock:
            actor = Actor(At.ADOPTING, record.fence, word=record.owner)
            yield Step(f"d{d}: sees that the owner is gone", _with_actors(around, d, (*around.actors[d], actor)))

    def _adopt(self, around: Around, d: int, old: int) -> Step:
        answer = self.commands.adopt(around.record, old, d)
        to = around._replace(record=answer.record)
        if answer.record == around.record:
            return Step(f"d{d}: comes too late to take over", to)
        actor = Actor(At.RECOVERING, answer.record.fence)
        fault = broken(answer)
        if around.record.owner != old:
            fault = Fault.TWO_OWNERS
        return Step(f"d{d}: takes over", _with_actors(to, d, (*to.actors[d], actor)), fault)

    # the actor of a run

    def _act(
        self, around: Around, actor: Actor, d: int, *, paused: bool
    ) -> Iterator[tuple[str, Around, Actor | None, str | None]]:
        fence = actor.fence
        files = around.files[fence - 1] or Files()
        match actor.at:
            case At.ADOPTING:
                rest = tuple(other for other in around.actors[d] if other is not actor)
                step = self._adopt(_with_actors(around, d, rest), d, actor.word)
                taken = next((new for new in step.to.actors[d] if new not in rest), None)
                yield step.label.partition(": ")[2], step.to, taken, step.fault
            case At.PREPARING:
                void = files.void and self.setting.on(Rule.VOID)
                if void or files.proc != Proc.NEVER or files.word or self._locked(around, fence):
                    yield "must not launch", around, self._record(actor, ENDINGS["cannot start"]), None
                else:
                    yield "takes the lock", around, actor._replace(at=At.LOCKED), None
            case At.LOCKED:
                to = _file(around, fence, files, proc=Proc.CHILD)
                yield f"forks the child of attempt {fence}", to, actor._replace(at=At.WATCHING), None
                if self.setting.cannot_start:
                    yield "cannot start the command", around, self._record(actor, ENDINGS["cannot start"]), None
            case At.WATCHING:
                yield from self._watch(around, actor, files)
            case At.STOPPING:
                yield from self._stop(around, actor, files)
            case At.SAW_END:
                yield "decides the outcome", around, self._conclude(around, actor, files), None
            case At.RECOVERING:
                yield from self._recover(around, actor, files)
            case At.RECORDING:
                yield self._finish(around, actor, files, paused=paused)

    def _locked(self, around: Around, fence: int) -> bool:
        """Whether the lock of an attempt's folder is held: by a launcher or by the tree."""
        files = around.files[fence - 1] or Files()
        if files.proc == Proc.AGENT or (files.proc in ALIVE and self.setting.on(Rule.LOCK)):
            return True
        return any(other.at == At.LOCKED and other.fence == fence for of_one in around.actors for other in of_one)

    def _watch(
        self, around: Around, actor: Actor, files: Files
    ) -> Iterator[tuple[str, Around, Actor | None, str | None]]:
        record, fence = around.record, actor.fence
        if record.held_by(Who.LOCAL, fence) and record.state is RunState.CLAIMED:
            answer = self.commands.start(record, Who.LOCAL, fence)
            fault = broken(answer) or (None if answer.said == DONE else Fault.REFUSED)
            yield "confirms the start", around._replace(record=answer.record), actor, fault
        told = record.stop is not None if record.held_by(Who.LOCAL, fence) else not self.setting.on(Rule.STOP_INTENT)
        if told:
            yield "hears of the stop", around, actor._replace(at=At.STOPPING), None
        ended = actor._replace(at=At.SAW_END, saw=Saw.END_FIRST if _stop(around, fence) is None else Saw.STOP_FIRST)
        if files.proc == Proc.GONE:
            yield "sees the end", around, ended, None
        elif files.proc == Proc.NEVER and not self._locked(around, fence):
            yield "finds the lock free and voids it", self._void(around, fence, files), ended, None

    def _stop(
        self, around: Around, actor: Actor, files: Files
    ) -> Iterator[tuple[str, Around, Actor | None, str | None]]:
        fence = actor.fence
        if files.proc == Proc.AGENT or (files.proc in ALIVE and actor.child):
            yield "kills the tree", _file(around, fence, files, proc=Proc.GONE), actor, None
        elif self._locked(around, fence):
            if not files.void:
                yield "voids what it cannot see yet", self._void(around, fence, files), actor, None
        else:
            after = self._void(around, fence, files) if files.proc == Proc.NEVER else around
            yield "the tree is gone; decides the outcome", after, self._conclude(around, actor, files), None

    def _recover(
        self, around: Around, actor: Actor, files: Files
    ) -> Iterator[tuple[str, Around, Actor | None, str | None]]:
        fence = actor.fence
        if self._locked(around, fence):
            yield "finds the lock held: alive", around, actor._replace(at=At.WATCHING), None
            return
        after = self._void(around, fence, files)
        confirmed = around.record.fence == fence and around.record.state is RunState.RUNNING
        if files.proc == Proc.GONE or files.word or confirmed:
            yield "finds that it has ended", after, self._conclude(around, actor, files), None
            return
        stop = _stop(around, fence)
        outcome = ENDINGS["not started"] if stop is None else outcome_of_end("", stop)
        yield "finds that it never started", after, self._record(actor, outcome), None

    def _void(self, around: Around, fence: int, files: Files) -> Around:
        return _file(around, fence, files, void=True) if self.setting.on(Rule.VOID) else around

    def _conclude(self, around: Around, actor: Actor, files: Files) -> Actor:
        stop = _stop(around, actor.fence)
        if stop is not None and self.setting.on(Rule.ENDED_FIRST):
            early = files.early and bool(files.word)
            before = early if actor.saw == Saw.NOTHING else actor.saw == Saw.END_FIRST
            by_itself = outcome_of_end(files.word, None)
            if before and by_itself.kind is OutcomeKind.COMPLETED:
                return self._record(actor, by_itself)
        return self._record(actor, outcome_of_end(files.word, stop))

    def _record(self, actor: Actor, outcome: Outcome) -> Actor:
        return actor._replace(at=At.RECORDING, word=self._outcome(outcome))

    def _finish(
        self, around: Around, actor: Actor, files: Files, *, paused: bool
    ) -> tuple[str, Around, Actor | None, str | None]:
        record, fence = around.record, actor.fence
        outcome = self.outcomes[actor.word]
        answer = self.commands.finish(record, Who.LOCAL, fence, outcome, paused=paused)
        fault = fault_of_write(around, answer, live=record.held_by(Who.LOCAL, fence))
        if fault is None and answer.record != record:
            ran = files.proc == Proc.GONE and bool(files.word)
            if outcome.kind in OWN_WORDS and not ran:
                fault = Fault.NOT_ITS_END
            elif actor.saw == Saw.END_FIRST and files.word == "done" and answer.record.state is not RunState.COMPLETED:
                fault = Fault.DONE_LOST
        label = f"records {outcome.kind}: {' and '.join(answer.wrote) or 'nothing, its claim is over'}"
        return label, around._replace(record=answer.record), None, fault


def _stop(around: Around, fence: int) -> StopKind | None:
    return around.record.stop if around.record.fence == fence else None


def _put(around: Around, fence: int, files: Files) -> Around:
    return around._replace(files=(*around.files[: fence - 1], files, *around.files[fence:]))


def _file(around: Around, fence: int, files: Files, **changes: Any) -> Around:
    return _put(around, fence, files._replace(**changes))


def _with_actors(around: Around, d: int, actors: tuple[Actor, ...]) -> Around:
    return around._replace(actors=(*around.actors[:d], tuple(sorted(actors)), *around.actors[d + 1 :]))


def broken(answer: Answer) -> str | None:
    """A fault when only the triggers stopped a command."""
    return Fault.DATABASE if answer.said.startswith("broken") else None


def fault_of_write(around: Around, answer: Answer, *, live: bool) -> str | None:
    """What is wrong with the answer to a holder's ending write."""
    if (fault := broken(answer)) is not None:
        return fault
    if not live:
        return Fault.STALE if answer.record != around.record else None
    if answer.said != DONE:
        return Fault.REFUSED
    if around.wish and not answer.record.live and not answer.record.terminal:
        return Fault.WISH_LOST
    return None


def killed(around: Around, d: int) -> Around:
    """Dispatcher ``d`` was killed: its actors are gone, its locks are free, its name is never used again."""
    record = around.record
    owner = Owner.GONE if record.owner == d else record.owner
    pending = "" if around.pending == f"reap{d}" else around.pending
    actors = tuple(() if one == d else of_one for one, of_one in enumerate(around.actors))
    # Who is about to take over from it goes by its name, which now means an instance that is gone.
    actors = tuple(tuple(sorted(_renamed(actor, d) for actor in of_one)) for of_one in actors)
    return around._replace(record=record._replace(owner=owner), actors=actors, pending=pending)


def _renamed(actor: Actor, d: int) -> Actor:
    return actor._replace(word=Owner.GONE) if actor.at == At.ADOPTING and actor.word == d else actor
