-- fragment: archived_ticks
-- The archived columns of the table, in the order of core/archives.py.
schedule_id, scheduled_for, tenant_id, outcome, reason, task_id, fired_at, node, epoch, until, count

-- fragment: archived_task_history
-- The archived columns of the table, in the order of core/archives.py.
id, tenant_id, queue, type, target, payload, payload_ref, fair_key, origin, schedule_id, schedule_name, scheduled_for, run_at, priority, state, attempt, max_attempts, retry, timeout_seconds, labels, worker, fence, traceparent, result, error, reason, outcome, response, created_at, started_at, finished_at

-- fragment: archived_attempts
-- The archived columns of the table, in the order of core/archives.py.
task_id, tenant_id, fence, attempt, worker, started_at, ended_at, outcome, error, response

-- fragment: archived_task_log
-- The archived columns of the table, in the order of core/archives.py.
task_id, id, tenant_id, at, attempt, worker, text

-- name: archive_latest
-- The newest segment of a month.
SELECT table_name, month, segment, claim, recorded_until, archived_at, removed_at FROM archived_months
WHERE table_name = :table_name AND month = :month ORDER BY segment DESC LIMIT 1;

-- name: archive_insert
-- Begin a new segment.
INSERT INTO archived_months (table_name, month, segment, claim, recorded_until, started_at)
VALUES (:table_name, :month, :segment, :claim, :recorded_until, :now) ON CONFLICT DO NOTHING;

-- name: archive_claim
-- Take over a segment that was begun and not completed.
UPDATE archived_months SET claim = :claim, recorded_until = :recorded_until, started_at = :now
WHERE table_name = :table_name AND month = :month AND segment = :segment AND archived_at IS NULL;

-- name: archive_held
-- The claim of a segment that is not complete.
SELECT claim FROM archived_months
WHERE table_name = :table_name AND month = :month AND segment = :segment AND archived_at IS NULL;

-- name: archive_finish
-- Record that the file of a segment is complete, unless another process has taken the segment over.
UPDATE archived_months SET archived_at = coalesce(:now::timestamptz, now()), row_count = :row_count, first_at = :first_at,
  last_at = :last_at, file = :file, file_bytes = :file_bytes
WHERE table_name = :table_name AND month = :month AND segment = :segment AND claim = :claim AND archived_at IS NULL;

-- name: archive_removed
-- Record that the rows of a segment are removed.
UPDATE archived_months SET removed_at = coalesce(:now::timestamptz, now())
WHERE table_name = :table_name AND month = :month AND segment = :segment AND archived_at IS NOT NULL AND removed_at IS NULL;

-- name: archive_blocks
-- The number of blocks of a table.
SELECT (pg_relation_size(:name::text::regclass) / current_setting('block_size')::integer)::bigint AS blocks;

-- name: archive_count
-- The number of rows of a detached month.
SELECT count(*) AS count FROM month_table;

-- name: archive_read_ticks
-- Ledger rows of a detached month, by blocks. Nothing writes to a detached table, so each row is read once.
SELECT {{archived_ticks}} FROM month_table WHERE ctid >= :first::tid AND ctid < :last::tid;

-- name: archive_read_task_history
-- Finished tasks of a detached month, by blocks.
SELECT {{archived_task_history}} FROM month_table WHERE ctid >= :first::tid AND ctid < :last::tid;

-- name: archive_read_attempts
-- Attempts of a detached month, by blocks.
SELECT {{archived_attempts}} FROM month_table WHERE ctid >= :first::tid AND ctid < :last::tid;

-- name: archive_read_task_log
-- Log lines of a detached month, by blocks.
SELECT {{archived_task_log}} FROM month_table WHERE ctid >= :first::tid AND ctid < :last::tid;

-- name: month_rename
-- Give a detached month another name, so that the month can be created again for late rows.
ALTER TABLE month_table RENAME TO month_table_detached;

-- name: month_detach_as_owner
-- Detach and rename a month with the privileges of its owner.
SELECT everbeat_month_detach(:parent, :child);
