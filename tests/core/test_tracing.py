"""Trace contexts: ids follow from the task, a task belongs to the trace of its submit, the trace decides on sampling."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.tracing import child_context, parse_traceparent, span_id_of, task_context

TASK = UUID("01890000-0000-7000-8000-000000000001")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_task_belongs_to_the_trace_of_its_submit() -> None:
    context = task_context(TASK, TRACE)
    assert context.traceparent.split("-")[1] == TRACE.split("-")[1]
    assert context.span_id == span_id_of(TASK, "task")
    assert context.is_sampled
    assert not task_context(TASK, TRACE[:-2] + "00").is_sampled


@pytest.mark.parametrize(
    "text",
    [None, "", TRACE.upper(), TRACE + "-x", "ff" + TRACE[2:], f"00-{'0' * 32}-{'1' * 16}-01", f"00-{'1' * 32}-{'0' * 16}-01"],
)
def test_a_malformed_header_is_no_context(text: str | None) -> None:
    assert parse_traceparent(text) is None
    assert task_context(TASK, text) == task_context(TASK, None)


@given(st.uuids())
def test_every_node_computes_the_same_valid_ids(task_id: UUID) -> None:
    context = task_context(task_id, None)
    assert parse_traceparent(context.traceparent) == context == task_context(task_id, None)
    claim, again = child_context(context, task_id, "claim 1"), child_context(context, task_id, "claim 2")
    assert len({context.span_id, claim.span_id, again.span_id}) == 3
    assert claim.trace_id == context.trace_id


@given(st.uuids(), st.floats(0, 1))
def test_a_trace_that_is_sampled_at_a_ratio_is_sampled_at_every_higher_one(task_id: UUID, ratio: float) -> None:
    assert not task_context(task_id, None, 0).is_sampled
    assert task_context(task_id, None, 1).is_sampled
    if task_context(task_id, None, ratio / 2).is_sampled:
        assert task_context(task_id, None, ratio).is_sampled


def test_the_ratio_is_the_part_of_the_traces() -> None:
    sampled = sum(task_context(UUID(int=number), None, 0.25).is_sampled for number in range(4000))
    assert 900 < sampled < 1100
