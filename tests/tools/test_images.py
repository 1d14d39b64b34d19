"""The pictures of the documentation show what the commands print now."""

import pathlib
import re
import xml.etree.ElementTree as ElementTree

import pytest

from tools.docs import curves, terminal_images, update_images

IMAGES = update_images.IMAGES


@pytest.mark.full
@pytest.mark.parametrize("name", update_images.TERMINAL)
def test_pictures_of_a_terminal_are_current(name):
    now = terminal_images.picture(terminal_images.run(update_images.TERMINAL[name]))
    kept = (IMAGES / f"{name}.svg").read_text(encoding="utf-8")
    command = "python tools/docs/update_images.py terminal"
    assert terminal_images.text_of(kept) == terminal_images.text_of(now), command


def test_a_picture_shows_the_text_of_its_output():
    output = (
        "\x1b[1musage:\x1b[0m luthier <COMMAND>\n\n  \x1b[36minit\x1b[0m    a & b\n" + "x" * 130
    )
    svg = terminal_images.picture(terminal_images.Screen("luthier --help", output))
    lines = ["$ luthier --help", "usage: luthier <COMMAND>", "  init    a & b"]
    assert terminal_images.text_of(svg).split("\n") == [*lines, "x" * 100, "x" * 30]
    assert re.search(r'class="cyan">init<', svg)
    long = terminal_images.Screen("luthier list", "\n".join(map(str, range(99))))
    assert terminal_images.text_of(terminal_images.picture(long, 10)).endswith(
        "8\n... 90 more lines"
    )


@pytest.mark.full
def test_what_is_erased_on_a_terminal_is_not_in_its_picture():
    screen = terminal_images.run("luthier --version")
    assert screen.output.startswith("luthier ")
    shown = terminal_images.run("luthier train quickstart seed=x")
    assert "starting JAX" not in shown.output
    assert "'x' is not an int" in shown.output


def test_a_session_shows_its_commands_one_after_another():
    screens = [terminal_images.Screen(f"luthier {name}", "text") for name in ("list", "show")]
    svg = terminal_images.animation(screens, seconds=3.0)
    frames = ElementTree.fromstring(svg).findall("{http://www.w3.org/2000/svg}g")
    assert len(frames) == 4  # each command alone, and with its output
    assert "animation: 8s step-end infinite" in svg
    assert re.search(
        r"@keyframes f2 \{ 0\.00% \{ visibility: hidden; \} 50\.00% \{ visibility: v", svg
    )


def test_pictures_are_small_and_need_nothing_else():
    sizes = {path: path.stat().st_size for path in IMAGES.iterdir()}
    assert max(sizes.values()) <= update_images.MOST_BYTES
    assert sum(sizes.values()) <= update_images.MOST_BYTES_TOGETHER
    for path in IMAGES.glob("*.svg"):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|url\(|<script|<image|href=", text), path


def test_the_readme_shows_pictures_that_exist():
    readme = (pathlib.Path(update_images.ROOT) / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"docs/images/[\w.-]+", readme)
    assert shown
    assert all((update_images.ROOT / path).is_file() for path in shown)


def test_the_picture_of_the_schedulers_is_that_of_their_table():
    now = curves.picture(update_images.RESULTS / "schedulers.json")
    command = "python tools/docs/update_images.py curves"
    assert (IMAGES / "schedulers.svg").read_text(encoding="utf-8") == now, command
    ElementTree.fromstring(now)


def test_a_median_curve_begins_where_most_seeds_have_a_trial():
    seeds = [[(1.0, 5.0), (4.0, 2.0)], [(2.0, 3.0)], [(3.0, 4.0), (5.0, 1.0)]]
    assert curves.median_curve(seeds) == [(2.0, 5.0), (3.0, 4.0), (4.0, 3.0), (5.0, 2.0)]
