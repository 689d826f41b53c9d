-- name: sample_waiting
-- The number of held and of scheduled tasks, each counted up to a limit.
SELECT 'held' AS state, (SELECT count(*) FROM (SELECT 1 FROM tasks WHERE state = 'held' LIMIT :limit)) AS count
UNION ALL
SELECT 'scheduled', (SELECT count(*) FROM (SELECT 1 FROM tasks WHERE state = 'scheduled' LIMIT :limit));

-- name: sample_ready_queues
-- The queues with ready tasks. A loose index scan: one index seek for each of them, however many tasks it has.
WITH RECURSIVE queues (queue) AS (
  SELECT min(queue) FROM tasks WHERE state = 'ready'
  UNION ALL
  SELECT (SELECT min(t.queue) FROM tasks AS t WHERE t.state = 'ready' AND t.queue > q.queue)
  FROM queues AS q WHERE q.queue IS NOT NULL LIMIT :max_queues
)
SELECT queue FROM queues WHERE queue IS NOT NULL;

-- name: sample_ready
-- The number of ready tasks of a queue, counted up to a limit, and the time of the oldest one. A loose index scan finds the oldest
-- task of each flow, because the tasks of a flow are in order of time.
-- Differs from postgres: one statement for each queue, because SQLite has no LATERAL. The bounds are those of task_flows.
-- returns: oldest_at time
WITH RECURSIVE flow (first_row) AS (
  SELECT (
    SELECT rowid FROM tasks WHERE state = 'ready' AND queue = :queue
    ORDER BY tenant_id, priority, fair_key, type, run_at LIMIT 1)
  UNION ALL
  SELECT (
    SELECT t.rowid FROM tasks AS t
    WHERE t.state = 'ready' AND t.queue = :queue
      AND (t.tenant_id, t.priority, t.fair_key, t.type, t.run_at)
        > (+h.tenant_id, +h.priority, +h.fair_key, +h.type, 9223372036854775807)
    ORDER BY t.tenant_id, t.priority, t.fair_key, t.type, t.run_at LIMIT 1)
  FROM flow CROSS JOIN tasks AS h ON h.rowid = flow.first_row
  LIMIT :max_flows
)
SELECT :queue AS queue,
  (SELECT count(*) FROM (SELECT 1 FROM tasks WHERE state = 'ready' AND queue = :queue LIMIT :limit)) AS ready,
  (SELECT min(t.run_at) FROM flow CROSS JOIN tasks AS t ON t.rowid = flow.first_row) AS oldest_at;

-- name: sample_running
-- The running tasks by queue, counted up to a limit, and how many of them have used up most of their timeout.
SELECT queue, count(*) AS running,
  count(*) FILTER (WHERE :now > started_at + {{microseconds(:near_ratio * timeout_seconds)}}) AS near_timeout
FROM (SELECT queue, started_at, timeout_seconds FROM tasks WHERE state = 'running' LIMIT :limit)
GROUP BY queue ORDER BY queue;

-- name: sample_workers
-- The number of live workers by queue, of a limited number of workers.
SELECT q.value AS queue, count(*) AS workers
FROM (
  SELECT queues FROM workers
  WHERE state = 'live' AND last_seen_at > :now - {{microseconds(max(:silent_seconds, lease_seconds))}} LIMIT :limit
) AS w, json_each(w.queues) AS q
GROUP BY q.value ORDER BY q.value;

-- name: sample_database
-- The size of the file, and how much of it is free.
-- Differs from postgres: SQLite has no statistics of tables, and nothing knows the transactions of other processes.
SELECT p.page_count * s.page_size AS bytes, f.freelist_count * s.page_size AS free_bytes
FROM pragma_page_count() AS p, pragma_page_size() AS s, pragma_freelist_count() AS f;
