-- fragment: check_position_columns
-- What pings and the passing of time change.
-- returns: state_since time, cursor_at time, expected_at time, due_at time, last_ping_at time
state, state_since, reason, cursor_at, expected_at, due_at, last_ping_at, last_duration_seconds, ping_count, runs

-- fragment: check_columns
-- All columns of the table.
-- returns: id uuid, tenant_id cached_uuid, old_token_until time, created_at time, updated_at time, {{check_position_columns}}
id, tenant_id, name, description, labels, trigger_kind, trigger_text, timezone, grace_seconds, timeout_seconds,
token, old_token, old_token_until, {{check_position_columns}}, revision, version, created_at, updated_at

-- fragment: check_edited_columns
-- The columns that a change of the definition writes.
description, labels, trigger_kind, trigger_text, timezone, grace_seconds, timeout_seconds, token, old_token,
old_token_until, {{check_position_columns}}, revision, version, updated_at

-- fragment: check_ping_columns
-- All columns of the table.
-- returns: check_id uuid, tenant_id cached_uuid, at time, rid uuid, body bytes
check_id, number, tenant_id, at, kind, rid, exit_status, method, address, user_agent, body, body_bytes, duration_seconds

-- fragment: check_tick_columns
-- All columns of the table.
-- returns: check_id uuid, scheduled_for time, tenant_id cached_uuid, recorded_at time, until time
check_id, scheduled_for, tenant_id, outcome, reason, recorded_at, ping_number, until, count

-- fragment: check_transition_columns
-- All columns of the table.
-- returns: check_id uuid, tenant_id cached_uuid, at time, scheduled_for time
check_id, number, tenant_id, at, from_state, to_state, reason, scheduled_for, ping_number

-- name: check_list
-- The tenant's checks in order of name, after a given name, optionally only those in a state or with a prefix.
-- returns: {{check_columns}}
SELECT {{check_columns}} FROM checks
WHERE tenant_id = :tenant_id AND name > :after_name
  AND (:state IS NULL OR state = :state) AND (:prefix IS NULL OR substr(name, 1, length(:prefix)) = :prefix)
ORDER BY name LIMIT :limit;

-- name: check_find
-- The tenant's checks with these names.
-- returns: {{check_columns}}
SELECT {{check_columns}} FROM checks WHERE tenant_id = :tenant_id AND name IN (SELECT value FROM json_each(:names));

-- name: check_find_tokens
-- The checks with these tokens, of which the old ones may have expired.
-- Differs from postgres: two joins, because SQLite would read the whole table for an OR.
-- returns: {{check_columns}}
SELECT {{c.check_columns}} FROM json_each(:tokens) AS t CROSS JOIN checks AS c ON c.token = t.value
UNION ALL
SELECT {{c.check_columns}} FROM json_each(:tokens) AS t CROSS JOIN checks AS c ON c.old_token = t.value AND c.old_token IS NOT NULL;

-- name: check_due
-- The checks whose deadline has passed, the oldest first.
-- returns: {{check_columns}}
SELECT {{check_columns}} FROM checks WHERE due_at <= :now ORDER BY due_at LIMIT :limit;

-- name: check_insert
-- Insert a check. If its name is taken, it is not inserted.
INSERT INTO checks ({{check_columns}}) VALUES ({{:check_columns}}) ON CONFLICT (tenant_id, name) DO NOTHING;

-- name: check_replace
-- Replace a check, only if its version is as expected.
UPDATE checks SET ({{check_edited_columns}}) = ({{:check_edited_columns}})
WHERE tenant_id = :tenant_id AND id = :id AND version = :expected;

-- name: check_advance
-- Write the new position of a check whose version is as expected.
-- Differs from postgres: one row at a time, because a repeated execution needs no round trip.
UPDATE checks SET ({{check_position_columns}}) = ({{:check_position_columns}}), version = :version
WHERE id = :id AND version = :expected;

-- name: check_ping_insert
-- Insert a row, in the transaction of the change that it records.
-- Differs from postgres: one row at a time, because a repeated execution needs no round trip.
INSERT INTO check_pings ({{check_ping_columns}}) VALUES ({{:check_ping_columns}}) ON CONFLICT DO NOTHING;

-- name: check_tick_insert
-- Insert a row, in the transaction of the change that it records.
-- Differs from postgres: one row at a time, because a repeated execution needs no round trip.
INSERT INTO check_ticks ({{check_tick_columns}}) VALUES ({{:check_tick_columns}}) ON CONFLICT DO NOTHING;

-- name: check_transition_insert
-- Insert a row, in the transaction of the change that it records.
-- Differs from postgres: one row at a time, because a repeated execution needs no round trip.
INSERT INTO check_transitions ({{check_transition_columns}}) VALUES ({{:check_transition_columns}}) ON CONFLICT DO NOTHING;

-- name: check_delete
-- Delete a check. Its ledger is kept until it is pruned.
DELETE FROM checks WHERE tenant_id = :tenant_id AND name = :name;

-- name: check_ping_list
-- The pings of a check, newest first, before a given number.
-- returns: {{check_ping_columns}}
SELECT {{check_ping_columns}} FROM check_pings
WHERE tenant_id = :tenant_id AND check_id = :check_id AND number < :before ORDER BY number DESC LIMIT :limit;

-- name: check_tick_list
-- Ledger entries of a check that overlap a window, oldest first.
-- returns: {{check_tick_columns}}
SELECT {{check_tick_columns}} FROM check_ticks
WHERE tenant_id = :tenant_id AND check_id = :check_id AND scheduled_for < :to_at AND (scheduled_for >= :from_at OR scheduled_for = (
  SELECT max(p.scheduled_for) FROM check_ticks AS p
  WHERE p.tenant_id = :tenant_id AND p.check_id = :check_id AND p.scheduled_for < :from_at) AND until >= :from_at)
ORDER BY scheduled_for LIMIT :limit;

-- name: check_tick_recent
-- The newest ledger entries since a time of each of these checks, oldest first.
-- returns: {{check_tick_columns}}
SELECT {{t.check_tick_columns}} FROM json_each(:ids) AS k CROSS JOIN check_ticks AS t
WHERE t.tenant_id = :tenant_id AND t.check_id = unhex(k.value) AND t.scheduled_for IN (
  SELECT r.scheduled_for FROM check_ticks AS r
  WHERE r.check_id = unhex(k.value) AND coalesce(r.until, r.scheduled_for) >= :from_at
  ORDER BY r.scheduled_for DESC LIMIT :limit)
ORDER BY t.check_id, t.scheduled_for;

-- name: check_tick_totals
-- The number of expected pings of a tenant in ledger entries that begin in a window, by check and outcome.
-- returns: check_id uuid
SELECT check_id, outcome, sum(count) AS count FROM check_ticks
WHERE tenant_id = :tenant_id AND scheduled_for >= :from_at AND scheduled_for < :to_at GROUP BY check_id, outcome;

-- name: check_transition_list
-- The transitions of a check, newest first, before a given number.
-- returns: {{check_transition_columns}}
SELECT {{check_transition_columns}} FROM check_transitions
WHERE tenant_id = :tenant_id AND check_id = :check_id AND number < :before ORDER BY number DESC LIMIT :limit;

-- name: check_state_counts
-- The number of checks by state.
SELECT state, count(*) AS count FROM checks GROUP BY state;

-- name: check_prune_pings
-- Delete a limited number of pings that are old, or that are no longer among the newest of their check.
DELETE FROM check_pings WHERE rowid IN (
  SELECT * FROM (SELECT p.rowid FROM check_pings AS p WHERE p.at < :before_at ORDER BY p.at LIMIT :limit)
  UNION
  SELECT * FROM (
    SELECT p.rowid FROM checks AS c JOIN check_pings AS p ON p.check_id = c.id AND p.number <= c.ping_count - :keep LIMIT :limit));

-- name: check_prune_ticks
-- Delete a limited number of old rows.
DELETE FROM check_ticks WHERE (check_id, scheduled_for) IN (
  SELECT check_id, scheduled_for FROM check_ticks WHERE scheduled_for < :before_at ORDER BY scheduled_for LIMIT :limit);

-- name: check_prune_transitions
-- Delete a limited number of old rows.
DELETE FROM check_transitions WHERE (check_id, number) IN (
  SELECT check_id, number FROM check_transitions WHERE at < :before_at ORDER BY at LIMIT :limit);
