"""The dashboard in a real browser, on a real server with keys: what people do, and that no page breaks its own policy."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, expect, sync_playwright

ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
SCRIPT = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>\'">{{7*7}}'
REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) => console.error("policy violation " + event.violatedDirective));
"""
PAGES = (
    *(
        "/",
        "/schedules",
        "/schedules/strange",
        "/schedules/strange/why",
        "/schedules/strange/revisions",
        "/new-schedule",
        "/schedules/strange/calendar",
    ),
    *("/schedules/strange/edit", "/schedules/strange/trigger", "/schedules/strange/backfill?from=2026-01-01", "/timeline"),
    *("/checks", "/checks/strange", "/checks/strange/why", "/checks/strange/edit", "/new-check"),
    *("/tasks", "/tasks/{task}", "/dead-letters", "/dead-letters/{dead}", "/queues", "/workers", "/cluster", "/calendars"),
    *(
        "/calendars/strange",
        "/operations",
        "/slo",
        "/audit",
        "/audit-log",
        "/tenants",
        "/tenants/default",
        "/tasks/bulk?action=retry",
    ),
    "/slo",
    *("/incidents", "/incidents?state=all", "/alerts", "/alerts/new", "/alerts/strange", "/incidents/{incident}"),
    "/search?q=str",
)


class Server(NamedTuple):
    """A running server, its admin key, and a client of its API."""

    url: str
    key: str
    api: httpx.Client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key_file, url = folder / "admin.key", f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "everbeat", "serve", "--port", str(port), "--database-url", f"sqlite:///{folder}/e.db"]
    command += ["--auth", "keys", "--admin-key-file", str(key_file), "--migrate", "--log-level", "error"]
    command += ["--alert-interval-seconds", "0.2"]
    process = subprocess.Popen(command, cwd=folder, env=os.environ)
    try:
        _wait_ready(url, process)
        key = key_file.read_text().strip()
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=20) as api:
            yield Server(url, key, api)
    finally:
        process.terminate()
        process.wait(20)


def _wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)  # a process that starts can only be polled
    raise AssertionError("the server did not start")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        missing = "chromium is not installed; run: make tools"
        pytest.fail(f"{missing} (required in CI)") if os.environ.get("CI") else pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


class Screen:
    """A browser window with its own cookies. `problems`: errors of scripts, and violations of the policy."""

    def __init__(self, chromium: Browser, server: Server, **options: Any) -> None:
        self.context: BrowserContext = chromium.new_context(base_url=server.url, **options)
        self.context.set_default_timeout(15_000)
        self.context.add_init_script(REPORT_VIOLATIONS)
        self.page: Page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: dialog.accept())

    def _on_console(self, message: ConsoleMessage) -> None:
        # The browser also reports pages with an error status and the end of the event stream, which some tests cause.
        is_expected = "Failed to load resource" in message.text or message.text == "[object Event]"
        if message.type in ("error", "warning") and not is_expected:
            self.problems.append(message.text)

    def log_in(self, key: str) -> None:
        self.page.goto("/login")
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Log in").click()
        expect(self.page.get_by_role("heading", name="Overview")).to_be_visible()


@pytest.fixture
def screen(chromium: Browser, server: Server) -> Iterator[Screen]:
    screen = Screen(chromium, server)
    screen.log_in(server.key)
    yield screen
    screen.context.close()
    assert screen.problems == []


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    response = server.api.post(path, json=body)
    assert response.is_success, response.text
    return response.json() if response.content else None


def start_task(server: Server, queue: str, worker: str = "host:1", **more: Any) -> dict[str, Any]:
    """Submit a task and claim it."""
    post(server, "/v1/tasks", {"type": "import", "queue": queue, **more})
    claim = {"worker": worker, "queues": [queue], "max": 1, "wait_seconds": 0}
    (task,) = post(server, "/v1/worker/claim", claim)["tasks"]
    return dict(task)


def beat(server: Server, task: dict[str, Any], fraction: float, message: str, log: str) -> str:
    lease = {"id": task["id"], "fence": task["fence"], "progress": {"fraction": fraction, "message": message}, "log": log}
    (found,) = post(server, "/v1/worker/heartbeat", {"worker": "host:1", "leases": [lease]})["leases"]
    return str(found["status"])


def fail_tasks(server: Server, queue: str, count: int, message: str) -> list[str]:
    """Create dead letters in a queue."""
    post(server, "/v1/tasks/batch", {"tasks": [{"type": "mail", "queue": queue, "payload": {"n": SCRIPT}}] * count})
    claim = {"worker": SCRIPT[:40], "queues": [queue], "max": count, "wait_seconds": 0}
    tasks = post(server, "/v1/worker/claim", claim)["tasks"]
    error = {"message": message, "kind": "Refused", "trace": SCRIPT}
    failures = [{"id": one["id"], "fence": one["fence"], "error": error, "retryable": False} for one in tasks]
    post(server, "/v1/worker/fail", {"worker": SCRIPT[:40], "failures": failures})
    return [one["id"] for one in tasks]


def test_a_schedule_is_created_fires_live_and_is_explained(screen: Screen) -> None:
    page = screen.page
    page.get_by_role("link", name="New schedule").click()
    page.get_by_label("Name").fill("browser-made")
    page.get_by_label("Preset").select_option(label="Every weekday at 09:00")
    page.get_by_label("Time zone").fill("America/New_York")
    expect(page.locator("#preview .headline")).to_contain_text("Monday to Friday")
    expect(page.locator("#preview")).to_contain_text("EST")
    page.get_by_label("Cron expression").fill("* * * * * *")
    expect(page.locator("#preview .headline")).to_contain_text("Every second")
    page.get_by_label("Task type").fill("work")
    page.get_by_role("button", name="Create the schedule").click()
    expect(page.get_by_role("heading", name="browser-made")).to_be_visible()
    fired: Locator = page.locator("#live .tick-fired")
    expect(fired.first).to_be_visible()  # without a reload: it arrives with an event
    page.locator("#live a:has(.tick-fired)").first.click()
    expect(page.locator(".headline")).to_contain_text("It ran")
    page.goto("/schedules")
    page.get_by_role("switch", name="browser-made is on").click()
    expect(page.get_by_role("switch", name="browser-made is on")).to_have_attribute("aria-checked", "false")


def set_hidden(page: Page, hidden: bool) -> None:
    """Headless pages are always visible, so the property is replaced."""
    page.evaluate(
        "(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


def test_a_hidden_page_loads_nothing_and_catches_up_when_it_is_visible_again(
    screen: Screen, server: Server, chromium: Browser
) -> None:
    page = screen.page
    page.goto("/tasks?queue=hidden-page")
    expect(page.get_by_role("heading", name="No task matches these filters")).to_be_visible()
    set_hidden(page, hidden=True)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    other = Screen(chromium, server)
    other.log_in(server.key)
    with other.page.expect_response(lambda response: "/live?" in response.url):  # it listens
        other.page.goto("/tasks?queue=hidden-page")
    post(server, "/v1/tasks", {"type": "seen-later", "queue": "hidden-page"})
    expect(other.page.locator("#live")).to_contain_text("seen-later")  # the visible page was refreshed
    other.context.close()
    assert (other.problems, requests) == ([], [])
    set_hidden(page, hidden=False)
    expect(page.locator("#live")).to_contain_text("seen-later")


def test_a_check_is_created_and_its_pings_appear_live(screen: Screen) -> None:
    page = screen.page
    page.goto("/checks")
    page.get_by_role("link", name="New check").click()
    page.get_by_label("Name").fill("browser-check")
    page.get_by_label("Expected", exact=True).select_option(label="After the last ping")
    page.get_by_label("Every (seconds)").fill("600")
    expect(page.locator("#preview .headline")).to_contain_text("Every 10 minutes")
    page.get_by_role("button", name="Create the check").click()
    expect(page.get_by_role("heading", name="browser-check new")).to_be_visible()
    url = page.locator("#ping-url").inner_text().strip()
    assert httpx.post(f"{url}/start").text == "OK"
    assert httpx.post(f"{url}/0", content="copied 3 files").text == "OK"
    expect(page.locator("#live .tick-pinged").first).to_be_visible()  # without a reload: it arrives with an event
    page.get_by_text("14 bytes").click()
    expect(page.get_by_label("Body of ping 2")).to_contain_text("copied 3 files")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("heading", name="browser-check paused")).to_be_visible()


def test_a_running_task_shows_its_progress_and_is_cancelled(screen: Screen, server: Server) -> None:
    task = start_task(server, "long")
    assert beat(server, task, 0.4, "row 400", "imported 400 rows") == "ok"
    page = screen.page
    page.goto(f"/tasks/{task['id']}")
    expect(page.locator("#live")).to_contain_text("40 %")
    expect(page.get_by_role("log")).to_contain_text("imported 400 rows")
    assert beat(server, task, 0.8, "row 800", "imported 800 rows") == "ok"
    expect(page.locator("#live")).to_contain_text("80 %")
    expect(page.get_by_role("log")).to_contain_text("imported 800 rows")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Its worker was asked to cancel the task.")).to_be_visible()
    assert beat(server, task, 0.9, "row 900", "") == "cancel"


def test_dead_letters_of_one_error_are_replayed_together(screen: Screen, server: Server) -> None:
    fail_tasks(server, "mails", 120, "mailbox is full")
    page = screen.page
    page.goto("/dead-letters?queue=mails")
    page.get_by_role("link", name="Refused").click()
    expect(page.get_by_role("heading", name="These 120 with the same error")).to_be_visible()
    count = page.get_by_label("Type 120 to confirm").first
    replay = page.get_by_role("button", name="Replay 120 not replayed yet")
    count.fill("12")
    replay.click()
    expect(page.get_by_role("alert")).to_contain_text("type 120 to confirm")
    page.go_back()
    count.fill("120")
    replay.click()
    expect(page.get_by_role("status")).to_contain_text("120 dead letters were replayed")


def test_tasks_that_match_a_filter_are_cancelled_in_the_background(screen: Screen, server: Server) -> None:
    post(server, "/v1/tasks/batch", {"tasks": [{"type": "old", "queue": "unused"}] * 150})
    page = screen.page
    page.goto("/tasks?queue=unused&state=ready")
    page.get_by_role("link", name="cancel…").click()
    expect(page.get_by_role("heading", name="Cancel all 150 tasks that match")).to_be_visible()
    page.get_by_label("Type 150 to confirm").fill("150")
    page.get_by_role("button", name="Cancel 150 tasks").click()
    expect(page.get_by_role("heading", name="done")).to_be_visible()
    expect(page.locator("#live")).to_contain_text("150 of 150")


def test_a_new_key_logs_in_and_its_session_ends_when_it_is_revoked(screen: Screen, chromium: Browser, server: Server) -> None:
    page = screen.page
    page.goto("/tenants/default")
    page.locator("#key-name").fill("reader")
    page.get_by_label("manage", exact=True).uncheck()
    page.get_by_label("read", exact=True).check()
    page.get_by_role("button", name="Create the key").click()
    key = page.locator("#new-key").inner_text().strip()
    other = Screen(chromium, server)
    other.log_in(key)
    other.page.goto("/schedules")
    expect(other.page.get_by_role("link", name="New schedule")).to_have_count(0)
    page.get_by_role("button", name=re.compile("Revoke reader")).click()
    expect(page.get_by_role("status")).to_contain_text("revoked")
    other.page.goto("/schedules")
    expect(other.page.get_by_label("API key")).to_be_visible()
    other.context.close()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    page.goto("/schedules")
    expect(page.get_by_label("API key")).to_be_visible()


def test_the_dashboard_is_used_by_keyboard_alone(screen: Screen) -> None:
    page, keys = screen.page, screen.page.keyboard
    keys.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    keys.press("Control+k")
    keys.type("dead")
    expect(page.locator("#palette-results a")).to_have_count(1)
    keys.press("ArrowDown")
    keys.press("Enter")
    expect(page.get_by_role("heading", name="Dead letters", exact=True)).to_be_visible()
    keys.type("gt")
    expect(page.get_by_role("heading", name="Tasks", exact=True)).to_be_visible()
    keys.type("/default")
    keys.press("Enter")
    expect(page).to_have_url(re.compile("queue=default"))


@pytest.fixture(scope="module")
def strange(server: Server) -> dict[str, str]:
    """Data with a script in every field that takes text."""
    schedule = {"cron": "* * * * *", "description": SCRIPT, "payload": {SCRIPT: SCRIPT}, "labels": {"team": SCRIPT}}
    target = {"kind": "worker", "type": "strange", "queue": "strange"}
    assert server.api.put("/v1/schedules/strange", json={**schedule, "target": target}).is_success
    post(server, "/v1/schedules/strange/pause", {"note": SCRIPT})
    assert server.api.put("/v1/calendars/strange", json={"description": SCRIPT, "weekdays": ["SUN"]}).is_success
    check = server.api.put("/v1/checks/strange", json={"every_seconds": 60, "description": SCRIPT}).json()
    assert httpx.post(f"{check['ping_url']}/3", content=SCRIPT, headers={"user-agent": SCRIPT}).text == "OK"
    post(server, "/v1/queues/strange/pause", {"note": SCRIPT})
    post(server, "/v1/tenants/default/keys", {"name": SCRIPT[:180], "scopes": ["read"]})
    post(server, "/v1/schedules/bulk", {"action": "pause", "filter": {"name_prefix": "strange"}, "note": SCRIPT})
    rule = {"when": {"kind": "dead"}, "match": {"queue": "odd-dead"}, "notify": [target], "description": SCRIPT}
    assert server.api.put("/v1/alerts/strange", json=rule).is_success
    task = start_task(server, "odd", payload={"x": SCRIPT}, labels={"team": SCRIPT})
    beat(server, task, 0.5, SCRIPT, SCRIPT)
    (dead,) = fail_tasks(server, "odd-dead", 1, SCRIPT)
    return {"task": task["id"], "dead": dead, "incident": wait_for_incident(server, "strange")}


def wait_for_incident(server: Server, alert: str) -> str:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for one in server.api.get("/v1/incidents", params={"alert": alert, "state": "open"}).json()["items"]:
            return str(one["id"])
        time.sleep(0.05)
    raise AssertionError(f"no incident of {alert}")


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")])
def test_every_page_is_accessible_safe_and_fits(
    chromium: Browser, server: Server, strange: dict[str, str], width: int, theme: Any
) -> None:
    screen = Screen(chromium, server, viewport={"width": width, "height": 800}, color_scheme=theme)
    screen.log_in(server.key)
    page, found = screen.page, {}
    # In the normal suite, each page is looked at in one of the combinations. EVERBEAT_ALL_PAGES=1 is for all of them.
    combination = 2 * (width == 390) + (theme == "dark")
    for path in PAGES if os.environ.get("EVERBEAT_ALL_PAGES") else PAGES[combination::4]:
        page.goto(path.format(**strange))
        assert page.evaluate("window.pwned") is None, path
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than {width}"
        results = Axe().run(page)
        if results.violations_count:
            found[path] = results.generate_report()
    screen.context.close()
    assert found == {}
    assert screen.problems == []


def test_the_forms_work_without_scripts(chromium: Browser, server: Server) -> None:
    screen = Screen(chromium, server, java_script_enabled=False)
    screen.log_in(server.key)
    page = screen.page
    page.goto("/new-schedule")
    page.get_by_label("Name").fill("without-scripts")
    page.get_by_label("Task type").fill("work")
    page.get_by_label("Cron expression").fill("0 25 * * *")
    page.get_by_role("button", name="Create the schedule").click()
    expect(page.get_by_role("alert")).to_contain_text("25")
    page.get_by_label("Cron expression").fill("0 5 * * *")
    page.get_by_role("button", name="Preview", exact=True).click()
    expect(page.locator("#preview .headline")).to_contain_text("05:00")
    page.get_by_role("button", name="Create the schedule").click()
    expect(page.get_by_role("heading", name="without-scripts")).to_be_visible()
    screen.context.close()


def test_an_alert_is_created_and_its_incident_acknowledged_without_scripts(chromium: Browser, server: Server) -> None:
    screen = Screen(chromium, server, java_script_enabled=False)
    screen.log_in(server.key)
    page = screen.page
    page.get_by_role("link", name="Alerts").click()
    page.get_by_role("link", name="New alert").or_(page.get_by_role("link", name="Create an alert")).first.click()
    page.get_by_label("Name").fill("dead-reports")
    page.get_by_label("Kind").select_option("dead")
    page.get_by_label("Queue").fill("alerting")
    page.get_by_label("URL", exact=True).fill("http://127.0.0.1/")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("notify[0].url")
    page.get_by_label("URL", exact=True).fill("https://example.org/alerts")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("The alert was created")
    fail_tasks(server, "alerting", 1, "no such table")
    id_ = wait_for_incident(server, "dead-reports")
    page.goto("/")
    expect(page.get_by_role("alert").filter(has_text="open incident")).to_be_visible()
    page.goto("/incidents?alert=dead-reports")
    page.get_by_role("link", name="no such table").click()
    expect(page).to_have_url(re.compile(id_))
    page.get_by_label("Note").fill("the migration is running")
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.get_by_text("the migration is running")).to_be_visible()
    screen.context.close()
