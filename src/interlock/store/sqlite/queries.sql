-- Every query of the store, named. {run}, {attempt}, {event}, {route}, {instance}, {health} stand for the columns of that value,
-- in the order of its fields; {..._values} for as many placeholders.

-- name: run
-- By number.
SELECT {run} FROM runs WHERE number = ?;

-- name: run_by_id
SELECT {run} FROM runs WHERE id = ?;

-- name: runs_by_prefix
-- Two are enough to know that a prefix is not unique. The upper bound is the prefix with its end made greatest.
SELECT {run} FROM runs WHERE id >= ?1 AND id < ?1 || char(0x10FFFF) ORDER BY id LIMIT 3;

-- name: run_by_unique_key
SELECT {run} FROM runs WHERE unique_key = ? AND ended_ms IS NULL;

-- name: batch_latest
-- The newest run of a task of a batch.
SELECT {run} FROM runs WHERE batch = ? AND task_key = ? ORDER BY number DESC LIMIT 1;

-- name: retried_as
-- The newest retry of a run.
SELECT number FROM runs WHERE retry_of = ? ORDER BY number DESC LIMIT 1;

-- name: batch_runs
SELECT {run} FROM runs WHERE batch = ? ORDER BY number;

-- name: live_runs
-- Dispatched, claimed, running.
SELECT {run} FROM runs WHERE ended_ms IS NULL AND state IN ('dispatched', 'claimed', 'running') ORDER BY number;

-- name: renew_owned
-- No local claim is due by its lease, so nothing else follows from it.
UPDATE runs SET lease_expires_ms = ?1, updated_ms = ?2
WHERE ended_ms IS NULL AND state IN ('claimed', 'running') AND owner = ?3;

-- name: owners
SELECT DISTINCT owner FROM runs WHERE ended_ms IS NULL AND state IN ('claimed', 'running') AND owner IS NOT NULL;

-- name: claimed_by
SELECT number FROM runs WHERE ended_ms IS NULL AND state IN ('claimed', 'running') AND owner = ?;

-- name: stopping
-- Local runs whose agents are to be stopped.
SELECT {run} FROM runs WHERE stop IS NOT NULL AND owner = ?;

-- name: queued_after
-- Queued runs in the order of their numbers, for work in batches.
SELECT {run} FROM runs WHERE ended_ms IS NULL AND state = 'queued' AND number > ? ORDER BY number LIMIT ?;

-- name: lane_of
-- A lane that has runs ready, with the one that goes first.
SELECT id, key, head_number, head_priority, head_score FROM lanes WHERE id = ? AND head_number IS NOT NULL;

-- name: lanes_from
-- Heads of lanes in the order in which they want to start.
SELECT id, key, head_number, head_priority, head_score FROM lanes
WHERE head_number IS NOT NULL
ORDER BY head_priority DESC, head_score DESC, head_number LIMIT ?;

-- name: lanes_after
-- The same from behind a head on. The first comparison gives the index its starting point.
SELECT id, key, head_number, head_priority, head_score FROM lanes
WHERE head_number IS NOT NULL AND head_priority <= ?1
  AND (head_priority < ?1 OR head_score < ?2 OR (head_score = ?2 AND head_number > ?3))
ORDER BY head_priority DESC, head_score DESC, head_number LIMIT ?4;

-- name: lane_rank
-- How many ready runs of a lane go before one, counted up to a bound.
SELECT count(*) FROM (
  SELECT 1 FROM runs WHERE lane = ?1 AND ready = 1
    AND (priority > ?2 OR (priority = ?2 AND (score > ?3 OR (score = ?3 AND number < ?4)))) LIMIT ?5);

-- name: lane_by_key
SELECT id FROM lanes WHERE key = ?;

-- name: add_lane
INSERT INTO lanes (key) VALUES (?) RETURNING id;

-- name: drop_empty_lanes
-- One pass over the runs, for use when rows are deleted anyway.
DELETE FROM lanes WHERE head_number IS NULL AND id NOT IN (SELECT lane FROM runs);

-- name: offers_push
-- Offers that a dispatcher is to claim for a local agent itself.
SELECT {run} FROM runs WHERE ended_ms IS NULL AND state = 'dispatched' AND pull = 0 ORDER BY number LIMIT ?;

-- name: offers_pull
-- By its own index, which the planner, without statistics, takes for no better than that of all unfinished runs.
SELECT {run} FROM runs INDEXED BY runs_offered WHERE state = 'dispatched' AND pull = 1
ORDER BY priority DESC, score DESC, number LIMIT ?;

-- name: next_due
SELECT min(due_ms) FROM runs WHERE due_ms IS NOT NULL;

-- name: due
-- Numbers only: each is read, and may turn out to be unreadable, by itself.
SELECT number FROM runs WHERE due_ms IS NOT NULL AND due_ms <= ? ORDER BY due_ms LIMIT ?;

-- name: quarantine
-- Without looking at the rest of the row. An offer gives its slots back; a live claim stays, and is looked at again later.
UPDATE runs SET held = 1, ready = 0, message = ?3, pull = 0, offered_ms = NULL,
  state = CASE state WHEN 'dispatched' THEN 'queued' ELSE state END,
  timeout_at_ms = CASE state WHEN 'dispatched' THEN NULL ELSE timeout_at_ms END,
  claimed_ms = CASE state WHEN 'dispatched' THEN NULL ELSE claimed_ms END,
  due_ms = CASE WHEN state IN ('claimed', 'running') THEN ?1 END
WHERE number = ?2 AND ended_ms IS NULL;

-- name: put_aside
-- The least that keeps a run from being looked at, where even that is refused.
UPDATE runs SET held = 1, ready = 0, message = ?3, due_ms = ?1 WHERE number = ?2 AND ended_ms IS NULL;

-- name: state_and_held
SELECT state, held FROM runs WHERE number = ?;

-- name: shift_deadlines
-- Downtime and clock steps count against nobody: what was left of every lease, claim and timeout is left again.
UPDATE runs SET
  lease_expires_ms = lease_expires_ms + ?1,
  timeout_at_ms = timeout_at_ms + ?1,
  offered_ms = offered_ms + ?1,
  claimed_ms = claimed_ms + ?1,
  due_ms = due_ms + ?1
WHERE ended_ms IS NULL AND state IN ('dispatched', 'claimed', 'running');

-- name: shift_backoffs
-- A backoff is a length of time; a time that somebody asked for stays where it is.
UPDATE runs SET not_before_ms = not_before_ms + ?1, due_ms = due_ms + ?1
WHERE ended_ms IS NULL AND state IN ('queued', 'dispatched') AND not_before_ms IS NOT NULL AND not_before_why IS NOT NULL;

-- name: count_states
-- Unfinished runs are few beside the finished ones and have an index of their own.
SELECT state, count(*) FROM runs WHERE ended_ms IS NULL GROUP BY state;

-- name: count_all_states
SELECT state, count(*) FROM runs GROUP BY state;

-- name: count_batch_states
SELECT state, count(*) FROM runs WHERE batch = ? GROUP BY state;

-- name: ready_lanes
-- The longest lanes: key, how many could start, and when the oldest of them was made. Numbers grow with that time, and the index
-- of what is ready has them.
SELECT lanes.key, found.many, (SELECT created_ms FROM runs WHERE number = found.oldest)
FROM (SELECT lane, count(*) AS many, min(number) AS oldest FROM runs INDEXED BY runs_ready WHERE ready = 1 GROUP BY lane) AS found
JOIN lanes ON lanes.id = found.lane ORDER BY found.many DESC, found.lane LIMIT ?;

-- name: state_ages
-- Unfinished runs: how many are in a state, and when the oldest of them was made.
SELECT found.state, found.many, (SELECT created_ms FROM runs WHERE number = found.oldest)
FROM (SELECT state, count(*) AS many, min(number) AS oldest FROM runs WHERE ended_ms IS NULL GROUP BY state) AS found;

-- name: unfinished_types
SELECT DISTINCT workflow_type FROM runs WHERE ended_ms IS NULL AND workflow_type IS NOT NULL;

-- name: set_route_priority
-- Of every unfinished run: one that is active now may be queued again.
UPDATE runs SET priority = base_priority + ?1 WHERE ended_ms IS NULL AND workflow_type = ?2 AND priority != base_priority + ?1;

-- name: durations
-- What stats are made of: the newest ended attempts.
SELECT a.claimed_ms - r.created_ms, a.started_ms - a.claimed_ms, a.ended_ms - a.claimed_ms, a.state
FROM runs r JOIN attempts a ON a.run = r.number WHERE r.ended_ms >= ? ORDER BY r.ended_ms DESC LIMIT ?;

-- name: run_durations
-- From a run's first claim to its end, of the newest ended ones.
SELECT ended_ms - first_claimed_ms FROM runs WHERE ended_ms >= ? AND first_claimed_ms IS NOT NULL
ORDER BY ended_ms DESC LIMIT ?;

-- name: prunable
-- A need stays until everyone who waits for it was told.
SELECT number FROM runs WHERE ended_ms IS NOT NULL AND ended_ms < ?
  AND NOT EXISTS (SELECT 1 FROM untold_needs WHERE need = number) ORDER BY ended_ms LIMIT ?;

-- name: delete_run
DELETE FROM runs WHERE number = ?;

-- name: add_attempt
INSERT INTO attempts ({attempt}) VALUES ({attempt_values});

-- name: attempt
SELECT {attempt} FROM attempts WHERE run = ? AND fence = ?;

-- name: attempts
SELECT {attempt} FROM attempts WHERE run = ? ORDER BY fence;

-- name: attempt_by_request
SELECT {attempt} FROM attempts WHERE run = ? AND request_id = ?;

-- name: live_attempt_by_request
-- Of any run: who lost the answer does not know which one it was.
SELECT {attempt} FROM attempts WHERE request_id = ? AND holder = ? ORDER BY claimed_ms DESC LIMIT 1;

-- name: add_event
INSERT INTO run_events (run, event, from_state, to_state, at_ms, by, fence, reason, message, data)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: events_of
SELECT {event} FROM run_events WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?;

-- name: events_after
SELECT {event} FROM run_events WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: event_at
-- The first event from a sequence number on.
SELECT seq, at_ms FROM run_events WHERE seq >= ? ORDER BY seq LIMIT 1;

-- name: event_counts
-- How many there were of each event, by whether it was for a lapse.
SELECT event, reason IS 'lease_lapsed', count(*) FROM run_events WHERE seq >= ? AND at_ms >= ? GROUP BY 1, 2;

-- name: claim_latencies
-- From the offer to the claim, of the newest claims.
SELECT c.at_ms - (SELECT o.at_ms FROM run_events o WHERE o.run = c.run AND o.seq < c.seq
  AND o.event IN ('dispatch', 'redispatch', 'release') ORDER BY o.seq DESC LIMIT 1)
FROM run_events c WHERE c.seq >= ? AND c.at_ms >= ? AND c.event = 'claim' ORDER BY c.seq DESC LIMIT ?;

-- name: last_seq
SELECT max(seq) FROM run_events;

-- name: take_slot
INSERT INTO slots (run, key) VALUES (?, ?);

-- name: slots_of
SELECT key FROM slots WHERE run = ? ORDER BY key;

-- name: slot_holders
SELECT r.number, r.id, r.title, r.state FROM slots s JOIN runs r ON r.number = s.run WHERE s.key = ? ORDER BY r.number LIMIT ?;

-- name: used
SELECT key, used FROM slot_counts WHERE used > 0;

-- name: used_of
SELECT used FROM slot_counts WHERE key = ?;

-- name: recount
SELECT key, count(*) FROM slots GROUP BY key;

-- name: drop_slot_counts
DELETE FROM slot_counts;

-- name: fill_slot_counts
INSERT INTO slot_counts (key, used) SELECT key, count(*) FROM slots GROUP BY key;

-- name: stray_slots
SELECT s.run, s.key FROM slots s LEFT JOIN runs r ON r.number = s.run
WHERE r.number IS NULL OR r.state NOT IN ('dispatched', 'claimed', 'running');

-- name: drop_slot
DELETE FROM slots WHERE run = ? AND key = ?;

-- name: active_without_slots
SELECT number FROM runs r WHERE ended_ms IS NULL AND state IN ('dispatched', 'claimed', 'running')
  AND NOT EXISTS (SELECT 1 FROM slots s WHERE s.run = r.number AND s.key = 'global');

-- name: add_need
INSERT INTO needs (run, need, met) VALUES (?, ?, ?);

-- name: needs_of
SELECT need, met FROM needs WHERE run = ? ORDER BY need;

-- name: dependants
SELECT run FROM needs WHERE need = ? AND run > ? AND met = 0 ORDER BY run LIMIT ?;

-- name: leave_untold
INSERT INTO untold_needs (need, after) VALUES (?, ?) ON CONFLICT (need) DO UPDATE SET after = excluded.after;

-- name: any_untold
SELECT EXISTS (SELECT 1 FROM untold_needs);

-- name: take_untold
DELETE FROM untold_needs WHERE need = (SELECT min(need) FROM untold_needs) RETURNING need, after;

-- name: meet_need
UPDATE needs SET met = 1 WHERE run = ? AND need = ?;

-- name: routes
SELECT {route} FROM workflow_agent_routing ORDER BY workflow_type;

-- name: put_route
INSERT INTO workflow_agent_routing ({route}) VALUES ({route_values})
ON CONFLICT (workflow_type) DO UPDATE SET agent_id = excluded.agent_id, priority = excluded.priority,
  max_concurrent = excluded.max_concurrent, timeout_minutes = excluded.timeout_minutes,
  stall_minutes = excluded.stall_minutes;

-- name: delete_route
DELETE FROM workflow_agent_routing WHERE workflow_type = ?;

-- name: instances
SELECT {instance} FROM instances ORDER BY ordinal, id;

-- name: put_instance
INSERT INTO instances ({instance}) VALUES ({instance_values})
ON CONFLICT (id) DO UPDATE SET host = excluded.host, pid = excluded.pid, boot_id = excluded.boot_id,
  ordinal = excluded.ordinal, state = excluded.state, scope = excluded.scope, wanted = excluded.wanted, total = excluded.total,
  started_ms = excluded.started_ms, version = excluded.version, note = excluded.note;

-- name: set_instance_wanted
UPDATE instances SET wanted = ? WHERE id = ?;

-- name: set_instance_state
UPDATE instances SET state = ?, note = ? WHERE id = ?;

-- name: delete_instance
DELETE FROM instances WHERE id = ?;

-- name: healths
SELECT {health} FROM agent_health ORDER BY agent;

-- name: put_health
INSERT INTO agent_health ({health}) VALUES ({health_values})
ON CONFLICT (agent) DO UPDATE SET reason = excluded.reason, retry_ms = excluded.retry_ms, tries = excluded.tries;

-- name: delete_health
DELETE FROM agent_health WHERE agent = ?;

-- name: adhoc_agents
SELECT name, spec FROM adhoc_agents ORDER BY name;

-- name: put_adhoc_agent
INSERT INTO adhoc_agents (name, spec) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET spec = excluded.spec;

-- name: put_puller
INSERT INTO pullers (holder, agent, types, role, seen_ms) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (holder) DO UPDATE SET agent = excluded.agent, types = excluded.types, role = excluded.role,
  seen_ms = excluded.seen_ms;

-- name: pullers_since
SELECT holder, agent, types, role FROM pullers WHERE seen_ms >= ?;

-- name: shift_pullers
UPDATE pullers SET seen_ms = seen_ms + ?;

-- name: drop_pullers
DELETE FROM pullers WHERE seen_ms < ?;

-- name: tokens
SELECT name, scope, digest, created_ms FROM tokens ORDER BY name;

-- name: token_by_digest
SELECT name, scope, digest, created_ms FROM tokens WHERE digest = ?;

-- name: add_token
INSERT INTO tokens (name, scope, digest, created_ms) VALUES (?, ?, ?, ?);

-- name: delete_token
DELETE FROM tokens WHERE name = ?;

-- name: submission
SELECT digest, runs FROM submissions WHERE key = ?;

-- name: add_submission
INSERT INTO submissions (key, digest, runs, at_ms) VALUES (?, ?, ?, ?);

-- name: drop_submissions
DELETE FROM submissions WHERE key IN (SELECT key FROM submissions WHERE at_ms < ? ORDER BY at_ms LIMIT ?);

-- name: templates
SELECT name, task FROM templates ORDER BY name;

-- name: put_template
INSERT INTO templates (name, task, created_ms) VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET task = excluded.task;

-- name: delete_template
DELETE FROM templates WHERE name = ?;

-- name: meta
SELECT value FROM meta WHERE key = ?;

-- name: set_meta
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: delete_meta
DELETE FROM meta WHERE key = ?;
