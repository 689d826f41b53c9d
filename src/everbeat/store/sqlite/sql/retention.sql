-- name: month_sizes
-- The number of old rows by table and month. An index finds them.
-- Differs from postgres: months are ranges of rows, and have no size of their own.
SELECT 'ticks' AS table_name, strftime('%Y-%m', scheduled_for / 1000000, 'unixepoch') AS month, count(*) AS row_count FROM ticks
WHERE scheduled_for < :ticks_before GROUP BY month
UNION ALL SELECT 'task_history', strftime('%Y-%m', finished_at / 1000000, 'unixepoch') AS month, count(*) FROM task_history
WHERE finished_at < :task_history_before GROUP BY month
UNION ALL SELECT 'attempts', strftime('%Y-%m', ended_at / 1000000, 'unixepoch') AS month, count(*) FROM attempts
WHERE ended_at < :attempts_before GROUP BY month
UNION ALL SELECT 'task_log', strftime('%Y-%m', at / 1000000, 'unixepoch') AS month, count(*) FROM task_log
WHERE at < :task_log_before GROUP BY month
ORDER BY 1, 2;

-- name: tenant_prune_ticks_page
-- The next old ledger rows of all tenants, in order of time.
-- Differs from postgres: there are no blocks to read, so pages are read in the order of an index.
-- returns: tenant_id uuid, at time, first_key uuid
SELECT tenant_id, scheduled_for AS at, schedule_id AS first_key FROM ticks
WHERE (scheduled_for, schedule_id) > (:after_at, :after_key) AND scheduled_for < :before_at
ORDER BY scheduled_for, schedule_id LIMIT :limit;

-- name: tenant_prune_ticks
-- Delete ledger rows of a tenant by their keys.
DELETE FROM ticks WHERE schedule_id = :key AND scheduled_for = :at AND tenant_id = :tenant_id;

-- name: tenant_prune_task_history_page
-- The next old finished tasks of all tenants, in order of time.
-- returns: tenant_id uuid, at time
SELECT tenant_id, finished_at AS at, rowid AS first_key FROM task_history
WHERE (finished_at, rowid) > (:after_at, :after_key) AND finished_at < :before_at ORDER BY finished_at, rowid LIMIT :limit;

-- name: tenant_prune_task_history
-- Delete finished tasks of a tenant by their keys.
DELETE FROM task_history WHERE rowid = :key AND finished_at = :at AND tenant_id = :tenant_id;

-- name: tenant_prune_attempts_page
-- The next old attempts of all tenants, in order of time.
-- returns: tenant_id uuid, at time
SELECT tenant_id, ended_at AS at, rowid AS first_key FROM attempts
WHERE (ended_at, rowid) > (:after_at, :after_key) AND ended_at < :before_at ORDER BY ended_at, rowid LIMIT :limit;

-- name: tenant_prune_attempts
-- Delete attempts of a tenant by their keys.
DELETE FROM attempts WHERE rowid = :key AND ended_at = :at AND tenant_id = :tenant_id;

-- name: tenant_prune_task_log_page
-- The next old log lines of all tenants, in order of time.
-- returns: tenant_id uuid, at time
SELECT tenant_id, at, rowid AS first_key FROM task_log
WHERE (at, rowid) > (:after_at, :after_key) AND at < :before_at ORDER BY at, rowid LIMIT :limit;

-- name: tenant_prune_task_log
-- Delete log lines of a tenant by their keys.
DELETE FROM task_log WHERE rowid = :key AND at = :at AND tenant_id = :tenant_id;

-- name: past_rule_prune
-- Delete a limited number of former rules that ended before the oldest row of the ledger.
DELETE FROM past_rules WHERE (schedule_id, until) IN (
  SELECT schedule_id, until FROM past_rules WHERE until < :before_at ORDER BY until LIMIT :limit);

-- name: dead_prune
-- Delete a limited number of old dead letters.
DELETE FROM dead_letters WHERE task_id IN (
  SELECT task_id FROM dead_letters WHERE died_at < :before_at ORDER BY died_at LIMIT :limit);

-- name: prune_count
-- The number of rows that are past their retention in the tables that are not kept by month.
SELECT 'idempotent_answers' AS name, count(*) AS count FROM idempotent_answers WHERE expires_at < :now
UNION ALL SELECT 'sessions', count(*) FROM api_keys WHERE session_of IS NOT NULL AND expires_at < :now
UNION ALL SELECT 'task_keys', count(*) FROM task_keys WHERE expires_at < :now
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
UNION ALL SELECT 'audit_log', count(*) FROM audit_log WHERE at < min(:audit_before, :now - 30 * 86400000000);
