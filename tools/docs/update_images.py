"""Take the pictures that the documentation shows: of a terminal, of pages, and of the site.

python tools/docs/update_images.py terminal               # help, list, show and an error
python tools/docs/update_images.py session                # the README's session: trains and sweeps
python tools/docs/update_images.py pages                  # the page of a diff, in light and in dark
python tools/docs/update_images.py pages --study DIR      # and the matrix and the report of a study
python tools/docs/update_images.py site --built DIR       # the first page of the built site
python tools/docs/update_images.py curves                 # the benchmark of schedulers

Pages need Debian's chromium and `pip install playwright`. The pictures are in docs/images. A test
compares the text of those of the terminal with what the commands print.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of this checkout, whatever is installed.
sys.path[:0] = [str(ROOT / "framework"), str(ROOT)]
from tools.docs import curves, terminal_images  # noqa: E402

IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "tools" / "bench" / "results"
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
MOST_BYTES, MOST_BYTES_TOGETHER = 300_000, 1_500_000

EXPERIMENT = "configs.lm.quickstart"
OVERRIDES = (
    *("model.num_layers=8", "model.norm:=luthier.layers.LayerNorm()", "task.z_loss=0.001"),
    *("model.block.mlp.hidden_dim=1024", "optimizer.learning_rate.peak=3e-4"),
    *("optimizer.weight_decay=0.05", "training.global_batch_size=32", "seed=7"),
)


def diff_page() -> str:
    """Return the page of what some overrides change in the quickstart."""
    import jax

    from luthier import graph
    from luthier.graph import compare
    from luthier.view import effects
    from luthier.view.diff import page

    before = graph.resolve(EXPERIMENT)
    after = graph.apply(before, OVERRIDES)
    title = f"{len(OVERRIDES)} overrides"
    sides = compare.document(before, EXPERIMENT), compare.document(after, EXPERIMENT, title)
    comparison = compare.compare(*sides)
    subjects = [
        effects.EffectSubject(EXPERIMENT, side, jax.devices()[:1]) for side in (before, after)
    ]
    return page.render(compare.to_json(comparison), effects.effects((subjects[0], subjects[1])))


def study_pages(folder: pathlib.Path) -> dict[str, str]:
    """Return the pages of a study."""
    from luthier.study.views import report
    from luthier.view.diff import matrix as matrix_page

    matrix = report.describe(folder)["matrix"]
    return {"report": report.render(folder), "matrix": matrix_page.render(matrix)}


SIZES = {"diff": (1360, 900), "report": (1360, 1000), "matrix": (1360, 420)}
SITE_SIZES = {"site": (1280, 800), "site-narrow": (390, 800)}

TERMINAL = {
    "help": "luthier --help",
    "list": "luthier list",
    "show": "luthier show quickstart",
    "error": "luthier train quickstart optimizer.learning_rate.peek=3e-4 model.num_layers=four",
}
"""The commands of the pictures of a terminal."""

SESSION = (
    "luthier train quickstart training.steps=100 records.wandb=None",
    "luthier show quickstart optimizer 'optimizer.learning_rate.peak*=2'",
    "luthier diff quickstart 'quickstart model.num_layers=6 optimizer.learning_rate.peak=2e-3'",
    "luthier sweep quickstart training.steps=60 records.wandb=None --name rate --trials 4 "
    "--space 'optimizer.learning_rate.peak=log(2e-3,4e-2)'",
)
"""The commands of the README's picture; each runs as it is."""


def terminal_pictures() -> dict[str, str]:
    """Return the pictures of a terminal by their names."""
    return {
        name: terminal_images.picture(terminal_images.run(command))
        for name, command in TERMINAL.items()
    }


def session_picture() -> str:
    """Return the README's picture, from a session that runs now in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        screens = [
            terminal_images.run(
                command,
                is_terminal=command.split()[1] in ("show", "diff"),
                cwd=pathlib.Path(folder),
            )
            for command in SESSION
        ]
    return terminal_images.animation(screens)


def take(browser: Any, address: str, name: str, theme: str, size: tuple[int, int]) -> pathlib.Path:
    """Take one picture of a page; return where it is."""
    width, height = size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
    page.goto(address)
    image = IMAGES / f"{name}-{theme}.png"
    page.screenshot(path=str(image))
    page.close()
    return image


def take_all(addresses: Mapping[str, tuple[str, tuple[int, int]]]) -> list[pathlib.Path]:
    """Take pictures of pages in light and in dark, by name; return where they are."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        taken = [
            take(browser, address, name, theme, size)
            for name, (address, size) in addresses.items()
            for theme in ("light", "dark")
        ]
        browser.close()
    return taken


def main() -> int:
    """Take the pictures; return the exit code: 1 where they are too large to be kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("terminal", "session", "pages", "site", "curves"))
    parser.add_argument("--study", type=pathlib.Path, metavar="DIR", help="the folder of a study")
    parser.add_argument("--built", type=pathlib.Path, metavar="DIR", help="the built site")
    arguments = parser.parse_args()
    if (arguments.kind == "site") != (arguments.built is not None):
        parser.error("`site` needs --built DIR, and no other kind takes it")
    if arguments.study is not None and arguments.kind != "pages":
        parser.error("--study is for `pages`")
    IMAGES.mkdir(exist_ok=True)
    if arguments.kind in ("terminal", "session"):
        pictures = (
            terminal_pictures() if arguments.kind == "terminal" else {"session": session_picture()}
        )
        taken = []
        for name, text in pictures.items():
            taken.append(IMAGES / f"{name}.svg")
            taken[-1].write_text(text, encoding="utf-8")
    elif arguments.kind == "curves":
        taken = [IMAGES / "schedulers.svg"]
        taken[0].write_text(curves.picture(RESULTS / "schedulers.json"), encoding="utf-8")
    elif arguments.kind == "site":
        first = (arguments.built / "index.html").resolve().as_uri()
        taken = take_all({name: (first, size) for name, size in SITE_SIZES.items()})
    else:
        study = arguments.study
        pages = {"diff": diff_page(), **({} if study is None else study_pages(study))}
        with tempfile.TemporaryDirectory() as folder:
            addresses = {}
            for name, text in pages.items():
                place = pathlib.Path(folder, f"{name}.html")
                place.write_text(text, encoding="utf-8")
                addresses[name] = (place.as_uri(), SIZES[name])
            taken = take_all(addresses)
    large = [image for image in taken if image.stat().st_size > MOST_BYTES]
    for image in taken:
        size = image.stat().st_size
        print(f"{image.relative_to(ROOT)}  {size / 1e3:.0f} kB{'  TOO LARGE' * (image in large)}")
    together = sum(image.stat().st_size for image in IMAGES.iterdir())
    print(f"docs/images  {together / 1e3:.0f} kB of {MOST_BYTES_TOGETHER / 1e3:.0f} kB")
    return int(bool(large) or together > MOST_BYTES_TOGETHER)


if __name__ == "__main__":
    sys.exit(main())
