-- name: loop_lease_take
-- Take the lease of a loop, if the loop is due and no other node has the lease. A time further ahead than any valid one counts as past: the clock
-- was set back.
INSERT INTO loop_leases AS t (name, holder, lease_until, lease_seconds)
SELECT :name, :holder, coalesce(:now::timestamptz, now()) + make_interval(secs => :lease_seconds), :lease_seconds
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until, lease_seconds = excluded.lease_seconds
WHERE (t.holder IS NULL OR t.holder = excluded.holder OR t.lease_until <= coalesce(:now::timestamptz, now())
    OR t.lease_until > coalesce(:now::timestamptz, now()) + make_interval(secs => t.lease_seconds * 1.5))
  AND (t.next_at IS NULL OR t.next_at <= coalesce(:now::timestamptz, now())
    OR t.next_at > coalesce(:now::timestamptz, now()) + make_interval(secs => :interval_seconds * 1.5))
RETURNING coalesce(:now::timestamptz, now()) AS now, ran_at, position;

-- name: loop_lease_end
-- End the lease of a node, and say when the loop is due again. `ran_at` never goes back.
UPDATE loop_leases SET holder = NULL, lease_until = NULL, position = :position,
  ran_at = greatest(ran_at, coalesce(:now::timestamptz, now())),
  next_at = coalesce(:now::timestamptz, now()) + make_interval(secs => :interval_seconds)
WHERE name = :name AND holder = :holder;

-- name: loop_lease_list
-- All loops that have run, and when each has completed its last run.
SELECT name, holder, lease_until, next_at, ran_at, position FROM loop_leases ORDER BY name;
