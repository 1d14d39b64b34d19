"""The pages of the manual, in `docs/`."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import jax
import pytest

from luthier.folders import manual_pages


def test_a_page_is_found_by_its_name_alone(root):
    # `luthier help NAME` names no folder, so no two pages may have one name.
    files = [path for path in (root / "docs").rglob("*.md") if path.name != "index.md"]
    names = [path.stem for path in files]
    assert sorted(names) == list(manual_pages())
    assert not [name for name in names if not re.fullmatch("[a-z][a-z0-9_]*", name)]


def test_links_between_pages_lead_somewhere(root):
    problems = []
    for page in (root / "docs").rglob("*.md"):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"(?<!`)\]\(([^)\s]+)\)", text):
            path, _, _ = link.partition("#")
            if path and ":" not in path and not (page.parent / path).exists():
                problems.append(f"{page.relative_to(root)}: {link}")
    assert not problems, "\n".join(problems)


def test_links_to_a_section_lead_to_a_heading(root):
    pages = [*(root / "docs").rglob("*.md"), *root.glob("*.md")]
    anchors = {page.resolve(): _anchors(page.read_text()) for page in pages}
    problems = []
    for page in pages:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"(?<!`)\]\(([^)\s:]*#[^)\s]+)\)", text):
            path, _, section = link.partition("#")
            target = (page.parent / path if path else page).resolve()
            if section not in anchors.get(target, {section}):
                problems.append(f"{page.relative_to(root)}: {link}")
    assert sum(len(found) for found in anchors.values()) > 1000
    assert not problems, "\n".join(problems)


def _anchors(markdown: str) -> set[str]:
    """Return the anchors of a page, as GitHub and MyST make them of headings."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 0
        while slug + (f"-{number}" if number else "") in found:
            number += 1
        found.add(slug + (f"-{number}" if number else ""))
    return found


# The pages show the options that `quick_compile` sets, which are those of one JAX.
@pytest.mark.skipif(not jax.__version__.startswith("0.10."), reason="the pages are of jax 0.10")
@pytest.mark.full
def test_generated_pages_are_up_to_date(root):
    command = [sys.executable, "tools/docs/update_pages.py", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_installation_page_lists_every_extra(root):
    settings = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = settings["optional-dependencies"]
    page = (root / "docs" / "get_started" / "installation.md").read_text()
    listed = re.findall(r"^\| `([a-z-]+)` \|", page, flags=re.MULTILINE)
    others = re.findall(r"`([a-z]+)`", re.search(r"For work on luthier itself.*", page)[0])
    assert sorted([*listed, *(name for name in others if name in extras)]) == sorted(extras)
