"""The wheel and the sdist are valid, and the wheel runs in a clean environment of each Python that the machine has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from everbeat.version import __version__

ROOT = Path(__file__).parents[2]
MAX_PACKAGES = 25
MAX_MEGABYTES = 80


def find_pythons() -> list[str]:
    """Return one interpreter for each supported version that the machine has, this one among them."""
    folders = [*os.environ["PATH"].split(os.pathsep), *map(str, Path.home().glob(".pyenv/versions/*/bin"))]
    found = [sys.executable]
    for minor in range(11, 15):
        if sys.version_info[:2] != (3, minor):
            paths = (Path(folder) / f"python3.{minor}" for folder in folders)
            found += [str(path) for path in paths if path.exists() and _runs(path)][:1]
    return found


def _runs(python: Path) -> bool:
    return subprocess.run([python, "-c", "import ensurepip"], capture_output=True, timeout=30).returncode == 0


class Distributions(NamedTuple):
    wheel: Path
    sdist: Path


def run(*command: str | Path, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    result = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment, cwd=cwd)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return Distributions(
        folder / f"everbeat-{__version__}-py3-none-any.whl",
        folder / f"everbeat-{__version__}.tar.gz",
    )


def test_the_distributions_are_valid(built: Distributions) -> None:
    report = run(sys.executable, "-m", "twine", "check", "--strict", built.wheel, built.sdist)
    assert report.count("PASSED") == 2


def test_the_wheel_has_all_files_of_the_package_and_nothing_else(built: Distributions) -> None:
    tracked = run("git", "ls-files", "src/everbeat", cwd=ROOT).split()
    names = set(zipfile.ZipFile(built.wheel).namelist())
    assert {name.removeprefix("src/") for name in tracked} <= names
    assert {name.split("/")[0] for name in names} == {"everbeat", f"everbeat-{__version__}.dist-info"}


def test_the_sdist_can_build_and_test_the_package(built: Distributions) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src/everbeat/__init__.py", "tests/conftest.py"} <= names


@pytest.mark.parametrize("python", find_pythons(), ids=lambda python: Path(python).name)
def test_the_wheel_runs_in_a_clean_environment(built: Distributions, python: str, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    run(python, "-m", "venv", environment)
    here = environment / "bin" / "python"
    run(here, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", ROOT / "requirements.lock")
    run(here, "-m", "pip", "install", "--quiet", "--no-deps", built.wheel)
    run(here, "-m", "pip", "check")
    assert run(environment / "bin" / "everbeat", "--version", cwd=tmp_path).strip().endswith(__version__)
    assert "2027-01-01" in run(
        environment / "bin" / "everbeat", "preview", "0 0 1 1 *", "--after", "2026-12-01T00:00:00Z", cwd=tmp_path
    )
    run(here, "-c", "import everbeat, everbeat.server, everbeat.web, everbeat.worker.runtime", cwd=tmp_path)
    packages = [line for line in run(here, "-m", "pip", "freeze").splitlines() if line]
    assert len(packages) <= MAX_PACKAGES
    folder = next((environment / "lib").glob("python*/site-packages"))
    kept = [path for path in folder.iterdir() if not re.match(r"(pip|setuptools|pkg_resources|_distutils_hack)\b", path.name)]
    size = sum(file.stat().st_size for top in kept for file in ([top] if top.is_file() else top.rglob("*")) if file.is_file())
    assert size / 2**20 <= MAX_MEGABYTES
