-- fragment: dead_letter
-- The columns of a dead letter in queries.
-- returns: task_id uuid, tenant_id cached_uuid, {{shown_columns}}, created_at time, died_at time, replayed_at time
-- returns: replayed_as uuid
task_id, tenant_id, {{shown_columns}}, attempt, reason, error, worker, created_at, died_at, replayed_at, replayed_as, replays

-- name: dead_find
-- Dead letters by task id.
-- returns: {{dead_letter}}
SELECT {{dead_letter}}
FROM dead_letters
WHERE task_id IN (SELECT unhex(value) FROM json_each(:task_ids)) AND tenant_id = :tenant_id AND purged_at IS NULL;

-- name: dead_list
-- Dead letters, newest first.
-- returns: {{dead_letter}}
SELECT {{dead_letter}}
FROM dead_letters
WHERE tenant_id = :tenant_id AND purged_at IS NULL
  AND (died_at, task_id) < (:before_at, :before_id) AND died_at >= :from_at AND died_at < :to_at
  AND (:queue IS NULL OR queue = :queue) AND (:type IS NULL OR type = :type)
  AND (:schedule_id IS NULL OR schedule_id = :schedule_id)
  AND (:task_ids IS NULL OR task_id IN (SELECT unhex(value) FROM json_each(:task_ids)))
  AND (NOT :only_never_replayed OR replayed_at IS NULL)
ORDER BY died_at DESC, task_id DESC LIMIT :limit;

-- name: dead_errors
-- Why tasks died, newest first, without payloads and traces.
-- returns: task_id uuid, died_at time, is_replayed bool
SELECT task_id, queue, type, schedule_name AS schedule, reason, died_at, replayed_at IS NOT NULL AS is_replayed,
  error ->> 'kind' AS error_kind, substr(error ->> 'message', 1, 300) AS message
FROM dead_letters
WHERE tenant_id = :tenant_id AND purged_at IS NULL AND died_at >= :from_at AND died_at < :to_at
  AND (:queue IS NULL OR queue = :queue) AND (:type IS NULL OR type = :type)
  AND (:schedule_id IS NULL OR schedule_id = :schedule_id)
  AND (:task_ids IS NULL OR task_id IN (SELECT unhex(value) FROM json_each(:task_ids)))
ORDER BY died_at DESC, task_id DESC LIMIT :limit;

-- name: dead_replay
-- Record that a dead letter is replayed, and the new task id. It may be replayed only if it is returned.
-- returns: tuples
UPDATE dead_letters SET replayed_at = ?4, replayed_as = ?3, replays = replays + 1
WHERE task_id = ?1 AND tenant_id = ?2 AND purged_at IS NULL AND (?5 OR replayed_at IS NULL)
RETURNING task_id;

-- name: dead_purge
-- Remove the payloads and errors of dead letters, and hide them. The rows are kept as a record.
UPDATE dead_letters SET purged_at = :now, payload = 'null', payload_ref = NULL, error = NULL
WHERE task_id IN (
  SELECT task_id FROM dead_letters
  WHERE tenant_id = :tenant_id AND purged_at IS NULL AND died_at >= :from_at AND died_at < :to_at
    AND (:queue IS NULL OR queue = :queue) AND (:type IS NULL OR type = :type)
    AND (:schedule_id IS NULL OR schedule_id = :schedule_id)
    AND (:task_ids IS NULL OR task_id IN (SELECT unhex(value) FROM json_each(:task_ids)))
  ORDER BY died_at LIMIT :limit
) AND purged_at IS NULL;
