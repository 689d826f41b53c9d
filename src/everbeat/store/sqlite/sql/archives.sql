-- fragment: archived_ticks
-- The archived columns of the table, in the order of core/archives.py.
-- returns: schedule_id uuid, scheduled_for time, tenant_id cached_uuid, task_id uuid, fired_at time, node uuid, until time
schedule_id, scheduled_for, tenant_id, outcome, reason, task_id, fired_at, node, epoch, until, count

-- fragment: archived_task_history
-- The archived columns of the table, in the order of core/archives.py.
-- returns: id uuid, tenant_id cached_uuid, schedule_id uuid, scheduled_for time, run_at time, created_at time, started_at time, finished_at time
id, tenant_id, queue, type, target, payload, payload_ref, fair_key, origin, schedule_id, schedule_name, scheduled_for, run_at, priority, state, attempt, max_attempts, retry, timeout_seconds, labels, worker, fence, traceparent, result, error, reason, outcome, response, created_at, started_at, finished_at

-- fragment: archived_attempts
-- The archived columns of the table, in the order of core/archives.py.
-- returns: task_id uuid, tenant_id cached_uuid, started_at time, ended_at time
task_id, tenant_id, fence, attempt, worker, started_at, ended_at, outcome, error, response

-- fragment: archived_task_log
-- The archived columns of the table, in the order of core/archives.py.
-- returns: task_id uuid, id uuid, tenant_id cached_uuid, at time
task_id, id, tenant_id, at, attempt, worker, text

-- name: archive_latest
-- The newest segment of a month.
-- returns: claim uuid, recorded_until time, archived_at time, removed_at time
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
-- returns: claim uuid
SELECT claim FROM archived_months
WHERE table_name = :table_name AND month = :month AND segment = :segment AND archived_at IS NULL;

-- name: archive_finish
-- Record that the file of a segment is complete, unless another process has taken the segment over.
UPDATE archived_months SET archived_at = :now, row_count = :row_count, first_at = :first_at, last_at = :last_at, file = :file,
  file_bytes = :file_bytes
WHERE table_name = :table_name AND month = :month AND segment = :segment AND claim = :claim AND archived_at IS NULL;

-- name: archive_removed
-- Record that the rows of a segment are removed.
UPDATE archived_months SET removed_at = :now
WHERE table_name = :table_name AND month = :month AND segment = :segment AND archived_at IS NOT NULL AND removed_at IS NULL;

-- name: archive_read_ticks
-- Ledger rows of a month, in order of time.
-- returns: {{archived_ticks}}, key uuid
SELECT {{archived_ticks}}, schedule_id AS key FROM ticks
WHERE (scheduled_for, schedule_id) > (:after_at, :after_key) AND scheduled_for >= :from_at AND scheduled_for < :to_at AND fired_at <= :recorded_until
ORDER BY scheduled_for, schedule_id LIMIT :limit;

-- name: archive_count_ticks
-- The number of rows of a month.
SELECT count(*) AS count FROM ticks WHERE scheduled_for >= :from_at AND scheduled_for < :to_at AND fired_at <= :recorded_until;

-- name: archive_remove_ticks
-- Delete a limited number of archived rows of a month.
DELETE FROM ticks WHERE (schedule_id, scheduled_for) IN (
  SELECT schedule_id, scheduled_for FROM ticks WHERE scheduled_for >= :from_at AND scheduled_for < :to_at AND fired_at <= :recorded_until ORDER BY scheduled_for LIMIT :limit);

-- name: archive_read_task_history
-- Finished tasks of a month, in order of time.
-- returns: {{archived_task_history}}
SELECT {{archived_task_history}}, rowid AS key FROM task_history
WHERE (finished_at, rowid) > (:after_at, :after_key) AND finished_at >= :from_at AND finished_at < :to_at
ORDER BY finished_at, rowid LIMIT :limit;

-- name: archive_count_task_history
-- The number of rows of a month.
SELECT count(*) AS count FROM task_history WHERE finished_at >= :from_at AND finished_at < :to_at;

-- name: archive_remove_task_history
-- Delete a limited number of archived rows of a month.
DELETE FROM task_history WHERE rowid IN (
  SELECT rowid FROM task_history WHERE finished_at >= :from_at AND finished_at < :to_at ORDER BY finished_at LIMIT :limit);

-- name: archive_read_attempts
-- Attempts of a month, in order of time.
-- returns: {{archived_attempts}}
SELECT {{archived_attempts}}, rowid AS key FROM attempts
WHERE (ended_at, rowid) > (:after_at, :after_key) AND ended_at >= :from_at AND ended_at < :to_at
ORDER BY ended_at, rowid LIMIT :limit;

-- name: archive_count_attempts
-- The number of rows of a month.
SELECT count(*) AS count FROM attempts WHERE ended_at >= :from_at AND ended_at < :to_at;

-- name: archive_remove_attempts
-- Delete a limited number of archived rows of a month.
DELETE FROM attempts WHERE rowid IN (
  SELECT rowid FROM attempts WHERE ended_at >= :from_at AND ended_at < :to_at ORDER BY ended_at LIMIT :limit);

-- name: archive_read_task_log
-- Log lines of a month, in order of time.
-- returns: {{archived_task_log}}
SELECT {{archived_task_log}}, rowid AS key FROM task_log
WHERE (at, rowid) > (:after_at, :after_key) AND at >= :from_at AND at < :to_at
ORDER BY at, rowid LIMIT :limit;

-- name: archive_count_task_log
-- The number of rows of a month.
SELECT count(*) AS count FROM task_log WHERE at >= :from_at AND at < :to_at;

-- name: archive_remove_task_log
-- Delete a limited number of archived rows of a month.
DELETE FROM task_log WHERE rowid IN (
  SELECT rowid FROM task_log WHERE at >= :from_at AND at < :to_at ORDER BY at LIMIT :limit);
