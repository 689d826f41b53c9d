-- fragment: bulk_columns
-- The columns of an operation, except its owner.
-- returns: id uuid, tenant_id uuid, key_id uuid, created_at time, finished_at time
id, tenant_id, subject, action, filter, note, actor, key_id, matched, done, failed, state, errors, position, page, created_at,
finished_at

-- name: bulk_write
-- Insert an operation. One that exists already is kept: its id follows from the idempotency key of the request.
INSERT INTO bulk_operations (id, tenant_id, subject, action, filter, note, actor, key_id, matched, position, created_at)
VALUES (:id, :tenant_id, :subject, :action, :filter, :note, :actor, :key_id, :matched, :position, :now)
ON CONFLICT DO NOTHING;

-- name: bulk_claim
-- Take a running operation that no node is working on, the oldest first.
-- returns: {{bulk_columns}}
UPDATE bulk_operations SET owner = :owner, lease_until = :now + {{microseconds(:lease_seconds)}}
WHERE id = (
  SELECT id FROM bulk_operations WHERE state = 'running' AND (lease_until IS NULL OR lease_until <= :now
    OR lease_until > :now + {{microseconds(:lease_seconds * 1.5)}})
  ORDER BY created_at LIMIT 1) AND state = 'running'
RETURNING {{bulk_columns}};

-- name: bulk_advance
-- Store the progress of an operation, if it is at the expected position and page and still belongs to the node.
-- returns: {{bulk_columns}}
UPDATE bulk_operations SET position = :position, page = :page, done = done + :done, failed = failed + :failed, errors = :errors,
  state = :state, finished_at = CASE WHEN :state = 'running' THEN NULL ELSE :now END,
  lease_until = :now + {{microseconds(:lease_seconds)}}
WHERE id = :id AND state = 'running' AND owner = :owner AND position IS :expected AND page = :expected_page
RETURNING {{bulk_columns}};

-- name: bulk_find
-- The tenant's operations with these ids.
-- returns: {{bulk_columns}}
SELECT {{bulk_columns}} FROM bulk_operations WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND tenant_id = :tenant_id;

-- name: bulk_list
-- The tenant's operations, newest first.
-- returns: {{bulk_columns}}
SELECT {{bulk_columns}} FROM bulk_operations
WHERE tenant_id = :tenant_id AND (created_at, id) < (:before_at, :before_id)
ORDER BY created_at DESC, id DESC LIMIT :limit;

-- name: bulk_cancel
-- Cancel a running operation. The node that works on it stops after its current page.
-- returns: {{bulk_columns}}
UPDATE bulk_operations SET state = 'cancelled', finished_at = :now
WHERE id = :id AND tenant_id = :tenant_id AND state = 'running'
RETURNING {{bulk_columns}};

-- name: bulk_prune
-- Delete operations that ended long ago.
DELETE FROM bulk_operations WHERE id IN (
  SELECT id FROM bulk_operations WHERE state <> 'running' AND finished_at < :now - {{microseconds(:finished_seconds)}} LIMIT :limit);
