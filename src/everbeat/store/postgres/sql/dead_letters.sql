-- fragment: dead_letter
-- The columns of a dead letter in queries.
task_id, tenant_id, {{shown_columns}}, attempt, reason, error, worker, created_at, died_at, replayed_at, replayed_as, replays

-- name: dead_find
-- Dead letters by task id.
SELECT {{dead_letter}}
FROM dead_letters WHERE tenant_id = :tenant_id AND task_id = ANY(:task_ids::uuid[]) AND purged_at IS NULL;

-- name: dead_list
-- Dead letters, newest first.
SELECT {{dead_letter}}
FROM dead_letters
WHERE tenant_id = :tenant_id AND purged_at IS NULL
  AND (died_at, task_id) < (:before_at::timestamptz, :before_id::uuid)
  AND died_at >= :from_at AND died_at < :to_at
  AND (:queue::text IS NULL OR queue = :queue) AND (:type::text IS NULL OR type = :type)
  AND (:schedule_id::uuid IS NULL OR schedule_id = :schedule_id)
  AND (:task_ids::uuid[] IS NULL OR task_id = ANY(:task_ids::uuid[]))
  AND (NOT :only_never_replayed::boolean OR replayed_at IS NULL)
ORDER BY died_at DESC, task_id DESC LIMIT :limit;

-- name: dead_errors
-- Why tasks died, newest first, without payloads and traces.
SELECT task_id, queue, type, schedule_name AS schedule, reason, died_at, replayed_at IS NOT NULL AS is_replayed,
  error::jsonb ->> 'kind' AS error_kind, left(error::jsonb ->> 'message', 300) AS message
FROM dead_letters
WHERE tenant_id = :tenant_id AND purged_at IS NULL AND died_at >= :from_at AND died_at < :to_at
  AND (:queue::text IS NULL OR queue = :queue) AND (:type::text IS NULL OR type = :type)
  AND (:schedule_id::uuid IS NULL OR schedule_id = :schedule_id)
  AND (:task_ids::uuid[] IS NULL OR task_id = ANY(:task_ids::uuid[]))
ORDER BY died_at DESC, task_id DESC LIMIT :limit;

-- name: dead_replay
-- Record that dead letters are replayed, and the new task ids. Only the returned ones may be replayed.
UPDATE dead_letters AS d SET replayed_at = coalesce(:now::timestamptz, now()), replayed_as = r.replayed_as,
  replays = d.replays + 1
FROM unnest(:task_ids::uuid[], :replayed_as::uuid[]) AS r(task_id, replayed_as)
WHERE d.task_id = r.task_id AND d.tenant_id = :tenant_id AND d.purged_at IS NULL
  AND (:again::boolean OR d.replayed_at IS NULL)
RETURNING d.task_id;

-- name: dead_purge
-- Remove the payloads and errors of dead letters, and hide them. The rows are kept as a record.
WITH purged AS MATERIALIZED (
  SELECT task_id FROM dead_letters
  WHERE tenant_id = :tenant_id AND purged_at IS NULL AND died_at >= :from_at AND died_at < :to_at
    AND (:queue::text IS NULL OR queue = :queue) AND (:type::text IS NULL OR type = :type)
    AND (:schedule_id::uuid IS NULL OR schedule_id = :schedule_id)
    AND (:task_ids::uuid[] IS NULL OR task_id = ANY(:task_ids::uuid[]))
  ORDER BY died_at LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE dead_letters AS d SET purged_at = coalesce(:now::timestamptz, now()), payload = 'null', payload_ref = NULL, error = NULL
FROM purged AS p WHERE d.task_id = p.task_id AND d.purged_at IS NULL;
