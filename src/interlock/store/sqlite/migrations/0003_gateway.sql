-- What agents need that come for their work over HTTP.

-- A claim whose answer was lost is asked for again by the request's id, and then nobody knows which run it was.
CREATE INDEX attempts_by_request ON attempts (request_id, holder) WHERE request_id IS NOT NULL;

-- Open offers, the most urgent first.
CREATE INDEX runs_offered ON runs (priority DESC, score DESC, number) WHERE state = 'dispatched' AND pull = 1;

ALTER TABLE pullers ADD COLUMN role TEXT;

-- Secrets are not kept: only what shows that somebody has one.
CREATE TABLE tokens (
  name       TEXT NOT NULL PRIMARY KEY,
  scope      TEXT NOT NULL CHECK (scope IN ('read', 'agent', 'operator')),
  digest     TEXT NOT NULL UNIQUE,
  created_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Answers to submits that carried a key: the same submit again is answered the same.
CREATE TABLE submissions (
  key    TEXT NOT NULL PRIMARY KEY,
  digest TEXT NOT NULL,
  runs   TEXT NOT NULL CHECK (json_valid(runs)),
  at_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX submissions_by_time ON submissions (at_ms);

CREATE TABLE templates (
  name       TEXT NOT NULL PRIMARY KEY,
  task       TEXT NOT NULL CHECK (json_valid(task)),
  created_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
