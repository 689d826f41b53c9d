-- A function that fails a submit with a taken idempotency key. Nodes of the previous version can keep running.

-- The SQL standard leaves the classes of SQLSTATE that begin with I to Z to implementations. PostgreSQL does not use VB.
-- VOLATILE, so that the planner does not call it in advance.
CREATE FUNCTION everbeat_raise_key_taken() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RAISE EXCEPTION 'an idempotency key is taken' USING ERRCODE = 'VB001';
END
$$;
