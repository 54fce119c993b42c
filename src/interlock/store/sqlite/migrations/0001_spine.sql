-- The tables of the spine. Triggers are not here: they are generated from the machines (triggers.py), after every migration.
-- All *_ms columns are Unix milliseconds; JSON columns hold what the field of the same name holds.

CREATE TABLE meta (
  key   TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- A lane and the run of it that goes first; kept by triggers on runs.
CREATE TABLE lanes (
  id            INTEGER PRIMARY KEY,
  key           TEXT NOT NULL UNIQUE,
  head_number   INTEGER,
  head_priority INTEGER,
  head_score    REAL
) STRICT;

CREATE INDEX lanes_by_head ON lanes (head_priority DESC, head_score DESC, head_number) WHERE head_number IS NOT NULL;

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
  misfires          INTEGER NOT NULL DEFAULT 0,
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

CREATE INDEX runs_ready ON runs (lane, priority DESC, score DESC, number) WHERE ready = 1;
CREATE INDEX runs_due ON runs (due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX runs_retry_of ON runs (retry_of, number) WHERE retry_of IS NOT NULL;
CREATE INDEX runs_stopping ON runs (owner) WHERE stop IS NOT NULL;
CREATE INDEX runs_unfinished ON runs (state, number) WHERE ended_ms IS NULL;
CREATE INDEX runs_ended ON runs (ended_ms) WHERE ended_ms IS NOT NULL;
CREATE INDEX runs_batch ON runs (batch, task_key) WHERE batch IS NOT NULL;
CREATE UNIQUE INDEX runs_unique_key ON runs (unique_key) WHERE unique_key IS NOT NULL AND ended_ms IS NULL;

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

-- At most one live claim per run.
CREATE UNIQUE INDEX attempts_live ON attempts (run) WHERE ended_ms IS NULL;
CREATE UNIQUE INDEX attempts_request ON attempts (run, request_id) WHERE request_id IS NOT NULL;

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

CREATE TABLE slots (
  run INTEGER NOT NULL REFERENCES runs (number) ON DELETE CASCADE,
  key TEXT NOT NULL,
  PRIMARY KEY (run, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX slots_by_key ON slots (key, run);

-- How many slots are taken under each key; kept by triggers on slots, checked against a recount.
CREATE TABLE slot_counts (
  key  TEXT NOT NULL PRIMARY KEY,
  used INTEGER NOT NULL CHECK (used >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE needs (
  run  INTEGER NOT NULL REFERENCES runs (number) ON DELETE CASCADE,
  need INTEGER NOT NULL REFERENCES runs (number) ON DELETE CASCADE,
  met  INTEGER NOT NULL DEFAULT 0 CHECK (met IN (0, 1)),
  PRIMARY KEY (run, need)
) STRICT, WITHOUT ROWID;

CREATE INDEX needs_by_need ON needs (need, run);

CREATE TABLE workflow_agent_routing (
  workflow_type   TEXT NOT NULL PRIMARY KEY,
  agent_id        TEXT NOT NULL,
  priority        INTEGER NOT NULL DEFAULT 0,
  max_concurrent  INTEGER DEFAULT 1,
  timeout_minutes INTEGER DEFAULT 60,
  stall_minutes   INTEGER,
  created_at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE instances (
  id         TEXT NOT NULL PRIMARY KEY,
  host       TEXT NOT NULL,
  pid        INTEGER NOT NULL,
  boot_id    TEXT NOT NULL,
  ordinal    INTEGER NOT NULL,
  state      TEXT NOT NULL,
  scope      TEXT,
  wanted     TEXT,
  total      INTEGER,
  started_ms INTEGER NOT NULL,
  version    TEXT NOT NULL,
  note       TEXT
) STRICT, WITHOUT ROWID;

-- Agents that could not be started, and when they are tried again.
CREATE TABLE agent_health (
  agent    TEXT NOT NULL PRIMARY KEY,
  reason   TEXT NOT NULL,
  since_ms INTEGER NOT NULL,
  retry_ms INTEGER NOT NULL,
  tries    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Agents given on a command line rather than in a configuration file.
CREATE TABLE adhoc_agents (
  name TEXT NOT NULL PRIMARY KEY,
  spec TEXT NOT NULL CHECK (json_valid(spec))
) STRICT, WITHOUT ROWID;

-- Who comes for offers, and when it was last seen: an offer's time counts only while somebody who fits is there.
CREATE TABLE pullers (
  holder  TEXT NOT NULL PRIMARY KEY,
  agent   TEXT,
  types   TEXT NOT NULL CHECK (json_valid(types)),
  seen_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
