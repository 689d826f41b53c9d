"""Benchmarks: Everbeat beside the raw database on the same machine, in the same run. `python -m bench --help` says how."""
