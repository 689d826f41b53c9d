-- fragment: check_position_columns
-- What pings and the passing of time change.
state, state_since, reason, cursor_at, expected_at, due_at, last_ping_at, last_duration_seconds, ping_count, runs

-- fragment: check_columns
-- All columns of the table.
id, tenant_id, name, description, labels, trigger_kind, trigger_text, timezone, grace_seconds, timeout_seconds,
token, old_token, old_token_until, {{check_position_columns}}, revision, version, created_at, updated_at

-- fragment: check_edited_columns
-- The columns that a change of the definition writes.
description, labels, trigger_kind, trigger_text, timezone, grace_seconds, timeout_seconds, token, old_token,
old_token_until, {{check_position_columns}}, revision, version, updated_at

-- fragment: check_ping_columns
-- All columns of the table.
check_id, number, tenant_id, at, kind, rid, exit_status, method, address, user_agent, body, body_bytes, duration_seconds

-- fragment: check_tick_columns
-- All columns of the table.
check_id, scheduled_for, tenant_id, outcome, reason, recorded_at, ping_number, until, count

-- fragment: check_transition_columns
-- All columns of the table.
check_id, number, tenant_id, at, from_state, to_state, reason, scheduled_for, ping_number

-- name: check_list
-- The tenant's checks in order of name, after a given name, optionally only those in a state or with a prefix.
SELECT {{check_columns}} FROM checks
WHERE tenant_id = :tenant_id AND name > :after_name
  AND (:state::text IS NULL OR state = :state) AND (:prefix::text IS NULL OR starts_with(name, :prefix))
ORDER BY name LIMIT :limit;

-- name: check_find
-- The tenant's checks with these names.
SELECT {{check_columns}} FROM checks WHERE tenant_id = :tenant_id AND name = ANY(:names);

-- name: check_find_tokens
-- The checks with these tokens, of which the old ones may have expired.
SELECT {{check_columns}} FROM checks WHERE token = ANY(:tokens) OR old_token = ANY(:tokens);

-- name: check_due
-- The checks whose deadline has passed, the oldest first.
SELECT {{check_columns}} FROM checks WHERE due_at <= coalesce(:now::timestamptz, now()) ORDER BY due_at LIMIT :limit;

-- name: check_insert
-- Insert a check. If its name is taken, it is not inserted.
INSERT INTO checks ({{check_columns}}) VALUES ({{:check_columns}}) ON CONFLICT (tenant_id, name) DO NOTHING;

-- name: check_replace
-- Replace a check, only if its version is as expected.
UPDATE checks SET ({{check_edited_columns}}) = ({{:check_edited_columns}})
WHERE tenant_id = :tenant_id AND id = :id AND version = :expected;

-- name: check_advance
-- Write the new positions of checks whose versions are as expected. Returns the ids of those that were written.
UPDATE checks AS c SET
  state = n.state, state_since = n.state_since, reason = n.reason, cursor_at = n.cursor_at, expected_at = n.expected_at,
  due_at = n.due_at, last_ping_at = n.last_ping_at, last_duration_seconds = n.last_duration_seconds,
  ping_count = n.ping_count, runs = n.runs, version = n.version
FROM unnest(
  :ids::uuid[], :expecteds::bigint[], :versions::bigint[], :states::text[], :state_sinces::timestamptz[], :reasons::text[],
  :cursor_ats::timestamptz[], :expected_ats::timestamptz[], :due_ats::timestamptz[], :last_ping_ats::timestamptz[],
  :last_duration_secondss::float8[], :ping_counts::bigint[], :runss::text[]
) AS n(id, expected, version, state, state_since, reason, cursor_at, expected_at, due_at, last_ping_at, last_duration_seconds,
  ping_count, runs)
WHERE c.id = n.id AND c.version = n.expected RETURNING c.id;

-- name: check_ping_insert
-- Insert rows, in the transaction of the change that they record.
INSERT INTO check_pings ({{check_ping_columns}})
SELECT * FROM unnest(
  :check_ids::uuid[], :numbers::bigint[], :tenant_ids::uuid[], :ats::timestamptz[], :kinds::text[], :rids::uuid[], :exit_statuss::integer[], :methods::text[], :addresss::text[], :user_agents::text[], :bodys::bytea[], :body_bytess::integer[], :duration_secondss::float8[])
ON CONFLICT DO NOTHING;

-- name: check_tick_insert
-- Insert rows, in the transaction of the change that they record.
INSERT INTO check_ticks ({{check_tick_columns}})
SELECT * FROM unnest(
  :check_ids::uuid[], :scheduled_fors::timestamptz[], :tenant_ids::uuid[], :outcomes::text[], :reasons::text[], :recorded_ats::timestamptz[], :ping_numbers::bigint[], :untils::timestamptz[], :counts::bigint[])
ON CONFLICT DO NOTHING;

-- name: check_transition_insert
-- Insert rows, in the transaction of the change that they record.
INSERT INTO check_transitions ({{check_transition_columns}})
SELECT * FROM unnest(
  :check_ids::uuid[], :numbers::bigint[], :tenant_ids::uuid[], :ats::timestamptz[], :from_states::text[], :to_states::text[], :reasons::text[], :scheduled_fors::timestamptz[], :ping_numbers::bigint[])
ON CONFLICT DO NOTHING;

-- name: check_delete
-- Delete a check. Its ledger is kept until it is pruned.
DELETE FROM checks WHERE tenant_id = :tenant_id AND name = :name;

-- name: check_ping_list
-- The pings of a check, newest first, before a given number.
SELECT {{check_ping_columns}} FROM check_pings
WHERE tenant_id = :tenant_id AND check_id = :check_id AND number < :before ORDER BY number DESC LIMIT :limit;

-- name: check_tick_list
-- Ledger entries of a check that overlap a window, oldest first.
SELECT {{check_tick_columns}} FROM check_ticks
WHERE tenant_id = :tenant_id AND check_id = :check_id AND scheduled_for < :to_at AND (scheduled_for >= :from_at OR scheduled_for = (
  SELECT max(p.scheduled_for) FROM check_ticks AS p
  WHERE p.tenant_id = :tenant_id AND p.check_id = :check_id AND p.scheduled_for < :from_at) AND until >= :from_at)
ORDER BY scheduled_for LIMIT :limit;

-- name: check_tick_recent
-- The newest ledger entries since a time of each of these checks, oldest first.
SELECT {{r.check_tick_columns}} FROM unnest(:ids::uuid[]) AS k(id) CROSS JOIN LATERAL (
  SELECT * FROM check_ticks AS t
  WHERE t.tenant_id = :tenant_id AND t.check_id = k.id AND coalesce(t.until, t.scheduled_for) >= :from_at
  ORDER BY t.scheduled_for DESC LIMIT :limit) AS r
ORDER BY r.check_id, r.scheduled_for;

-- name: check_tick_totals
-- The number of expected pings of a tenant in ledger entries that begin in a window, by check and outcome.
SELECT check_id, outcome, sum(count)::bigint AS count FROM check_ticks
WHERE tenant_id = :tenant_id AND scheduled_for >= :from_at AND scheduled_for < :to_at GROUP BY check_id, outcome;

-- name: check_transition_list
-- The transitions of a check, newest first, before a given number.
SELECT {{check_transition_columns}} FROM check_transitions
WHERE tenant_id = :tenant_id AND check_id = :check_id AND number < :before ORDER BY number DESC LIMIT :limit;

-- name: check_state_counts
-- The number of checks by state.
SELECT state, count(*) AS count FROM checks GROUP BY state;

-- name: check_prune_pings
-- Delete a limited number of pings that are old, or that are no longer among the newest of their check.
DELETE FROM check_pings WHERE ctid = ANY(ARRAY(
  (SELECT p.ctid FROM check_pings AS p WHERE p.at < :before_at ORDER BY p.at LIMIT :limit)
  UNION ALL
  (SELECT p.ctid FROM checks AS c JOIN check_pings AS p ON p.check_id = c.id AND p.number <= c.ping_count - :keep::bigint LIMIT :limit)));

-- name: check_prune_ticks
-- Delete a limited number of old rows.
DELETE FROM check_ticks WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM check_ticks WHERE scheduled_for < :before_at ORDER BY scheduled_for LIMIT :limit));

-- name: check_prune_transitions
-- Delete a limited number of old rows.
DELETE FROM check_transitions WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM check_transitions WHERE at < :before_at ORDER BY at LIMIT :limit));
