"""Spans of tasks: each submit or firing, claim, delivery and end is one span of the task's trace, if the trace is sampled."""

from __future__ import annotations

from uuid import UUID

import pytest

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tracing import SpanKind, TaskSpan, parse_traceparent, task_context
from everbeat.delivery.base import Delivered, Refused
from everbeat.store.base import Store
from tests.factories import NOW, SteppedNode, seconds
from tests.services.deliveries import DispatcherNode
from tests.services.workers import Worker, submit

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class TracedNode(SteppedNode):
    def __init__(self, store: Store) -> None:
        self.spans: list[TaskSpan] = []
        super().__init__(store, export_span=self.spans.append)

    def names(self) -> list[str]:
        return [span.name for span in self.spans]


@pytest.fixture
def node(store: Store) -> TracedNode:
    return TracedNode(store)


def parents_exist(spans: list[TaskSpan], root: int | None) -> bool:
    known = {span.context.span_id for span in spans} | {root}
    return all(span.parent_span_id in known for span in spans)


async def test_a_submitted_task_has_a_span_for_each_step_in_the_trace_of_the_submit(node: TracedNode) -> None:
    task = await submit(node, "work", traceparent=TRACE)
    worker = Worker(node)
    claimed = await worker.claim_one()
    await worker.complete(claimed)
    assert node.names() == ["submit work", "claim work", "complete work"]
    parent = parse_traceparent(TRACE)
    assert parent is not None
    assert {span.context.trace_id for span in node.spans} == {parent.trace_id}
    assert node.spans[0].kind is SpanKind.PRODUCER
    assert node.spans[0].parent_span_id == parent.span_id
    assert parents_exist(node.spans, parent.span_id)
    assert {span.attributes["messaging.message.id"] for span in node.spans} == {str(task.id)}
    assert node.spans[2].attributes["everbeat.outcome"] == "completed"
    # The worker continues below the submit.
    assert claimed.traceparent == task_context(task.id, TRACE).traceparent


async def test_a_fired_task_begins_a_trace_at_the_time_of_its_tick(node: TracedNode) -> None:
    await node.put(every_seconds=60, cron=None)
    await node.step(NOW + seconds(1))
    await node.step(NOW + seconds(60))
    (span,) = node.spans
    assert span.name.startswith("fire ")
    assert span.parent_span_id is None
    assert span.start_ns == int((NOW + seconds(60)).timestamp()) * 10**9
    assert UUID(str(span.attributes["everbeat.schedule_id"]))
    (claimed,) = await Worker(node).claim(1, queues=[str(span.attributes["messaging.destination.name"])])
    assert claimed.traceparent == span.context.traceparent
    assert node.spans[-1].parent_span_id == span.context.span_id


async def test_an_attempt_that_fails_or_is_lost_ends_with_an_error(node: TracedNode) -> None:
    await submit(node, "work", traceparent=TRACE, max_attempts=3)
    worker = Worker(node)
    await worker.fail(await worker.claim_one(), retry_in_seconds=0)
    await worker.claim_one(lease_seconds=5)
    node.move_to(node.now + seconds(60))
    await node.reaper.run_once(node.now)
    ends = [span for span in node.spans if "everbeat.outcome" in span.attributes]
    assert [(span.name, span.attributes["everbeat.outcome"], span.error is None) for span in ends] == [
        ("retry work", "failed", False),
        ("retry work", "lost", False),
    ]
    assert len({span.context.span_id for span in node.spans}) == len(node.spans)


async def test_the_trace_of_a_task_that_is_not_sampled_is_passed_on_without_spans(node: TracedNode) -> None:
    await submit(node, "work", traceparent=TRACE[:-2] + "00")
    claimed = await Worker(node).claim_one()
    assert node.spans == []
    assert claimed.traceparent is not None
    assert claimed.traceparent.endswith("-00")


async def test_without_an_exporter_a_task_keeps_the_header_of_its_submit(store: Store) -> None:
    node = SteppedNode(store)
    await submit(node, "work", traceparent=TRACE)
    await submit(node, "work")
    assert [task.traceparent for task in await Worker(node).claim(2)] == [TRACE, None]


async def test_a_delivery_has_a_span_to_which_the_destination_adds_its_own(store: Store) -> None:
    node = DispatcherNode(store)

    async def refuse(_task: object) -> Refused:
        return Refused("no such topic")

    async def confirm(_task: object) -> Delivered:
        return Delivered()

    node.target.behaviors = {"a": confirm, "b": refuse}
    async with node.running():
        for to in ("a", "b"):
            task = await node.submit(to, traceparent=TRACE)
            await node.ended(task)
    deliveries = [span for span in node.spans if span.kind is SpanKind.CLIENT]
    assert [span.name for span in deliveries] == ["deliver work"] * 2
    assert [span.error for span in deliveries] == [None, "no such topic"]
    assert [task.traceparent for task in node.target.received] == [span.context.traceparent for span in deliveries]
    assert parents_exist(node.spans, int("b7ad6b7169203331", 16))
    assert DEFAULT_TENANT.hex in str(deliveries[0].attributes["everbeat.tenant_id"]).replace("-", "")
