-- Generated from the migrations and the machines by `python -m interlock.store.sqlite.schema_snapshot`. Do not edit.

CREATE TABLE adhoc_agents (
  name TEXT NOT NULL PRIMARY KEY,
  spec TEXT NOT NULL CHECK (json_valid(spec))
) STRICT, WITHOUT ROWID;

CREATE TABLE agent_health (
  agent    TEXT NOT NULL PRIMARY KEY,
  reason   TEXT NOT NULL,
  since_ms INTEGER NOT NULL,
  retry_ms INTEGER NOT NULL,
  tries    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE attempts (
  run          INTEGER NOT NULL REFERENCES runs (number) ON DELETE CASCADE,
  fence        INTEGER NOT NULL CHECK (fence >= 1),
  state        TEXT NOT NULL,
  holder       TEXT NOT NULL,
  agent        TEXT,
  owner        TEXT,
  remote       INTEGER NOT NULL CHECK (remote IN (0, 1)),
  request_id   TEXT,
  claimed_ms   INTEGER NOT NULL,
  started_ms   INTEGER,
  ended_ms     INTEGER,
  reason       TEXT,
  message      TEXT,
  exit_status  INTEGER,
  process      TEXT CHECK (process IS NULL OR json_valid(process)),
  usage        TEXT CHECK (usage IS NULL OR json_valid(usage)),
  result       TEXT CHECK (result IS NULL OR json_valid(result)),
  ending_event TEXT,
  folder       TEXT,
  PRIMARY KEY (run, fence),
  CHECK (ended_ms IS NULL OR (reason IS NOT NULL AND message IS NOT NULL AND message <> ''))
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX attempts_live ON attempts (run) WHERE ended_ms IS NULL;

CREATE UNIQUE INDEX attempts_request ON attempts (run, request_id) WHERE request_id IS NOT NULL;

CREATE TABLE instances (
  id         TEXT NOT NULL PRIMARY KEY,
  host       TEXT NOT NULL,
  pid        INTEGER NOT NULL,
  boot_id    TEXT NOT NULL,
  ordinal    INTEGER NOT NULL,
  state      TEXT NOT NULL,
  scope      TEXT,
  wanted     TEXT,
  started_ms INTEGER NOT NULL,
  seen_ms    INTEGER NOT NULL,
  version    TEXT NOT NULL,
  note       TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE lanes (
  id            INTEGER PRIMARY KEY,
  key           TEXT NOT NULL UNIQUE,
  head_number   INTEGER,
  head_priority INTEGER,
  head_score    REAL
) STRICT;

CREATE INDEX lanes_by_head ON lanes (head_priority DESC, head_score DESC, head_number) WHERE head_number IS NOT NULL;

CREATE TABLE meta (
  key   TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE needs (
  run  INTEGER NOT NULL REFERENCES runs (number) ON DELETE CASCADE,
  need INTEGER NOT NULL REFERENCES runs (number) ON DELETE CASCADE,
  met  INTEGER NOT NULL DEFAULT 0 CHECK (met IN (0, 1)),
  PRIMARY KEY (run, need)
) STRICT, WITHOUT ROWID;

CREATE INDEX needs_by_need ON needs (need, run);

CREATE TABLE pullers (
  holder  TEXT NOT NULL PRIMARY KEY,
  agent   TEXT,
  types   TEXT NOT NULL CHECK (json_valid(types)),
  seen_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE run_events (
  seq        INTEGER PRIMARY KEY AUTOINCREMENT,
  run        INTEGER NOT NULL REFERENCES runs (number) ON DELETE CASCADE,
  event      TEXT NOT NULL,
  from_state TEXT,
  to_state   TEXT,
  at_ms      INTEGER NOT NULL,
  by         TEXT NOT NULL,
  fence      INTEGER,
  reason     TEXT,
  message    TEXT,
  data       TEXT CHECK (data IS NULL OR json_valid(data))
) STRICT;

CREATE INDEX run_events_run ON run_events (run, seq);

CREATE TABLE runs (
  number            INTEGER PRIMARY KEY AUTOINCREMENT,
  id                TEXT NOT NULL UNIQUE,
  state             TEXT NOT NULL,
  task              TEXT NOT NULL CHECK (json_valid(task)),
  content_hash      TEXT NOT NULL,
  batch             TEXT,
  task_key          TEXT,
  unique_key        TEXT,
  retry_of          INTEGER,
  base_priority     INTEGER NOT NULL,
  priority          INTEGER NOT NULL,
  score             REAL NOT NULL,
  lane              INTEGER NOT NULL,
  ready             INTEGER NOT NULL CHECK (ready IN (0, 1)),
  held              INTEGER NOT NULL CHECK (held IN (0, 1)),
  needs_left        INTEGER NOT NULL CHECK (needs_left >= 0),
  not_before_ms     INTEGER,
  not_before_why    TEXT,
  due_ms            INTEGER,
  pull              INTEGER NOT NULL CHECK (pull IN (0, 1)),
  agent             TEXT,
  fence             INTEGER NOT NULL CHECK (fence >= 0),
  holder            TEXT,
  remote            INTEGER NOT NULL CHECK (remote IN (0, 1)),
  lease_expires_ms  INTEGER,
  owner             TEXT,
  owner_epoch       INTEGER NOT NULL CHECK (owner_epoch >= 0),
  offered_ms        INTEGER,
  claimed_ms        INTEGER,
  first_claimed_ms  INTEGER,
  timeout_at_ms     INTEGER,
  spent_ms          INTEGER NOT NULL,
  stop              TEXT CHECK (stop IS NULL OR json_valid(stop)),
  dispatch_count    INTEGER NOT NULL,
  failures          INTEGER NOT NULL,
  losts             INTEGER NOT NULL,
  defers            INTEGER NOT NULL,
  offers            INTEGER NOT NULL,
  releases          INTEGER NOT NULL,
  question          TEXT,
  answer            TEXT,
  reason            TEXT,
  message           TEXT,
  result            TEXT CHECK (result IS NULL OR json_valid(result)),
  created_ms        INTEGER NOT NULL,
  updated_ms        INTEGER NOT NULL,
  ended_ms          INTEGER,
  -- For people and filters; the truth is in task.
  title             TEXT GENERATED ALWAYS AS (json_extract(task, '$.title')) VIRTUAL,
  project           TEXT GENERATED ALWAYS AS (json_extract(task, '$.project')) VIRTUAL,
  tracker           TEXT GENERATED ALWAYS AS (json_extract(task, '$.tracker')) VIRTUAL,
  role              TEXT GENERATED ALWAYS AS (json_extract(task, '$.role')) VIRTUAL,
  workflow_type     TEXT GENERATED ALWAYS AS (json_extract(task, '$.type')) VIRTUAL,
  CHECK ((ended_ms IS NOT NULL) = (state IN ('completed', 'failed', 'timed_out', 'cancelled'))),
  CHECK (ended_ms IS NULL OR (reason IS NOT NULL AND message IS NOT NULL AND message <> '')),
  CHECK ((holder IS NOT NULL) = (state IN ('claimed', 'running'))),
  CHECK (ready = 0 OR state = 'queued')
) STRICT;

CREATE INDEX runs_batch ON runs (batch, task_key) WHERE batch IS NOT NULL;

CREATE INDEX runs_due ON runs (due_ms) WHERE due_ms IS NOT NULL;

CREATE INDEX runs_ended ON runs (ended_ms) WHERE ended_ms IS NOT NULL;

CREATE INDEX runs_ready ON runs (lane, priority DESC, score DESC, number) WHERE ready = 1;

CREATE INDEX runs_stopping ON runs (owner) WHERE stop IS NOT NULL;

CREATE INDEX runs_unfinished ON runs (state, number) WHERE ended_ms IS NULL;

CREATE UNIQUE INDEX runs_unique_key ON runs (unique_key) WHERE unique_key IS NOT NULL AND ended_ms IS NULL;

CREATE TABLE slot_counts (
  key  TEXT NOT NULL PRIMARY KEY,
  used INTEGER NOT NULL CHECK (used >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE slots (
  run INTEGER NOT NULL REFERENCES runs (number) ON DELETE CASCADE,
  key TEXT NOT NULL,
  PRIMARY KEY (run, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX slots_by_key ON slots (key, run);

CREATE TABLE workflow_agent_routing (
  workflow_type   TEXT NOT NULL PRIMARY KEY,
  agent_id        TEXT NOT NULL,
  priority        INTEGER NOT NULL DEFAULT 0,
  max_concurrent  INTEGER DEFAULT 1,
  timeout_minutes INTEGER DEFAULT 60,
  stall_minutes   INTEGER,
  created_at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER interlock_attempts_born BEFORE INSERT ON attempts
WHEN NEW.state <> 'preparing' OR NEW.ended_ms IS NOT NULL OR EXISTS (SELECT 1 FROM attempts WHERE run = NEW.run AND (fence = NEW.fence OR ended_ms IS NULL OR (NEW.request_id IS NOT NULL AND request_id = NEW.request_id))) OR NOT EXISTS (SELECT 1 FROM runs WHERE number = NEW.run AND fence = NEW.fence AND state = 'claimed')
BEGIN SELECT RAISE(ABORT, 'illegal_transition: an attempt starts with a claim, once'); END;

CREATE TRIGGER interlock_attempts_ended BEFORE UPDATE OF state, ended_ms ON attempts
WHEN (NEW.ended_ms IS NOT NULL) <> (NEW.state IN ('blocked', 'cancelled', 'deferred', 'failed', 'interrupted', 'lapsed', 'lost', 'stalled', 'succeeded', 'timed_out'))
BEGIN SELECT RAISE(ABORT, 'illegal_transition: an attempt has an end when its state says so'); END;

CREATE TRIGGER interlock_attempts_final BEFORE UPDATE ON attempts
WHEN OLD.ended_ms IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'illegal_transition: an attempt that has ended is final'); END;

CREATE TRIGGER interlock_attempts_identity BEFORE UPDATE OF run, fence, request_id ON attempts
WHEN NEW.run IS NOT OLD.run OR NEW.fence IS NOT OLD.fence OR NEW.request_id IS NOT OLD.request_id
BEGIN SELECT RAISE(ABORT, 'illegal_transition: the identity of an attempt never changes'); END;

CREATE TRIGGER interlock_attempts_kept BEFORE DELETE ON attempts
WHEN EXISTS (SELECT 1 FROM runs WHERE number = OLD.run)
BEGIN SELECT RAISE(ABORT, 'illegal_transition: an attempt stays as long as its run'); END;

CREATE TRIGGER interlock_attempts_move BEFORE UPDATE OF state ON attempts
WHEN NEW.state <> OLD.state AND (OLD.state, NEW.state) NOT IN (VALUES ('asking', 'blocked'), ('asking', 'cancelled'), ('asking', 'deferred'), ('asking', 'failed'), ('asking', 'finishing'), ('asking', 'interrupted'), ('asking', 'lapsed'), ('asking', 'lost'), ('asking', 'stalled'), ('asking', 'succeeded'), ('asking', 'timed_out'), ('asking', 'working'), ('finishing', 'blocked'), ('finishing', 'cancelled'), ('finishing', 'deferred'), ('finishing', 'failed'), ('finishing', 'interrupted'), ('finishing', 'lapsed'), ('finishing', 'lost'), ('finishing', 'stalled'), ('finishing', 'succeeded'), ('finishing', 'timed_out'), ('launching', 'blocked'), ('launching', 'cancelled'), ('launching', 'deferred'), ('launching', 'failed'), ('launching', 'finishing'), ('launching', 'interrupted'), ('launching', 'lapsed'), ('launching', 'lost'), ('launching', 'stalled'), ('launching', 'succeeded'), ('launching', 'timed_out'), ('launching', 'working'), ('preparing', 'blocked'), ('preparing', 'cancelled'), ('preparing', 'deferred'), ('preparing', 'failed'), ('preparing', 'finishing'), ('preparing', 'interrupted'), ('preparing', 'lapsed'), ('preparing', 'lost'), ('preparing', 'prompting'), ('preparing', 'stalled'), ('preparing', 'succeeded'), ('preparing', 'timed_out'), ('preparing', 'working'), ('prompting', 'blocked'), ('prompting', 'cancelled'), ('prompting', 'deferred'), ('prompting', 'failed'), ('prompting', 'finishing'), ('prompting', 'interrupted'), ('prompting', 'lapsed'), ('prompting', 'launching'), ('prompting', 'lost'), ('prompting', 'stalled'), ('prompting', 'succeeded'), ('prompting', 'timed_out'), ('prompting', 'working'), ('working', 'asking'), ('working', 'blocked'), ('working', 'cancelled'), ('working', 'deferred'), ('working', 'failed'), ('working', 'finishing'), ('working', 'interrupted'), ('working', 'lapsed'), ('working', 'lost'), ('working', 'stalled'), ('working', 'succeeded'), ('working', 'timed_out'))
BEGIN SELECT RAISE(ABORT, 'illegal_transition: the machine has no such move'); END;

CREATE TRIGGER interlock_events_fixed BEFORE UPDATE ON run_events
WHEN 1
BEGIN SELECT RAISE(ABORT, 'conflict: an event never changes'); END;

CREATE TRIGGER interlock_events_kept BEFORE DELETE ON run_events
WHEN EXISTS (SELECT 1 FROM runs WHERE number = OLD.run)
BEGIN SELECT RAISE(ABORT, 'conflict: an event stays as long as its run'); END;

CREATE TRIGGER interlock_events_once BEFORE INSERT ON run_events
WHEN EXISTS (SELECT 1 FROM run_events WHERE seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'conflict: an event is written once'); END;

CREATE TRIGGER interlock_lanes_ready AFTER UPDATE OF ready, priority, score, lane ON runs
WHEN NEW.ready = 1 OR (OLD.ready = 1 AND OLD.number = (SELECT head_number FROM lanes WHERE id = OLD.lane)) BEGIN
UPDATE lanes SET (head_number, head_priority, head_score) = (SELECT number, priority, score FROM runs WHERE lane = NEW.lane AND ready = 1 ORDER BY priority DESC, score DESC, number LIMIT 1) WHERE id = NEW.lane;
UPDATE lanes SET (head_number, head_priority, head_score) = (SELECT number, priority, score FROM runs WHERE lane = OLD.lane AND ready = 1 ORDER BY priority DESC, score DESC, number LIMIT 1) WHERE id = OLD.lane AND OLD.lane <> NEW.lane; END;

CREATE TRIGGER interlock_lanes_ready_born AFTER INSERT ON runs WHEN NEW.ready = 1 BEGIN
UPDATE lanes SET head_number = NEW.number, head_priority = NEW.priority, head_score = NEW.score WHERE id = NEW.lane AND (head_number IS NULL OR NEW.priority > head_priority OR (NEW.priority = head_priority AND (NEW.score > head_score OR (NEW.score = head_score AND NEW.number < head_number)))); END;

CREATE TRIGGER interlock_runs_born BEFORE INSERT ON runs
WHEN NEW.state <> 'queued' OR NEW.fence <> 0 OR EXISTS (SELECT 1 FROM runs WHERE id = NEW.id OR number = NEW.number) OR (NEW.unique_key IS NOT NULL AND EXISTS (SELECT 1 FROM runs WHERE unique_key = NEW.unique_key AND ended_ms IS NULL))
BEGIN SELECT RAISE(ABORT, 'illegal_transition: a run starts queued, once'); END;

CREATE TRIGGER interlock_runs_fence BEFORE UPDATE OF fence, state ON runs
WHEN NEW.fence NOT IN (OLD.fence, OLD.fence + 1) OR (OLD.state = 'dispatched' AND NEW.state = 'claimed') <> (NEW.fence = OLD.fence + 1)
BEGIN SELECT RAISE(ABORT, 'illegal_transition: the fence grows by one with a claim, and only then'); END;

CREATE TRIGGER interlock_runs_identity BEFORE UPDATE OF number, id, unique_key, created_ms ON runs
WHEN NEW.number IS NOT OLD.number OR NEW.id IS NOT OLD.id OR NEW.unique_key IS NOT OLD.unique_key OR NEW.created_ms IS NOT OLD.created_ms
BEGIN SELECT RAISE(ABORT, 'illegal_transition: the identity of a run never changes'); END;

CREATE TRIGGER interlock_runs_kept BEFORE DELETE ON runs
WHEN OLD.ended_ms IS NULL
BEGIN SELECT RAISE(ABORT, 'illegal_transition: only a terminal run may be deleted'); END;

CREATE TRIGGER interlock_runs_move BEFORE UPDATE OF state ON runs
WHEN NEW.state <> OLD.state AND (OLD.state, NEW.state) NOT IN (VALUES ('blocked', 'cancelled'), ('blocked', 'completed'), ('blocked', 'failed'), ('blocked', 'queued'), ('claimed', 'blocked'), ('claimed', 'cancelled'), ('claimed', 'completed'), ('claimed', 'dispatched'), ('claimed', 'failed'), ('claimed', 'queued'), ('claimed', 'running'), ('claimed', 'timed_out'), ('dispatched', 'cancelled'), ('dispatched', 'claimed'), ('dispatched', 'completed'), ('dispatched', 'failed'), ('dispatched', 'queued'), ('dispatched', 'timed_out'), ('queued', 'cancelled'), ('queued', 'completed'), ('queued', 'dispatched'), ('queued', 'failed'), ('running', 'blocked'), ('running', 'cancelled'), ('running', 'completed'), ('running', 'dispatched'), ('running', 'failed'), ('running', 'queued'), ('running', 'timed_out'))
BEGIN SELECT RAISE(ABORT, 'illegal_transition: the machine has no such move'); END;

CREATE TRIGGER interlock_runs_state_known BEFORE UPDATE OF state ON runs
WHEN NEW.state NOT IN ('blocked', 'cancelled', 'claimed', 'completed', 'dispatched', 'failed', 'queued', 'running', 'timed_out')
BEGIN SELECT RAISE(ABORT, 'illegal_transition: no such state'); END;

CREATE TRIGGER interlock_runs_terminal BEFORE UPDATE ON runs
WHEN OLD.ended_ms IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'illegal_transition: a terminal run is final'); END;

CREATE TRIGGER interlock_slots_freed AFTER UPDATE OF state ON runs
WHEN OLD.state IN ('claimed', 'dispatched', 'running') AND NEW.state NOT IN ('claimed', 'dispatched', 'running')
BEGIN DELETE FROM slots WHERE run = NEW.number; END;

CREATE TRIGGER interlock_slots_count_freed AFTER DELETE ON slots BEGIN
UPDATE slot_counts SET used = used - 1 WHERE key = OLD.key; END;

CREATE TRIGGER interlock_slots_count_taken AFTER INSERT ON slots BEGIN
INSERT INTO slot_counts (key, used) VALUES (NEW.key, 1) ON CONFLICT (key) DO UPDATE SET used = used + 1; END;

CREATE TRIGGER interlock_slots_fixed BEFORE UPDATE ON slots
WHEN 1
BEGIN SELECT RAISE(ABORT, 'conflict: a slot is taken or freed, never changed'); END;

CREATE TRIGGER interlock_slots_taken BEFORE INSERT ON slots
WHEN EXISTS (SELECT 1 FROM slots WHERE run = NEW.run AND key = NEW.key) OR NOT EXISTS (SELECT 1 FROM runs WHERE number = NEW.run AND state IN ('claimed', 'dispatched', 'running'))
BEGIN SELECT RAISE(ABORT, 'conflict: a slot is taken once, by an active run'); END;
