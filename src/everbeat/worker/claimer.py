"""Claims tasks by long polls, one at a time. The next poll is sent while the tasks of the previous one run."""

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
# With several servers, a poll is shorter, so that a server that has stopped without closing its connections is noticed sooner.
_FAILOVER_POLL_SECONDS = 10.0
_TIMEOUT_MARGIN_SECONDS = 15.0
# The server responds within this time if tasks are ready. After it, the claim is waiting for a task.
_RESPONSE_SECONDS = 2.0


class Claimer:
    """Claims as many tasks as `count_to_claim` returns, and passes them to `receive` with the time when the claim was sent."""

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
        self._has_free_slots = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.is_waiting = False
        self._sent_at = 0.0
        self._is_polling = self._was_last_claim_full = False
        # Leases count from the time when the claim was sent. The poll must end early enough for a first heartbeat, also if its
        # answer comes a second late.
        servers = getattr(transport, "servers", None)
        longest = _FAILOVER_POLL_SECONDS if servers is not None and servers.has_alternatives else _MAX_POLL_SECONDS
        lease = claim.lease_seconds
        self._poll_seconds = min(longest, lease * 0.8, max(lease - 3.0, lease / 2))

    def wake(self) -> None:
        """Wake the claimer, because slots may be free."""
        self._has_free_slots.set()

    async def stop(self) -> None:
        """Stop claiming and end the current poll. The server releases tasks that it claims for a closed connection.

        It cannot release the tasks of a response that is already sent: they would wait until their leases expire. If the
        last claim returned as many tasks as requested, more tasks are probably ready, so wait briefly for the response.
        """
        self._is_stopping = True
        if self._task is None or self._task.done():
            return
        if self._is_polling and self._was_last_claim_full:
            await asyncio.wait({self._task}, timeout=max(0.0, self._sent_at + _RESPONSE_SECONDS - monotonic()))
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
            self._was_last_claim_full = len(tasks) >= count
            if tasks:
                self._receive(tasks, sent_at)
                # Let the handlers start before the next claim is built.
                await asyncio.sleep(0)

    async def _send_claim(self, count: int) -> list[ClaimedTask]:
        template = self._claim
        claim = LeaseClaimRequest(
            worker=template.worker,
            queues=template.queues,
            types=template.types,
            max=count,
            wait_seconds=self._poll_seconds,
            lease_seconds=template.lease_seconds,
            concurrency=template.concurrency,
            version=template.version,
        )
        self._is_polling = True
        try:
            async with asyncio.timeout(self._poll_seconds + _TIMEOUT_MARGIN_SECONDS):
                return await self._transport.claim(claim)
        finally:
            self._is_polling = False

    async def _wait(self) -> None:
        self.is_waiting = True
        await self._has_free_slots.wait()
        self._has_free_slots.clear()
        self.is_waiting = False


def _is_permanent(error: Exception) -> bool:
    """Whether the server would reject the claim again: it is invalid, or its key is invalid or revoked."""
    if isinstance(error, NotAllowed):
        return error.is_final
    return isinstance(error, ServerProblem) and error.status in (400, 422)
