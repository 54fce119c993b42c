"""All steps of one run, given the shared part: dispatchers, processes, agents from outside, time, operators."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import cached_property, partial

from commands import DONE, ENDINGS, STALE, Answer, Commands
from local_side import LocalSide, broken, killed
from record import Age, Owner, Record, Request, Who
from remote_side import RemoteSide, requests_aged
from setting import CANCEL, CLOSE, HOLD, INTERRUPT, Rule, Setting
from world import (
    ALIVE,
    Actor,
    Agent,
    Around,
    At,
    Fault,
    Phase,
    Shared,
    Step,
    Up,
    folder_is_kept,
    with_agents_in_order,
)

from interlock.domain.states import RunState

_INERT = (Request.OLD_OFFER, Request.SPENT_BEFORE)


class RunModel:
    """The steps of a run in a setting."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.commands = Commands(setting)
        self.local = LocalSide(setting, self.commands)
        self.remote = RemoteSide(setting, self.commands)
        self._over: dict[tuple[Record, int, int], bool] = {}
        self.renames = True
        """Whether the two agents from outside may exchange their names, which makes half as many states."""

    def parts(self, shared: Shared, *, room: bool) -> list[tuple[Hashable, Callable[[Around], Iterator[Step]]]]:
        """Everything that may happen next to a run, in parts, each under a name that says what else it depends on.

        ``room``: other runs leave a slot free. Two calls that give a part the same name give the same part.
        """
        paused = shared.paused
        parts: list[tuple[Hashable, Callable[[Around], Iterator[Step]]]] = [
            (("free", paused), partial(self._free, paused=paused)),
            (("time", shared.awake), partial(self._time, awake=shared.awake)),
        ]
        others = shared.dispatchers if self.setting.takeover else None
        for d, up in enumerate(shared.dispatchers):
            if up is Up.UP:
                part = partial(self._dispatcher, d=d, shared=shared, room=room)
                parts.append((("dispatcher", d, paused, room, others), part))
        return parts

    def steps(self, around: Around, part: Callable[[Around], Iterator[Step]]) -> Iterator[Step]:
        """The steps of a part that change something, or are a fault; where they lead without what makes no difference."""
        if around == self._ended:
            return
        for step in part(around):
            if step.to != around or step.fault is not None:
                to = requests_aged(self.setting, around, step.to)
                wish = to.wish and to.record.live and to.record.fence == around.record.fence
                yield step._replace(to=self.normal(to._replace(wish=wish)))

    def _free(self, around: Around, *, paused: bool) -> Iterator[Step]:
        yield from self.local.process_steps(around)
        yield from self.remote.steps(around, paused=paused)
        yield from self._operator(around)
        if not self.setting.on(Rule.RECHECK):
            yield from self._decide_then_act(around)

    def _dispatcher(self, around: Around, *, d: int, shared: Shared, room: bool) -> Iterator[Step]:
        yield from self.local.dispatcher_steps(around, d, shared, room=room)
        yield from self._reap(around, d, paused=shared.paused)

    # time

    def _has_deadline(self, record: Record) -> bool:
        if record.state is RunState.DISPATCHED:
            return record.pull
        return record.live and (record.remote or (self.setting.timeouts and record.stop is None))

    def _time(self, around: Around, *, awake: bool) -> Iterator[Step]:
        record = around.record
        if record.age != Age.FRESH or not self._has_deadline(record):
            return
        what = "offer" if record.pull else "lease" if record.remote else "timeout"
        if awake:
            passed = record._replace(age=Age.PASSED)
            yield Step(f"the {what} runs out", around._replace(record=passed))
        else:
            slept = record._replace(age=Age.SLEPT)
            yield Step(f"the {what} runs out while no dispatcher is awake", around._replace(record=slept), fair=False)

    def _reap(self, around: Around, d: int, *, paused: bool) -> Iterator[Step]:
        record = around.record
        at_once = self.setting.on(Rule.REAP_AT_ONCE)
        if not at_once and self._has_deadline(record) and not around.pending:
            to = around._replace(record=self.commands.catch_up(record).record, pending=f"reap{d}")
            yield Step(f"d{d}: gives back downtime, and is about to reap", to)
            return
        if not at_once and around.pending != f"reap{d}":
            return
        if at_once and record.age == Age.SLEPT and self.setting.on(Rule.DOWNTIME):
            yield Step(f"d{d}: gives back downtime", around._replace(record=self.commands.catch_up(record).record))
        elif record.age != Age.FRESH:
            yield from self._reap_now(around._replace(pending=""), d, paused=paused)
        elif not at_once:
            yield Step(f"d{d}: reaps nothing", around._replace(pending=""))

    def _reap_now(self, around: Around, d: int, *, paused: bool) -> Iterator[Step]:
        record = around.record
        for fitting in (True, False) if record.pull else (True,):
            answer = self.commands.reap(record, fitting=fitting, paused=paused)
            if answer.record == record and answer.said == DONE:
                continue
            fault = broken(answer)
            if answer.wrote and record.age == Age.SLEPT:
                fault = Fault.DOWNTIME if record.live else Fault.DOWNTIME_OFFER
            elif answer.wrote and not fitting:
                fault = Fault.NOBODY_THERE
            elif around.wish and not answer.record.live and not answer.record.terminal:
                fault = Fault.WISH_LOST
            nobody = "" if fitting else ", no agent being there"
            label = f"d{d}: reaps{nobody}: {' and '.join(answer.wrote) or 'nothing'}"
            yield Step(label, around._replace(record=answer.record), fault)

    def _decide_then_act(self, around: Around) -> Iterator[Step]:
        """System decisions that are carried out in a later transaction, without a second look."""
        record = around.record
        match around.pending:
            case "":
                if record.state is RunState.DISPATCHED:
                    yield Step("a pause decides to withdraw", around._replace(pending="withdraw"))
                if record.remote and record.live and record.age == Age.PASSED and record.stop is None:
                    yield Step("the reaper decides to release", around._replace(pending="lapse"))
            case "withdraw":
                if record.state in (RunState.DISPATCHED, RunState.CLAIMED, RunState.RUNNING):
                    answer = self.commands.withdraw(record)
                    fault = Fault.WITHDRAWN_UNSEEN if record.live else None
                    yield Step("withdraws", around._replace(record=answer.record, pending=""), fault)
            case "lapse":
                if record.remote and record.live:
                    answer = self.commands.lapse(record)
                    fault = Fault.RELEASED_UNSEEN if record.age == Age.FRESH else None
                    yield Step("releases", around._replace(record=answer.record, pending=""), fault)

    # operators

    def _operator(self, around: Around) -> Iterator[Step]:
        record = around.record
        if record.terminal:
            return
        wishes: list[tuple[str, Callable[[Record], Answer]]] = [
            (CANCEL, self.commands.cancel),
            (CLOSE, self.commands.close),
        ]
        for name, command in wishes:
            if name in self.setting.operator:
                answer = command(record)
                to = around._replace(record=answer.record, wish=record.live)
                what = ", an intent" if "stop" in answer.wrote else ""
                yield Step(f"operator: {name}{what}", to, broken(answer), fair=False)
        if INTERRUPT in self.setting.operator and record.live and record.stop is None:
            answer = self.commands.interrupt(record)
            yield Step("operator: interrupt, an intent", around._replace(record=answer.record), fair=False)
        if HOLD in self.setting.operator:
            answer = self.commands.hold(record, held=not record.held)
            what = "lets go" if record.held else "holds"
            yield Step(f"operator: {what}", around._replace(record=answer.record), broken(answer), fair=record.held)
        if record.state is RunState.BLOCKED:
            answer = self.commands.answer(record)
            yield Step("operator: answers", around._replace(record=answer.record), broken(answer))

    # what happens to all runs at once

    def killed(self, around: Around, d: int) -> Around:
        """Dispatcher ``d`` dies."""
        return self.normal(killed(around, d))

    def paused(self, around: Around) -> Around:
        """A pause takes the offers back."""
        answer = self.commands.withdraw_offers(around.record)
        return self.normal(around._replace(record=answer.record))

    # equal states

    @cached_property
    def _ended(self) -> Around:
        """Stands for every run that has ended and of which nothing is left."""
        setting = self.setting
        actors: tuple[tuple[()], ...] = ((),) * setting.dispatchers
        agents = (Agent(),) * setting.remote
        return Around(Record(state=RunState.COMPLETED), actors, (None,) * setting.fences, agents)

    def normal(self, around: Around) -> Around:
        """The same state without what can make no difference any more.

        A claim that is over never comes back, since fences only grow. So its holder's messages, its actors and its request can be
        left out, once it is seen here that the service refuses all of them whatever state the run is in.
        """
        if around.agents:
            around = self._without_old_messages(around)
        around = self._without_old_actors(around)
        around = self._without_old_files(around)
        record = around.record
        if record.terminal and self._nothing_is_left(around):
            return self._ended
        if not record.live and not self._attempt_is_asked_for(around):
            around = around._replace(record=record._replace(by=0, attempt=None, ending=None))
        return with_agents_in_order(around) if self.renames else around

    def _attempt_is_asked_for(self, around: Around) -> bool:
        fence = around.record.fence
        return any(actor.fence == fence for of_one in around.actors for actor in of_one) or any(
            agent.fence == fence or Request.SPENT in (agent.request, agent.older) for agent in around.agents
        )

    def _is_over(self, record: Record, holder: int, fence: int) -> bool:
        """Whether nothing that this holder writes under this fence can change anything ever again."""
        if record.held_by(holder, fence):
            return False
        key = record, holder, fence
        if key not in self._over:
            self._over[key] = all(self._refuses(one, holder, fence) for one in later_states(record, fence))
        return self._over[key]

    def _refuses(self, record: Record, holder: int, fence: int) -> bool:
        answers = [self.commands.renew(record, holder, fence), self.commands.report_usage(record, holder, fence)]
        if any(answer.said != STALE for answer in answers):
            return False
        endings = (self.commands.finish(record, holder, fence, ending, paused=False) for ending in ENDINGS.values())
        return all(answer.record == record for answer in endings)

    def _is_spent(self, record: Record, holder: int) -> bool:
        """Whether a request whose claim is over is refused in every state that the run may still be in."""
        if record.live:
            return False
        key = record, holder, -1
        if key not in self._over:
            answers = (
                self.commands.claim(one, holder, Request.SPENT, paused=False)
                for one in later_states(record, record.fence)
            )
            self._over[key] = all(answer.said == STALE for answer in answers)
        return self._over[key]

    def _without_old_messages(self, around: Around) -> Around:
        record, agents = around.record, around.agents
        for index, agent in enumerate(agents):
            new, holder = agent, Who.X + index
            if agent.fence and self._is_over(record, holder, agent.fence):
                phase = Phase.ASKED if agent.phase == Phase.ASKED else Phase.IDLE
                new = new._replace(phase=phase, fence=0, said=0)
            if self.setting.on(Rule.REQUEST):
                if new.older in _INERT or (new.older == Request.SPENT and self._is_spent(record, holder)):
                    new = new._replace(older=Request.NONE)
                if new.request == Request.SPENT and self._is_spent(record, holder):
                    new = new._replace(request=Request.SPENT_BEFORE)
                # Who still waits for an answer asks again, until it hears that it comes too late.
                if new.request in _INERT and new.phase != Phase.ASKED:
                    new = new._replace(request=Request.NONE)
            if new != agent:
                agents = (*agents[:index], new, *agents[index + 1 :])
        return around._replace(agents=agents)

    def _without_old_actors(self, around: Around) -> Around:
        if not any(around.actors):
            return around
        actors = tuple(tuple(one for one in of_one if not self._has_no_say(around, one)) for of_one in around.actors)
        return around if actors == around.actors else around._replace(actors=actors)

    def _has_no_say(self, around: Around, actor: Actor) -> bool:
        """Whether all that this actor will do is to hear that its claim is over."""
        files = around.files[actor.fence - 1]
        if actor.at in (At.PREPARING, At.LOCKED, At.ADOPTING) or (files is not None and files.proc in ALIVE):
            return False
        return self._is_over(around.record, Who.LOCAL, actor.fence)

    def _without_old_files(self, around: Around) -> Around:
        record = around.record
        used = {actor.fence for of_one in around.actors for actor in of_one}
        if record.live or (folder_is_kept(self.setting) and not record.terminal):
            used.add(record.fence)
        files = tuple(
            None if one is not None and fence not in used and one.proc not in ALIVE else one
            for fence, one in enumerate(around.files, 1)
        )
        return around._replace(files=files)

    def _nothing_is_left(self, around: Around) -> bool:
        if any(around.actors) or any(files is not None for files in around.files) or around.record.slots:
            return False
        for index, agent in enumerate(around.agents):
            if agent.fence:
                return False
            for request in (agent.request, agent.older):
                answer = self.commands.claim(around.record, Who.X + index, Request(request), paused=False)
                if answer.record != around.record or answer.said == DONE:
                    return False
        return True


def later_states(record: Record, fence: int) -> list[Record]:
    """The record, and what it may become as long as no new claim is made: one for each state without a live claim."""
    if fence < record.fence:
        return [record]
    over = record._replace(holder=Who.NOBODY, owner=Owner.NONE, stop=None, then=None, age=Age.FRESH, held=False)
    states = ((RunState.QUEUED, False), (RunState.BLOCKED, False), (RunState.COMPLETED, False))
    offers = ((RunState.DISPATCHED, False), (RunState.DISPATCHED, True))
    return [
        record,
        *(over._replace(state=state, pull=pull, slots=False) for state, pull in states),
        *(over._replace(state=state, pull=pull, slots=True) for state, pull in offers),
    ]
