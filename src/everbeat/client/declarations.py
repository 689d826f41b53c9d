"""Builds task and schedule definitions from functions. Invalid declarations are rejected at import, with file and line."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from everbeat.client.annotations import HandlerTypes
from everbeat.client.arguments import bind
from everbeat.client.durations import seconds_of
from everbeat.client.errors import InvalidArguments, RegistrationError
from everbeat.client.options import (
    SUBMIT_OPTIONS,
    ScheduleOptions,
    TaskOptions,
    as_datetime,
    exception_kinds,
    reject_unknown,
    task_fields,
    to_utc,
    validate_task_options,
)
from everbeat.client.registry import TaskDefinition
from everbeat.core.definitions import parse_definition, rfc3339
from everbeat.core.errors import InvalidInput
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.timeline import Timeline, compile_rule
from everbeat.core.zones import load_zone

APP_LABEL = "everbeat.app"
CONTEXT = "ctx"


def source_location(function: Callable[..., Any]) -> str:
    """Return the file, line and name of a function."""
    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    code = getattr(inner, "__code__", None) or getattr(getattr(inner, "__func__", None), "__code__", None)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{code.co_filename}:{code.co_firstlineno} ({name})" if code is not None else name


@contextlib.contextmanager
def _registration_errors(what: str, location: str) -> Iterator[None]:
    try:
        yield
    except (InvalidInput, InvalidArguments) as error:
        raise RegistrationError(f"{what} at {location}: {error}") from None


def define_task(function: Callable[..., Any], name: str | None, options: Mapping[str, Any]) -> TaskDefinition:
    location = source_location(function)
    type_ = _task_name(function, name, location)
    with _registration_errors(f"task {type_}", location):
        reject_unknown(options, TaskOptions)
        signature, wants_context = _signature(function)
        spec = validate_task_options(type_, options)
        if spec.hooks.on_missed:
            raise InvalidInput.of("hooks.on_missed", "can only be used with schedules")
        return TaskDefinition(
            type=type_,
            queue=spec.queue,
            function=function,
            is_async=_is_async(function),
            wants_context=wants_context,
            max_attempts=spec.max_attempts,
            priority=spec.priority,
            timeout_seconds=spec.timeout_seconds,
            retry=spec.retry,
            labels=spec.labels,
            hooks=spec.hooks,
            non_retryable=exception_kinds(options.get("non_retryable", ())),
            signature=signature,
            types=HandlerTypes(function, signature),
            location=location,
        )


def _task_name(function: Callable[..., Any], name: str | None, location: str) -> str:
    """Return the name without the module, so that a function can move to another file while its tasks are waiting."""
    if not callable(function) or isinstance(function, type):
        raise RegistrationError(f"{function!r} is not a function; apply @eb.task to a function")
    task_name = name if name is not None else getattr(function, "__name__", None)
    if task_name is None or task_name == "<lambda>":
        raise RegistrationError(f'{location}: a lambda or object has no name; pass one: eb.task(name="…")')
    if not isinstance(task_name, str) or not is_name(task_name):
        raise RegistrationError(f"{location}: the task name {task_name!r} {NAME_MESSAGE}")
    return task_name


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _signature(function: Callable[..., Any]) -> tuple[inspect.Signature, bool]:
    """Return the parameters without the context, and whether the first parameter is the context."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArguments("it is a generator function; a handler must return its result, not yield")
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    wants_context = bool(parameters) and parameters[0].name == CONTEXT
    arguments = parameters[1:] if wants_context else parameters
    for parameter in arguments:
        if problem := _parameter_problem(parameter, is_first=parameter is parameters[0]):
            raise InvalidArguments(problem)
    if wants_context and parameters[0].kind not in _POSITIONAL:
        raise InvalidArguments(f"{CONTEXT} is passed by position; remove the * before it")
    return inspect.Signature(arguments, return_annotation=signature.return_annotation), wants_context


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _parameter_problem(parameter: inspect.Parameter, *, is_first: bool) -> str | None:
    name = parameter.name
    if is_first and name in ("self", "cls"):
        return f"its first parameter is {name}; a task is a plain function, not a method: call the method from a function"
    if name == CONTEXT:
        return f"{CONTEXT} must be its first parameter"
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        return f"its parameter {name} is positional-only, but arguments are passed by name; remove the /"
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return f"it takes *{name}, but arguments are passed by name; take a list instead"
    if name in SUBMIT_OPTIONS:
        return (
            f"its parameter {name} has the name of an option of submit ({', '.join(SUBMIT_OPTIONS)}); "
            f"rename the parameter, as in task_{name}"
        )
    return None


def check_hook(hook: Any, arguments: Sequence[str]) -> None:
    """Check that the hook accepts these arguments by position."""
    location = source_location(hook) if callable(hook) else repr(hook)
    names = ", ".join(arguments)
    try:
        inspect.signature(hook).bind(*arguments)
    except (TypeError, ValueError) as error:
        raise RegistrationError(f"the hook at {location} is called with ({names}): {error}") from None


# Schedules


def define_schedule(app: str, task: TaskDefinition, trigger: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of a schedule for the HTTP API, validated by the server's rules."""
    name = options.get("name") or task.type
    with _registration_errors(f"schedule {name}", task.location):
        reject_unknown(options, ScheduleOptions)
        definition = {
            "name": name,
            "description": options.get("description", _first_line(task.function)),
            **_trigger_fields(trigger, options),
            "target": {"kind": "worker", "queue": task.queue, "type": task.type},
            "payload": _payload(task, options.get("payload", {})),
            "priority": task.priority,
            "max_attempts": task.max_attempts,
            "retry": msgspec.to_builtins(task.retry),
            "timeout_seconds": task.timeout_seconds,
            **({"hooks": msgspec.to_builtins(task.hooks)} if task.hooks else {}),
            **_policy_fields(options),
            **task_fields(options),
            "labels": {**task.labels, **options.get("labels", {}), APP_LABEL: app},
        }
        if options.get("queue", task.queue) != task.queue:
            raise InvalidInput.of("queue", f"must be that of the task, {task.queue}; set it in @eb.task")
        timeline_of(definition)
    return definition


def timeline_of(definition: Mapping[str, Any]) -> Timeline:
    """Return the timeline of a definition, without calendars: these are only on the server."""
    rule = parse_definition(definition).rule
    anchor = rule.anchor or datetime.now(UTC)
    return compile_rule(msgspec.structs.replace(rule, anchor=anchor, exclude=(), only=()), None, {})


def _trigger_fields(trigger: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(trigger)
    zone = options.get("tz")
    if "every_seconds" in fields:
        fields["every_seconds"] = seconds_of(fields["every_seconds"], "every")
    if "at" in fields:
        at = as_datetime(fields["at"], "at")
        if at.tzinfo is None and zone is not None:
            at = at.replace(tzinfo=load_zone(str(zone)))
        fields["at"] = rfc3339(to_utc(at, "at"))
    if fields.get("anchor") is not None:
        fields["anchor"] = rfc3339(to_utc(fields["anchor"], "anchor"))
    if zone is not None:
        fields["timezone"] = str(zone)
    return {name: value for name, value in fields.items() if value is not None}


def _policy_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: options[name] for name in ("overlap", "max_concurrent", "catch_up", "enabled") if name in options}
    for option, field in (("misfire_grace", "misfire_grace_seconds"), ("jitter", "jitter_seconds")):
        if option in options:
            fields[field] = seconds_of(options[option], option)
    for option in ("starts_at", "ends_at"):
        if options.get(option) is not None:
            fields[option] = rfc3339(to_utc(options[option], option))
    dst = {name.removeprefix("dst_"): options[name] for name in ("dst_gap", "dst_fold") if name in options}
    calendars = {name: _names(options[name]) for name in ("exclude", "only") if name in options}
    return {**fields, **({"dst": dst} if dst else {}), **({"calendars": calendars} if calendars else {})}


def _names(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _payload(task: TaskDefinition, payload: Any) -> dict[str, Any]:
    """Bind the payload now, so that a missing argument is an error at import and not at the first tick."""
    if not isinstance(payload, Mapping):
        raise InvalidInput.of("payload", f"must be a dict of arguments, not a {type(payload).__name__}")
    try:
        # Not `types.parameters`, which would be kept: the module may define the types of annotations later.
        return bind(task.type, task.signature, (), payload, task.types.resolve() if payload else {})
    except InvalidArguments as error:
        raise InvalidArguments(
            f'{error}. Set the arguments of its ticks, as in payload={{"…": …}}, or give the parameter a default'
        ) from None


def _first_line(function: Callable[..., Any]) -> str:
    lines = (inspect.getdoc(function) or "").strip().splitlines() if hasattr(function, "__code__") else []
    return lines[0][:2000] if lines else ""
