"""The command that imports CronJobs of Kubernetes. The others, and what they share, are in imports.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from everbeat.cli.examples import examples
from everbeat.cli.imports import ImportOptions, import_, import_options, read_text, run_import
from everbeat.core.shell import DEFAULT_SHELL_QUEUE
from everbeat.imports.crontab_schedules import DEFAULT_TIMEOUT_SECONDS
from everbeat.imports.kubernetes import read_manifests
from everbeat.imports.kubernetes_schedules import KubernetesOptions, plan_kubernetes

_DEFAULT_WORKER_QUEUE = "default"


@import_.command(
    epilog=examples(
        "everbeat import k8s cronjobs.yaml --dry-run",
        "everbeat import k8s cronjobs.yaml --target worker --queue jobs",
    )
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(allow_dash=True, path_type=Path))
@click.option(
    "--target",
    type=click.Choice(["shell", "worker", "http"]),
    default="shell",
    show_default=True,
    help="What runs: the command of the container, a task of a worker with the CronJob's name, or a request.",
)
@click.option("--http-url", help="The URL of the requests; {namespace} and {name} are replaced.")
@click.option("--queue", help="The queue of the tasks (shell for commands, otherwise default).")
@click.option("--tz", "timezone", default="UTC", show_default=True, help="The time zone of CronJobs without timeZone.")
@click.option("--prefix", default="k8s", show_default=True, help="The beginning of the schedules' names.")
@click.option("--timeout-seconds", type=click.FloatRange(1, 7 * 86_400), default=DEFAULT_TIMEOUT_SECONDS, show_default=True)
@click.option("--allow-missing", is_flag=True, help="Create commands whose volumes or variables exist only in the cluster.")
@import_options
def k8s(files: Sequence[Path], target: str, http_url: str | None, queue: str | None, **options: Any) -> None:
    """Create schedules from CronJobs, in YAML or JSON. The file - is standard input, as in kubectl get cj -A -o json | … -."""
    shared = ImportOptions(**{name: options.pop(name) for name in ImportOptions._fields})
    if (target == "http") != (http_url is not None):
        raise click.UsageError("--target http and --http-url are used together")
    queue = queue or (DEFAULT_SHELL_QUEUE if target == "shell" else _DEFAULT_WORKER_QUEUE)
    manifests = [manifest for file in files for manifest in read_manifests(read_text(file), str(file))]
    plan = plan_kubernetes(manifests, KubernetesOptions(target=target, http_url=http_url, queue=queue, **options))
    plan.notes.append(f"CronJobs without timeZone are in the zone {options['timezone']}")
    plan.notes.append("suspend the CronJobs when the schedules exist (kubectl patch): otherwise both run")
    if target == "shell":
        plan.notes.append(f"the commands run on workers started with: everbeat worker --allow-shell --queues {queue}")
    run_import(plan, shared)
