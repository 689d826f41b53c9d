"""Reads the jobs of a scheduler of APScheduler 3, without starting it and without changing its job stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class FoundJob(NamedTuple):
    """A job of APScheduler. `problem`: why it cannot be read; `job` is None then. `defaults`: the scheduler's job_defaults.

    `is_stored`: it was read from a job store, where it has its final fields.
    """

    id: str
    job: Any
    defaults: dict[str, Any]
    is_stored: bool
    problem: str | None = None

    def option(self, name: str) -> Any:
        """Return an option of the job. A job that was not scheduled yet has the default of the scheduler."""
        return getattr(self.job, name, self.defaults[name])

    @property
    def is_paused(self) -> bool:
        return getattr(self.job, "next_run_time", self) is None


class _UnreadableJob:
    """Takes the place of a job that cannot be restored. Job stores sort by next_run_time."""

    next_run_time = None

    def __init__(self, number: int, problem: str) -> None:
        self.id = f"unreadable-{number}"
        self.problem = problem


def jobs_of(scheduler: Any) -> list[FoundJob]:
    """Return the jobs in the job stores of a scheduler, and those that were added to it since."""
    defaults = dict(scheduler._job_defaults)
    found: dict[str, FoundJob] = {}
    for alias, store in scheduler._jobstores.items():
        store.start(scheduler, alias)
        for job in _stored_jobs(store):
            found[job.id] = FoundJob(job.id, job, defaults, is_stored=True, problem=getattr(job, "problem", None))
    for job, _, replaces_existing in scheduler._pending_jobs:
        if replaces_existing or job.id not in found:
            found[job.id] = FoundJob(job.id, job, defaults, is_stored=False)
    return list(found.values())


def _stored_jobs(store: Any) -> Iterator[Any]:
    """Return the jobs of a store. By itself, a store deletes a job that it cannot restore, because its function was moved."""
    restore = getattr(store, "_reconstitute_job", None)
    if restore is not None:
        store._reconstitute_job = _without_errors(restore)
    try:
        yield from store.get_all_jobs()
    finally:
        if restore is not None:
            del store._reconstitute_job


def _without_errors(restore: Callable[[Any], Any]) -> Callable[[Any], Any]:
    count = 0

    def restored(state: Any) -> Any:
        nonlocal count
        count += 1
        try:
            return restore(state)
        except Exception as error:
            return _UnreadableJob(count, f"it cannot be restored: {error}")

    return restored
