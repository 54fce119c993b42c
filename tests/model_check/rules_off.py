"""Each rule switched off: in which world, which fault it leads to, and what the shortest way there has to tell."""

from __future__ import annotations

from typing import NamedTuple

from setting import ALL_RULES, CANCEL, HOLD, INTERRUPT, PAUSE, Rule, Setting
from sizes import SMALL
from world import Fault


class Off(NamedTuple):
    """``without`` these rules, ``fault`` is found after ``steps`` steps; ``story``: words of the trace, in this order.

    ``alone``: look for this fault only, where another one of the same rule is nearer. ``name`` tells two stories of a rule apart.
    """

    name: str
    without: tuple[Rule, ...]
    setting: Setting
    fault: str
    steps: int
    story: tuple[str, ...]
    alone: bool = False

    @property
    def off(self) -> Setting:
        """The world without the rules."""
        return _without(self.setting, *self.without)


def _without(setting: Setting, *rules: Rule) -> Setting:
    fields = {name: getattr(setting, name) for name in setting.__dataclass_fields__}
    return Setting(**{**fields, "rules": ALL_RULES - set(rules)})


def _local(**more: object) -> Setting:
    return Setting(name="local", local=True, **more)  # type: ignore[arg-type]


def _remote(**more: object) -> Setting:
    return Setting(name="remote", remote=2, **more)  # type: ignore[arg-type]


_CANCEL = frozenset({CANCEL})
_TWO = next(setting for setting in SMALL if setting.takeover)

OFF = (
    Off(
        "cancel moves first",
        (Rule.STOP_INTENT,),
        _local(operator=_CANCEL),
        Fault.MOVED_ALIVE,
        4,
        ("claims and commits", "operator: cancel", "forks the child"),
    ),
    Off(
        "cancel moves first, two runs",
        (Rule.STOP_INTENT,),
        _local(runs=2, operator=_CANCEL),
        Fault.LIMIT_ALIVE,
        7,
        ("r0 d0: claims and commits", "r0 operator: cancel", "r1 d0: claims and commits", "forks", "forks"),
        alone=True,
    ),
    Off(
        "cancel moves first, then a kill",
        (Rule.STOP_INTENT,),
        _local(operator=_CANCEL),
        Fault.ORPHAN,
        5,
        ("operator: cancel", "forks the child", "d0 is killed"),
        alone=True,
    ),
    Off(
        "release at a dispatcher's death",
        (Rule.DEATH,),
        _local(),
        Fault.MOVED_ALIVE,
        6,
        ("forks the child", "d0 is killed", "d0 is started", "releases a dead dispatcher's run"),
    ),
    Off(
        "no lock",
        (Rule.LOCK,),
        _local(),
        Fault.MOVED_ALIVE,
        8,
        ("forks the child", "d0 is killed", "d0 is started", "finds that it never started", "withdraw"),
    ),
    Off(
        "neither lock nor void mark",
        (Rule.LOCK, Rule.VOID),
        _local(),
        Fault.TWO_PROCESSES,
        11,
        ("forks the child of attempt 1", "d0 is killed", "never started", "forks the child of attempt 2"),
        alone=True,
    ),
    Off(
        "no void mark",
        (Rule.VOID,),
        _TWO,
        Fault.MOVED_ALIVE,
        10,
        ("claims and commits", "d0: SIGSTOP", "d1: takes over", "never started", "d0: SIGCONT", "d0: forks"),
    ),
    Off(
        "no void mark, two processes",
        (Rule.VOID,),
        _TWO,
        Fault.TWO_PROCESSES,
        13,
        (
            "d0: claims and commits",
            "d0: SIGSTOP",
            "d1: takes over",
            "d1: claims and commits",
            "d1: forks the child of attempt 2",
            "d0: SIGCONT",
            "d0: forks the child of attempt 1",
        ),
        alone=True,
    ),
    Off(
        "the owner changes without comparison",
        (Rule.OWNER_CAS,),
        _TWO,
        Fault.TWO_OWNERS,
        8,
        ("d1: sees that the owner is gone", "d0: takes over", "d1: takes over"),
    ),
    Off(
        "the fence alone: writes that move nothing",
        (Rule.HOLDER,),
        _remote(operator=_CANCEL),
        Fault.STALE,
        6,
        ("claim 1", "X's end of 1 arrives", "X's heartbeat 1 arrives"),
        alone=True,
    ),
    Off(
        "the fence alone: a stranger",
        (Rule.HOLDER,),
        _remote(operator=_CANCEL),
        Fault.STRANGER,
        4,
        ("X's request arrives: claim 1", "Y writes under another's fence"),
    ),
    Off(
        "the fence alone: a late end",
        (Rule.HOLDER_TABLE,),
        _remote(says=("gave up",)),
        Fault.STALE,
        7,
        ("ends attempt 1: gave up", "the lease runs out", "release", "X's end of 1 arrives (gave up): fail"),
        alone=True,
    ),
    Off(
        "the fence alone: a doubled end",
        (Rule.HOLDER_TABLE,),
        _remote(says=("failed",)),
        Fault.STALE,
        6,
        ("ends attempt 1: failed", "arrives (failed): retry", "arrives (failed): fail"),
        alone=True,
    ),
    Off(
        "a decision acted on later: pause",
        (Rule.RECHECK,),
        _remote(),
        Fault.WITHDRAWN_UNSEEN,
        5,
        ("a pause decides to withdraw", "claim 1", "withdraws"),
    ),
    Off(
        "a decision acted on later: lapse",
        (Rule.RECHECK,),
        _remote(),
        Fault.RELEASED_UNSEEN,
        7,
        ("the lease runs out", "the reaper decides to release", "heartbeat 1 arrives", "releases"),
        alone=True,
    ),
    Off(
        "a pause withdraws claims as well",
        (Rule.PAUSE,),
        _local(operator=frozenset({PAUSE})),
        Fault.MOVED_ALIVE,
        4,
        ("claims and commits", "forks the child", "operator: pauses"),
    ),
    Off(
        "attempts numbered by what they cost",
        (Rule.FOLDER,),
        _local(words=("done", "defers")),
        Fault.NOT_ITS_END,
        14,
        (
            "ends: defers",
            "records deferred",
            "claims and commits",
            "d0 is killed",
            "that it has ended",
            "records deferred",
        ),
    ),
    Off(
        "no block from claimed",
        (Rule.BLOCK,),
        _local(words=("done", "asks")),
        Fault.REFUSED,
        8,
        ("claims and commits", "the agent ends: asks", "records blocked: nothing"),
    ),
    Off(
        "no block from claimed, what follows",
        (Rule.BLOCK,),
        _local(words=("done", "asks")),
        Fault.STUCK,
        6,
        ("the agent ends: asks", "sees the end"),
        alone=True,
    ),
    Off(
        "downtime counts: offers",
        (Rule.DOWNTIME,),
        _remote(),
        Fault.DOWNTIME_OFFER,
        5,
        ("d0 is killed", "the offer runs out while no dispatcher is awake", "d0 is started", "reaps: redispatch"),
    ),
    Off(
        "downtime counts: claims",
        (Rule.DOWNTIME,),
        _remote(),
        Fault.DOWNTIME,
        7,
        ("claim 1", "d0 is killed", "the lease runs out while no dispatcher is awake", "is started", "reaps: release"),
        alone=True,
    ),
    Off(
        "downtime is given back in a transaction of its own",
        (Rule.REAP_AT_ONCE,),
        _remote(stops=True),
        Fault.DOWNTIME,
        8,
        ("gives back downtime", "SIGSTOP", "the lease runs out while", "SIGCONT", "reaps: release"),
        alone=True,
    ),
    Off(
        "an offer's time counts always",
        (Rule.FITTING,),
        _remote(rejects_unclaimed=True),
        Fault.NOBODY_THERE,
        3,
        ("the offer runs out", "no agent being there: redispatch"),
    ),
    Off(
        "no request ids: a retry",
        (Rule.REQUEST,),
        _remote(),
        Fault.OWN_CLAIM,
        4,
        ("X's request arrives: claim 1", "X's request arrives: taken"),
    ),
    Off(
        "no request ids: a late claim",
        (Rule.REQUEST,),
        _remote(),
        Fault.LATE_CLAIM,
        6,
        ("X's request arrives: claim 1", "release", "X's request arrives: claim 2"),
        alone=True,
    ),
    Off(
        "released while on hold",
        (Rule.HELD_BACK,),
        _remote(operator=frozenset({HOLD})),
        Fault.OPEN,
        6,
        ("claim 1", "operator: holds", "release"),
    ),
    Off(
        "a stop is set once and that is all",
        (Rule.THEN,),
        _local(operator=frozenset({CANCEL, INTERRUPT})),
        Fault.WISH_LOST,
        8,
        ("interrupt, an intent", "operator: cancel", "withdraw"),
    ),
    Off(
        "a stop wins over work that was done",
        (Rule.ENDED_FIRST,),
        _local(operator=_CANCEL),
        Fault.DONE_LOST,
        9,
        ("the agent ends: done", "sees the end", "operator: cancel, an intent", "records cancelled"),
    ),
)
