"""A real browser for tests of pages: Debian's Chromium, driven by Playwright, without a network."""

import dataclasses
import os
import pathlib
import shutil
import time

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)


def launch(playwright):
    """Return a browser."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))


# Not for the session: while Playwright is there, an event loop runs, and nobody can run another.
@pytest.fixture(scope="module")
def browser():
    """Return a browser; the test is skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        found = launch(playwright)
        yield found
        found.close()


@dataclasses.dataclass
class Opened:
    """A page in the browser, and what it complained about."""

    page: object
    complaints: list

    def close(self):
        """Close it; nothing may have gone wrong in it."""
        self.page.context.close()
        assert self.complaints == []


@pytest.fixture
def open_page(browser, tmp_path):
    """Return a function that opens the text of a page; its errors fail the test at the end.

    What it complained about so far is in its attribute `complaints`.
    """
    opened = []

    def open_text(text, *, name="page.html", link="", **settings):
        place = tmp_path / name
        place.write_text(text, encoding="utf-8")
        given = {"viewport": {"width": 1360, "height": 850}, "reduced_motion": "reduce"}
        context = browser.new_context(**{**given, **settings})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        complaints = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if _is_bad(line) else None)
        page.on("request", lambda request: _note_request(request, complaints))
        page.goto(place.as_uri() + link)
        page.complaints = complaints
        opened.append(Opened(page, complaints))
        return page

    yield open_text
    for one in opened:
        one.close()


def _is_bad(line):
    return line.type in ("error", "warning")


def _note_request(request, complaints):
    if not request.url.startswith("file:"):
        complaints.append(f"the page asked for {request.url}")


def wait_until(page, expression, seconds=30.0):
    """Return as soon as a JavaScript expression is true in a page.

    `page.wait_for_function` looks again from inside the page, where the pages' Content Security
    Policy refuses `eval`.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"not true after {seconds} s: {expression}"
        page.wait_for_timeout(20)


def clipboard(page):
    """Return the text on the clipboard."""
    return page.evaluate("navigator.clipboard.readText()")


def _checks():
    text = pathlib.Path(__file__).with_name("accessibility.js").read_text(encoding="utf-8")
    return text[text.index("({") :].strip()


def check_fits(page):
    """Assert that no text of a page is cut off, beside the window, or over another text."""
    assert page.evaluate(f"{_checks()}.misplaced()") == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def check_accessible(page):
    """Assert that a page has names for its controls and can be read, in light and in dark."""
    checks = _checks()
    assert page.evaluate(f"{checks}.nameless()") == []
    for theme in ("light", "dark"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        assert page.evaluate(f"{checks}.hardToRead()") == [], theme
