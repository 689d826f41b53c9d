-- name: idempotent_response_find
-- The response stored under an idempotency key, if it has not expired.
-- returns: fingerprint bytes, body bytes
SELECT key, fingerprint, status, body FROM idempotent_answers
WHERE tenant_id = :tenant_id AND key = :key AND expires_at > :now;

-- name: idempotent_response_keep
-- Store a response for 24 hours. An expired one with the same key is replaced.
INSERT INTO idempotent_answers (tenant_id, key, fingerprint, status, body, expires_at)
VALUES (:tenant_id, :key, :fingerprint, :status, :body, :now + 86400000000)
ON CONFLICT (tenant_id, key) DO UPDATE SET fingerprint = excluded.fingerprint, status = excluded.status,
  body = excluded.body, expires_at = excluded.expires_at
WHERE idempotent_answers.expires_at <= :now;

-- name: idempotent_response_prune
-- Delete expired responses.
DELETE FROM idempotent_answers WHERE (tenant_id, key) IN (
  SELECT tenant_id, key FROM idempotent_answers WHERE expires_at < :now ORDER BY expires_at LIMIT :limit);

-- name: blob_unused
-- The payloads of the blob store that no row refers to.
SELECT r.value AS ref FROM json_each(:refs) AS r
WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE payload_ref = r.value)
  AND NOT EXISTS (SELECT 1 FROM task_history WHERE payload_ref = r.value)
  AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE payload_ref = r.value);

-- name: month_prune_ticks
-- Delete a limited number of old ledger rows.
DELETE FROM ticks WHERE (schedule_id, scheduled_for) IN (
  SELECT schedule_id, scheduled_for FROM ticks WHERE scheduled_for < :before_at ORDER BY scheduled_for LIMIT :limit);

-- name: month_prune_history
-- Delete a limited number of old finished tasks.
DELETE FROM task_history WHERE (id, finished_at) IN (
  SELECT id, finished_at FROM task_history WHERE finished_at < :before_at ORDER BY finished_at LIMIT :limit);

-- name: month_prune_attempts
-- Delete a limited number of old attempts.
DELETE FROM attempts WHERE rowid IN (SELECT rowid FROM attempts WHERE ended_at < :before_at ORDER BY ended_at LIMIT :limit);

-- name: month_prune_log
-- Delete a limited number of old log lines.
DELETE FROM task_log WHERE rowid IN (SELECT rowid FROM task_log WHERE at < :before_at ORDER BY at LIMIT :limit);

-- name: zone_list
-- The versions of these time zones that nodes have used.
-- returns: since time
SELECT name, fingerprint, since FROM time_zones WHERE name IN (SELECT value FROM json_each(:names)) ORDER BY name, since;

-- name: zone_write
-- Store versions of time zones, unless they are known.
INSERT INTO time_zones (name, fingerprint, since)
SELECT n.value, f.value, :now FROM json_each(:names) AS n JOIN json_each(:fingerprints) AS f ON f.key = n.key
WHERE true ON CONFLICT DO NOTHING;

-- name: database_findings
-- The free pages of a file of which more than half is free.
-- Differs from postgres: SQLite has no dead rows and no invalid indexes.
SELECT 'free_pages' AS kind, 'main' AS name, CAST(f.freelist_count AS REAL) / p.page_count AS ratio
FROM pragma_freelist_count() AS f, pragma_page_count() AS p
WHERE p.page_count > 25600 AND f.freelist_count > p.page_count / 2;

-- name: migration_table
-- The migrations that nodes of 0.1.0 read. Those that they must not see are in the next table only.
CREATE TABLE IF NOT EXISTS everbeat_migrations (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT;

-- name: migration_record_table
-- All applied migrations, and which of them code has to know to use the schema after them.
CREATE TABLE IF NOT EXISTS everbeat_applied_migrations (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL, minimum INTEGER NOT NULL, applied_at INTEGER NOT NULL) STRICT;

-- name: migration_view
-- The newest migration, the one that code has to know, and the newest one that nodes of 0.1.0 see. A migration that is not in
-- the record was applied by an unknown version, and requires code that knows it.
CREATE VIEW IF NOT EXISTS everbeat_schema AS
SELECT max(m.newest, a.newest) AS version, max(a.minimum, u.newest) AS minimum, m.newest AS visible
FROM (SELECT coalesce(max(number), 0) AS newest FROM everbeat_migrations) AS m,
  (SELECT coalesce(max(number), 0) AS newest, coalesce(max(minimum), 0) AS minimum FROM everbeat_applied_migrations) AS a,
  (SELECT coalesce(max(o.number), 0) AS newest FROM everbeat_migrations AS o
   WHERE NOT EXISTS (SELECT 1 FROM everbeat_applied_migrations AS p WHERE p.number = o.number)) AS u;

-- name: migration_seed
-- Record the migrations that were applied before there was a record.
INSERT INTO everbeat_applied_migrations (number, name, minimum, applied_at)
SELECT number, name, min(number, :baseline), applied_at FROM everbeat_migrations WHERE number <= :newest
ON CONFLICT DO NOTHING;

-- name: migration_version
-- The version of the schema.
SELECT version, minimum, visible FROM everbeat_schema;

-- name: migration_unrecorded
-- The newest migration of a database without a record.
SELECT coalesce(max(number), 0) AS version FROM everbeat_migrations;

-- name: migration_exists
-- Whether this database has been migrated before, and whether it has the record.
-- returns: is_there bool, has_record bool
SELECT count(*) FILTER (WHERE name = 'everbeat_migrations') > 0 AS is_there,
  count(*) FILTER (WHERE name = 'everbeat_schema') > 0 AS has_record
FROM sqlite_schema WHERE name IN ('everbeat_migrations', 'everbeat_schema');

-- name: migration_insert
-- Show an applied migration to nodes of 0.1.0.
INSERT INTO everbeat_migrations (number, name, applied_at) VALUES (:number, :name, :now);

-- name: migration_record
-- Record an applied migration.
INSERT INTO everbeat_applied_migrations (number, name, minimum, applied_at)
VALUES (:number, :name, :minimum, :now);

-- name: migration_show
-- Show all applied migrations up to a number to nodes of 0.1.0.
INSERT INTO everbeat_migrations (number, name, applied_at)
SELECT number, name, applied_at FROM everbeat_applied_migrations WHERE number <= :visible
ON CONFLICT DO NOTHING;

-- name: migration_hide
-- Hide applied migrations after a number from nodes of 0.1.0.
DELETE FROM everbeat_migrations WHERE number > :visible
  AND number IN (SELECT number FROM everbeat_applied_migrations);

-- name: fence_raise
-- Raise the fences of live tasks in order of their ids, so that leases from before are refused. Returns the ids.
-- returns: id uuid
UPDATE tasks SET fence = fence + :raised_by
WHERE id IN (SELECT id FROM tasks WHERE id > :after ORDER BY id LIMIT :limit) RETURNING id;

-- name: database_restored
-- Raise the epochs of all partitions, and end their leases.
UPDATE partitions SET epoch = epoch + :raised_by, owner = NULL, lease_until = NULL;

-- name: database_restored_nodes
-- Delete all nodes.
DELETE FROM nodes;

-- name: database_restored_turns
-- End the leases of all loops.
UPDATE loop_leases SET holder = NULL, lease_until = NULL, next_at = NULL;

-- name: rollback_obstacles
-- What nodes of 0.1.0 cannot read: alert rules, whose tasks have an unknown origin, and targets of unknown kinds.
SELECT 'enabled alert rules' AS name, count(*) AS count FROM alerts WHERE enabled
UNION ALL SELECT 'live tasks of alerts', count(*) FROM tasks WHERE origin = 'alert'
UNION ALL SELECT 'schedules with the target slack or email', count(*) FROM schedules WHERE target_kind IN ('slack', 'email')
UNION ALL SELECT 'live tasks with the target slack or email', count(*) FROM tasks
  WHERE queue IN ('everbeat:slack', 'everbeat:email') AND origin <> 'alert';
