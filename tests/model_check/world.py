"""The state of one run with everything around it that is its own, and what has to hold of it.

``Around`` is what the database knows of a run, the actors that look after it in each dispatcher, the folder and the process of
each attempt, and the agents from outside with their messages. Two runs meet only in the dispatchers, the pause and the limit:
that is the *shared* part, and what makes the product of the parts the whole state.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from record import Record, Request, Who
from setting import Rule, Setting

from interlock.domain.states import ACTIVE, RunState
from interlock.machines.table import ATTEMPT


class Up(IntEnum):
    """A dispatcher's process."""

    DEAD = 0
    UP = 1
    STOPPED = 2


class Shared(NamedTuple):
    """What all runs have in common."""

    dispatchers: tuple[Up, ...]
    paused: bool = False

    @property
    def awake(self) -> bool:
        """Whether any dispatcher could look at a deadline now."""
        return Up.UP in self.dispatchers


class Proc(IntEnum):
    """The process of an attempt. ``CHILD`` has not looked for the void mark yet, ``PASSED`` has; both hold the lock only."""

    NEVER = 0
    CHILD = 1
    PASSED = 2
    AGENT = 3
    GONE = 4


ALIVE = frozenset({Proc.CHILD, Proc.PASSED, Proc.AGENT})


class Files(NamedTuple):
    """An attempt's folder and process. ``word``: the exit file; ``early``: written before any stop was asked for."""

    proc: int = Proc.NEVER
    word: str = ""
    void: bool = False
    early: bool = False


class At(IntEnum):
    """Where the actor of a run is (:mod:`interlock.actors.run`)."""

    PREPARING = 0
    LOCKED = 1
    WATCHING = 2
    STOPPING = 3
    SAW_END = 4
    RECORDING = 5
    RECOVERING = 6
    ADOPTING = 7


class Saw(IntEnum):
    """Whether the actor, when it saw the agent's end, saw no stop beside it."""

    NOTHING = 0
    END_FIRST = 1
    STOP_FIRST = 2


class Actor(NamedTuple):
    """An actor: ``child`` when it launched the process. ``word``: outcome to record, or the owner that it takes over from."""

    at: int
    fence: int
    child: bool = False
    saw: int = Saw.NOTHING
    word: int = 0


class Phase(IntEnum):
    """What an agent from outside believes."""

    IDLE = 0
    ASKED = 1
    WORKING = 2
    ENDING = 3


class Agent(NamedTuple):
    """An agent from outside and its messages about one run.

    Whatever was sent may arrive at any later time, any number of times, or never; so may the answers. ``fence``: of the last
    claim that it knows of, whose heartbeats are under way; ``said``: how it ended that, from 1. ``request``: the one that it
    waits for; ``older``: one that it gave up, still under way.
    """

    phase: int = Phase.IDLE
    fence: int = 0
    said: int = 0
    request: int = Request.NONE
    older: int = Request.NONE


class Around(NamedTuple):
    """A run and what is around it. ``wish``: a cancel or close of the live claim was acknowledged. ``pending``: a decision that was
    made and not carried out yet (only where a rule is off).
    """

    record: Record
    actors: tuple[tuple[Actor, ...], ...]
    files: tuple[Files | None, ...]
    agents: tuple[Agent, ...]
    wish: bool = False
    pending: str = ""


class Step(NamedTuple):
    """A step: ``fault`` says what must not happen and did; ``fair`` steps happen sooner or later when they stay possible."""

    label: str
    to: Around
    fault: str | None = None
    fair: bool = True


class Fault:
    """What must never be, by name. The numbers are those of the design's section on what always holds."""

    TWO_PROCESSES = "two live processes of one run (7, 15)"
    MOVED_ALIVE = "a run moved while its process was alive (6, 7)"
    ORPHAN = "a process that nobody will ever look after (6, 7)"
    LIMIT = "more active runs than the limit (3)"
    LIMIT_ALIVE = "more agents at work than the limit (3)"
    SLOTS = "a slot without an active run, or the reverse (4)"
    ATTEMPT = "a live attempt without its claim, or the reverse (1)"
    OPEN = "open to a claim while on hold or paused"
    STALE = "a holder whose claim is over wrote something (1)"
    STRANGER = "somebody wrote under the claim of another (1)"
    REFUSED = "a holder's write under a live claim was refused (1, 12)"
    NOT_ITS_END = "an end was recorded that the attempt did not come to (12)"
    DONE_LOST = "work that was done before the stop is lost (6)"
    NOT_TOLD = "a heartbeat was told to go on although its claim is to stop, or the reverse (6)"
    WISH_LOST = "an acknowledged cancel or close is lost (6)"
    WITHDRAWN_UNSEEN = "a withdrawal of an offer took a claim (5)"
    RELEASED_UNSEEN = "a release took a renewed lease (5)"
    DOWNTIME = "downtime counted against a live claim (10)"
    DOWNTIME_OFFER = "downtime counted against an offer (10)"
    NOBODY_THERE = "an offer expired although no agent was there"
    OWN_CLAIM = "an agent was refused by its own claim (11)"
    LATE_CLAIM = "a request was granted that was over (11)"
    TWO_OWNERS = "a claim was taken from a dispatcher that had it anew (9)"
    DATABASE = "only the database stopped an illegal write (2)"
    STUCK = "no way left to an end"


def first(setting: Setting) -> Around:
    """A run that was submitted a moment ago."""
    return Around(
        record=Record(),
        actors=((),) * setting.dispatchers,
        files=(None,) * setting.fences,
        agents=(Agent(),) * setting.remote,
    )


def bad(around: Around) -> tuple[str, ...]:
    """What is wrong with this state, the worst first."""
    record = around.record
    alive = [fence for fence, files in enumerate(around.files, 1) if files is not None and files.proc in ALIVE]
    unheld = [fence for fence in alive if not record.held_by(Who.LOCAL, fence)]
    looked_after = {actor.fence for of_one in around.actors for actor in of_one}
    checks = (
        (Fault.TWO_PROCESSES, len(alive) > 1),
        (Fault.MOVED_ALIVE, bool(unheld)),
        (Fault.ORPHAN, bool(set(unheld) - looked_after)),
        (Fault.SLOTS, record.slots is not (record.state in ACTIVE)),
        (Fault.ATTEMPT, (record.attempt is not None and record.attempt not in ATTEMPT.final) is not record.live),
        (Fault.OPEN, record.held and record.state is RunState.DISPATCHED),
    )
    return tuple(fault for fault, is_so in checks if is_so)


def at_work(around: Around) -> int:
    """Agents that work on this run: processes, or the claim of one from outside."""
    processes = sum(files is not None and files.proc in ALIVE for files in around.files)
    return processes + int(around.record.live and around.record.remote)


def is_done(around: Around, setting: Setting) -> bool:
    """It has ended, or used up the attempts that this model is about."""
    record = around.record
    return record.terminal or (record.fence == setting.fences and not record.live)


def swapped(around: Around) -> Around:
    """The same with the two dispatchers' names exchanged."""
    record = around.record
    pending = {"reap0": "reap1", "reap1": "reap0"}.get(around.pending, around.pending)
    actors = tuple(tuple(_swapped(actor) for actor in of_one) for of_one in around.actors[::-1])
    return around._replace(record=record._replace(owner=_other(record.owner)), actors=actors, pending=pending)


def _other(owner: int) -> int:
    return 1 - owner if owner in (0, 1) else owner


def _swapped(actor: Actor) -> Actor:
    return actor._replace(word=_other(actor.word)) if actor.at == At.ADOPTING else actor


def with_agents_in_order(around: Around) -> Around:
    """The same with the two agents from outside named so that the order is always one: nothing tells them apart."""
    if len(around.agents) < 2:
        return around
    record = around.record
    x, y = around.agents
    turned = record._replace(holder=_turned(record.holder), by=_turned(record.by))
    if (x, y, record.holder, record.by) <= (y, x, turned.holder, turned.by):
        return around
    return around._replace(record=turned, agents=(y, x))


def _turned(holder: int) -> int:
    return {Who.X: Who.Y, Who.Y: Who.X}.get(Who(holder), Who(holder))


def folder_is_kept(setting: Setting) -> bool:
    """Whether a later attempt may meet the files of an earlier one."""
    return not setting.on(Rule.FOLDER)
