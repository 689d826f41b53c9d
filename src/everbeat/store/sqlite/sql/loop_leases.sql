-- name: loop_lease_take
-- Take the lease of a loop, if the loop is due and no other process has the lease. A time further ahead than any valid one counts as past: the
-- clock was set back.
-- returns: now time, ran_at time
INSERT INTO loop_leases (name, holder, lease_until, lease_seconds)
VALUES (:name, :holder, :now + {{microseconds(:lease_seconds)}}, :lease_seconds)
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until, lease_seconds = excluded.lease_seconds
WHERE (loop_leases.holder IS NULL OR loop_leases.holder = excluded.holder OR loop_leases.lease_until <= :now
    OR loop_leases.lease_until > :now + {{microseconds(loop_leases.lease_seconds * 1.5)}})
  AND (loop_leases.next_at IS NULL OR loop_leases.next_at <= :now OR loop_leases.next_at > :now + {{microseconds(:interval_seconds * 1.5)}})
RETURNING CAST(:now AS INTEGER) AS now, ran_at, position;

-- name: loop_lease_end
-- End the lease of a process, and say when the loop is due again. `ran_at` never goes back.
UPDATE loop_leases SET holder = NULL, lease_until = NULL, position = :position, ran_at = max(coalesce(ran_at, :now), :now),
  next_at = :now + {{microseconds(:interval_seconds)}}
WHERE name = :name AND holder = :holder;

-- name: loop_lease_list
-- All loops that have run, and when each has completed its last run.
-- returns: holder uuid, lease_until time, next_at time, ran_at time
SELECT name, holder, lease_until, next_at, ran_at, position FROM loop_leases ORDER BY name;
