"""Measure the page of a diff of two graphs of 5,000 nodes in headless Chromium.

python tools/bench/diff_page.py            # medians of 5 runs
python tools/bench/diff_page.py --nodes 10000 --runs 9

First paint is told by the browser (first contentful paint, from the start of the navigation). A
keystroke is timed from the key to the frame after the one that shows the answer, with everything
open. Of the frames in which two screens pass, nine of ten are shorter than what is told. Beside the
wall clock stands what the page's main thread computed, which other programs on the machine do not
make larger (of scrolling, in the mean). Needs Debian's chromium and `pip install playwright`. Exit
code 1 where a median of the wall clock is above its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
from typing import Any

LIMITS = {"first paint": 1500.0, "keystroke": 100.0, "scrolled frame": 100.0}
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")

KEYSTROKE = """async (text) => {
  const field = document.getElementById("search");
  field.focus();
  const start = performance.now();
  field.value = text;
  field.dispatchEvent(new InputEvent("input", { bubbles: true }));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}"""

FRAMES = 40
SCROLL = """async (FRAMES) => {
  const times = [];
  for (let i = 1; i <= FRAMES; i += 1) {
    const start = performance.now();
    window.scrollBy(0, 2 * window.innerHeight);
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    times.push(performance.now() - start);
  }
  return times.sort((a, b) => a - b)[Math.floor(0.9 * FRAMES)];
}"""


def comparison(nodes: int) -> dict[str, Any]:
    """Return the comparison of two graphs of so many nodes, of which every hundredth changed."""
    from luthier.graph.compare.changes import Change, Row, flat

    changes: list[Any] = []
    rows = [Row(0, "", "", "", "Experiment", "Experiment", None, True)]
    for number in range(nodes - 1):
        path = f"model.block[{number // 5}].part_{number % 5}"
        depth = 1 + number % 5
        rows.append(
            Row(depth, path, path, f"part_{number % 5}", "Attention", "Attention", None, True)
        )
        for name, before in (("num_heads", "8"), ("dtype", "bfloat16"), ("scale", "0.125")):
            index, after = None, before
            if number % 100 == 0 and name == "num_heads":
                index, after = len(changes), "16"
                change = Change("changed", f"{path}.{name}", "", before, after, (8, 16))
                changes.append({**flat(change), "ratio": 2.0, "difference": 8})
            at = f"{path}.{name}"
            rows.append(Row(depth + 1, at, at, name, before, after, index))
    words = [f"{change['path']}=16" for change in changes]
    shown = [{**c, "override": w, "no_override": None} for c, w in zip(changes, words, strict=True)]
    return {
        "version": 1,
        "sides": [
            {"title": title, "detail": "", "fingerprint": ""} for title in ("before", "after")
        ],
        "changes": shown,
        "rows": [vars(row) for row in rows],
        "patch": None,
        "overrides": words,
        "unsayable": [],
    }


def measure(place: pathlib.Path, browser: Any) -> dict[str, tuple[float, float]]:
    """Open the page once; return milliseconds on the wall clock, and of the main thread."""
    page = browser.new_page(viewport={"width": 1360, "height": 850})
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def computed() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return 1000 * next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    def timed(script: str, argument: Any) -> tuple[float, float]:
        before = computed()
        return page.evaluate(script, argument), computed() - before

    page.goto(place.as_uri())
    page.wait_for_selector(".rows .row")
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
    while page.evaluate(paint) is None:  # the page's policy refuses `wait_for_function` its `eval`
        page.wait_for_timeout(1)
    found = {"first paint": (page.evaluate(paint), computed())}
    page.keyboard.press("e")
    words = ("n", "nu", "num", "num_", "num_h", "num_heads 16", "part_3", "no such thing", "b", "")
    strokes = [timed(KEYSTROKE, word) for word in words]
    found["keystroke"] = (max(wall for wall, _ in strokes), max(cpu for _, cpu in strokes))
    frame, all_frames = timed(SCROLL, FRAMES)
    found["scrolled frame"] = (frame, all_frames / FRAMES)
    page.close()
    return found


def main() -> int:
    """Measure, and print the medians; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    from luthier.view.diff import page

    text = page.render(comparison(arguments.nodes))
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        place = pathlib.Path(folder, "diff.html")
        place.write_text(text, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        runs = [measure(place, browser) for _ in range(arguments.runs)]
        browser.close()
    medians = {
        name: tuple(
            statistics.median(times) for times in zip(*(run[name] for run in runs), strict=True)
        )
        for name in LIMITS
    }
    if arguments.json:
        print(json.dumps({"nodes": arguments.nodes, "bytes": len(text.encode()), **medians}))
    else:
        print(f"{arguments.nodes} nodes, {len(text.encode()) / 1e6:.1f} MB, {arguments.runs} runs")
        for name, (wall, cpu) in medians.items():
            limit = LIMITS[name]
            print(f"{name:16} {wall:8.1f} ms  (limit {limit:.0f}), computing {cpu:.1f} ms")
    return int(any(medians[name][0] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
