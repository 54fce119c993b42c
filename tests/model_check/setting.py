"""What a model is of: which rules are in force, and how large the world is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from interlock.domain.settings import Agent, Budgets, Limits, Mode, OnNeverClaimed, Retry, Settings


class Rule(StrEnum):
    """A rule of the design that can be switched off, to see what goes wrong without it."""

    STOP_INTENT = "stopping is a persisted intent, then the kill, then the move"
    DEATH = "a dispatcher's death is no reason to release"
    LOCK = "the tree inherits the attempt's lock"
    VOID = "the void mark"
    HOLDER = "holder writes check state and holder"
    HOLDER_TABLE = "holder writes check state, holder and the table"
    RECHECK = "system decisions are made in the transaction that acts on them"
    PAUSE = "a pause withdraws offers only"
    FOLDER = "the attempt's number is the fence"
    BLOCK = "block is possible from claimed too"
    DOWNTIME = "deadlines are moved on after downtime"
    FITTING = "an offer's time counts only while a fitting agent is there"
    REQUEST = "claims carry a request id and the offer's number"
    HELD_BACK = "what must not be offered is withdrawn instead of released"
    THEN = "a cancel behind another stop is kept"
    ENDED_FIRST = "work that was done before the stop counts as done"
    REAP_AT_ONCE = "the reaper gives back downtime in the transaction that it judges in"
    OWNER_CAS = "a claim's owner changes by compare-and-swap"


ALL_RULES = frozenset(Rule)

CANCEL, CLOSE, INTERRUPT, HOLD, PAUSE = "cancel", "close", "interrupt", "hold", "pause"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The size of a world. ``words``: how a local agent may end; ``says``: how a remote one may. ``fences``: attempts of each run.

    ``stops``: SIGSTOP and SIGCONT. ``takeover``: dispatchers take over from one that is only stopped, as if the file system had
    lost its lock: a world worse than the real one. ``timeouts``: attempts may run into theirs. ``vanishes``: trees may be killed
    from outside. ``older_requests``: an agent's earlier request may still be under way when it makes the next.
    """

    name: str
    runs: int = 1
    dispatchers: int = 1
    limit: int = 1
    fences: int = 3
    local: bool = False
    remote: int = 0
    words: tuple[str, ...] = ("done", "fails")
    says: tuple[str, ...] = ("completed", "failed")
    operator: frozenset[str] = frozenset()
    stops: bool = False
    takeover: bool = False
    timeouts: bool = False
    vanishes: bool = True
    cannot_start: bool = False
    older_requests: bool = True
    rejects_unclaimed: bool = False
    retries: int = 1
    losts: int = 1
    defers: int = 1
    offers: int = 1
    checks_fairness: bool = True
    rules: frozenset[Rule] = field(default=ALL_RULES)

    def on(self, rule: Rule) -> bool:
        """Whether ``rule`` is in force."""
        return rule in self.rules

    def settings(self, mode: Mode) -> Settings:
        """What the service is configured by."""
        return Settings(
            mode=mode,
            limits=Limits(total=self.limit),
            retry=Retry(max_retries=self.retries),
            budgets=Budgets(max_losts=self.losts, max_defers=self.defers, max_offers=self.offers),
            agents={"a": Agent(name="a", command="true")},
            default_agent="a",
            on_never_claimed=OnNeverClaimed.FAIL if self.rejects_unclaimed else OnNeverClaimed.WITHDRAW,
        )
