"""Everbeat: a distributed cron and task scheduler. The public names, and nothing else."""

from everbeat.version import __version__

__all__ = ["__version__"]
