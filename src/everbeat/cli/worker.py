"""The command that runs the worker of an app, and the loading of apps by MODULE:APP."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click

from everbeat.app import Everbeat
from everbeat.cli.connection import API_KEY_FILE, URL, read_key
from everbeat.cli.examples import examples
from everbeat.cli.shell_options import allowed_commands, shell_arguments, shell_options
from everbeat.client.errors import NotReachable, ServerProblem
from everbeat.client.http import HttpTransport
from everbeat.client.urls import is_server, validate_urls
from everbeat.core.errors import EverbeatError
from everbeat.core.protocol import DEFAULT_LEASE_SECONDS
from everbeat.core.shell import AllowedCommands
from everbeat.telemetry import configure_logging
from everbeat.worker.garbage_collection import tune_garbage_collector
from everbeat.worker.processes import WorkerProcesses, command_of, pop_parent_pid
from everbeat.worker.runtime import DEFAULT_CONCURRENCY, DEFAULT_GRACE_SECONDS, Worker
from everbeat.worker.shell.handler import shell_task
from everbeat.worker.signals import StopSignal, run_until_signalled
from everbeat.worker.tracing import configure_traces

_PROBE_SECONDS = 3.0
_RETRY_SECONDS = 1.0


class AppNotLoaded(EverbeatError):
    """MODULE:APP could not be loaded or is not an app."""


class _Options(NamedTuple):
    queues: list[str] | None
    concurrency: int
    grace_seconds: float
    lease_seconds: float
    name: str | None
    prune: bool
    register: bool
    parent: int | None
    shell: AllowedCommands | None


@click.command(epilog=examples("everbeat worker reports:eb --concurrency 20", "everbeat worker --allow-shell --queues shell"))
@click.argument("app", metavar="[MODULE:APP]", required=False)
@URL
@API_KEY_FILE
@click.option("--queues", help="The queues to claim from, separated by commas (those of the declared tasks).")
@click.option("--concurrency", type=click.IntRange(1, 10_000), default=DEFAULT_CONCURRENCY, show_default=True)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Number of processes, for CPU-bound handlers.",
)
@click.option("--grace-seconds", type=click.FloatRange(0, 86_400), default=DEFAULT_GRACE_SECONDS, show_default=True)
@click.option("--lease-seconds", type=click.FloatRange(5, 3600), default=DEFAULT_LEASE_SECONDS, show_default=True)
@click.option("--name", help="The name of this worker (host:pid:random).")
@click.option("--prune", is_flag=True, help="Remove schedules that this app registered and no longer declares.")
@click.option("--no-register", is_flag=True, help="Do not register schedules.")
@shell_options
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True)
@click.pass_context
def worker(context: click.Context, /, app: str | None, url: str | None, processes: int, log_level: str, **flags: Any) -> None:
    """Run the tasks of an app.

    With --allow-shell, it also runs shell tasks, and needs no app. Any number of workers can run the same app. Each task is
    assigned to one of them.
    """
    configure_logging(log_level, "console" if sys.stderr.isatty() else "json")
    if flags["no_register"] and flags["prune"]:
        raise click.UsageError("--prune and --no-register cannot be combined")
    options = _Options(
        queues=_names(flags["queues"]),
        concurrency=flags["concurrency"],
        grace_seconds=flags["grace_seconds"],
        lease_seconds=flags["lease_seconds"],
        name=flags["name"],
        prune=flags["prune"],
        register=not flags["no_register"],
        parent=pop_parent_pid(),
        shell=allowed_commands(flags),
    )
    if url is not None:
        os.environ["EVERBEAT_URL"] = validate_urls(url)
    if (file := flags["api_key_file"]) is not None:
        # Not as an argument, which other users of the machine can read. Child processes inherit the variable.
        os.environ["EVERBEAT_API_KEY"] = read_key(file)
    loaded = _load(app, url, options)
    if processes > 1:
        shared = ["--log-level", log_level, *shell_arguments(flags)]
        context.exit(WorkerProcesses([_child(app, url, shared, options, number) for number in range(processes)]).run())
    if is_server(loaded.url if url is None else url.strip()):
        run_until_signalled(lambda stopping: _work(loaded, url, options, stopping))
    else:
        run_until_signalled(lambda stopping: _run_in_process(loaded, url, options, stopping))


def _names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("specify at least one queue", param_hint="--queues")
    return names


def _load(app: str | None, url: str | None, options: _Options) -> Everbeat:
    """Return the app, or an app without tasks of its own. Adds the shell task if the worker may run commands."""
    if app is None and options.shell is None:
        raise click.UsageError("Missing argument 'MODULE:APP'. Only a worker with --allow-shell can run without an app.")
    loaded = Everbeat(url) if app is None else load_app(app)
    if not configure_traces():
        click.echo('everbeat: no traces are exported; run: pip install "everbeat[otel]"', err=True)
    if options.shell is not None:
        loaded.registry.add_task(shell_task(options.shell))
    elif app is not None:
        _check(loaded, app, options)
    return loaded


def _check(app: Everbeat, target: str, options: _Options) -> None:
    if not app.registry.tasks:
        raise AppNotLoaded(f"{target} declares no tasks, so there is nothing to run; declare one with @eb.task")
    unknown = sorted(set(options.queues or ()) - set(app.registry.queues()))
    if unknown:
        known = ", ".join(app.registry.queues())
        click.echo(f"everbeat: no task of {target} uses the queue {unknown[0]} (its tasks use {known})", err=True)


def _child(app: str | None, url: str | None, shared: Sequence[str], options: _Options, number: int) -> list[str]:
    """Return the command line of one of several processes. Only the first registers the schedules."""
    arguments = ["worker", *([] if app is None else [app]), *shared, "--concurrency", str(options.concurrency)]
    arguments += ["--grace-seconds", str(options.grace_seconds), "--lease-seconds", str(options.lease_seconds)]
    if url is not None:
        arguments += ["--url", url]
    if options.queues is not None:
        arguments += ["--queues", ",".join(options.queues)]
    if options.name is not None:
        arguments += ["--name", f"{options.name}/{number + 1}"]
    if number > 0 or not options.register:
        arguments.append("--no-register")
    elif options.prune:
        arguments.append("--prune")
    return command_of(arguments)


async def _work(app: Everbeat, url: str | None, options: _Options, stopping: StopSignal) -> None:
    transport = (
        app.http_transport() if url is None or url == app.url else HttpTransport(url, os.environ.get("EVERBEAT_API_KEY"))
    )
    transport.servers.reports_outages = False  # this command and the worker report them
    await transport.open()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(transport.close)
        stack.enter_context(app.attached(transport))
        should_register = options.register and (app.registry.schedules or options.prune)
        if should_register and not await _register(app, transport, options, stopping):
            return
        runtime = Worker(
            app.registry,
            transport,
            queues=options.queues,
            concurrency=options.concurrency,
            name=options.name,
            grace_seconds=options.grace_seconds,
            lease_seconds=options.lease_seconds,
        )
        stopping.on_second_signal = runtime.release_all_leases
        tune_garbage_collector()
        running = asyncio.create_task(runtime.run())
        await wait_until_stopped(stopping, options.parent, running)
        if not running.done():
            await runtime.stop()
        await running


async def _register(app: Everbeat, transport: HttpTransport, options: _Options, stopping: StopSignal) -> bool:
    """Register the declared schedules, retrying until the server is available. Returns False if stopped before."""
    has_warned = False
    while not stopping.requested.is_set() and not _has_parent_ended(options.parent):
        try:
            await _probe(transport)
            click.echo(f"Registered {await app.register_async(prune=options.prune)}", err=True)
            return True
        except (NotReachable, ServerProblem) as error:
            if isinstance(error, ServerProblem) and error.status < 500 and error.status != 429:
                raise
            if not has_warned:
                click.echo(f"everbeat: {error}; retrying", err=True)
            has_warned = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.requested.wait(), _RETRY_SECONDS)
    return False


async def _probe(transport: HttpTransport) -> None:
    """Check that the server responds. Fails sooner than the transport, which would retry for long without a message."""
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            await transport.request("GET", "/healthz")
    except TimeoutError:
        raise NotReachable(transport.url, "no response") from None


async def _run_in_process(app: Everbeat, url: str | None, options: _Options, stopping: StopSignal) -> None:
    if url is not None and url != app.url:
        raise AppNotLoaded(f"the app's code sets the URL {app.url}; remove it there to use --url")
    async with app.running(
        concurrency=options.concurrency,
        queues=options.queues,
        register=options.register,
        prune=options.prune,
        grace_seconds=options.grace_seconds,
        lease_seconds=options.lease_seconds,
    ):
        tune_garbage_collector()
        await wait_until_stopped(stopping, options.parent)


async def wait_until_stopped(stopping: StopSignal, parent: int | None, *others: asyncio.Task[None]) -> None:
    """Wait for a signal, the end of one of the other tasks, or the end of the parent process."""
    requested = asyncio.create_task(stopping.requested.wait())
    while not _has_parent_ended(parent):
        done, _ = await asyncio.wait({requested, *others}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        if done:
            break
    requested.cancel()


def _has_parent_ended(parent: int | None) -> bool:
    return parent is not None and parent != os.getppid()


# Loading


def load_app(target: str) -> Everbeat:
    """Import the app that MODULE:APP specifies. An error in the module is printed with its traceback."""
    module_name, _, path = target.partition(":")
    if not module_name or target.count(":") > 1 or module_name.endswith(".py") or "/" in module_name:
        guess = module_name.removesuffix(".py").strip("./").replace("/", ".") or "reports"
        raise AppNotLoaded(f"{target!r} is not of the form MODULE:APP, as in {guess}:{path or 'eb'}")
    module = _import(module_name)
    found: Any = module
    for name in path.split(".") if path else ():
        found = getattr(found, name, None)
    if path and isinstance(found, Everbeat):
        return found
    raise AppNotLoaded(_not_an_app(module, module_name, path, found))


def _import(name: str) -> ModuleType:
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppNotLoaded(f"there is no module {error.name} in {directory} or in sys.path") from None
        _print_traceback(error)
    except (Exception, SystemExit) as error:
        _print_traceback(error)
    raise AppNotLoaded(f"the module {name} cannot be imported; its traceback is above")


def _print_traceback(error: BaseException) -> None:
    trace = error.__traceback__
    while trace is not None and _is_import_code(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    click.echo("".join(traceback.format_exception(type(error), error, trace)), err=True, nl=False)


def _is_import_code(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")


def _not_an_app(module: ModuleType, module_name: str, path: str, found: Any) -> str:
    apps = sorted(name for name, value in vars(module).items() if isinstance(value, Everbeat))
    if not path:
        problem = f"{module_name} is a module; specify the app as MODULE:APP"
    elif found is None:
        problem = f"{module_name} has no {path}"
    else:
        problem = f"{module_name}:{path} is of type {type(found).__name__}, not Everbeat"
    if not apps:
        return f"{problem}; the module has no app: create one with eb = Everbeat()"
    return f"{problem}; found: {', '.join(f'{module_name}:{name}' for name in apps)}"
