"""Pages of the documentation show what their code does, and every page with code is checked."""

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.end_to_end import test_printed_commands as printed
from tools.docs import run_page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): run_page.read(path) for path in DOCS.rglob("*.md")}
PAGES["README.md"] = run_page.read(ROOT / "README.md")
EXECUTED = {name: page for name, page in PAGES.items() if page.settings is not None}
SHORT_MINUTES = 1 / 3
"""Pages up to this length run with every change, the others at night."""


def _missing(extras: list[str]) -> list[str]:
    """Return the packages of luthier's extras that are not installed."""
    missing, pending = [], list(extras)
    while pending:
        extra = pending.pop()
        for line in importlib.metadata.requires("luthier") or []:
            need = Requirement(line)
            if need.marker is None or not need.marker.evaluate({"extra": extra}):
                continue
            if need.marker.evaluate({"extra": ""}):  # needed without any extra
                continue
            if need.name == "luthier":
                pending += need.extras
                continue
            try:
                importlib.metadata.version(need.name)
            except importlib.metadata.PackageNotFoundError:
                missing.append(need.name)
    return missing


def _run(name: str, quick: bool) -> None:
    page = EXECUTED[name]
    missing = _missing(page.extras)
    if missing:
        pytest.skip(f"{name} needs {', '.join(missing)}")
    run_page.run(page.path, quick=quick)


SHORT = sorted(n for n, p in EXECUTED.items() if p.minutes <= SHORT_MINUTES)
LONG = sorted(set(EXECUTED) - set(SHORT))


@pytest.mark.full
@pytest.mark.parametrize("name", SHORT)
def test_a_short_page_shows_what_its_code_does(name):
    _run(name, quick=False)


@pytest.mark.full
@pytest.mark.parametrize("name", [n for n in LONG if EXECUTED[n].has_dry_runs])
def test_a_page_with_trainings_holds_as_far_as_it_does_not_train(name):
    _run(name, quick=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LONG)
def test_a_long_page_shows_what_its_code_does(name):
    _run(name, quick=False)


def test_every_page_with_code_is_checked():
    commands = printed.documents()
    unchecked = []
    for name, page in PAGES.items():
        shown = [block for block in page.blocks if block.language in ("console", "python")]
        shows_commands = any(
            re.match(r"luthier [a-z]", line)
            for block in page.blocks
            if block.language == "bash"
            for line in block.commands[0].code.splitlines()
        )
        is_generated = Path(name).name in printed.GENERATED
        if (shown and name not in EXECUTED and not is_generated) or (
            shows_commands and not is_generated and Path(name).name not in commands
        ):
            unchecked.append(name)
    assert not unchecked, f"write <!-- run: minutes=NUMBER --> at their top: {unchecked}"
