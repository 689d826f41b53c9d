-- Service levels: what each process has counted in buckets of five minutes.

CREATE TABLE service_levels (
  bucket_at INTEGER NOT NULL,
  node BLOB NOT NULL,
  fire_good INTEGER NOT NULL,
  fire_total INTEGER NOT NULL,
  pickup_good INTEGER NOT NULL,
  pickup_total INTEGER NOT NULL,
  success_good INTEGER NOT NULL,
  success_total INTEGER NOT NULL,
  available_minutes INTEGER NOT NULL CHECK (available_minutes BETWEEN 0 AND 31),
  unavailable_minutes INTEGER NOT NULL CHECK (unavailable_minutes BETWEEN 0 AND 31),
  PRIMARY KEY (bucket_at, node)
) STRICT, WITHOUT ROWID;
