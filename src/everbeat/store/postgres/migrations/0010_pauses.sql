-- Pauses of a queue, of a tenant (without a queue) and of everything (without a tenant). A pause is kept after its end, so that it
-- can explain the ticks that it skipped. Nodes of the previous version can keep running, but they do not know pauses.

CREATE TABLE pauses (
  id uuid PRIMARY KEY,
  tenant_id uuid,
  queue text,
  note text,
  paused_by text NOT NULL,
  since_at timestamptz NOT NULL,
  until_at timestamptz,
  ended_at timestamptz,
  ended_by text,
  CHECK (queue IS NULL OR tenant_id IS NOT NULL)
);

CREATE UNIQUE INDEX pauses_active ON pauses
  (coalesce(tenant_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'), coalesce(queue, '')) WHERE ended_at IS NULL;
CREATE INDEX pauses_since ON pauses (since_at);

-- Tasks of a manual trigger run even while their queue is paused.
CREATE INDEX tasks_triggered ON tasks (queue, run_at, id) WHERE state = 'ready' AND origin = 'trigger';

-- Fails a submit that would hand over a task of a paused queue to a worker. VOLATILE, so that the planner does not call it in
-- advance.
CREATE FUNCTION everbeat_raise_paused() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RAISE EXCEPTION 'a task of a paused queue cannot be handed over' USING ERRCODE = 'VB002';
END
$$;
