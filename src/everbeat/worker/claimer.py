"""Claims tasks by long polls, one at a time. The next poll is sent while the tasks of the last one still run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from everbeat.client.base import Transport
from everbeat.client.errors import NotAllowed, ServerProblem
from everbeat.core.protocol import LeaseClaimRequest
from everbeat.core.tasks import ClaimedTask
from everbeat.worker.backoff import Backoff
from everbeat.worker.telemetry import WorkerTelemetry

_MAX_POLL_SECONDS = 25.0
_SLACK_SECONDS = 15.0
# A claim without a response after this time has found no task and waits for one.
_ANSWER_SECONDS = 2.0


class Claimer:
    """`count_to_claim` returns how many tasks to claim. `receive` gets the tasks and the time before the claim was sent."""

    def __init__(
        self,
        transport: Transport,
        claim: LeaseClaimRequest,
        telemetry: WorkerTelemetry,
        *,
        count_to_claim: Callable[[], int],
        receive: Callable[[list[ClaimedTask], float], None],
    ) -> None:
        self._transport = transport
        self._claim = claim
        self._telemetry = telemetry
        self._count_to_claim = count_to_claim
        self._receive = receive
        self._has_free_space = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.is_waiting = False
        self._sent_at = 0.0
        self._is_polling = self._was_full = False
        # The lease of a task claimed at the end of a poll must last until its first heartbeat.
        self._poll_seconds = min(_MAX_POLL_SECONDS, claim.lease_seconds * 0.8)

    def wake(self) -> None:
        """There may be free slots again."""
        self._has_free_space.set()

    async def stop(self) -> None:
        """Stop claiming, and end the current poll: the server releases tasks that it claims for a closed connection.

        It cannot release tasks of a response that it has sent already; those would wait for the end of their leases. If the
        last claim returned all that it requested, more tasks are ready and a response is likely on its way: wait for it.
        """
        self._is_stopping = True
        if self._task is None or self._task.done():
            return
        if self._is_polling and self._was_full:
            await asyncio.wait({self._task}, timeout=max(0.0, self._sent_at + _ANSWER_SECONDS - monotonic()))
        self._task.cancel()
        await asyncio.wait({self._task})

    def start(self) -> asyncio.Task[None]:
        self._task = asyncio.create_task(self._run())
        return self._task

    async def _run(self) -> None:
        backoff = Backoff(2.0)
        while not self._is_stopping:
            count = self._count_to_claim()
            if count < 1:
                await self._wait()
                continue
            sent_at = self._sent_at = monotonic()
            try:
                tasks = await self._send_claim(count)
            except Exception as error:
                if _is_permanent(error):
                    raise
                self._telemetry.server_unavailable("claim", error)
                await asyncio.sleep(backoff.seconds(error))
                continue
            backoff.reset()
            self._telemetry.server_available()
            self._was_full = len(tasks) >= count
            if tasks:
                self._receive(tasks, sent_at)
                # Start the handlers before the next claim is built.
                await asyncio.sleep(0)

    async def _send_claim(self, count: int) -> list[ClaimedTask]:
        first = self._claim
        claim = LeaseClaimRequest(
            worker=first.worker,
            queues=first.queues,
            types=first.types,
            max=count,
            wait_seconds=self._poll_seconds,
            lease_seconds=first.lease_seconds,
        )
        self._is_polling = True
        try:
            async with asyncio.timeout(self._poll_seconds + _SLACK_SECONDS):
                return await self._transport.claim(claim)
        finally:
            self._is_polling = False

    async def _wait(self) -> None:
        self.is_waiting = True
        await self._has_free_space.wait()
        self._has_free_space.clear()
        self.is_waiting = False


def _is_permanent(error: Exception) -> bool:
    """The server would reject this claim each time: the claim is invalid, or its key is wrong or revoked."""
    if isinstance(error, NotAllowed):
        return error.is_final
    return isinstance(error, ServerProblem) and error.status in (400, 422)
