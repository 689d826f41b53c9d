"""Benchmarks that compare Everbeat with the raw database on the same machine, in the same run. See `python -m bench --help`."""
