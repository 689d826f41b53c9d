-- A function with which an application that shares the database writes a task in its own transaction. Nodes of the previous
-- version can keep running.

-- The partition of an id: its CRC-32 modulo 256, as partition_of() in core/partitioning.py.
CREATE FUNCTION everbeat_partition(id uuid) RETURNS smallint LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
  bytes bytea := uuid_send(id);
  crc bigint := 4294967295;
BEGIN
  FOR i IN 0..15 LOOP
    crc := crc # get_byte(bytes, i);
    FOR bit IN 1..8 LOOP
      crc := (crc >> 1) # (CASE WHEN crc & 1 = 1 THEN 3988292384 ELSE 0 END);
    END LOOP;
  END LOOP;
  RETURN (crc # 4294967295) & 255;
END
$$;

-- A UUID of version 7: milliseconds, a fraction of a millisecond, so that the ids of one session are in order, and random bits.
CREATE FUNCTION everbeat_uuid7() RETURNS uuid LANGUAGE sql VOLATILE AS $$
  SELECT (lpad(to_hex(m.at / 1000), 12, '0') || '7' || lpad(to_hex(m.at % 1000 * 4096 / 1000), 3, '0')
    || substr(replace(gen_random_uuid()::text, '-', ''), 17))::uuid
  FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS m(at)
$$;

CREATE FUNCTION everbeat_enqueue_invalid(field text, message text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '%: %', field, message USING ERRCODE = 'invalid_parameter_value';
END
$$;

-- Validate a task as the API does.
CREATE FUNCTION everbeat_enqueue_check(task jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  name_pattern constant text := '^[A-Za-z0-9._:-]{1,200}$';
  name_message constant text := 'must be 1 to 200 characters: letters A-Z and a-z, digits, and . _ : -';
  field text;
  bounds record;
  retry jsonb := task -> 'retry';
BEGIN
  IF jsonb_typeof(task) IS DISTINCT FROM 'object' THEN
    PERFORM everbeat_enqueue_invalid('task', 'must be a JSON object');
  END IF;
  SELECT min(k) INTO field FROM jsonb_object_keys(task) AS k WHERE k <> ALL (ARRAY['type', 'queue', 'payload', 'run_at',
    'delay_seconds', 'priority', 'max_attempts', 'retry', 'timeout_seconds', 'labels', 'fair_key', 'idempotency_key']);
  IF field IS NOT NULL THEN
    PERFORM everbeat_enqueue_invalid(field, 'is not a field that can be written in SQL');
  END IF;
  FOREACH field IN ARRAY ARRAY['type', 'queue', 'fair_key'] LOOP
    IF (field = 'type' OR jsonb_typeof(task -> field) <> 'null') AND ((jsonb_typeof(task -> field) = 'string') IS NOT TRUE
        OR task ->> field !~ name_pattern) THEN
      PERFORM everbeat_enqueue_invalid(field, name_message);
    END IF;
  END LOOP;
  IF task ->> 'queue' LIKE 'everbeat:%' THEN
    PERFORM everbeat_enqueue_invalid('queue', 'must not start with everbeat:, which is reserved for deliveries');
  END IF;
  FOR bounds IN
    SELECT * FROM (VALUES ('priority', 0, 1000, true), ('max_attempts', 1, 100, true), ('timeout_seconds', 0, 604800, false),
      ('delay_seconds', 0, 316224000, false)) AS b(name, low, high, is_whole)
  LOOP
    IF jsonb_typeof(task -> bounds.name) <> 'null' AND ((jsonb_typeof(task -> bounds.name) = 'number') IS NOT TRUE
        OR (task ->> bounds.name)::numeric NOT BETWEEN bounds.low AND bounds.high
        OR (bounds.is_whole AND (task ->> bounds.name)::numeric % 1 <> 0)) THEN
      PERFORM everbeat_enqueue_invalid(bounds.name, format('must be a number from %s to %s', bounds.low, bounds.high));
    END IF;
  END LOOP;
  IF (task ->> 'timeout_seconds')::numeric = 0 THEN
    PERFORM everbeat_enqueue_invalid('timeout_seconds', 'must be greater than 0');
  END IF;
  IF jsonb_typeof(task -> 'run_at') <> 'null' THEN
    IF jsonb_typeof(task -> 'delay_seconds') <> 'null' THEN
      PERFORM everbeat_enqueue_invalid('delay_seconds', 'cannot be used together with run_at');
    END IF;
    IF (task ->> 'run_at' ~ '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$') IS NOT TRUE THEN
      PERFORM everbeat_enqueue_invalid('run_at', 'must be a time with an offset, such as 2027-01-31T09:00:00Z');
    END IF;
  END IF;
  IF jsonb_typeof(task -> 'idempotency_key') <> 'null' AND (task ->> 'idempotency_key' ~ '^[\x21-\x7e]{1,255}$') IS NOT TRUE THEN
    PERFORM everbeat_enqueue_invalid('idempotency_key', 'must be 1 to 255 visible ASCII characters');
  END IF;
  PERFORM everbeat_enqueue_check_labels(task -> 'labels', name_pattern);
  IF jsonb_typeof(retry) <> 'null' THEN
    IF jsonb_typeof(retry) <> 'object' THEN
      PERFORM everbeat_enqueue_invalid('retry', 'must be an object');
    END IF;
    IF EXISTS (SELECT 1 FROM jsonb_each(retry) AS r(name, value) WHERE NOT CASE r.name
        WHEN 'kind' THEN r.value IN ('"fixed"', '"linear"', '"exponential"')
        WHEN 'jitter' THEN jsonb_typeof(r.value) = 'boolean'
        WHEN 'base_seconds' THEN CASE WHEN jsonb_typeof(r.value) = 'number' THEN (r.value)::numeric BETWEEN 0 AND 86400 END
        WHEN 'factor' THEN CASE WHEN jsonb_typeof(r.value) = 'number' THEN (r.value)::numeric BETWEEN 1 AND 100 END
        WHEN 'max_seconds' THEN CASE WHEN jsonb_typeof(r.value) = 'number' THEN (r.value)::numeric BETWEEN 0 AND 31622400 END
        ELSE false END IS TRUE) THEN
      PERFORM everbeat_enqueue_invalid('retry', 'has a field that is unknown or out of range');
    END IF;
  END IF;
END
$$;

CREATE FUNCTION everbeat_enqueue_check_labels(labels jsonb, name_pattern text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF labels IS NULL OR jsonb_typeof(labels) = 'null' THEN
    RETURN;
  END IF;
  IF jsonb_typeof(labels) <> 'object' OR (SELECT count(*) FROM jsonb_object_keys(labels)) > 64 THEN
    PERFORM everbeat_enqueue_invalid('labels', 'must be an object with at most 64 labels');
  END IF;
  IF EXISTS (SELECT 1 FROM jsonb_each(labels) AS l(name, value)
      WHERE l.name !~ name_pattern OR jsonb_typeof(l.value) <> 'string' OR length(l.value #>> '{}') > 256) THEN
    PERFORM everbeat_enqueue_invalid('labels', 'must have valid names, and strings of at most 256 characters');
  END IF;
END
$$;

-- Raise an error if a quota of the tenant does not allow the task. Other transactions are counted when they have committed.
CREATE FUNCTION everbeat_enqueue_check_quotas(owner tenants, payload text, run_at timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  ready bigint;
BEGIN
  IF octet_length(payload) > owner.max_payload_bytes THEN
    RAISE EXCEPTION 'max_payload_bytes: the payload has % bytes, at most % are allowed', octet_length(payload),
      owner.max_payload_bytes USING ERRCODE = 'configuration_limit_exceeded';
  END IF;
  IF owner.submits_per_second IS NOT NULL THEN
    RAISE EXCEPTION 'the tenant % has the quota submits_per_second, which only nodes enforce; submit over HTTP or with the outbox',
      owner.name USING ERRCODE = 'configuration_limit_exceeded';
  END IF;
  IF owner.max_ready IS NOT NULL AND run_at <= now() + interval '1 minute' THEN
    SELECT count(*) INTO ready FROM (
      SELECT 1 FROM tasks AS t WHERE t.tenant_id = owner.id
        AND (t.state = 'ready' OR t.state = 'scheduled' AND t.run_at <= now() + interval '1 minute') LIMIT owner.max_ready
    ) AS counted;
    IF ready >= owner.max_ready THEN
      RAISE EXCEPTION 'max_ready: % tasks are ready, at most % are allowed', ready, owner.max_ready
        USING ERRCODE = 'configuration_limit_exceeded';
    END IF;
  END IF;
END
$$;

-- Write a task in the transaction of the caller. `task` has the fields of POST /v1/tasks and `idempotency_key`. Returns the id of
-- the task, or of the task that was written with the same key.
CREATE FUNCTION everbeat_enqueue(task jsonb, tenant text DEFAULT 'default') RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  max_row_payload_bytes constant integer := 65536;
  owner tenants%ROWTYPE;
  new_id uuid := everbeat_uuid7();
  payload text := coalesce(task -> 'payload', '{}')::text;
  run_at timestamptz;
  new_key text := task ->> 'idempotency_key';
  digest bytea := sha256(convert_to('enqueue:' || task::text, 'UTF8'));
  known task_keys%ROWTYPE;
BEGIN
  PERFORM everbeat_enqueue_check(task);
  SELECT * INTO owner FROM tenants AS t WHERE t.name = tenant;
  IF NOT FOUND THEN
    PERFORM everbeat_enqueue_invalid('tenant', format('there is no tenant %s', tenant));
  END IF;
  IF octet_length(payload) > max_row_payload_bytes THEN
    PERFORM everbeat_enqueue_invalid('payload', format('has %s bytes; at most %s can be written in SQL, submit larger ones over HTTP',
      octet_length(payload), max_row_payload_bytes));
  END IF;
  IF jsonb_path_exists(task -> 'payload', '$.**{64}') THEN
    PERFORM everbeat_enqueue_invalid('payload', 'is nested deeper than 64 levels');
  END IF;
  run_at := coalesce((task ->> 'run_at')::timestamptz,
    now() + make_interval(secs => coalesce((task ->> 'delay_seconds')::double precision, 0)));
  IF new_key IS NOT NULL THEN
    INSERT INTO task_keys AS k (tenant_id, key, task_id, fingerprint, expires_at)
    VALUES (owner.id, new_key, new_id, digest, now() + interval '24 hours')
    ON CONFLICT (tenant_id, key) DO UPDATE SET task_id = excluded.task_id, fingerprint = excluded.fingerprint,
      expires_at = excluded.expires_at
    WHERE k.expires_at <= now();
    IF NOT FOUND THEN
      SELECT * INTO known FROM task_keys AS k WHERE k.tenant_id = owner.id AND k.key = new_key;
      IF known.fingerprint <> digest THEN
        RAISE EXCEPTION 'idempotency_key: was used before with another task; use a new key' USING ERRCODE = 'unique_violation';
      END IF;
      RETURN known.task_id;
    END IF;
  END IF;
  PERFORM everbeat_enqueue_check_quotas(owner, payload, run_at);
  INSERT INTO tasks (id, tenant_id, partition, queue, type, target, payload, origin, priority, max_attempts, retry,
    timeout_seconds, labels, fair_key, run_at, state, created_at)
  VALUES (new_id, owner.id, everbeat_partition(new_id), coalesce(task ->> 'queue', 'default'), task ->> 'type', '{}', payload,
    'submit', greatest(coalesce((task ->> 'priority')::integer, 100), owner.min_priority),
    coalesce((task ->> 'max_attempts')::integer, 3), coalesce(nullif(task -> 'retry', 'null'), '{}')::text,
    coalesce((task ->> 'timeout_seconds')::double precision, 3600), coalesce(nullif(task -> 'labels', 'null'), '{}')::text,
    coalesce(task ->> 'fair_key', ''), run_at, CASE WHEN run_at > now() THEN 'scheduled' ELSE 'ready' END, now());
  -- The notices of nodes have the form kind:sender. PostgreSQL sends equal notifications of a transaction once.
  PERFORM pg_notify('everbeat', CASE WHEN run_at > now() THEN 'delayed:sql' ELSE 'tasks:sql' END);
  RETURN new_id;
END
$$;

DO $$
BEGIN
  EXECUTE format('ALTER FUNCTION everbeat_enqueue(jsonb, text) SET search_path = %I, pg_temp', current_schema());
END
$$;

-- A role that may execute it can submit tasks for every tenant.
REVOKE EXECUTE ON FUNCTION everbeat_enqueue(jsonb, text) FROM PUBLIC;
