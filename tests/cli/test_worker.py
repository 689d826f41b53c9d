"""`everbeat worker` and `everbeat dev MODULE:APP` as a user types them: how they find an app, and how they fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from everbeat.cli.main import cli
from everbeat.cli.shell_options import allowed_commands, shell_arguments
from everbeat.cli.worker import AppNotLoaded, load_app
from everbeat.core.errors import EverbeatError
from everbeat.core.keys import make_key
from everbeat.core.shell import AllowedCommands
from tests.support.processes import ServerProcess


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary current folder. Modules imported from it are removed from sys.modules afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["worker", *arguments])


APP = "from everbeat import Everbeat\neb = Everbeat()\n@eb.task\nasync def job(): ...\n"


def test_an_app_is_found_in_the_current_folder(folder: Path) -> None:
    write(folder, "shop.py", APP)
    write(folder, "package/__init__.py", "")
    write(folder, "package/inner.py", "import shop\nclass Holder:\n    eb = shop.eb\n")
    app = load_app("shop:eb")
    assert list(app.registry.tasks) == ["job"]
    assert load_app("package.inner:Holder.eb") is app


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("shop", "shop is a module; specify the app as MODULE:APP; found: shop:also, shop:eb"),
        ("shop:", "shop is a module; specify the app as MODULE:APP; found: shop:also, shop:eb"),
        ("shop:nope", "shop has no nope; found: shop:also, shop:eb"),
        ("shop:other", "shop:other is of type int, not Everbeat; found: shop:also, shop:eb"),
        ("empty:eb", "empty has no eb; the module has no app"),
        ("nowhere:eb", "there is no module nowhere in /"),
        ("shop.py:eb", "not of the form MODULE:APP, as in shop:eb"),
        ("./shop:eb", "not of the form MODULE:APP, as in shop:eb"),
        (":eb", "not of the form MODULE:APP"),
        ("shop:eb:x", "not of the form MODULE:APP"),
    ],
)
def test_a_target_that_is_not_an_app_is_a_clear_error(folder: Path, target: str, message: str) -> None:
    write(folder, "shop.py", APP + "also = Everbeat()\nother = 3\n")
    write(folder, "empty.py", "")
    with pytest.raises(AppNotLoaded) as caught:
        load_app(target)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_thing\n", "No module named 'no_such_thing'"),
        ("def broken(:\n", "SyntaxError"),
        ("def f():\n    raise ValueError('in the module')\nf()\n", "in f"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        (APP + "@eb.task\nasync def job(): ...\n", 'two tasks are named "job"'),
    ],
)
def test_errors_in_the_users_module_are_shown_with_their_traceback(
    folder: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "broken.py", text)
    with pytest.raises(AppNotLoaded, match="the module broken cannot be imported; its traceback is above"):
        load_app("broken:eb")
    shown = capsys.readouterr().err
    assert message in shown
    assert "broken.py" in shown
    assert "cli/worker.py" not in shown
    assert "importlib" not in shown


def test_an_app_without_tasks_is_refused(folder: Path) -> None:
    write(folder, "idle.py", "from everbeat import Everbeat\neb = Everbeat()\n")
    error = invoke("idle:eb").exception
    assert isinstance(error, EverbeatError)
    assert "idle:eb declares no tasks" in str(error)


@pytest.mark.parametrize(
    "options",
    [
        ("--concurrency", "0"),
        ("--concurrency", "many"),
        ("--processes", "0"),
        ("--lease-seconds", "1"),
        ("--grace-seconds", "-1"),
        ("--queues", " , "),
        ("--prune", "--no-register"),
        ("--log-level", "unknown"),
        ("--no-such-option",),
    ],
)
def test_a_bad_option_is_wrong_usage(folder: Path, options: tuple[str, ...]) -> None:
    write(folder, "shop.py", APP)
    result = invoke("shop:eb", *options)
    assert result.exit_code == 2
    assert "Error:" in result.output


def test_the_error_for_an_invalid_url_suggests_a_valid_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBEAT_URL", "")
    write(folder, "shop.py", APP)
    error = invoke("shop:eb", "--url", "localhost:8080").exception
    assert isinstance(error, EverbeatError)
    assert "did you mean http://localhost:8080?" in str(error)


def test_a_database_cannot_replace_the_one_in_the_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBEAT_URL", "")
    write(folder, "shop.py", APP.replace("Everbeat()", 'Everbeat("sqlite:///mine.db")'))
    error = invoke("shop:eb", "--url", "sqlite:///other.db").exception
    assert isinstance(error, EverbeatError)
    assert "the app's code sets the URL sqlite:///mine.db" in str(error)


def test_the_command_ends_with_one_line_and_code_one(folder: Path) -> None:
    with ServerProcess("worker", "nowhere:eb", folder=folder) as process:
        assert process.wait_exit(20) == 1
    assert process.logs().startswith("everbeat: there is no module nowhere")
    assert len(process.logs().strip().splitlines()) == 1


def test_dev_reports_a_wrong_app_before_it_starts_the_server(folder: Path) -> None:
    with ServerProcess("dev", "nowhere:eb", folder=folder) as process:
        assert process.wait_exit(20) == 1
    assert process.logs().startswith("everbeat: there is no module nowhere")
    assert not (folder / "everbeat.db").exists()


def test_a_key_is_read_from_a_file_and_an_invalid_one_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBEAT_API_KEY", "")
    write(folder, "shop.py", APP + "import os, pathlib\npathlib.Path('seen').write_text(os.environ['EVERBEAT_API_KEY'])\n")
    write(folder, "key", make_key(b"w" * 32) + "\n")
    invoke("shop:missing", "--api-key-file", "key")
    assert (folder / "seen").read_text() == make_key(b"w" * 32)
    write(folder, "other", "password")
    for file, message in (("other", "does not contain an API key"), ("nowhere", "cannot be read")):
        result = invoke("shop:eb", "--api-key-file", file)
        assert result.exit_code == 2
        assert message in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "Only a worker with --allow-shell can run without an app"),
        (("--allow-shell-command", "x"), "need --allow-shell"),
        (("--allow-shell", "--allow-shell-user", "ann"), "without a list of commands, everything is allowed"),
        (("--allow-shell", "--allow-shell-file", "none"), "cannot be read"),
        (("--allow-shell", "--allow-shell-command", "echo 'x"), "No closing quotation"),
    ],
)
def test_what_a_shell_worker_needs_is_a_clear_error(folder: Path, options: tuple[str, ...], message: str) -> None:
    result = invoke(*options)
    assert result.exit_code == 2
    assert message in result.output


def test_the_allowed_commands_are_those_of_the_options_and_the_file(folder: Path) -> None:
    (folder / "list").write_text("# allowed\n\n/bin/true\n  echo hi\n")
    flags = {
        "allow_shell": True,
        "allow_shell_command": ("df -h",),
        "allow_shell_file": folder / "list",
        "allow_shell_user": ("ann",),
        "allow_shell_variable": (),
        "allow_shell_directory": ("/srv",),
        "allow_shell_stdin": True,
    }
    allowed = allowed_commands(flags)
    commands = ["df -h", "/bin/true", "echo hi"]
    assert allowed == AllowedCommands(commands, frozenset({"ann"}), frozenset(), frozenset({"/srv"}), True)
    arguments = ["--allow-shell", "--allow-shell-file", str(folder / "list"), "--allow-shell-stdin"]
    arguments += ["--allow-shell-command", "df -h", "--allow-shell-user", "ann", "--allow-shell-directory", "/srv"]
    assert shell_arguments(flags) == arguments
    assert allowed_commands({**flags, "allow_shell": False} | dict.fromkeys(list(flags)[1:])) is None
