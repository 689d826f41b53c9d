-- fragment: level_counts
-- The counts of a bucket.
fire_good, fire_total, pickup_good, pickup_total, success_good, success_total, available_minutes, unavailable_minutes

-- name: service_level_write
-- Write the counts of a process. They are totals of the bucket, so a repeated write changes nothing.
INSERT INTO service_levels (bucket_at, node, {{level_counts}})
VALUES (:at, :node, {{:level_counts}})
ON CONFLICT (bucket_at, node) DO UPDATE SET
  fire_good = max(service_levels.fire_good, excluded.fire_good),
  fire_total = max(service_levels.fire_total, excluded.fire_total),
  pickup_good = max(service_levels.pickup_good, excluded.pickup_good),
  pickup_total = max(service_levels.pickup_total, excluded.pickup_total),
  success_good = max(service_levels.success_good, excluded.success_good),
  success_total = max(service_levels.success_total, excluded.success_total),
  available_minutes = service_levels.available_minutes | excluded.available_minutes,
  unavailable_minutes = service_levels.unavailable_minutes | excluded.unavailable_minutes;

-- fragment: any_minute(mask)
-- The minutes whose bit is set in any of the rows.
max(mask & 1) + max(mask & 2) + max(mask & 4) + max(mask & 8) + max(mask & 16)

-- name: service_level_list
-- The counts of all processes since a time, added up by bucket, oldest first.
-- returns: at time
SELECT bucket_at AS at, sum(fire_good) AS fire_good, sum(fire_total) AS fire_total, sum(pickup_good) AS pickup_good,
  sum(pickup_total) AS pickup_total, sum(success_good) AS success_good, sum(success_total) AS success_total,
  {{any_minute(available_minutes)}} AS available_minutes, {{any_minute(unavailable_minutes)}} AS unavailable_minutes
FROM service_levels WHERE bucket_at >= :from_at GROUP BY bucket_at ORDER BY bucket_at;

-- fragment: minutes_in(mask)
-- The number of minutes in a mask.
((mask & 1) + (mask >> 1 & 1) + (mask >> 2 & 1) + (mask >> 3 & 1) + (mask >> 4 & 1))

-- name: service_level_total
-- The counts of all nodes between two times, added up, with the number of available minutes and the marks of the first bucket.
-- returns: first_at time
WITH buckets AS (
  SELECT bucket_at, sum(fire_good) AS fire_good, sum(fire_total) AS fire_total, sum(pickup_good) AS pickup_good,
    sum(pickup_total) AS pickup_total, sum(success_good) AS success_good, sum(success_total) AS success_total,
    {{any_minute(available_minutes)}} AS available, {{any_minute(unavailable_minutes)}} AS unavailable
  FROM service_levels WHERE bucket_at >= :from_at AND bucket_at < :before_at GROUP BY bucket_at
)
SELECT min(bucket_at) AS first_at,
  (SELECT f.available | f.unavailable FROM buckets AS f ORDER BY f.bucket_at LIMIT 1) AS first_minutes,
  sum(fire_good) AS fire_good, sum(fire_total) AS fire_total, sum(pickup_good) AS pickup_good,
  sum(pickup_total) AS pickup_total, sum(success_good) AS success_good, sum(success_total) AS success_total,
  sum({{minutes_in((available & ~unavailable))}}) AS available
FROM buckets;

-- name: service_level_prune
-- Delete old counts, the oldest first.
DELETE FROM service_levels WHERE (bucket_at, node) IN (
  SELECT bucket_at, node FROM service_levels WHERE bucket_at < :before_at ORDER BY bucket_at, node LIMIT :limit);
