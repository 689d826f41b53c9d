-- name: month_sizes
-- The month tables with their sizes. The number of rows is an estimate, and negative if the table was never analyzed.
SELECT c.relname AS name, i.inhrelid IS NOT NULL AS is_attached, c.reltuples::bigint AS row_count,
  pg_total_relation_size(c.oid) AS bytes, (pg_relation_size(c.oid) / current_setting('block_size')::integer)::bigint AS blocks
FROM pg_class AS c LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
WHERE c.relkind = 'r' AND c.relname ~ '^(ticks|task_history|attempts|task_log)_[0-9]{4}_[0-9]{2}(_detached)?$'
  AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'ticks'::regclass)
ORDER BY c.relname;

-- name: month_row_count
-- The number of rows of a month.
SELECT count(*) AS count FROM parent_table WHERE time_column >= :from_at::timestamptz AND time_column < :to_at::timestamptz;

-- name: tenant_prune
-- Delete the old rows of some tenants from a range of blocks of a month. No index is needed, and each block is read once.
DELETE FROM parent_table AS t USING unnest(:tenant_ids::uuid[], :before_at::timestamptz[]) AS o(tenant_id, before_at)
WHERE t.time_column >= :from_at::timestamptz AND t.time_column < :to_at::timestamptz
  AND t.ctid >= :first::tid AND t.ctid < :last::tid AND t.tenant_id = o.tenant_id AND t.time_column < o.before_at;

-- name: tenant_prune_count
-- The number of rows that tenant_prune would delete.
SELECT count(*) AS count
FROM parent_table AS t JOIN unnest(:tenant_ids::uuid[], :before_at::timestamptz[]) AS o(tenant_id, before_at)
  ON t.tenant_id = o.tenant_id
WHERE t.time_column >= :from_at::timestamptz AND t.time_column < :to_at::timestamptz
  AND t.ctid >= :first::tid AND t.ctid < :last::tid AND t.time_column < o.before_at;

-- name: past_rule_prune
-- Delete a limited number of former rules that ended before the oldest row of the ledger.
DELETE FROM past_rules WHERE (schedule_id, until) IN (
  SELECT schedule_id, until FROM past_rules WHERE until < :before_at ORDER BY until LIMIT :limit FOR UPDATE SKIP LOCKED);

-- name: dead_prune
-- Delete a limited number of old dead letters.
DELETE FROM dead_letters WHERE task_id IN (
  SELECT task_id FROM dead_letters WHERE died_at < :before_at ORDER BY died_at LIMIT :limit FOR UPDATE SKIP LOCKED);

-- name: prune_count
-- The number of rows that are past their retention in the tables that are not kept by month.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at)
SELECT 'idempotent_answers' AS name, count(*) AS count FROM idempotent_answers, moment AS m WHERE expires_at < m.at
UNION ALL SELECT 'sessions', count(*) FROM api_keys, moment AS m WHERE session_of IS NOT NULL AND expires_at < m.at
UNION ALL SELECT 'task_keys', count(*) FROM task_keys, moment AS m WHERE expires_at < m.at
UNION ALL SELECT 'workers', count(*) FROM workers WHERE last_seen_at < :workers_before
UNION ALL SELECT 'bulk_operations', count(*) FROM bulk_operations WHERE state <> 'running' AND finished_at < :history_before
UNION ALL SELECT 'pauses', count(*) FROM pauses WHERE ended_at < :ledger_before
UNION ALL SELECT 'audit_findings', count(*) FROM audit_findings
  WHERE found_at < :ledger_before
UNION ALL SELECT 'check_pings', count(*) FROM check_pings AS p LEFT JOIN checks AS c ON c.id = p.check_id
  WHERE p.at < :ledger_before OR p.number <= c.ping_count - 1000
UNION ALL SELECT 'check_ticks', count(*) FROM check_ticks WHERE scheduled_for < :ledger_before
UNION ALL SELECT 'check_transitions', count(*) FROM check_transitions WHERE at < :ledger_before
UNION ALL SELECT 'check_pings', count(*) FROM check_pings WHERE at < :ledger_before
UNION ALL SELECT 'check_ticks', count(*) FROM check_ticks WHERE scheduled_for < :ledger_before
UNION ALL SELECT 'check_transitions', count(*) FROM check_transitions WHERE at < :ledger_before
UNION ALL SELECT 'incidents', count(*) FROM incidents WHERE resolved_at < :ledger_before AND pending IS NULL
UNION ALL SELECT 'service_levels', count(*) FROM service_levels WHERE bucket_at < :levels_before
UNION ALL SELECT 'past_rules', count(*) FROM past_rules WHERE until < :ledger_before
UNION ALL SELECT 'dead_letters', count(*) FROM dead_letters WHERE died_at < :dead_before
UNION ALL SELECT 'audit_log', count(*) FROM audit_log, moment AS m
  WHERE audit_log.at < least(:audit_before::timestamptz, m.at - interval '30 days');
