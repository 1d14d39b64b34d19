"""Take the pictures of the pages that the documentation shows, in light and in dark.

python tools/docs/update_images.py                          # the diff
python tools/docs/update_images.py --study studies/NAME   # and the matrix and report of a study

Needs Debian's chromium and `pip install playwright`. The pictures are in tools/docs/pages/images.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMAGES = ROOT / "tools" / "docs" / "pages" / "images"
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
MOST_BYTES = 200_000

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


def take(browser: Any, place: pathlib.Path, name: str, theme: str) -> pathlib.Path:
    """Take one picture; return where it is."""
    height = {"diff": 900, "report": 1000, "matrix": 420}[name]
    page = browser.new_page(viewport={"width": 1360, "height": height}, color_scheme=theme)
    page.goto(place.as_uri())
    image = IMAGES / f"{name}-{theme}.png"
    page.screenshot(path=str(image))
    page.close()
    return image


def main() -> int:
    """Take the pictures; return the exit code: 1 where one is too large to be kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", type=pathlib.Path, metavar="DIR", help="the folder of a study")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(ROOT))
    pages = {"diff": diff_page(), **(study_pages(arguments.study) if arguments.study else {})}
    IMAGES.mkdir(exist_ok=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    taken = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        for name, text in pages.items():
            place = pathlib.Path(folder, f"{name}.html")
            place.write_text(text, encoding="utf-8")
            taken += [take(browser, place, name, theme) for theme in ("light", "dark")]
        browser.close()
    large = [image for image in taken if image.stat().st_size > MOST_BYTES]
    for image in taken:
        size = image.stat().st_size
        print(f"{image.relative_to(ROOT)}  {size / 1e3:.0f} kB{'  TOO LARGE' * (image in large)}")
    return int(bool(large))


if __name__ == "__main__":
    sys.exit(main())
