"""The statements of one transaction on a SQLite connection: :class:`interlock.ports.store.Tx` for this engine."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from interlock.domain.puller import Puller
from interlock.domain.run import AgentHealth, Attempt, Event, Instance, Lane, Route, Run
from interlock.domain.settings import Agent
from interlock.domain.states import ACTIVE, RunState
from interlock.domain.token import Scope, Token
from interlock.ports.store import News, RunFilter, Undone
from interlock.store.sqlite.errors import serves_nobody
from interlock.store.sqlite.queries import SQL
from interlock.store.sqlite.rows import ATTEMPTS, EVENTS, HEALTHS, INSTANCES, ROUTES, RUNS, Rows, to_json

_RUN_COLUMNS = ", ".join(RUNS.fields)
_INSERTED = tuple(name for name in RUNS.fields if name != "number")
_ADD_RUN = f"INSERT INTO runs ({', '.join(_INSERTED)}) VALUES ({', '.join('?' * len(_INSERTED))}) RETURNING number"  # noqa: S608 - column names


def _lane(row: Sequence[Any]) -> Lane:
    lane, key, number, priority, score = row
    return Lane(id=lane, key=key, head_number=number, head_priority=priority, head_score=score)


def _token(row: Sequence[Any]) -> Token:
    name, scope, digest, created_ms = row
    return Token(name=name, scope=Scope(scope), digest=digest, created_ms=created_ms)


class Spoiled(BaseException):
    """Something raised after it had written, and there is no savepoint to go back to: once more, with savepoints."""


class SqliteTx:
    """One transaction, and what there is to be heard of it. ``careful``: parts have savepoints of their own."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._execute = connection.execute
        self.careful = False
        self._updates: dict[tuple[str, tuple[str, ...]], str] = {}
        self.forget_news()

    # news

    def forget_news(self) -> None:
        """Nothing of this transaction is to be heard (yet)."""
        self._worth_a_ring = self._may_start = self._stops = self._commands = self._offers = False
        self._due_ms: int | None = None

    def take_news(self) -> News | None:
        """What others are to hear of, once."""
        if not self._worth_a_ring:
            return None
        news = News(
            may_start=self._may_start,
            due_ms=self._due_ms,
            stops=self._stops,
            commands=self._commands,
            offers=self._offers,
        )
        self.forget_news()
        return news

    def hint(self) -> None:
        self._worth_a_ring = self._may_start = True

    def all_started(self) -> None:
        self._may_start = False

    def _note_due(self, due_ms: int | None) -> None:
        if due_ms is not None and (self._due_ms is None or due_ms < self._due_ms):
            self._due_ms = due_ms

    def _note_news(self, old: Run, new: Run) -> None:
        self._note_due(new.due_ms)
        if new.stop is not None:
            self._stops = True
        if new.pull and new.state is RunState.DISPATCHED:
            self._offers = True
        if new.ready or new.state is RunState.DISPATCHED or (old.state in ACTIVE and new.state not in ACTIVE):
            self._may_start = True

    @contextmanager
    def apart(self) -> Iterator[None]:
        if not self.careful:
            before = self.connection.total_changes
            try:
                yield
            except Exception as error:
                if not self.connection.in_transaction or serves_nobody(error):
                    # Of the whole transaction: the engine undoes that.
                    raise
                if self.connection.total_changes != before:
                    raise Spoiled from error
                raise Undone(error) from error
            return
        self._execute("SAVEPOINT apart")
        try:
            yield
        except Exception as error:
            if not self.connection.in_transaction or serves_nobody(error):
                # Of the whole transaction: the engine undoes that.
                raise
            self._execute("ROLLBACK TO apart")
            self._execute("RELEASE apart")
            raise Undone(error) from error
        self._execute("RELEASE apart")

    def _all(self, name: str, *values: Any) -> list[Any]:
        return self._execute(SQL[name], values).fetchall()

    def _one(self, name: str, *values: Any) -> Any:
        return self._execute(SQL[name], values).fetchone()

    def _do(self, name: str, *values: Any) -> int:
        return self._execute(SQL[name], values).rowcount

    def _runs(self, name: str, *values: Any) -> list[Run]:
        return [RUNS.read(row) for row in self._all(name, *values)]

    def _a_run(self, name: str, *values: Any) -> Run | None:
        row = self._one(name, *values)
        return None if row is None else RUNS.read(row)

    def _save(self, table: str, rows: Rows[Any], key: dict[str, Any], old: Any, new: Any) -> None:
        # The one statement that is not in queries.sql: which columns a move changes depends on the move.
        names, cells = rows.changes(old, new)
        if not names:
            return
        sql = self._updates.get((table, names))
        if sql is None:
            assignments = ", ".join(f"{name} = ?" for name in names)
            where = " AND ".join(f"{name} = ?" for name in key)
            sql = self._updates[table, names] = f"UPDATE {table} SET {assignments} WHERE {where}"  # noqa: S608
        changed = self._execute(sql, (*cells, *key.values())).rowcount
        if changed != 1:
            raise sqlite3.IntegrityError(f"{table} {tuple(key.values())}: not there to be changed")

    # runs

    def add_run(self, run: Run) -> Run:
        cells = [RUNS.cell(name, getattr(run, name)) for name in _INSERTED]
        (number,) = self._execute(_ADD_RUN, cells).fetchone()
        self._may_start = self._may_start or run.ready
        self._note_due(run.due_ms)
        return msgspec.structs.replace(run, number=number)

    def save_run(self, old: Run, new: Run) -> None:
        self._note_news(old, new)
        self._save("runs", RUNS, {"number": old.number, "state": old.state, "fence": old.fence}, old, new)

    def run(self, number: int) -> Run | None:
        return self._a_run("run", number)

    def run_by_id(self, run_id: str) -> Run | None:
        return self._a_run("run_by_id", run_id)

    def runs_by_prefix(self, prefix: str) -> list[Run]:
        return self._runs("runs_by_prefix", prefix)

    def run_by_unique_key(self, key: str) -> Run | None:
        return self._a_run("run_by_unique_key", key)

    def batch_latest(self, batch: str, task_key: str) -> Run | None:
        return self._a_run("batch_latest", batch, task_key)

    def retried_as(self, number: int) -> int | None:
        row = self._one("retried_as", number)
        return None if row is None else int(row[0])

    def batch_runs(self, batch: str) -> list[Run]:
        return self._runs("batch_runs", batch)

    def live_runs(self) -> list[Run]:
        return self._runs("live_runs")

    def renew_owned(self, owner: str, lease_expires_ms: int, now_ms: int) -> int:
        return self._do("renew_owned", lease_expires_ms, now_ms, owner)

    def quarantine(self, number: int, due_ms: int, message: str) -> RunState | None:
        row = self._one("state_and_held", number)
        try:
            with self.apart():
                changed = self._do("quarantine", due_ms, number, message)
        except Undone:
            changed = self._do("put_aside", due_ms, number, message)
        return RunState(row[0]) if changed and not row[1] else None

    def owners(self) -> set[str]:
        return {owner for (owner,) in self._all("owners")}

    def claimed_by(self, owner: str) -> set[int]:
        return {number for (number,) in self._all("claimed_by", owner)}

    def stopping(self, owner: str) -> list[Run]:
        return self._runs("stopping", owner)

    def queued_after(self, number: int, limit: int) -> list[Run]:
        return self._runs("queued_after", number, limit)

    def find_runs(self, by: RunFilter) -> list[Run]:
        terms: list[str] = []
        values: list[Any] = []
        if by.states:
            terms.append(f"state IN ({', '.join('?' * len(by.states))})")
            values.extend(by.states)
        for column, value in (("batch", by.batch), ("project", by.project), ("workflow_type", by.type)):
            if value is not None:
                terms.append(f"{column} = ?")
                values.append(value)
        if by.tag is not None:
            terms.append("EXISTS (SELECT 1 FROM json_each(task, '$.tags') WHERE json_each.value = ?)")
            values.append(by.tag)
        if by.before is not None:
            terms.append("number < ?")
            values.append(by.before)
        where = f" WHERE {' AND '.join(terms)}" if terms else ""
        sql = f"SELECT {_RUN_COLUMNS} FROM runs{where} ORDER BY number DESC LIMIT ?"  # noqa: S608 - names
        return [RUNS.read(row) for row in self._execute(sql, (*values, by.limit)).fetchall()]

    def count_states(self, *, batch: str | None = None, finished: bool = True) -> dict[str, int]:
        if batch is not None:
            return dict(self._all("count_batch_states", batch))
        return dict(self._all("count_all_states" if finished else "count_states"))

    def prunable(self, ended_before_ms: int, limit: int) -> list[int]:
        return [number for (number,) in self._all("prunable", ended_before_ms, limit)]

    def delete_run(self, number: int) -> None:
        self._do("delete_run", number)

    # the queue

    def lane(self, key: str) -> int:
        row = self._one("lane_by_key", key) or self._one("add_lane", key)
        return int(row[0])

    def lane_of(self, lane: int) -> Lane | None:
        row = self._one("lane_of", lane)
        return None if row is None else _lane(row)

    def lanes(self, limit: int, after: Lane | None = None) -> list[Lane]:
        if after is None:
            rows = self._all("lanes_from", limit)
        else:
            rows = self._all("lanes_after", after.head_priority, after.head_score, after.head_number, limit)
        return [_lane(row) for row in rows]

    def lane_rank(self, run: Run, limit: int) -> int:
        return int(self._one("lane_rank", run.lane, run.priority, run.score, run.number, limit)[0])

    def ready_lanes(self, limit: int) -> list[tuple[str, int, int]]:
        return [(key, count, since_ms) for key, count, since_ms in self._all("ready_lanes", limit)]

    def state_ages(self) -> list[tuple[str, int, int]]:
        return [(state, count, since_ms) for state, count, since_ms in self._all("state_ages")]

    def drop_empty_lanes(self) -> None:
        self._do("drop_empty_lanes")

    def offers(self, *, pull: bool, limit: int) -> list[Run]:
        return self._runs("offers_pull" if pull else "offers_push", limit)

    def unfinished_types(self) -> list[str]:
        return [workflow_type for (workflow_type,) in self._all("unfinished_types")]

    def set_route_priority(self, workflow_type: str, priority: int) -> None:
        self._do("set_route_priority", priority, workflow_type)

    # deadlines

    def next_due_ms(self) -> int | None:
        if self._one("any_untold")[0]:
            return 0
        due: int | None = self._one("next_due")[0]
        return due

    def due(self, now_ms: int, limit: int) -> list[int]:
        return [number for (number,) in self._all("due", now_ms, limit)]

    def shift_deadlines(self, by_ms: int) -> None:
        self._do("shift_deadlines", by_ms)

    def shift_backoffs(self, by_ms: int) -> None:
        self._do("shift_backoffs", by_ms)

    # attempts

    def add_attempt(self, attempt: Attempt) -> None:
        self._do("add_attempt", *ATTEMPTS.write(attempt))

    def save_attempt(self, old: Attempt, new: Attempt) -> None:
        self._save("attempts", ATTEMPTS, {"run": old.run, "fence": old.fence}, old, new)

    def attempt(self, run: int, fence: int) -> Attempt | None:
        row = self._one("attempt", run, fence)
        return None if row is None else ATTEMPTS.read(row)

    def attempts(self, run: int) -> list[Attempt]:
        return [ATTEMPTS.read(row) for row in self._all("attempts", run)]

    def attempt_by_request(self, run: int, request_id: str) -> Attempt | None:
        row = self._one("attempt_by_request", run, request_id)
        return None if row is None else ATTEMPTS.read(row)

    def claimed_by_request(self, request_id: str, holder: str) -> Attempt | None:
        row = self._one("live_attempt_by_request", request_id, holder)
        return None if row is None else ATTEMPTS.read(row)

    # events

    def add_event(self, event: Event) -> None:
        self._worth_a_ring = True
        self._do(
            "add_event",
            event.run,
            event.event,
            event.from_state,
            event.to_state,
            event.at_ms,
            event.by,
            event.fence,
            event.reason,
            event.message,
            to_json(event.data),
        )

    def events_of(self, run: int, after: int = 0, limit: int = 10_000) -> list[Event]:
        return [EVENTS.read(row) for row in self._all("events_of", run, after, limit)]

    def events_after(self, seq: int, limit: int) -> list[Event]:
        return [EVENTS.read(row) for row in self._all("events_after", seq, limit)]

    def last_seq(self) -> int:
        return int(self._one("last_seq")[0] or 0)

    def event_from(self, seq: int) -> tuple[int, int] | None:
        row = self._one("event_at", seq)
        return None if row is None else (int(row[0]), int(row[1]))

    def event_counts(self, seq: int, since_ms: int) -> list[tuple[str, bool, int]]:
        return [(event, bool(lapsed), count) for event, lapsed, count in self._all("event_counts", seq, since_ms)]

    def claim_latencies(self, seq: int, since_ms: int, limit: int) -> list[int]:
        found = self._all("claim_latencies", seq, since_ms, limit)
        return [latency for (latency,) in found if latency is not None]

    # slots

    def take_slots(self, run: int, keys: Iterable[str]) -> None:
        self.connection.executemany(SQL["take_slot"], [(run, key) for key in keys])

    def free_slot(self, run: int, key: str) -> None:
        self._do("drop_slot", run, key)

    def slots_of(self, run: int) -> list[str]:
        return [key for (key,) in self._all("slots_of", run)]

    def slot_holders(self, key: str, limit: int) -> list[tuple[int, str, str, str]]:
        return [
            (number, run_id, title, state) for number, run_id, title, state in self._all("slot_holders", key, limit)
        ]

    def used(self) -> dict[str, int]:
        return dict(self._all("used"))

    def used_of(self, key: str) -> int:
        row = self._one("used_of", key)
        return 0 if row is None else int(row[0])

    def recount(self) -> dict[str, int]:
        return dict(self._all("recount"))

    def slot_faults(self) -> list[str]:
        faults = [f"run {number} holds slot '{key}' without being active" for number, key in self._all("stray_slots")]
        faults += [f"run {number} is active without a slot" for (number,) in self._all("active_without_slots")]
        counted, kept = self.recount(), self.used()
        for key in sorted(counted.keys() | kept.keys()):
            if counted.get(key, 0) != kept.get(key, 0):
                faults.append(f"slot '{key}': {kept.get(key, 0)} in the books, {counted.get(key, 0)} by a recount")
        return faults

    def repair_slots(self) -> None:
        for number, key in self._all("stray_slots"):
            self.free_slot(number, key)
        self._do("drop_slot_counts")
        self._do("fill_slot_counts")

    # needs

    def add_need(self, run: int, need: int, *, met: bool) -> None:
        self._do("add_need", run, need, int(met))

    def needs_of(self, run: int) -> list[tuple[int, bool]]:
        return [(need, bool(met)) for need, met in self._all("needs_of", run)]

    def dependants(self, need: int, after: int = 0, limit: int = -1) -> list[int]:
        return [run for (run,) in self._all("dependants", need, after, limit)]

    def leave_untold(self, need: int, after: int) -> None:
        self._worth_a_ring = True
        self._due_ms = 0
        self._do("leave_untold", need, after)

    def take_untold(self) -> tuple[int, int] | None:
        row = self._one("take_untold")
        return None if row is None else (int(row[0]), int(row[1]))

    def meet_need(self, run: int, need: int) -> None:
        self._do("meet_need", run, need)

    # what stands beside runs

    def routes(self) -> dict[str, Route]:
        return {route.workflow_type: route for route in map(ROUTES.read, self._all("routes"))}

    def put_route(self, route: Route) -> None:
        self._do("put_route", *ROUTES.write(route))

    def delete_route(self, workflow_type: str) -> bool:
        return self._do("delete_route", workflow_type) == 1

    def instances(self) -> list[Instance]:
        return [INSTANCES.read(row) for row in self._all("instances")]

    def put_instance(self, instance: Instance) -> None:
        self._do("put_instance", *INSTANCES.write(instance))

    def set_instance_wanted(self, instance: str, wanted: str | None) -> None:
        self._worth_a_ring = self._commands = True
        self._do("set_instance_wanted", wanted, instance)

    def set_instance_state(self, instance: str, state: str, note: str | None) -> None:
        self._do("set_instance_state", state, note, instance)

    def delete_instance(self, instance: str) -> None:
        self._do("delete_instance", instance)

    def healths(self) -> dict[str, AgentHealth]:
        return {health.agent: health for health in map(HEALTHS.read, self._all("healths"))}

    def put_health(self, health: AgentHealth) -> None:
        self._note_due(health.retry_ms)
        self._do("put_health", *HEALTHS.write(health))

    def delete_health(self, agent: str) -> None:
        self._do("delete_health", agent)

    def adhoc_agents(self) -> dict[str, Agent]:
        return {name: msgspec.json.decode(spec, type=Agent) for name, spec in self._all("adhoc_agents")}

    def put_adhoc_agent(self, agent: Agent) -> None:
        self._do("put_adhoc_agent", agent.name, to_json(agent))

    def put_puller(self, puller: Puller, seen_ms: int) -> None:
        self._do("put_puller", puller.holder, puller.agent, to_json(puller.types), puller.role, seen_ms)

    def pullers_since(self, seen_ms: int) -> list[Puller]:
        return [
            Puller(holder=holder, agent=agent, types=msgspec.json.decode(types, type=tuple[str, ...]), role=role)
            for holder, agent, types, role in self._all("pullers_since", seen_ms)
        ]

    def shift_pullers(self, by_ms: int) -> None:
        self._do("shift_pullers", by_ms)

    def drop_pullers(self, seen_before_ms: int) -> None:
        self._do("drop_pullers", seen_before_ms)

    def tokens(self) -> list[Token]:
        return [_token(row) for row in self._all("tokens")]

    def token(self, digest: str) -> Token | None:
        row = self._one("token_by_digest", digest)
        return None if row is None else _token(row)

    def add_token(self, token: Token) -> None:
        self._do("add_token", token.name, token.scope, token.digest, token.created_ms)

    def delete_token(self, name: str) -> bool:
        return self._do("delete_token", name) == 1

    def submission(self, key: str) -> tuple[str, list[int]] | None:
        row = self._one("submission", key)
        return None if row is None else (str(row[0]), msgspec.json.decode(row[1], type=list[int]))

    def add_submission(self, key: str, digest: str, runs: Sequence[int], at_ms: int) -> None:
        self._do("add_submission", key, digest, to_json(list(runs)), at_ms)

    def drop_submissions(self, before_ms: int, limit: int) -> None:
        self._do("drop_submissions", before_ms, limit)

    def templates(self) -> dict[str, dict[str, Any]]:
        return {name: msgspec.json.decode(task, type=dict[str, Any]) for name, task in self._all("templates")}

    def put_template(self, name: str, task: dict[str, Any], created_ms: int) -> None:
        self._do("put_template", name, to_json(task), created_ms)

    def delete_template(self, name: str) -> bool:
        return self._do("delete_template", name) == 1

    def meta(self, key: str) -> str | None:
        row = self._one("meta", key)
        return None if row is None else str(row[0])

    def set_meta(self, key: str, value: str | None) -> None:
        if value is None:
            self._do("delete_meta", key)
        else:
            self._do("set_meta", key, value)

    def durations(self, since_ms: int, limit: int) -> list[tuple[Any, ...]]:
        return self._all("durations", since_ms, limit)

    def run_durations(self, since_ms: int, limit: int) -> list[int]:
        return [took for (took,) in self._all("run_durations", since_ms, limit)]
