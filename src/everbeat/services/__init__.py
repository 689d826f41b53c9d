"""One file, one loop or one use-case room: what Everbeat does, on any store."""
