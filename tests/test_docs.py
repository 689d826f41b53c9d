"""The documentation matches the code: every setting, option, route, metric, state and problem is documented, and links work."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import click
import msgspec
import pytest

import everbeat
from everbeat.api import problems
from everbeat.api.app import ROUTES, openapi_document
from everbeat.api.reference import rendered
from everbeat.cli.exit_codes import ExitCode
from everbeat.cli.main import cli
from everbeat.cli.reference import SHARED_NOTE, SHARED_OPTIONS
from everbeat.cli.reference import rendered as rendered_commands
from everbeat.config import PREFIX, Settings
from everbeat.core.tasks import TRANSITIONS, TaskState
from everbeat.core.ticks import SkipReason
from everbeat.telemetry import Metrics

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]


def commands_of(group: click.Group, prefix: str = "") -> dict[str, click.Command]:
    """Return every command by its full name, including the commands of groups."""
    found: dict[str, click.Command] = {}
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        found[prefix + name] = command
        if isinstance(command, click.Group):
            found |= commands_of(command, f"{prefix}{name} ")
    return found


COMMANDS = commands_of(cli)
FIELDS = {field.name: field for field in msgspec.structs.fields(Settings) if field.name != "brokers"}  # a table of the file
DESCRIBED_DEFAULTS = {
    "key_requests_per_second": "`2000` with keys",
    "address_requests_per_second": "`4000` with keys",
    "bad_keys_per_second": "`10` with keys",
    "trusted_proxies": "none",
    "webhook_allow": "none",
    "max_connections_per_address": "half of `max_connections`",
    "node_name": "the host name",
}

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(?ms)^```.*?^```")
_TRANSITION = re.compile(r"(?m)^\s*(\w+) --> (\w+)")


def read(path: str) -> str:
    return (DOCS / path).read_text(encoding="utf-8")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def flag_of(setting: str) -> str:
    return "--" + setting.replace("_", "-")


# Settings


def shown_default(setting: str) -> str:
    default = FIELDS[setting].default
    if setting in DESCRIBED_DEFAULTS:
        return DESCRIBED_DEFAULTS[setting]
    if isinstance(default, tuple):
        return f"`{','.join(default)}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{str(default).lower()}`"


@pytest.mark.parametrize("setting", list(FIELDS))
def test_every_setting_has_one_row(setting: str) -> None:
    rows = [line for line in read("reference/settings.md").splitlines() if line.startswith(f"| `{setting}` |")]
    assert len(rows) == 1
    _, _, flag, variable, default, meaning, _ = (cell.strip() for cell in rows[0].split("|"))
    assert f"`{flag_of(setting)}`" in flag
    assert variable == f"`{PREFIX}{setting.upper()}`"
    assert default == shown_default(setting)
    assert len(meaning) > 10


def test_every_row_is_about_an_existing_setting() -> None:
    named = re.findall(r"(?m)^\| `(\w+)` \|", read("reference/settings.md"))
    assert named == list(FIELDS)


# The command line


def section_of(command: str) -> str:
    depth = "##" + "#" * command.count(" ")
    match = re.search(rf"(?ms)^{depth} everbeat {command}\n(.*?)(?=^##+ |\Z)", read("reference/cli.md"))
    assert match is not None, f"reference/cli.md has no section on everbeat {command}"
    return match[1]


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_option_is_in_the_section_of_its_command(command: str) -> None:
    text = section_of(command)
    if "all options of `everbeat serve`" in text:
        text += section_of("serve")
    if SHARED_NOTE in text:
        text += "".join(f"`{option}`" for option in (*SHARED_OPTIONS, "-o"))
    options = [option for one in COMMANDS[command].params for option in (*one.opts, *one.secondary_opts)]
    assert [option for option in options if not re.search(rf"`{option}[` ]", text)] == []


def test_the_generated_part_of_the_reference_is_current() -> None:
    page = read("reference/cli.md")
    assert rendered_commands(page) == page, "run: make docs"
    assert [one for one in SHARED_OPTIONS if f"| `{one} " not in page] == []


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_help_of_every_command_has_examples(command: str) -> None:
    found = COMMANDS[command] if command else cli
    lines = (found.epilog or "").splitlines()
    assert lines[:2] == ["\b", "Examples:"]
    assert len(lines) > 2
    assert all(re.match(r"  (KEY=\$\(|crontab -l \| )?everbeat ", line) for line in lines[2:])


@pytest.mark.parametrize("code", list(ExitCode))
def test_every_exit_code_is_documented(code: ExitCode) -> None:
    assert re.search(rf"(?m)^\| {code.value} \| .{{10,}} \|$", read("reference/cli.md"))


def test_every_documented_option_exists() -> None:
    known = {option for command in COMMANDS.values() for one in command.params for option in (*one.opts, *one.secondary_opts)}
    named = set(re.findall(r"(?m)^\| `(--[a-z-]+)", read("reference/cli.md")))
    assert named - known == set()


# The API


def routes() -> list[str]:
    """Return every route of a server."""
    found = {f"{route.method} {route.path}" for route in ROUTES}
    document = openapi_document()
    in_document = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert found == in_document
    return sorted(found)


def test_the_reference_lists_exactly_the_existing_routes() -> None:
    named = re.findall(r"(?m)^\| \[`((?:GET|POST|PUT|PATCH|DELETE) /\S*)`\]", read("reference/api.md"))
    assert sorted(named) == routes()


def test_the_reference_matches_the_openapi_document() -> None:
    page = read("reference/api.md")
    assert rendered(page, openapi_document()) == page, "run: make docs"


def test_every_problem_is_in_the_reference_with_its_status() -> None:
    kinds = {(one.slug, one.status) for one in vars(problems).values() if isinstance(one, problems.ProblemKind)}
    rows = re.findall(r"(?m)^\| `([a-z-]+)` \| (\d{3}) \|", read("reference/errors.md"))
    assert {(slug, int(status)) for slug, status in rows} == kinds


# Metrics


def test_every_metric_is_in_the_reference_with_its_type() -> None:
    families = {
        (family.name + ("_total" if family.type == "counter" else ""), family.type) for family in Metrics().registry.collect()
    }
    rows = re.findall(r"(?m)^\| `(\w+)` \| (\w+) \|", read("reference/metrics.md"))
    assert sorted(families - set(rows)) == []
    ours = {(name, kind) for name, kind in rows if name.startswith("everbeat_")}
    assert sorted(ours - families) == []


def test_every_metric_named_anywhere_exists() -> None:
    known = {sample for family in Metrics().registry.collect() for sample in (family.name, f"{family.name}_total")}
    named = {name for page in PAGES for name in re.findall(r"\beverbeat_[a-z_]+\b", page.read_text(encoding="utf-8"))}
    named = {name for name in named if not name.startswith(("everbeat_outbox", "everbeat_enqueue"))}
    others = {
        "everbeat_started",
        "everbeat_migrations",
        "everbeat_month_ensure",
        "everbeat_month_drop",
        "everbeat_month_detach",
        "everbeat_applied_migrations",
        "everbeat_restored",
        "everbeat_raise_key_taken",
        "everbeat_audit_log_prune",
    }
    others |= {"everbeat_owner", "everbeat_runtime"}
    assert sorted(named - known - others) == []


# States


def test_the_task_diagram_has_exactly_the_legal_transitions() -> None:
    states = set(TaskState)
    drawn = {(one, other) for one, other in _TRANSITION.findall(read("concepts/states.md")) if {one, other} <= states}
    assert drawn == {(one.value, other.value) for one, following in TRANSITIONS.items() for other in following}


@pytest.mark.parametrize("state", list(TaskState))
def test_every_task_state_is_documented(state: TaskState) -> None:
    assert f"`{state.value}`" in read("concepts/states.md")


@pytest.mark.parametrize("reason", list(SkipReason))
def test_every_skip_reason_is_explained(reason: SkipReason) -> None:
    assert re.search(rf"(?m)^\| `{reason.value}` \| .{{10,}} \|$", read("concepts/ledger-and-audit.md"))


# Links, and files and tests named in the docs


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, in GitHub's format."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_inside_the_docs_work(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for link in _LINK.findall(text):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


def test_the_navigation_of_the_site_has_every_page_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = re.findall(r"(?m)^ +- (?:[\w-]+: )?(\S+(?:\.md|/))$", navigation)
    assert len(pages) == len(set(pages))
    existing = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert {page for page in existing if not page.startswith("decisions/")} == {one for one in pages if (DOCS / one).is_file()}
    assert [one for one in pages if not (DOCS / one).exists() and not (ROOT / one).exists()] == []


def test_the_entry_page_links_to_every_guide_concept_and_reference_page() -> None:
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in _LINK.findall(read("index.md"))}
    folders = ("howto", "concepts", "reference")
    assert [page_id(page) for folder in folders for page in sorted((DOCS / folder).glob("*.md")) if page not in linked] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, frontier = {ROOT / "README.md"}, {ROOT / "README.md"}
    while frontier:
        links = {
            (page.parent / link.partition("#")[0]).resolve()
            for page in frontier
            for link in _LINK.findall(page.read_text("utf-8"))
        }
        frontier = {one for one in links if one in PAGES} - seen
        seen |= frontier
    assert [page_id(page) for page in PAGES if page not in seen] == []


def test_files_and_tests_named_in_the_docs_exist() -> None:
    text = re.sub(r"https?://\S+", "", "\n".join(page.read_text(encoding="utf-8") for page in PAGES))
    files = set(re.findall(r"\b(?:tests|src|bench|docs)/[\w./-]*\w", text))
    assert sorted(name for name in files if not (ROOT / name).exists()) == []
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    tests = {name for name in re.findall(r"`(test_\w+)`", text) if not name.endswith("_")}
    assert sorted(name for name in tests if f"def {name}(" not in code) == []


# The code layout


def test_every_package_is_in_the_code_layout_and_in_the_layers() -> None:
    packages = {path.parent.name for path in (ROOT / "src/everbeat").glob("*/__init__.py")}
    layout = set(re.findall(r"(?m)^  (\w+)/ ", read("../CONTRIBUTING.md")))
    layers = set(re.findall(r"(?m)^\| `src/everbeat/(\w+)` \|", read("concepts/architecture.md")))
    assert (layout, layers) == (packages, packages)


def test_every_loop_is_in_the_table_of_loops() -> None:
    text = read("concepts/architecture.md").split("| loop |")[1].split("\n\n")[0]
    named = set(re.findall(r"(?m)^\| (\w+) \|", text))
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/everbeat/services").rglob("*.py"))
    assert named == set(re.findall(r'(?m)^    name = "(\w+)"$', sources))


# The package


def test_the_public_names_are_sorted_and_complete() -> None:
    names = [name for name in dir(everbeat) if not name.startswith("_")]
    public = {name for name in names if not isinstance(getattr(everbeat, name), ModuleType)}
    assert everbeat.__all__ == sorted(everbeat.__all__)
    assert public | {"__version__"} == set(everbeat.__all__)
    assert all(hasattr(everbeat, name) for name in everbeat.__all__)
