-- name: clock
-- What the database's clock shows.
SELECT coalesce(:now::timestamptz, clock_timestamp()) AS moment;

-- name: idempotent_response_find
-- The answer kept under an idempotency key, if it has not expired.
SELECT key, fingerprint, status, body FROM idempotent_answers
WHERE tenant_id = :tenant_id AND key = :key AND expires_at > coalesce(:now::timestamptz, now());

-- name: idempotent_response_keep
-- Keep an answer for a day; an expired one under the same key gives way.
INSERT INTO idempotent_answers AS a (tenant_id, key, fingerprint, status, body, expires_at)
VALUES (:tenant_id, :key, :fingerprint, :status, :body, coalesce(:now::timestamptz, now()) + interval '24 hours')
ON CONFLICT (tenant_id, key) DO UPDATE SET fingerprint = excluded.fingerprint, status = excluded.status,
  body = excluded.body, expires_at = excluded.expires_at
WHERE a.expires_at <= coalesce(:now::timestamptz, now());

-- name: idempotent_response_prune
-- Forget answers past their time.
DELETE FROM idempotent_answers WHERE (tenant_id, key) IN (
  SELECT tenant_id, key FROM idempotent_answers WHERE expires_at < coalesce(:now::timestamptz, now())
  ORDER BY expires_at LIMIT :limit);

-- name: blob_unused
-- Which payloads of the blob store no row has a reference to. Each look is one by its index, whatever the planner believes.
SELECT r.ref FROM unnest(:refs::text[]) AS r(ref)
WHERE (SELECT true FROM tasks WHERE payload_ref = r.ref LIMIT 1) IS NULL
  AND (SELECT true FROM task_history WHERE payload_ref = r.ref LIMIT 1) IS NULL
  AND (SELECT true FROM dead_letters WHERE payload_ref = r.ref LIMIT 1) IS NULL;

-- name: month_list
-- The month tables there are, also those that a run of retention left detached, or half detached when a reader held it up.
SELECT c.relname AS name, i.inhrelid IS NOT NULL AS is_attached, coalesce(i.inhdetachpending, false) AS is_pending,
  pg_has_role(c.relowner, 'USAGE') AS is_mine
FROM pg_class AS c LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
WHERE c.relkind = 'r' AND c.relname ~ '^(ticks|task_history|attempts|task_log)_[0-9]{4}_[0-9]{2}$'
  AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'ticks'::regclass)
ORDER BY c.relname;

-- name: month_ensure
-- Make the month tables that are missing.
SELECT everbeat_month_ensure(month) AS name FROM unnest(:months::timestamptz[]) AS month;

-- name: month_detach
-- Take a month out of the ledger or the history without stopping those who use the other months.
ALTER TABLE parent_table DETACH PARTITION month_table CONCURRENTLY;

-- name: month_detach_finish
-- Finish a detaching that was interrupted.
ALTER TABLE parent_table DETACH PARTITION month_table FINALIZE;

-- name: month_drop
-- Remove a month that was detached.
DROP TABLE IF EXISTS month_table;

-- name: month_drop_as_owner
-- Remove a month with the rights of the one who owns it.
SELECT everbeat_month_drop(:parent, :child);

-- name: migration_table
-- Where the applied migrations are kept.
CREATE TABLE IF NOT EXISTS everbeat_migrations (
  number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());

-- name: migration_lock
-- One node migrates at a time; the others wait and find the work done.
SELECT pg_advisory_xact_lock(hashtext('everbeat_migrations'));

-- name: migration_version
-- The newest migration applied.
SELECT coalesce(max(number), 0) AS version FROM everbeat_migrations;

-- name: event_stream_send
-- Tell the other nodes what happened.
SELECT pg_notify('everbeat_feed', :message);

-- name: migration_exists
-- Whether this database was ever migrated.
SELECT to_regclass('everbeat_migrations') IS NOT NULL AS is_there;

-- name: migration_insert
-- Note an applied migration.
INSERT INTO everbeat_migrations (number, name) VALUES (:number, :name);

-- name: notice_send
-- Tell the other nodes that something changed.
SELECT pg_notify('everbeat', :payload);
