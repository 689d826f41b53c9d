-- name: clock
-- The current time of the database.
SELECT coalesce(:now::timestamptz, clock_timestamp()) AS moment;

-- name: idempotent_response_find
-- The response stored under an idempotency key, if it has not expired.
SELECT key, fingerprint, status, body FROM idempotent_answers
WHERE tenant_id = :tenant_id AND key = :key AND expires_at > coalesce(:now::timestamptz, now());

-- name: idempotent_response_keep
-- Store a response for 24 hours. An expired one with the same key is replaced.
INSERT INTO idempotent_answers AS a (tenant_id, key, fingerprint, status, body, expires_at)
VALUES (:tenant_id, :key, :fingerprint, :status, :body, coalesce(:now::timestamptz, now()) + interval '24 hours')
ON CONFLICT (tenant_id, key) DO UPDATE SET fingerprint = excluded.fingerprint, status = excluded.status,
  body = excluded.body, expires_at = excluded.expires_at
WHERE a.expires_at <= coalesce(:now::timestamptz, now());

-- name: idempotent_response_prune
-- Delete expired responses.
DELETE FROM idempotent_answers WHERE (tenant_id, key) IN (
  SELECT tenant_id, key FROM idempotent_answers WHERE expires_at < coalesce(:now::timestamptz, now())
  ORDER BY expires_at LIMIT :limit FOR UPDATE SKIP LOCKED);

-- name: blob_unused
-- The payloads of the blob store that no row refers to. Scalar subqueries with LIMIT 1 force an index lookup for each of them,
-- regardless of the planner's statistics.
SELECT r.ref FROM unnest(:refs::text[]) AS r(ref)
WHERE (SELECT true FROM tasks WHERE payload_ref = r.ref LIMIT 1) IS NULL
  AND (SELECT true FROM task_history WHERE payload_ref = r.ref LIMIT 1) IS NULL
  AND (SELECT true FROM dead_letters WHERE payload_ref = r.ref LIMIT 1) IS NULL;

-- name: month_list
-- All month tables. An interrupted retention run can leave a table detached, or with a pending detach if a reader blocked it.
SELECT c.relname AS name, i.inhrelid IS NOT NULL AS is_attached, coalesce(i.inhdetachpending, false) AS is_pending,
  pg_has_role(c.relowner, 'USAGE') AS is_mine
FROM pg_class AS c LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
WHERE c.relkind = 'r' AND c.relname ~ '^(ticks|task_history|attempts|task_log)_[0-9]{4}_[0-9]{2}(_detached)?$'
  AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'ticks'::regclass)
ORDER BY c.relname;

-- name: month_ensure
-- Create the missing month tables.
SELECT everbeat_month_ensure(month) AS name FROM unnest(:months::timestamptz[]) AS month;

-- name: month_detach
-- Detach a month without blocking reads and writes of the other months.
ALTER TABLE parent_table DETACH PARTITION month_table CONCURRENTLY;

-- name: month_detach_finish
-- Finish an interrupted detach.
ALTER TABLE parent_table DETACH PARTITION month_table FINALIZE;

-- name: month_drop
-- Drop a detached month.
DROP TABLE IF EXISTS month_table;

-- name: month_drop_as_owner
-- Drop a month with the privileges of its owner.
SELECT everbeat_month_drop(:parent, :child);

-- name: migration_lock
-- Only one node migrates at a time. The others wait, and then find nothing to apply.
SELECT pg_advisory_xact_lock(hashtext('everbeat_migrations'));

-- name: event_stream_send
-- Send an event to the other nodes. As for a notice, the commit does not wait for the disk.
SELECT set_config('synchronous_commit', 'off', true), pg_notify('everbeat_feed', :message);

-- name: notice_send
-- Send a notice to the other nodes. It is sent at the commit, which does not wait for the disk: there is nothing to keep.
SELECT set_config('synchronous_commit', 'off', true), pg_notify('everbeat', :payload);

-- name: zone_list
-- The versions of these time zones that nodes have used.
SELECT name, fingerprint, since FROM time_zones WHERE name = ANY(:names::text[]) ORDER BY name, since;

-- name: zone_write
-- Store versions of time zones, unless they are known.
INSERT INTO time_zones (name, fingerprint, since)
SELECT z.name, z.fingerprint, coalesce(:now::timestamptz, clock_timestamp())
FROM unnest(:names::text[], :fingerprints::text[]) AS z(name, fingerprint)
ON CONFLICT DO NOTHING;

-- name: database_findings
-- Invalid indexes, and tables of which more than a third are dead rows.
SELECT 'invalid_index' AS kind, i.indexrelid::regclass::text AS name, 1.0::float8 AS ratio
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE NOT i.indisvalid AND n.nspname = current_schema()
UNION ALL
SELECT 'dead_rows', s.relname::text, s.n_dead_tup::float8 / (s.n_live_tup + s.n_dead_tup)
FROM pg_stat_user_tables AS s
WHERE s.schemaname = current_schema() AND s.n_dead_tup > 100000 AND s.n_dead_tup > s.n_live_tup / 2
ORDER BY kind, name;

-- name: migration_table
-- The migrations that nodes of 0.1.0 read. Those that they must not see are in the next table only.
CREATE TABLE IF NOT EXISTS everbeat_migrations (
  number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());

-- name: migration_record_table
-- All applied migrations, and which of them code has to know to use the schema after them.
CREATE TABLE IF NOT EXISTS everbeat_applied_migrations (
  number integer PRIMARY KEY, name text NOT NULL, minimum integer NOT NULL, applied_at timestamptz NOT NULL);

-- name: migration_view
-- The newest migration, the one that code has to know, and the newest one that nodes of 0.1.0 see. A migration that is not in
-- the record was applied by an unknown version, and requires code that knows it.
CREATE OR REPLACE VIEW everbeat_schema AS
SELECT greatest(m.newest, a.newest) AS version, greatest(a.minimum, u.newest) AS minimum, m.newest AS visible
FROM (SELECT coalesce(max(number), 0) AS newest FROM everbeat_migrations) AS m,
  (SELECT coalesce(max(number), 0) AS newest, coalesce(max(minimum), 0) AS minimum FROM everbeat_applied_migrations) AS a,
  (SELECT coalesce(max(o.number), 0) AS newest FROM everbeat_migrations AS o
   WHERE NOT EXISTS (SELECT 1 FROM everbeat_applied_migrations AS p WHERE p.number = o.number)) AS u;

-- name: migration_seed
-- Record the migrations that were applied before there was a record.
INSERT INTO everbeat_applied_migrations (number, name, minimum, applied_at)
SELECT number, name, least(number, :baseline), applied_at FROM everbeat_migrations WHERE number <= :newest
ON CONFLICT DO NOTHING;

-- name: migration_version
-- The version of the schema.
SELECT version, minimum, visible FROM everbeat_schema;

-- name: migration_unrecorded
-- The newest migration of a database without a record.
SELECT coalesce(max(number), 0) AS version FROM everbeat_migrations;

-- name: migration_exists
-- Whether this database has been migrated before, and whether it has the record.
SELECT to_regclass('everbeat_migrations') IS NOT NULL AS is_there, to_regclass('everbeat_schema') IS NOT NULL AS has_record;

-- name: migration_insert
-- Show an applied migration to nodes of 0.1.0.
INSERT INTO everbeat_migrations (number, name, applied_at) VALUES (:number, :name, now());

-- name: migration_record
-- Record an applied migration.
INSERT INTO everbeat_applied_migrations (number, name, minimum, applied_at)
VALUES (:number, :name, :minimum, now());

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
WITH page AS (SELECT id FROM tasks WHERE id > :after ORDER BY id LIMIT :limit)
UPDATE tasks AS t SET fence = t.fence + :raised_by::bigint FROM page AS p WHERE t.id = p.id RETURNING t.id;

-- name: database_restored
-- Raise the epochs of all partitions, and end their leases.
UPDATE partitions SET epoch = epoch + :raised_by::bigint, owner = NULL, lease_until = NULL;

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
