"""Numbers for Prometheus: counters that follow the event log while the daemon is up, and gauges of how things stand when asked.

Names, labels and meanings are those of docs/reference/metrics.md, which is generated from :data:`METRICS`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import trio
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from interlock.domain.run import Event
from interlock.domain.states import TERMINAL, Reason, RunEvent, RunState
from interlock.ports.store import Tx
from interlock.service import Service
from interlock.service.dispatching import circumstances

PAGE = 1000
LANES = 200
_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_WORK = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400)


class Metric(msgspec.Struct, frozen=True):
    """A row of the reference."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


METRICS = (
    Metric("interlock_submits_total", "counter", (), "runs accepted"),
    Metric("interlock_dispatches_total", "counter", (), "times that a run got its slots"),
    Metric("interlock_redispatches_total", "counter", (), "offers made again because nobody took them"),
    Metric("interlock_claims_total", "counter", (), "claims"),
    Metric("interlock_lapses_total", "counter", (), "claims that lapsed for want of a heartbeat"),
    Metric("interlock_retries_total", "counter", (), "failed attempts that are tried again"),
    Metric("interlock_runs_ended_total", "counter", ("status",), "runs that ended"),
    Metric("interlock_claim_latency_seconds", "histogram", (), "from an offer to its claim"),
    Metric("interlock_run_duration_seconds", "histogram", ("status",), "from a run's first claim to its end"),
    Metric("interlock_runs", "gauge", ("status",), "unfinished runs"),
    Metric("interlock_ready_runs", "gauge", ("lane",), f"runs that could start, by lane (the {LANES} longest)"),
    Metric("interlock_oldest_ready_seconds", "gauge", (), "age of the oldest run that could start"),
    Metric("interlock_slots_used", "gauge", ("key",), "active runs by limit"),
    Metric("interlock_slots_cap", "gauge", ("key",), "limits"),
    Metric("interlock_waiting_agents", "gauge", (), "agents that wait for an offer at this daemon"),
    Metric("interlock_paused", "gauge", (), "1 while dispatching is paused"),
)
_COUNTED = {
    RunEvent.SUBMIT: "interlock_submits_total",
    RunEvent.DISPATCH: "interlock_dispatches_total",
    RunEvent.REDISPATCH: "interlock_redispatches_total",
    RunEvent.CLAIM: "interlock_claims_total",
    RunEvent.RETRY: "interlock_retries_total",
}
_OFFERED = frozenset({RunEvent.DISPATCH, RunEvent.REDISPATCH, RunEvent.RELEASE})


class Meter:
    """One for a daemon."""

    def __init__(self, service: Service) -> None:
        self._service = service
        # A time of creation beside every counter would double the series, and tells nothing that start_time does not.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        self._offered: dict[int, int] = {}
        self._after = service.store.peek(lambda tx: tx.last_seq())
        for metric in METRICS:
            made = (metric.name, metric.meaning, metric.labels)
            if metric.kind == "counter":
                self._counters[metric.name] = Counter(*made, registry=self._registry)
            elif metric.kind == "gauge":
                self._gauges[metric.name] = Gauge(*made, registry=self._registry)
            else:
                buckets = _WAITS if "latency" in metric.name else _WORK
                self._histograms[metric.name] = Histogram(*made, registry=self._registry, buckets=buckets)
        ProcessCollector(registry=self._registry)

    async def run(self) -> None:
        """For ever: follow the event log, from where it ended when this was made."""
        async with self._service.changes() as changes:
            while True:
                found = await self._service.events(self._after, PAGE)
                for event in found:
                    self._after = event.seq
                    self._count(event)
                if not found:
                    with trio.move_on_after(self._service.settings.poll_ms / 1000):
                        await changes.wait()

    async def text(self, waiting: int) -> bytes:
        """All of them, in the text format of Prometheus."""
        await self._service.read(lambda tx, ctx: self._measure(tx, ctx.now_ms, circumstances(tx, ctx).caps))
        self._gauges["interlock_waiting_agents"].set(waiting)
        self._gauges["interlock_paused"].set(self._service.outlook().paused)
        return await trio.to_thread.run_sync(generate_latest, self._registry)

    def _count(self, event: Event) -> None:
        name = event.event
        if (counter := _COUNTED.get(name)) is not None:  # type: ignore[call-overload]
            self._counters[counter].inc()
        if name == RunEvent.RELEASE and event.reason == Reason.LEASE_LAPSED:
            self._counters["interlock_lapses_total"].inc()
        if name in _OFFERED:
            self._offered[event.run] = event.at_ms
        elif event.to_state != event.from_state:
            offered = self._offered.pop(event.run, None)
            if name == RunEvent.CLAIM and offered is not None:
                latency = max(0, event.at_ms - offered) / 1000
                self._histograms["interlock_claim_latency_seconds"].observe(latency)
        if event.to_state in TERMINAL and event.from_state != event.to_state:
            self._counters["interlock_runs_ended_total"].labels(event.to_state).inc()
            run = self._service.store.peek(lambda tx: tx.run(event.run))
            if run is not None and run.first_claimed_ms is not None:
                took = max(0, event.at_ms - run.first_claimed_ms) / 1000
                self._histograms["interlock_run_duration_seconds"].labels(event.to_state).observe(took)

    def _measure(self, tx: Tx, now_ms: int, caps: Mapping[str, int]) -> None:
        states = tx.count_states(finished=False)
        for state in RunState:
            if state not in TERMINAL:
                self._gauges["interlock_runs"].labels(state).set(states.get(state, 0))
        for name in ("interlock_ready_runs", "interlock_slots_used", "interlock_slots_cap"):
            self._gauges[name].clear()
        oldest = now_ms
        for lane, count, since_ms in tx.ready_lanes(LANES):
            self._gauges["interlock_ready_runs"].labels(lane).set(count)
            oldest = min(oldest, since_ms)
        self._gauges["interlock_oldest_ready_seconds"].set((now_ms - oldest) / 1000)
        for key, used in tx.used().items():
            self._gauges["interlock_slots_used"].labels(key).set(used)
        for key, cap in caps.items():
            self._gauges["interlock_slots_cap"].labels(key).set(cap)
