-- name: outbox_insert
-- Add a task to the outbox, in the transaction of the application.
INSERT INTO everbeat_outbox (id, order_key, task)
VALUES (CAST(:id AS uuid), CAST(:order_key AS text), CAST(CAST(:task AS text) AS jsonb));

-- name: outbox_enqueue
-- Write a task directly, in a database that the application shares with Everbeat.
SELECT everbeat_enqueue(CAST(CAST(:task AS text) AS jsonb), CAST(:tenant AS text)) AS id;

-- name: outbox_lock_shards
-- Lock shards that have rows, those with the oldest rows first. Shards of other relays are skipped.
SELECT s.shard FROM everbeat_outbox_shards AS s
CROSS JOIN LATERAL (SELECT o.position FROM everbeat_outbox AS o WHERE o.shard = s.shard ORDER BY o.position LIMIT 1) AS first
ORDER BY first.position LIMIT :limit FOR UPDATE OF s SKIP LOCKED;

-- name: outbox_read
-- The first rows of locked shards, in order. Each shard is read through its index.
SELECT r.id, r.task FROM unnest(:shards::smallint[]) AS s(shard)
CROSS JOIN LATERAL (
  SELECT o.id, o.position, (o.task || jsonb_build_object('idempotency_key', o.id))::text AS task
  FROM everbeat_outbox AS o WHERE o.shard = s.shard ORDER BY o.position LIMIT :limit
) AS r
ORDER BY r.position LIMIT :limit;

-- name: outbox_delete
-- Delete rows that have become tasks.
DELETE FROM everbeat_outbox WHERE id = ANY(:ids::uuid[]);

-- name: outbox_reject
-- Move rows aside, each with its error.
WITH moved AS (
  DELETE FROM everbeat_outbox AS o USING unnest(:ids::uuid[], :errors::text[]) AS e(id, error) WHERE o.id = e.id
  RETURNING o.id, o.order_key, o.task, o.created_at, e.error
)
INSERT INTO everbeat_outbox_rejected (id, order_key, task, created_at, error)
SELECT id, order_key, task, created_at, error FROM moved
ON CONFLICT (id) DO UPDATE SET error = excluded.error, rejected_at = now();

-- name: outbox_request_wakeup
-- Ask the next insert for a notification.
SELECT setval('everbeat_outbox_wakeup', 1);

-- name: outbox_has_rows
-- Whether there are rows.
SELECT EXISTS (SELECT 1 FROM everbeat_outbox) AS has_rows;

-- name: outbox_status
-- The number of rows that wait, the age of the oldest in seconds, and the number of rejected rows.
SELECT count(*) AS waiting, extract(epoch FROM now() - min(created_at))::double precision AS oldest_seconds,
  (SELECT count(*) FROM everbeat_outbox_rejected) AS rejected
FROM everbeat_outbox;
