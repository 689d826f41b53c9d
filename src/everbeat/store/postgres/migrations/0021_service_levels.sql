-- Service levels: what each node has counted in buckets of five minutes. Nodes of the previous version can keep running; they write
-- nothing here.

CREATE TABLE service_levels (
  bucket_at timestamptz NOT NULL,
  node uuid NOT NULL,
  fire_good bigint NOT NULL,
  fire_total bigint NOT NULL,
  pickup_good bigint NOT NULL,
  pickup_total bigint NOT NULL,
  success_good bigint NOT NULL,
  success_total bigint NOT NULL,
  available_minutes integer NOT NULL CHECK (available_minutes BETWEEN 0 AND 31),
  unavailable_minutes integer NOT NULL CHECK (unavailable_minutes BETWEEN 0 AND 31),
  PRIMARY KEY (bucket_at, node)
) WITH (fillfactor = 50);
