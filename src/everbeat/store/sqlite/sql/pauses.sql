-- fragment: pause_columns
-- All columns of the table.
-- returns: id uuid, tenant_id uuid, since_at time, until_at time, ended_at time
id, tenant_id, queue, note, paused_by, since_at, until_at, ended_at, ended_by

-- fragment: is_paused(tenant, name, moment)
-- Whether a queue of a tenant is paused at a moment.
EXISTS (SELECT 1 FROM pauses AS z WHERE z.ended_at IS NULL AND (z.until_at IS NULL OR z.until_at > moment)
  AND (z.tenant_id IS NULL OR z.tenant_id = tenant) AND (z.queue IS NULL OR z.queue = name))

-- name: pause_expire
-- Store the end of pauses whose time is over.
UPDATE pauses SET ended_at = until_at WHERE ended_at IS NULL AND until_at <= :now;

-- name: pause_write
-- Insert a pause, or change the reason and the end of an active pause of the same queue or tenant.
-- returns: {{pause_columns}}
INSERT INTO pauses (id, tenant_id, queue, note, paused_by, since_at, until_at)
VALUES (:id, :tenant_id, :queue, :note, :paused_by, :now, :until_at)
ON CONFLICT (coalesce(tenant_id, x'00'), coalesce(queue, '')) WHERE ended_at IS NULL
DO UPDATE SET note = excluded.note, paused_by = excluded.paused_by, until_at = excluded.until_at
RETURNING {{pause_columns}};

-- name: pause_end
-- End the active pause of exactly this queue, tenant or everything.
-- returns: {{pause_columns}}
UPDATE pauses SET ended_at = min(:now, coalesce(until_at, :now)), ended_by = :ended_by
WHERE ended_at IS NULL AND tenant_id IS :tenant_id AND queue IS :queue
RETURNING {{pause_columns}};

-- name: pause_list
-- The active pauses of a tenant and those of everything, or the active pauses of all tenants, oldest first.
-- returns: {{pause_columns}}
SELECT {{pause_columns}} FROM pauses
WHERE ended_at IS NULL AND (until_at IS NULL OR until_at > :now)
  AND (:tenant_id IS NULL OR tenant_id IS NULL OR tenant_id = :tenant_id)
ORDER BY since_at, id;

-- name: pause_find
-- The pauses, active or ended, that stopped a queue of a tenant at a time; the last of each kind.
-- returns: {{pause_columns}}
SELECT {{pause_columns}} FROM pauses
WHERE (tenant_id IS NULL OR tenant_id = :tenant_id) AND (queue IS NULL OR queue = :queue) AND since_at <= :at
  AND (ended_at IS NULL OR ended_at > :at) AND (until_at IS NULL OR until_at > :at)
ORDER BY since_at DESC, id DESC LIMIT 10;

-- name: pause_prune
-- Delete pauses that ended long ago.
DELETE FROM pauses WHERE id IN (
  SELECT id FROM pauses WHERE ended_at < :now - {{microseconds(:ended_seconds)}} LIMIT :limit);
