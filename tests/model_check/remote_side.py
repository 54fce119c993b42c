"""Agents from outside, and a network that delays, doubles and loses whatever it carries, both ways."""

from __future__ import annotations

from collections.abc import Iterator

from commands import DONE, ENDINGS, STALE, TAKEN, Answer, Commands
from local_side import broken, fault_of_write
from record import Request, Who
from setting import Rule, Setting
from world import Agent, Around, Fault, Phase, Step

from interlock.domain.states import RunState

NAMES = ("X", "Y")


class RemoteSide:
    """The steps of agents from outside and of what they sent."""

    def __init__(self, setting: Setting, commands: Commands) -> None:
        self.setting = setting
        self.commands = commands

    def steps(self, around: Around, *, paused: bool) -> Iterator[Step]:
        """What agents do, and what arrives."""
        for index, agent in enumerate(around.agents):
            yield from self._decide(around, index, agent)
            if agent.request != Request.NONE:
                yield from self._request_arrives(around, index, agent, paused=paused)
            if agent.older != Request.NONE:
                yield from self._older_arrives(around, index, agent, paused=paused)
            if around.record.live and around.record.holder != Who.X + index:
                yield from self._stranger_writes(around, index)
            if agent.fence and agent.fence == around.record.fence:
                yield from self._heartbeat_arrives(around, index, agent)
                if agent.said:
                    yield from self._ending_arrives(around, index, agent, paused=paused)

    def _decide(self, around: Around, index: int, agent: Agent) -> Iterator[Step]:
        record, name = around.record, NAMES[index]
        if agent.phase == Phase.IDLE and record.state is RunState.DISPATCHED and record.pull:
            keeps = self.setting.older_requests and agent.request in _UNDER_WAY and not agent.older
            older = agent.request if keeps else agent.older
            asked = agent._replace(phase=Phase.ASKED, request=Request.OPEN, older=older)
            yield Step(f"{name}: asks for the offer", _with(around, index, asked))
        if agent.phase == Phase.WORKING:
            for said, how in enumerate(self.setting.says, 1):
                ending = agent._replace(phase=Phase.ENDING, said=said)
                yield Step(f"{name}: ends attempt {agent.fence}: {how}", _with(around, index, ending))
        if agent.phase in (Phase.WORKING, Phase.ASKED):
            forgot = agent._replace(phase=Phase.IDLE)
            yield Step(f"{name}: is restarted and remembers nothing", _with(around, index, forgot), fair=False)

    def _granted(self, around: Around, answer: Answer, index: int, request: Request) -> tuple[Around, str | None]:
        """The state after a request was answered, and what is wrong with the answer."""
        holder = Who.X + index
        fault = broken(answer)
        own = around.record.live and around.record.holder == holder
        if answer.said == TAKEN and own and request is Request.SPENT:
            fault = Fault.OWN_CLAIM
        new = answer.record.fence != around.record.fence
        if new and request is not Request.OPEN:
            fault = Fault.LATE_CLAIM
        return around._replace(record=answer.record), fault

    def _request_arrives(self, around: Around, index: int, agent: Agent, *, paused: bool) -> Iterator[Step]:
        record, name, request = around.record, NAMES[index], Request(agent.request)
        if self._is_past_the_end(around):
            return
        answer = self.commands.claim(record, Who.X + index, request, paused=paused)
        to, fault = self._granted(around, answer, index, request)
        if answer.said == DONE:
            spent = agent._replace(request=Request.SPENT)
            label = f"{name}'s request arrives: claim {answer.record.fence}"
            if agent.phase == Phase.ASKED:
                told = spent._replace(phase=Phase.WORKING, fence=answer.record.fence, said=0)
                yield Step(f"{label}, and it hears so", _with(to, index, told), fault)
            yield Step(f"{label}, the answer is lost", _with(to, index, spent), fault, fair=False)
        elif agent.phase == Phase.ASKED:
            kept = agent.request if agent.request in _UNDER_WAY else Request.NONE
            refused = agent._replace(phase=Phase.IDLE, request=kept)
            yield Step(f"{name}'s request arrives: {answer.said}", _with(to, index, refused), fault)
        elif fault is not None:
            yield Step(f"{name}'s request arrives: {answer.said}", to, fault)

    def _older_arrives(self, around: Around, index: int, agent: Agent, *, paused: bool) -> Iterator[Step]:
        if self._is_past_the_end(around):
            return
        request = Request(agent.older)
        answer = self.commands.claim(around.record, Who.X + index, request, paused=paused)
        to, fault = self._granted(around, answer, index, request)
        if answer.said == DONE:
            to = _with(to, index, agent._replace(older=Request.SPENT))
        yield Step(f"{NAMES[index]}'s older request arrives: {answer.said}", to, fault, fair=False)

    def _is_past_the_end(self, around: Around) -> bool:
        """Beyond the attempts that this model is about."""
        return around.record.fence == self.setting.fences and around.record.state is RunState.DISPATCHED

    def _heartbeat_arrives(self, around: Around, index: int, agent: Agent) -> Iterator[Step]:
        record, name = around.record, NAMES[index]
        holder, fence = Who.X + index, agent.fence
        live = record.held_by(holder, fence)
        answer = self.commands.renew(record, holder, fence)
        usage = self.commands.report_usage(record, holder, fence)
        fault = broken(answer)
        if live and (answer.said, usage.said) != (DONE, DONE):
            fault = Fault.REFUSED
        elif live and answer.go_on is not (record.stop is None):
            fault = Fault.NOT_TOLD
        if not live and (answer.said, usage.said) != (STALE, STALE):
            fault = Fault.STALE
        to = around._replace(record=answer.record)
        label = f"{name}'s heartbeat {fence} arrives"
        if not live:
            if agent.phase in (Phase.WORKING, Phase.ENDING):
                yield Step(f"{label}: its claim is over", _with(to, index, agent._replace(phase=Phase.IDLE)), fault)
            elif fault is not None:
                yield Step(label, to, fault)
            return
        yield Step(label, to, fault)
        if answer.go_on is False and agent.phase == Phase.WORKING:
            stopped = agent._replace(phase=Phase.ENDING, said=1)
            yield Step(f"{label}: it is told to stop, and ends", _with(to, index, stopped), fault)

    def _stranger_writes(self, around: Around, index: int) -> Iterator[Step]:
        """Somebody else names the live claim's fence as its own."""
        record, holder = around.record, Who.X + index
        answers = (
            self.commands.renew(record, holder, record.fence),
            self.commands.report_usage(record, holder, record.fence),
            self.commands.finish(record, holder, record.fence, ENDINGS["completed"], paused=False),
        )
        if any(answer.said != STALE for answer in answers):
            yield Step(f"{NAMES[index]} writes under another's fence", around, Fault.STRANGER)

    def _ending_arrives(self, around: Around, index: int, agent: Agent, *, paused: bool) -> Iterator[Step]:
        record, name = around.record, NAMES[index]
        holder, fence = Who.X + index, agent.fence
        live = record.held_by(holder, fence)
        said = self.setting.says[agent.said - 1]
        answer = self.commands.finish(record, holder, fence, ENDINGS[said], paused=paused)
        fault = fault_of_write(around, answer, live=live)
        to = around._replace(record=answer.record)
        label = f"{name}'s end of {fence} arrives ({said}): {' and '.join(answer.wrote) or answer.said}"
        if agent.phase == Phase.ENDING:
            yield Step(label, _with(to, index, agent._replace(phase=Phase.IDLE)), fault)
        if live or fault is not None:
            yield Step(f"{label}, unheard", to, fault, fair=False)


_UNDER_WAY = (Request.OPEN, Request.SPENT)


def _with(around: Around, index: int, agent: Agent) -> Around:
    agents = around.agents
    return around._replace(agents=(*agents[:index], agent, *agents[index + 1 :]))


def requests_aged(setting: Setting, before: Around, after: Around) -> Around:
    """Requests as they stand once the run has a new offer, or a new claim."""
    old, new = before.record, after.record
    new_claim = old.fence != new.fence
    new_offer = (
        (old.state is RunState.QUEUED and new.state is not RunState.QUEUED and not new.terminal)
        or new.offers > old.offers
        or (old.live and new.state is RunState.DISPATCHED)
        or (old.pull and new.live and not new.remote)
    )
    if not (new_claim or new_offer) or not after.agents:
        return after

    def aged(was: int, now: int) -> int:
        if new_offer and now == Request.OPEN and setting.on(Rule.REQUEST):
            return Request.OLD_OFFER
        return Request.SPENT_BEFORE if new_claim and was == now == Request.SPENT else now

    agents = tuple(
        now._replace(request=aged(was.request, now.request), older=aged(was.older, now.older))
        for was, now in zip(before.agents, after.agents, strict=True)
    )
    return after._replace(agents=agents)
