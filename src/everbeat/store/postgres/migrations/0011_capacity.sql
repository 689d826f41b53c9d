-- The capacity of a node: a node that cannot keep up takes fewer partitions. Nodes of the previous version can keep running.

ALTER TABLE nodes ADD COLUMN capacity double precision NOT NULL DEFAULT 1 CHECK (capacity >= 0 AND capacity <= 1);
