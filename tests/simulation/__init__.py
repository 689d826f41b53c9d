"""Deterministic simulation: a cluster of real services on simulated time, with faults. Run by `make simulate`."""
