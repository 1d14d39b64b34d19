"""The pictures of the documentation show what the commands print now."""

import json
import pathlib
import re
import xml.etree.ElementTree as ElementTree

import pytest

from tools.docs import curves, terminal_images, update_images

IMAGES = update_images.IMAGES
SVG = "{http://www.w3.org/2000/svg}"


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


def test_a_picture_of_curves_has_a_panel_for_each_study_and_a_line_for_each_way(tmp_path):
    curves_of = [
        {"study": study, "seed": seed, "way": way, "curve": [[5.0, 2.0 + seed], [9.0, 1.0]]}
        for study in ("rungs", "digits")
        for way in ("ASHA", "random search")
        for seed in range(3)
    ]
    content = {"settings": {"studies": ["rungs", "digits"], "seconds": 10}, "curves": curves_of}
    (tmp_path / "schedulers.json").write_text(json.dumps(content))
    svg = curves.picture(tmp_path / "schedulers.json")
    texts = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"rungs", "digits", "ASHA", "random search", "10 s"} <= set(texts)
    # A line for each way in each panel, and in the legend. All end at the budget.
    assert svg.count('class="line"') == 2 * 2 + 2
    assert svg.count("H288.0") == 2 * 2


def test_a_median_curve_begins_where_most_seeds_have_a_trial():
    seeds = [[(1.0, 5.0), (4.0, 2.0)], [(2.0, 3.0)], [(3.0, 4.0), (5.0, 1.0)]]
    assert curves.median_curve(seeds) == [(2.0, 5.0), (3.0, 4.0), (4.0, 3.0), (5.0, 2.0)]
