-- name: sample_waiting
-- The number of held and of scheduled tasks, each counted up to a limit. The orders leave the planner only the index of the state.
SELECT 'held' AS state, count(*) AS count FROM (
  SELECT 1 FROM tasks WHERE state = 'held' ORDER BY schedule_id LIMIT :limit) AS held
UNION ALL
SELECT 'scheduled', count(*) FROM (
  SELECT 1 FROM tasks WHERE state = 'scheduled' ORDER BY run_at LIMIT :limit) AS scheduled;

-- name: sample_ready
-- The queues with ready tasks: the number of these tasks, counted up to a limit, and the time of the oldest one. Loose index
-- scans find the queues and, because the tasks of a flow are in order of time, the oldest task of each flow.
WITH RECURSIVE queues(queue) AS (
  (SELECT queue FROM tasks WHERE state = 'ready' ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT t.queue FROM tasks AS t WHERE t.state = 'ready' AND t.queue > q.queue ORDER BY t.queue LIMIT 1)
  FROM queues AS q WHERE q.queue IS NOT NULL
)
SELECT q.queue, c.count AS ready, o.oldest_at
FROM (SELECT queue FROM queues WHERE queue IS NOT NULL LIMIT :max_queues) AS q
CROSS JOIN LATERAL (
  SELECT count(*) AS count FROM (
    SELECT 1 FROM tasks AS t WHERE t.state = 'ready' AND t.queue = q.queue ORDER BY t.queue LIMIT :limit) AS counted
) AS c
CROSS JOIN LATERAL (
  WITH RECURSIVE flow(queue, tenant_id, priority, fair_key, type, run_at) AS (
    (SELECT t.queue, t.tenant_id, t.priority, t.fair_key, t.type, t.run_at FROM tasks AS t
      WHERE t.state = 'ready' AND t.queue = q.queue
      ORDER BY t.queue, t.tenant_id, t.priority, t.fair_key, t.type, t.run_at LIMIT 1)
    UNION ALL
    SELECT n.* FROM flow CROSS JOIN LATERAL (
      SELECT t.queue, t.tenant_id, t.priority, t.fair_key, t.type, t.run_at FROM tasks AS t
      WHERE t.state = 'ready' AND (t.queue, t.tenant_id, t.priority, t.fair_key, t.type)
        > (flow.queue, flow.tenant_id, flow.priority, flow.fair_key, flow.type)
      ORDER BY t.queue, t.tenant_id, t.priority, t.fair_key, t.type, t.run_at LIMIT 1
    ) AS n WHERE n.queue = q.queue
  )
  SELECT min(f.run_at) AS oldest_at FROM (SELECT run_at FROM flow LIMIT :max_flows) AS f
) AS o
-- Another node may have claimed the last task of a queue between the subqueries only if they had different snapshots.
WHERE o.oldest_at IS NOT NULL;

-- name: sample_running
-- The running tasks by queue, counted up to a limit, and how many of them have used up most of their timeout.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at)
SELECT r.queue, count(*) AS running, count(*) FILTER (
  WHERE m.at > r.started_at + make_interval(secs => :near_ratio::double precision * r.timeout_seconds)) AS near_timeout
FROM (
  -- Row comparisons force the index of running tasks.
  SELECT t.queue, t.started_at, t.timeout_seconds FROM tasks AS t
  WHERE t.state = 'running' AND (t.state, t.tenant_id) >= ('running', '00000000-0000-0000-0000-000000000000'::uuid)
  ORDER BY t.state, t.tenant_id LIMIT :limit
) AS r CROSS JOIN moment AS m
GROUP BY r.queue ORDER BY r.queue;

-- name: sample_workers
-- The number of live workers by queue, of a limited number of workers.
SELECT q.queue, count(*) AS workers
FROM (
  SELECT w.queues FROM workers AS w
  WHERE w.state = 'live' AND w.last_seen_at > coalesce(:now::timestamptz, now())
    - make_interval(secs => greatest(:silent_seconds::double precision, w.lease_seconds)) LIMIT :limit
) AS w CROSS JOIN LATERAL jsonb_array_elements_text(w.queues::jsonb) AS q(queue)
GROUP BY q.queue ORDER BY q.queue;

-- name: sample_database
-- The size of the database, the age of the oldest transaction that this role may see, and whether it may see the WAL files.
SELECT pg_database_size(current_database()) AS bytes,
  coalesce((
    SELECT extract(epoch FROM max(clock_timestamp() - a.xact_start)) FROM pg_stat_activity AS a
    WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
  ), 0)::double precision AS oldest_transaction_seconds,
  has_function_privilege('pg_ls_waldir()', 'EXECUTE') AS can_list_wal;

-- name: sample_wal
-- The size of the WAL files. Only roles with the privileges of pg_monitor may list them.
SELECT coalesce(sum(size), 0)::bigint AS bytes FROM pg_ls_waldir();

-- name: sample_tables
-- The sizes of tables with their indexes and partitions, and how many of their rows are dead, as estimated by the database.
SELECT coalesce(p.relname, c.relname)::text AS table, sum(pg_total_relation_size(c.oid))::bigint AS bytes,
  sum(pg_stat_get_live_tuples(c.oid))::bigint AS live_rows, sum(pg_stat_get_dead_tuples(c.oid))::bigint AS dead_rows
FROM pg_class AS c
LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
LEFT JOIN pg_class AS p ON p.oid = i.inhparent
WHERE c.relkind = 'r' AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'tasks'::regclass)
  AND coalesce(p.relname, c.relname) = ANY(:tables::text[])
GROUP BY 1 ORDER BY 1;
