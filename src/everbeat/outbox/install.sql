-- The outbox of Everbeat: a table to which the application adds tasks in its own transactions. Run this in a migration of the
-- application, on PostgreSQL 14 or later. It can be run again. docs/concepts/outbox.md explains the protocol.

CREATE TABLE IF NOT EXISTS everbeat_outbox (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  order_key text,
  task jsonb NOT NULL CHECK (jsonb_typeof(task) = 'object'),
  created_at timestamptz NOT NULL DEFAULT now(),
  position bigint NOT NULL,
  shard smallint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE INDEX IF NOT EXISTS everbeat_outbox_by_shard ON everbeat_outbox (shard, position);

CREATE TABLE IF NOT EXISTS everbeat_outbox_shards (shard smallint PRIMARY KEY);
INSERT INTO everbeat_outbox_shards SELECT generate_series(0, 63) ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS everbeat_outbox_rejected (
  id uuid PRIMARY KEY,
  order_key text,
  task jsonb NOT NULL,
  created_at timestamptz NOT NULL,
  rejected_at timestamptz NOT NULL DEFAULT now(),
  error text NOT NULL
);

CREATE SEQUENCE IF NOT EXISTS everbeat_outbox_position;
-- A flag: 1 if a relay waits for a notification. A sequence, because its value is not part of a transaction.
CREATE SEQUENCE IF NOT EXISTS everbeat_outbox_wakeup MINVALUE 0 START 0;

CREATE OR REPLACE FUNCTION everbeat_outbox_place() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF NEW.order_key IS NULL THEN
    NEW.shard := floor(random() * 64);
  ELSE
    -- Held until the end of the transaction, so that the order of positions is the order of commits for this key.
    PERFORM pg_advisory_xact_lock(hashtextextended(NEW.order_key, 7205759403792793));
    NEW.shard := hashtextextended(NEW.order_key, 0) & 63;
  END IF;
  NEW.position := nextval('everbeat_outbox_position');
  RETURN NEW;
END
$$;

CREATE OR REPLACE FUNCTION everbeat_outbox_wake() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF (SELECT last_value FROM everbeat_outbox_wakeup) > 0 THEN
    PERFORM setval('everbeat_outbox_wakeup', 0);
    PERFORM pg_notify('everbeat_outbox', '');
  END IF;
  RETURN NULL;
END
$$;

-- The functions run with the privileges of their owner, so that the application needs only INSERT on the table.
DO $$
BEGIN
  EXECUTE format('ALTER FUNCTION everbeat_outbox_place() SET search_path = %I, pg_temp', current_schema());
  EXECUTE format('ALTER FUNCTION everbeat_outbox_wake() SET search_path = %I, pg_temp', current_schema());
END
$$;

DROP TRIGGER IF EXISTS everbeat_outbox_place ON everbeat_outbox;
CREATE TRIGGER everbeat_outbox_place BEFORE INSERT ON everbeat_outbox
FOR EACH ROW EXECUTE FUNCTION everbeat_outbox_place();
DROP TRIGGER IF EXISTS everbeat_outbox_wake ON everbeat_outbox;
CREATE TRIGGER everbeat_outbox_wake AFTER INSERT ON everbeat_outbox
FOR EACH STATEMENT EXECUTE FUNCTION everbeat_outbox_wake();
