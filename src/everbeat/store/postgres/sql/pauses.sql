-- fragment: pause_columns
-- All columns of the table.
id, tenant_id, queue, note, paused_by, since_at, until_at, ended_at, ended_by

-- fragment: is_paused(tenant, name, moment)
-- Whether a queue of a tenant is paused at a moment.
EXISTS (SELECT 1 FROM pauses AS z WHERE z.ended_at IS NULL AND (z.until_at IS NULL OR z.until_at > moment)
  AND (z.tenant_id IS NULL OR z.tenant_id = tenant) AND (z.queue IS NULL OR z.queue = name))

-- name: pause_expire
-- Store the end of pauses whose time is over.
UPDATE pauses SET ended_at = until_at WHERE ended_at IS NULL AND until_at <= coalesce(:now::timestamptz, now());

-- name: pause_write
-- Insert a pause, or change the reason and the end of an active pause of the same queue or tenant.
INSERT INTO pauses AS z (id, tenant_id, queue, note, paused_by, since_at, until_at)
VALUES (:id, :tenant_id, :queue, :note, :paused_by, coalesce(:now::timestamptz, now()), :until_at)
ON CONFLICT (coalesce(tenant_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'), coalesce(queue, '')) WHERE ended_at IS NULL
DO UPDATE SET note = excluded.note, paused_by = excluded.paused_by, until_at = excluded.until_at
RETURNING {{z.pause_columns}};

-- name: pause_end
-- End the active pause of exactly this queue, tenant or everything.
UPDATE pauses SET ended_at = least(coalesce(:now::timestamptz, now()), until_at), ended_by = :ended_by
WHERE ended_at IS NULL AND tenant_id IS NOT DISTINCT FROM :tenant_id::uuid AND queue IS NOT DISTINCT FROM :queue::text
RETURNING {{pause_columns}};

-- name: pause_list
-- The active pauses of a tenant and those of everything, or the active pauses of all tenants, oldest first.
SELECT {{pause_columns}} FROM pauses
WHERE ended_at IS NULL AND (until_at IS NULL OR until_at > coalesce(:now::timestamptz, now()))
  AND (:tenant_id::uuid IS NULL OR tenant_id IS NULL OR tenant_id = :tenant_id)
ORDER BY since_at, id;

-- name: pause_find
-- The pauses, active or ended, that stopped a queue of a tenant at a time; the last of each kind.
SELECT {{pause_columns}} FROM pauses
WHERE (tenant_id IS NULL OR tenant_id = :tenant_id) AND (queue IS NULL OR queue = :queue) AND since_at <= :at
  AND (ended_at IS NULL OR ended_at > :at) AND (until_at IS NULL OR until_at > :at)
ORDER BY since_at DESC, id DESC LIMIT 10;

-- name: pause_prune
-- Delete pauses that ended long ago.
DELETE FROM pauses WHERE id IN (
  SELECT id FROM pauses WHERE ended_at < coalesce(:now::timestamptz, now()) - make_interval(secs => :ended_seconds) LIMIT :limit);
