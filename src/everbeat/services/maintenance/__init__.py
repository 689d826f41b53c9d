"""Maintenance: loops that run on one node at a time, such as the auditor and the pruner."""
