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

-- name: migration_table
-- The table of applied migrations.
CREATE TABLE IF NOT EXISTS everbeat_migrations (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT;

-- name: migration_version
-- The newest applied migration.
SELECT coalesce(max(number), 0) AS version FROM everbeat_migrations;

-- name: migration_exists
-- Whether this database has been migrated before.
-- returns: is_there bool
SELECT count(*) > 0 AS is_there FROM sqlite_schema WHERE name = 'everbeat_migrations';

-- name: migration_insert
-- Record an applied migration.
INSERT INTO everbeat_migrations (number, name, applied_at) VALUES (:number, :name, :now);

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
