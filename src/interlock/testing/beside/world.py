"""What runs do, written a second time from DESIGN section 2 with plain values. Imports nothing of the code under test."""

from __future__ import annotations

from interlock.testing.beside.outlook import Outlook
from interlock.testing.beside.values import ACTIVE, MINUTE, SECOND, STOP_MEANS, Attempt, Run


class World(Outlook):
    """All runs, and the moves that they make."""

    def _leave_claim(self, run: Run) -> None:
        self._count(run)
        run.claimed = None
        if run.live:
            run.holder = run.owner = run.lease = run.stop = run.then = None
            run.remote = False

    def _count(self, run: Run) -> None:
        """The time of claims, and that of offers after the first one, is spent."""
        if run.claimed is not None:
            run.spent += self.now - run.claimed
            run.claimed = self.now

    def _give_back(self, run: Run) -> None:
        self._leave_claim(run)
        run.slots = frozenset()
        run.pull, run.offered, run.timeout_at = False, None, None

    def enqueue(self, run: Run, *, wait: tuple[int, int] | None = None) -> None:
        self._give_back(run)
        run.state = "queued"
        self._set_wait(run, wait)

    def withdraw(self, run: Run) -> None:
        """Back to the queue; what it waits for stays as it is."""
        wait = (run.not_before, run.backoff, run.window)
        self.enqueue(run)
        run.not_before, run.backoff, run.window = wait

    def _set_wait(self, run: Run, wait: tuple[int, int] | None) -> None:
        run.not_before, run.backoff, run.window = None, wait is not None, None
        if wait is not None:
            run.window = (self.now + wait[0], self.now + wait[1])

    def finish(self, run: Run, state: str) -> None:
        self._give_back(run)
        run.state = state
        run.not_before, run.backoff, run.window = None, False, None
        for other in list(self.runs.values()):
            if other.needs.get(run.number) is False and not other.ended:
                self.need_ended(other, run)

    def need_ended(self, run: Run, need: Run) -> None:
        if need.state == "completed" or self.rules.need_failed == "run":
            run.needs[need.number] = True
        else:
            self.finish(run, "cancelled" if self.rules.need_failed == "skip" else "failed")

    def submit(self, run: Run) -> None:
        self.runs[run.number] = run
        for number in run.needs:
            if self.runs[number].ended and not run.ended:
                self.need_ended(run, self.runs[number])

    def admit(self, run: Run) -> None:
        agent = self.agent_for(run)
        run.state, run.agent, run.slots = "dispatched", agent, self.keys(run, agent)
        run.dispatches += 1
        run.offers = run.releases = 0
        self._set_wait(run, None)
        if self.rules.pull:
            run.pull, run.offered = True, self.now
            run.claimed = None if run.first_claimed is None else self.now
            if self.rules.deadline is not None and run.first_claimed is not None:
                run.timeout_at = self.now + max(0, self.rules.deadline - run.spent)

    def claim(
        self, run: Run, holder: str, agent: str | None, owner: str | None, request: str | None, lease: int
    ) -> None:
        run.fence += 1
        run.state, run.holder, run.agent = "claimed", holder, agent
        run.remote, run.owner = owner is None, owner
        run.epoch += owner is not None
        run.pull, run.offered, run.offers = False, None, 0
        self._set_wait(run, None)
        self._count(run)
        run.lease, run.claimed = self.now + lease, self.now
        run.first_claimed = self.now if run.first_claimed is None else run.first_claimed
        ends = [self.now + self.timeout(run, agent)]
        if self.rules.deadline is not None:
            ends.append(self.now + max(0, self.rules.deadline - run.spent))
        run.timeout_at = min(ends)
        run.attempts[run.fence] = Attempt(holder, request)

    def timeout(self, run: Run, agent: str | None) -> int:
        route = self.routes.get(run.type or "")
        if run.timeout is not None:
            return run.timeout
        if route is not None and route.minutes is not None:
            return route.minutes * MINUTE
        worker = self.rules.worker(agent)
        return self.rules.timeout if worker is None or worker.timeout is None else worker.timeout

    def dispatch(self, ready: list[int], *, owner: str, scope: str | None, bound: int) -> tuple[list[int], bool]:
        """The runs that are claimed or offered, in order, and whether the bound was reached. ``ready``: as woken so far."""
        if self.paused or not self.rules.enabled:
            return [], False
        candidates = set(ready)
        if not self.rules.pull:
            for run in self.runs.values():
                if run.state == "dispatched" and run.pull and scope in (None, run.batch):
                    self.enqueue(run)
                    if self.is_ready(run):
                        candidates.add(run.number)
        taken: list[int] = []
        for run in sorted(self.runs.values(), key=lambda run: run.number):
            if len(taken) == bound:
                return taken, True
            if run.state != "dispatched" or run.pull or scope not in (None, run.batch):
                continue
            if run.not_before is not None and run.not_before > self.now:
                continue
            if self.rules.worker(run.agent) is None or self.unavailable.get(run.agent or "", 0) > self.now:
                self.enqueue(run)
                if self.is_ready(run):
                    candidates.add(run.number)
            elif not self.closed(run.agent):
                self.claim_local(run, owner)
                taken.append(run.number)
        while len(taken) < bound:
            possible = [
                run
                for run in map(self.runs.__getitem__, candidates)
                if run.state == "queued" and scope in (None, run.batch) and self.startable(run)
            ]
            if not possible:
                return taken, False
            run = min(possible, key=lambda run: (-self.priority(run), run.number))
            self.admit(run)
            if not self.rules.pull:
                self.claim_local(run, owner)
            taken.append(run.number)
        return taken, True

    def claim_local(self, run: Run, owner: str) -> None:
        assert run.agent is not None
        holder = f"{run.agent}/{run.number}.{run.fence + 1}"
        self.claim(run, holder, run.agent, owner, None, self.rules.local_lease)

    def end_attempt(
        self, run: Run, asked: str, *, permanent: bool = False, delay: int | None = None, deadline: bool = False
    ) -> None:
        """The live attempt ends as its holder says; while it is being stopped, as the intent says, unless it came first to its own
        end on this machine."""
        then = run.then
        self._end_attempt(run, asked, permanent=permanent, delay=delay, deadline=deadline)
        if then is not None and not run.ended:
            self.finish(run, "cancelled" if then == "cancel" else "completed")

    def _end_attempt(self, run: Run, asked: str, *, permanent: bool, delay: int | None, deadline: bool) -> None:
        kind = asked
        if run.stop is not None and (run.remote or asked != "completed"):
            kind = STOP_MEANS[run.stop[0]]
            deadline = run.stop == ("timeout", "deadline")
            permanent = False
        run.attempts[run.fence].asked = asked
        rules = self.rules
        if kind not in ("interrupted", "cannot_start", "returned"):
            run.misfires = 0
        if kind not in ("lost", "lapsed", "returned", "cannot_start", "interrupted"):
            run.losts = 0
        if kind == "timed_out" and not (rules.retry_on_timeout and not deadline):
            self.finish(run, "timed_out")
        elif kind in ("failed", "stalled", "timed_out"):
            run.failures += 1
            if permanent or run.failures > rules.max_retries:
                self.finish(run, "failed")
            else:
                delay = doubled(run.failures, rules.retry_base, rules.retry_longest)
                self.enqueue(run, wait=(delay // 2, delay))
        elif kind in ("completed", "closed"):
            self.finish(run, "completed")
        elif kind == "cancelled":
            self.finish(run, "cancelled")
        elif kind == "blocked":
            self._give_back(run)
            run.state = "blocked"
        elif kind == "deferred":
            run.defers += 1
            if run.defers > rules.max_defers:
                self.finish(run, "failed")
            else:
                delay = rules.default_defer if delay is None else delay
                self.enqueue(run, wait=(delay, delay))
        elif kind in ("lost", "lapsed"):
            self._lost(run)
        elif kind == "returned" and run.releases == 0 and not self.braked(run):
            self.offer_again(run, 0)
            run.releases = 1
        elif kind == "cannot_start":
            run.misfires += 1
            delay = doubled(run.misfires, 5 * SECOND, 5 * MINUTE)
            self.enqueue(run, wait=(delay // 2, delay))
        else:
            self.enqueue(run)

    def _lost(self, run: Run) -> None:
        run.losts += 1
        if run.losts > self.rules.max_losts:
            # it goes back with its slots, and is rejected then
            run.dispatches += not self.braked(run)
            self.finish(run, "failed")
        else:
            self.offer_again(run, 0 if run.losts == 1 else doubled(run.losts - 1, SECOND, MINUTE))

    def offer_again(self, run: Run, delay: int) -> None:
        if self.braked(run):
            self.enqueue(run, wait=(delay // 2, delay) if delay else None)
            return
        remote = run.remote
        run.timeout_at = None
        self._leave_claim(run)
        run.claimed = self.now
        if self.rules.deadline is not None:
            run.timeout_at = self.now + max(0, self.rules.deadline - run.spent)
        run.state, run.offers, run.pull = "dispatched", 0, remote
        run.dispatches += 1
        self._set_wait(run, (delay // 2, delay) if delay and not remote else None)
        if remote:
            run.offered = self.now
            if self.agent_for(run) is None and run.agent is not None:
                run.slots -= {f"agent:{run.agent}"}
                run.agent = None

    # time

    def due(self, run: Run) -> int | None:
        """When the system has to look at it next; a passed ``not_before`` is for the caller to forgive."""
        dues: list[int | None] = []
        if run.state == "queued" and not run.held and not run.unmet:
            dues = [run.not_before]
        elif run.state == "dispatched":
            dues = [run.timeout_at, run.not_before]
            if run.pull:
                assert run.offered is not None
                dues = [run.timeout_at, run.offered + self.rules.claim_timeout * 2 ** min(run.offers, 10)]
        elif run.live:
            dues = [run.timeout_at if run.stop is None else None]
            if run.remote:
                assert run.lease is not None
                dues.append(run.lease + self.rules.grace)
        return min((due for due in dues if due is not None), default=None)

    def reap(self) -> None:
        for run in list(self.runs.values()):
            due = self.due(run)
            if due is not None and due <= self.now:
                self._reap(run)

    def _reap(self, run: Run) -> None:
        rules = self.rules
        timed_out = run.timeout_at is not None and run.timeout_at <= self.now
        if run.state == "dispatched":
            if timed_out:
                self.finish(run, "timed_out")
            elif run.pull and not self._somebody_fits(run):
                run.offered = self.now
            elif run.pull and run.offers < rules.max_offers:
                run.offers += 1
                run.dispatches += 1
                run.offered = self.now
            elif run.pull and rules.never_claimed == "fail":
                self.finish(run, "failed")
            elif run.pull:
                rounds = max(1, run.dispatches // (rules.max_offers + 1))
                wait = doubled(rounds, MINUTE, 60 * MINUTE)
                self.enqueue(run, wait=(wait, wait))
        elif run.live:
            if run.remote and run.lease is not None and run.lease + self.rules.grace <= self.now:
                self.end_attempt(run, STOP_MEANS[run.stop[0]] if run.stop else "lapsed")
            elif run.stop is None and timed_out:
                spent = run.spent + self.now - (run.claimed or 0)
                late = rules.deadline is not None and spent >= rules.deadline
                run.stop = ("timeout", "deadline" if late else "timeout")

    def _somebody_fits(self, run: Run) -> bool:
        offered = run.offered or 0
        return any(
            seen >= offered + (self.now - offered) // 2
            and (run.agent is not None or agent is None or self.has_room(frozenset({f"agent:{agent}"})))
            and (agent is None or run.agent is None or agent == run.agent)
            and (not types or run.type is None or run.type in types)
            for agent, types, seen in self.pullers.values()
        )

    def catch_up(self) -> None:
        gap = 0 if self.alive is None else self.now - self.alive
        self.alive = self.now
        for run in self.runs.values():
            if run.state in ACTIVE:
                for name in ("lease", "timeout_at", "offered", "claimed"):
                    at = getattr(run, name)
                    setattr(run, name, None if at is None else at + gap)

    def newest(self, number: int) -> Run:
        """The run that stands for a task now."""
        later = [run.number for run in self.runs.values() if run.retry_of == number]
        return self.newest(max(later)) if later else self.runs[number]

    def needs_of_a_retry(self, run: Run) -> list[Run]:
        """The newest run of each need that has not completed."""
        return [need for need in map(self.newest, run.needs) if need.state != "completed"]

    def again(self, run: Run, number: int, run_id: str) -> Run:
        """The new run of an ended one; it needs the newest run of each need that is not met."""
        return Run(
            number=number,
            id=run_id,
            retry_of=run.number,
            needs={need.number: False for need in self.needs_of_a_retry(run) if not need.ended},
            **{
                name: getattr(run, name)
                for name in (
                    "project",
                    "tracker",
                    "role",
                    "type",
                    "wish",
                    "tags",
                    "batch",
                    "unique",
                    "own_priority",
                    "timeout",
                )
            },
        )


def doubled(tries: int, base: int, longest: int) -> int:
    """The wait after so many tries."""
    return int(min(longest, base * 2 ** min(tries - 1, 40)))
