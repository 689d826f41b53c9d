-- name: turn_take
-- Take the turn of a loop, if it is due and no other node has it. A time further ahead than any valid one counts as past: the clock
-- was set back.
INSERT INTO turns AS t (name, holder, lease_until, lease_seconds)
SELECT :name, :holder, coalesce(:now::timestamptz, now()) + make_interval(secs => :lease_seconds), :lease_seconds
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until, lease_seconds = excluded.lease_seconds
WHERE (t.holder IS NULL OR t.holder = excluded.holder OR t.lease_until <= coalesce(:now::timestamptz, now())
    OR t.lease_until > coalesce(:now::timestamptz, now()) + make_interval(secs => t.lease_seconds * 1.5))
  AND (t.next_at IS NULL OR t.next_at <= coalesce(:now::timestamptz, now())
    OR t.next_at > coalesce(:now::timestamptz, now()) + make_interval(secs => :interval_seconds * 1.5))
RETURNING coalesce(:now::timestamptz, now()) AS now, ran_at, position;

-- name: turn_end
-- End the turn of a node, and say when the next one is due. `ran_at` never goes back.
UPDATE turns SET holder = NULL, lease_until = NULL, position = :position,
  ran_at = greatest(ran_at, coalesce(:now::timestamptz, now())),
  next_at = coalesce(:now::timestamptz, now()) + make_interval(secs => :interval_seconds)
WHERE name = :name AND holder = :holder;

-- name: turn_list
-- All loops that have had a turn, and when each has ended its last one.
SELECT name, holder, lease_until, next_at, ran_at, position FROM turns ORDER BY name;
