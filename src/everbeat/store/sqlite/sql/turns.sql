-- name: turn_take
-- Take the turn of a loop, if it is due and no other process has it. A time further ahead than any valid one counts as past: the
-- clock was set back.
-- returns: now time, ran_at time
INSERT INTO turns (name, holder, lease_until, lease_seconds)
VALUES (:name, :holder, :now + {{microseconds(:lease_seconds)}}, :lease_seconds)
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until, lease_seconds = excluded.lease_seconds
WHERE (turns.holder IS NULL OR turns.holder = excluded.holder OR turns.lease_until <= :now
    OR turns.lease_until > :now + {{microseconds(turns.lease_seconds * 1.5)}})
  AND (turns.next_at IS NULL OR turns.next_at <= :now OR turns.next_at > :now + {{microseconds(:interval_seconds * 1.5)}})
RETURNING CAST(:now AS INTEGER) AS now, ran_at, position;

-- name: turn_end
-- End the turn of a process, and say when the next one is due. `ran_at` never goes back.
UPDATE turns SET holder = NULL, lease_until = NULL, position = :position, ran_at = max(coalesce(ran_at, :now), :now),
  next_at = :now + {{microseconds(:interval_seconds)}}
WHERE name = :name AND holder = :holder;

-- name: turn_list
-- All loops that have had a turn, and when each has ended its last one.
-- returns: holder uuid, lease_until time, next_at time, ran_at time
SELECT name, holder, lease_until, next_at, ran_at, position FROM turns ORDER BY name;
