"""The files for deployment name commands, options, settings and metrics that exist, and pass the checkers of their formats."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from everbeat.cli.main import cli
from everbeat.config import PREFIX, Settings
from everbeat.version import __version__

ROOT = Path(__file__).parents[2]
OPS = ROOT / "ops"
CHART = OPS / "helm" / "everbeat"
MANIFESTS = sorted((OPS / "kubernetes").glob("*.yaml"))
UNITS = sorted((OPS / "systemd").glob("*.service"))
SDK_VARIABLES = {"EVERBEAT_URL", "EVERBEAT_API_KEY"}
_VALUE = re.compile(r"(?:\$|[ (])\.Values\.([A-Za-z.]+)")


def known_variables() -> set[str]:
    return SDK_VARIABLES | {PREFIX + name.upper() for name in Settings.__struct_fields__}


def objects_in(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one]


def containers_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "image" in value:
            yield value
        for one in value.values():
            yield from containers_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from containers_in(one)


def assert_command_exists(words: list[str]) -> None:
    """Parse a command line, without `everbeat` at its start, as the program would."""
    context = click.Context(cli)
    command = cli.get_command(context, words[0])
    assert command is not None, words
    command.make_parser(click.Context(command)).parse_args(list(words[1:]))


def required(program: str) -> str:
    found = shutil.which(program, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None and os.environ.get("CI"):
        pytest.fail(f"{program} is not installed (required in CI)")
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def test_the_dockerfile_has_no_findings() -> None:
    result = subprocess.run([required("hadolint"), ROOT / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_the_image_gets_every_file_that_its_build_copies() -> None:
    copied = {
        source.rstrip("/")
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_the_compose_file_uses_settings_commands_and_the_version_that_exist() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert {"postgres", "migrate", "node1", "node2", "worker"} <= compose["services"].keys()
    for name, service in compose["services"].items():
        if name == "postgres":
            continue
        assert service["image"] == f"everbeat:{__version__}"
        assert {variable for variable in service["environment"] if variable.startswith(PREFIX)} <= known_variables()
        assert_command_exists(service.get("command", ["serve"]))
        assert set(service["depends_on"]) <= compose["services"].keys()
        assert set(service.get("secrets", [])) <= compose["secrets"].keys()


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_use_settings_commands_and_the_version_that_exist(path: Path) -> None:
    objects = objects_in(path)
    names = {(one["kind"], one["metadata"]["name"]) for one in objects}
    for container in containers_in(objects):
        words = [str(word) for word in container.get("command", []) + container.get("args", [])]
        assert_command_exists(words[1:] if words[0] == "everbeat" else words)
        if container["image"].startswith("everbeat:"):
            assert container["image"] == f"everbeat:{__version__}"
        for variable in container["env"]:
            assert variable["name"] in known_variables()
            if "secretKeyRef" in variable.get("valueFrom", {}):
                assert ("Secret", variable["valueFrom"]["secretKeyRef"]["name"]) in names
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
    for one in objects:
        if one["kind"] == "ConfigMap":
            assert tomllib.loads(one["data"]["everbeat.toml"]).keys() <= set(Settings.__struct_fields__)
        if one["kind"] == "Deployment":
            labels = one["spec"]["template"]["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
            assert one["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True


def test_the_chart_uses_the_version_and_only_values_that_have_defaults() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    used = {found for path in (CHART / "templates").iterdir() for found in _VALUE.findall(path.read_text())}
    assert {"image.repository", "nodes", "migrate.enabled"} <= used
    for dotted in used:
        value = values
        for part in dotted.strip(".").split("."):
            assert part in value, dotted
            value = value[part]
    assert tomllib.loads(values["settings"]).keys() <= set(Settings.__struct_fields__)


def test_the_chart_starts_commands_that_exist() -> None:
    found = re.findall(r"args: \[([^\]]+)\]", "".join(path.read_text() for path in (CHART / "templates").glob("*.yaml")))
    assert len(found) == 2
    for line in found:
        words = [re.sub(r"\{\{.*?\}\}", "api", word.strip()).strip('"') for word in re.split(r", (?![^{]*\}\})", line)]
        assert_command_exists(words)


@pytest.mark.skipif(
    shutil.which("helm") is None, reason="helm has no package for Debian; the other tests read the chart as text"
)
def test_helm_finds_no_fault_in_the_chart() -> None:
    command = ["helm", "lint", "--strict", "--set", "database.url=postgresql://db/everbeat", str(CHART)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_are_valid_and_start_commands_that_exist(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text()
    (start,) = re.findall(r"(?m)^ExecStart=/opt/everbeat/bin/everbeat (.*)$", text)
    assert_command_exists(start.replace("%i", "app:eb").split())
    copy = tmp_path / unit.name
    copy.write_text(text.replace("/opt/everbeat/bin/everbeat", sys.executable))
    result = subprocess.run([required("systemd-analyze"), "verify", copy], capture_output=True, text=True, timeout=60)
    assert (result.returncode, [line for line in result.stderr.splitlines() if unit.name in line]) == (0, [])


def test_each_kind_of_file_was_found() -> None:
    assert len(MANIFESTS) == 2
    assert len(UNITS) == 2
