import itertools
import json
import math
import re
import shutil
import time

import fiddle as fdl
import pytest
import simulated_engine as toys
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from luthier import study as studies
from luthier.metrics import Selector
from luthier.study.views import FEWEST, MOST, Span, importance, report, timeline_of
from tests.browsing import check_accessible, check_fits, clipboard, wait_until


class Opposed(toys.InstantEngine):
    """Trials are the more accurate, the larger their loss."""

    def _advance(self, trial):
        super()._advance(trial)
        found = self._asking[trial][2][-1][1]
        found["held_out/accuracy"] = found["held_out/loss"]


def _run(folder, trials, engine=None, objectives=(), **more):
    """Run a study of toys; return its folder."""
    space = {
        "rate": studies.Log(1e-4, 1e-1),
        "width": studies.Pow2(8, 256),
        "optimizer": studies.Choice([fdl.Config(toys.Momentum), fdl.Config(toys.Adaptive)]),
    }
    loss = fdl.Config(studies.Measured, fdl.Config(Selector, "held_out", "loss"))
    study = toys.make_study(
        directory=str(folder / "studies"),
        budget=fdl.Config(studies.Budget, trials=trials),
        objectives=[loss, *objectives],
        space=fdl.Config(studies.Space, space),
        **more,
    )
    engine = engine or toys.InstantEngine(2)
    return studies.run(study, packages=toys.PACKAGES, engine=engine).directory


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The folder of a study of sixteen trials, of which three came to nothing."""
    ends = {3: ["failed"], 5: ["pruned"], 7: ["infeasible"], 9: ["lost"]}
    return _run(tmp_path_factory.mktemp("sixteen"), 16, toys.InstantEngine(2, ends))


def _texts(page, selector):
    return page.locator(selector).all_inner_texts()


def test_a_study_is_described_as_plain_data(study):
    data = report.describe(study)
    assert json.loads(json.dumps(data)) == data
    assert (data["name"], data["metrics"], data["directions"]) == (
        "toy",
        ["held_out/loss"],
        ["lower"],
    )
    assert data["headline"].startswith("16 of 16 trials ended, 1 pruned, 1 infeasible, 1 failed")
    assert data["study"] == "study:toy"
    states = [trial["state"] for trial in data["trials"]]
    assert [states[i] for i in (0, 3, 5, 7)] == ["complete", "failed", "pruned", "infeasible"]
    values = {t["number"]: t["values"][0] for t in data["trials"] if t["values"]}
    assert data["best"] == [min(values, key=values.__getitem__)]
    # The baseline among them: its optimizer is the default, which is one of the choices.
    assert data["importance"]["settings"] == 13
    (importance,) = data["importance"]["of"]
    assert importance["name"] == "held_out/loss"
    assert {row["path"] for row in importance["rows"]} == {"rate", "width", "optimizer"}
    assert data["slices"] == [{"index": 0, "name": "toy:0"}, {"index": 1, "name": "toy:1"}]
    assert [span[4] for span in data["spans"] if span[0] == 9] == ["lost", "complete"]
    assert all(0 <= span[2] <= span[3] <= data["seconds"] for span in data["spans"])


def test_the_matrix_holds_what_the_words_set(study):
    matrix = report.describe(study)["matrix"]
    rows = {row["path"]: row for row in matrix["rows"]}
    assert list(rows) == ["rate", "width", "optimizer"]
    assert rows["rate"]["values"][1] == float(rows["rate"]["texts"][1])
    assert set(rows["optimizer"]["texts"][1:]) == {"Momentum(...)", "Adaptive(...)"}
    assert rows["optimizer"]["values"] == [None] * 16
    assert matrix["columns"][3] == {"title": "3", "state": "failed", "link": "trials/0003/"}
    assert matrix["objectives"][0]["values"][3] is None
    assert matrix["left_out"] == 0


def test_the_baseline_is_described_by_the_dimensions_of_the_space(tmp_path):
    space = {"rate": studies.Log(1e-4, 1e-1), "width": studies.Ordinal([8, 16])}
    study = toys.make_study(
        directory=str(tmp_path), space=fdl.Config(studies.Space, space), name="two"
    )
    outcome = studies.run(study, packages=toys.PACKAGES, engine=toys.InstantEngine())
    data = report.describe(outcome.directory)
    rows = {row["path"]: row for row in data["matrix"]["rows"]}
    assert (rows["rate"]["texts"][0], rows["width"]["texts"][0]) == ("0.01", "8")
    assert data["study"] == f"study:{tmp_path}/two"


def test_words_are_read_by_path():
    words = ["rate=0.1", "model.layers[0].dim=8", "fiddler:fsdp(2)", "mesh:=Mesh(a=1)", "@tensor"]
    assert report.override_texts(words) == {
        "rate": "0.1",
        "model.layers[0].dim": "8",
        "fiddlers": "fiddler:fsdp(2) @tensor",
        "mesh": "Mesh(a=1)",
    }


def test_of_many_trials_the_matrix_shows_the_best_and_the_newest(study, monkeypatch):
    monkeypatch.setattr(report, "MOST_COLUMNS", 6)
    data = report.describe(study)
    numbers = [int(column["title"]) for column in data["matrix"]["columns"]]
    assert numbers == sorted(numbers)
    assert {0, 13, 14, 15, *data["best"]} <= set(numbers)
    assert len(numbers) == 6
    assert data["matrix"]["left_out"] == 10


def test_the_report_is_written_into_the_folder(study):
    path = report.write(str(study))
    assert path == study / "report.html"
    text = path.read_text()
    (inside,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert json.loads(inside) == json.loads(json.dumps(report.describe(study)))


@pytest.mark.full
def test_a_report_elsewhere_leads_to_the_trials(study, tmp_path, open_page):
    place = study.parents[1] / "some where" / "mine.html"
    place.parent.mkdir()
    assert report.write(study, place) == place
    page = open_page(place.read_text())
    links = page.locator("#trials tbody a, #matrix thead a")
    found = {link.get_attribute("href") for link in links.all()[:3]}
    assert found == {f"../studies/toy/trials/000{i}/" for i in range(3)}
    assert (place.parent / "../studies/toy/trials/0000/").is_dir()


@pytest.mark.full
def test_the_report_shows_what_came_of_the_study(study, open_page):
    page = open_page(report.render(study))
    assert page.locator("h1").inner_text() == "toy"
    names = _texts(page, "figcaption .name")
    assert names == [
        *("Learning curves of held_out/loss", "History of held_out/loss"),
        *("Importance for held_out/loss", "Distribution of held_out/loss", "Parallel coordinates"),
        *(row["path"] for row in report.describe(study)["importance"]["of"][0]["rows"]),
        *("held_out/loss over two dimensions", "Device groups over time"),
    ]
    history = page.get_by_role("img", name="held_out/loss of 13 complete trials in their order")
    assert history.locator("circle").count() == 13
    assert history.locator("circle.best").count() == 1
    assert page.locator(".shares li").count() == 3
    assert (
        "PED-ANOVA of 13 settings, a rough guess" in page.locator(".chart .note").all_inner_texts()
    )
    assert page.locator("path.way").count() == 13
    assert page.locator("path.curve").count() == 13  # the pruned one had not evaluated
    assert page.locator("rect.span").count() == 17  # one was lost, and begun again
    assert page.locator("#matrix tbody tr").count() == 4
    assert page.locator("#trials tbody tr").count() == 16
    check_accessible(page)


def test_trials_are_searched_sorted_and_run_again(study, open_page):
    page = open_page(report.render(study))
    page.keyboard.press("/")
    page.keyboard.type("failed")
    assert _texts(page, "#trials tbody th") == ["3"]
    assert page.locator("#trials [role=status]").inner_text() == "1 of 16 trials"
    page.locator("#search").fill("")
    page.locator("button.kind", has_text="pruned").click()
    assert _texts(page, "#trials tbody th") == ["5"]
    page.locator("button.kind", has_text="pruned").click()
    page.locator("#trials button.sort", has_text="held_out/loss").click()
    best = report.describe(study)["best"]
    assert _texts(page, "#trials tbody th")[0] == str(best[0])
    row = page.locator(f'#trials tr[data-trial="{best[0]}"]')
    row.hover()
    row.get_by_role("button").click()
    assert clipboard(page) == f"luthier train study:toy/{best[0]}"
    assert page.locator(".lit").count() >= 4  # the row, its point, its line, its time


def test_two_objectives_have_a_front(tmp_path, open_page):
    against = fdl.Config(studies.Measured, fdl.Config(Selector, "held_out", "accuracy", "higher"))
    folder = _run(tmp_path, 6, engine=Opposed(2), objectives=[against])
    page = open_page(report.render(folder))
    names = _texts(page, "figcaption .name")
    assert names[:5] == [
        "Learning curves of held_out/loss",
        *("History of held_out/loss", "History of held_out/accuracy", "Pareto front", "Importance"),
    ]
    front = page.get_by_role("img", name="held_out/accuracy over held_out/loss; 6 trials on")
    assert front.locator("circle.best").count() == 6
    # A step: between two trials of the front nothing is known to be better.
    places = re.findall(
        r"[ML]([\d.]+) ([\d.]+)", front.locator("path.best-line").get_attribute("d")
    )
    assert len(places) == 11
    turns = [(a[0] == b[0], a[1] == b[1]) for a, b in itertools.pairwise(places)]
    assert turns == [(False, True), (True, False)] * 5
    needed = "10 complete settings are needed; there are 6."
    assert page.get_by_text(needed).count() == 1
    assert "not dominated by another" in page.locator(".tiles").inner_text()


@pytest.mark.parametrize("trials", [1, 2])
def test_few_trials_make_a_report(tmp_path, open_page, trials):
    page = open_page(report.render(_run(tmp_path, trials)))
    assert page.locator("#trials tbody tr").count() == trials
    assert page.get_by_role("img", name="held_out/loss of").locator("circle").count() == trials
    check_accessible(page)


def test_no_trial_makes_a_report(tmp_path, open_page):
    (tmp_path / "facts.json").write_text(
        '{"name": "new", "metrics": ["loss"], "directions": ["lower"], "trials": 9}'
    )
    page = open_page(report.render(tmp_path))
    assert page.get_by_text("No trial has started yet.").count() == 1
    check_accessible(page)


def test_no_complete_trial_makes_a_report(tmp_path, open_page):
    page = open_page(
        report.render(_run(tmp_path, 2, toys.InstantEngine(1, {0: ["failed"], 1: ["infeasible"]})))
    )
    assert page.get_by_text("No trial is complete yet.").count() == 1
    assert "no trial is complete" in page.locator(".tiles").inner_text()


@pytest.mark.full
def test_hundreds_of_trials_make_a_report(tmp_path, open_page):
    """The journal is written by hand: what drives a study is not what is tested here."""
    folder = tmp_path / "studies" / "many"
    folder.mkdir(parents=True)
    image = '"><img src=x onerror="document.title = 1">'
    facts = {"name": "many", "metrics": ["loss"], "directions": ["higher"], "trials": 500}
    (folder / "facts.json").write_text(json.dumps(facts))
    slices = [{"index": 0, "name": image, "num_devices": 1}]
    lines = [{"kind": "opened", "at": 0.0, "slices": slices}]
    for n in range(500):
        words = [f"rate={n / 500}", f"note={image}", f"{image}=1"]
        asked = {"kind": "asked", "setting": n, "trials": [n], "assignment": {}, "words": words}
        lines.append({**asked, "at": float(n)})
        lines.append({"kind": "leased", "trial": n, "slice": 0, "fence": n, "at": float(n)})
        value = {"float": "nan"} if n == 499 else n * (499 - n)
        ended = {"kind": "ended", "trial": n, "outcome": "complete", "values": [value]}
        lines.append({**ended, "reason": image, "device_seconds": 1.0, "at": n + 0.5})
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = open_page(report.render(folder))
    assert page.locator("#trials tbody tr").count() == 100
    page.get_by_role("button", name="Show all 500").click()
    assert page.locator("#trials tbody tr").count() == 500
    assert page.locator("#matrix thead th").count() == 301
    label = "the best and the newest; 200 trials left out"
    assert page.locator("#matrix header").inner_text().endswith(label)
    history = page.get_by_role("img", name="loss of 499 complete trials")
    assert history.locator("circle").count() == 499
    assert page.title() == "many"
    assert page.locator("img").count() == 0


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    """The folder of a study whose trials all ended early: at step 3, or at step 1."""
    folder = tmp_path_factory.mktemp("pruned")
    return _run(folder, 6, pruner=fdl.Config(toys.ByNumber), seed=1)


def test_learning_curves_end_where_trials_ended(pruned, open_page):
    data = report.describe(pruned)
    rows = {number: (steps, values) for number, steps, values in data["curves"]["rows"]}
    assert [rows[number][0] for number in range(6)] == [[1, 2, 3], [1]] * 3
    assert all(values == sorted(values, reverse=True) for _, values in rows.values())
    page = open_page(report.render(pruned))
    assert page.locator("path.curve.state-pruned").count() == 6
    assert page.locator("circle.curve-end.state-pruned").count() == 6
    # Values of an early step are neither results nor ranked with them.
    assert page.get_by_text("No trial is complete yet.").count() == 1
    end = page.locator('circle.curve-end[data-trial="4"]').bounding_box()
    page.mouse.move(end["x"] + 2, end["y"] + 2)
    loss = f"{rows[4][1][-1]:.6g}"
    readout = page.locator("figure:has(path.curve) .readout")
    assert readout.inner_text().startswith(f"trial 4 (pruned), step 3: {loss}; rate=")
    assert page.locator("path.curve.lit").get_attribute("data-trial") == "4"


def test_a_study_of_many_trials_draws_some_curves_of_few_points(tmp_path):
    lines = [_line("opened", 0.0, slices=[SLICE])]
    for trial in range(report.MOST_CURVES + 50):
        asked = {"setting": trial, "trials": [trial], "assignment": {}, "words": []}
        lines += [_line("asked", 1.0, **asked)]
        lines += [_line("leased", 1.0, trial=trial, slice=0, fence=trial)]
        steps = range(1, 1000 if trial == 7 else 3)
        lines += [_line("reported", 2.0, trial=trial, step=n, value=1 / n) for n in steps]
        value = 0.0 if trial == 7 else 1.0
        ended = {"outcome": "complete", "values": [value], "reason": ""}
        lines += [_line("ended", 3.0, trial=trial, **ended)]
    facts = {"name": "many", "metrics": ["loss"], "directions": ["lower"], "trials": None}
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    curves = report.describe(tmp_path)["curves"]
    assert curves["reported"] == report.MOST_CURVES + 50
    assert len(curves["rows"]) == report.MOST_CURVES
    (best,) = [steps for number, steps, _ in curves["rows"] if number == 7]
    assert len(best) <= report.MOST_POINTS
    assert (best[0], best[-1]) == (1, 999)


def test_trials_are_sorted_by_any_column(study, open_page):
    page = open_page(report.render(study))
    heads = _texts(page, "#trials thead th")
    assert [head.strip(" ↑") for head in heads] == [
        *("Trial", "State", "held_out/loss", "rate", "width", "optimizer", "Time", "Overrides")
    ]
    column = page.locator("#trials tbody tr td:nth-child(5)")
    for order in (1, -1):
        page.locator("#trials button.sort", has_text="width").click()
        widths = [int(text) for text in column.all_inner_texts()]
        assert widths == sorted(widths)[::order]
    assert page.locator("#trials th[aria-sort=descending]").inner_text().startswith("width")
    page.locator("#trials button.sort", has_text="State").click()
    states = [text.split()[0] for text in _texts(page, "#trials tbody tr td:nth-child(2)")]
    assert states == sorted(states)


def test_axes_have_the_scale_of_their_dimension(study, open_page):
    data = report.describe(study)
    scales = {one["name"]: one["scale"] for one in data["dimensions"]}
    assert scales == {"rate": "log", "width": "log", "optimizer": "category"}
    widths = next(one["values"] for one in data["dimensions"] if one["name"] == "width")
    assert {8} < set(widths) <= {8, 16, 32, 64, 128, 256}
    page = open_page(report.render(study))
    # Each doubling of the width takes the same room.
    dots = page.get_by_role("img", name="held_out/loss by width").locator("circle")
    at = {
        widths[int(d.get_attribute("data-trial"))]: float(d.get_attribute("cx")) for d in dots.all()
    }
    steps = [(at[b] - at[a]) / math.log2(b / a) for a, b in itertools.pairwise(sorted(at))]
    assert steps == pytest.approx([steps[0]] * len(steps), rel=0.02)
    # The objective is linear until its button is pressed.
    curve = page.locator("path.curve").first
    before = curve.get_attribute("d")
    page.keyboard.press("l")
    assert page.get_by_role("button", name="Log scale").get_attribute("aria-pressed") == "true"
    assert page.locator("path.curve").first.get_attribute("d") != before


def test_two_dimensions_are_chosen_for_the_contours(study, open_page):
    page = open_page(report.render(study))
    page.get_by_label("Dimension on the x axis").select_option("rate")
    page.get_by_label("Dimension on the y axis").select_option("width")
    image = page.get_by_role("img", name="held_out/loss over rate and width: 13 complete trials")
    assert image.locator("rect.level").count() > 30
    assert image.locator("circle").count() == 13


@pytest.mark.full
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_report_is_readable_at_every_width(study, open_page, width):
    page = open_page(report.render(study), viewport={"width": width, "height": 900})
    check_fits(page)
    # Drawings keep their size: a text of 11 px in them is 11 px on the screen.
    scales = page.locator(".drawing svg").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().width / one.viewBox.baseVal.width)"
    )
    assert len(scales) >= 8
    assert scales == pytest.approx([1.0] * len(scales), abs=0.02)
    sizes = page.locator("svg text").evaluate_all(
        "all => all.map((one) => parseFloat(getComputedStyle(one).fontSize))"
    )
    assert min(sizes) >= 11
    # No column of the trials is out of sight: where there is no room, trials are cards.
    trials = page.locator("#trials .scroller")
    assert trials.evaluate("one => one.scrollWidth <= one.clientWidth + 1")
    assert page.locator("table.cards").count() == (width < 1280)
    check_accessible(page)


def test_the_page_of_a_running_study_reads_itself_again(study, tmp_path, open_page):
    text = report.render(study, live_seconds=1.0)
    page = open_page(text, name="report.html")
    page.locator("#trials button.sort", has_text="rate").click()
    page.locator("button.kind", has_text="complete").click()
    page.get_by_role("button", name="Log scale").click()
    page.locator("#matrix button.sort", has_text="width").click()
    page.keyboard.press("/")
    page.keyboard.type("rate")
    page.evaluate("scrollTo(0, 900)")
    shown = _texts(page, "#trials tbody th")
    page.evaluate("() => { window.isOld = true; }")
    newer = report.render(study, live_seconds=60.0).replace("16 of 16 trials", "17 of 17 trials")
    (tmp_path / "report.html").write_text(newer)
    page.wait_for_selector("text=17 of 17 trials ended")
    wait_until(page, "!window.isOld && document.querySelector('#trials tbody th') !== null")
    assert "17 of 17 trials ended" in page.locator("header.top").inner_text()
    assert "every 60 s while the study runs" in page.locator(".live").inner_text()
    assert _texts(page, "#trials tbody th") == shown
    assert page.locator("#search").input_value() == "rate"
    assert page.evaluate("document.activeElement.id") == "search"
    assert page.locator("#matrix [role=status]").inner_text().startswith("Sorted by width")
    assert page.get_by_role("button", name="Log scale").get_attribute("aria-pressed") == "true"
    assert page.evaluate("scrollY") == 900


def test_a_page_that_is_no_longer_written_stops_reading_itself(study, open_page, monkeypatch):
    monkeypatch.setattr(report.time, "time", lambda: 1e9)
    page = open_page(report.render(study, live_seconds=1.0))
    page.get_by_text("the study seems to be stopped").wait_for()
    assert page.get_by_role("button", name="Pause updates").count() == 0
    assert open_page(report.render(study)).locator(".live").count() == 0


def test_the_report_is_written_while_the_study_runs(tmp_path, study):
    folder = tmp_path / "toy"
    folder.mkdir()
    lines = (study / "journal.jsonl").read_text().splitlines(keepends=True)
    (folder / "facts.json").write_text((study / "facts.json").read_text())
    (folder / "journal.jsonl").write_text("".join(lines[:20]))

    def wait_for(number):
        for _ in range(500):
            if (folder / "report.html").is_file():
                text = (folder / "report.html").read_text()
                if f'"number":{number},' in text:
                    return text
            time.sleep(0.01)
        raise AssertionError(f"trial {number} is not in the report")

    with report.LiveReport(folder, seconds=0.02, first_seconds=0.01) as live:
        assert re.search(r'"live":\{"seconds":[\d.]+,', wait_for(0))
        (folder / "journal.jsonl").write_text("".join(lines))
        wait_for(15)
        # Where nothing is new, nothing is written.
        (folder / "report.html").unlink()
        time.sleep(0.2)
        assert not (folder / "report.html").exists()
        (folder / "journal.jsonl").unlink()
        for _ in range(500):
            if live.problem:
                break
            time.sleep(0.01)
        assert "journal.jsonl" in live.problem
    report.write(folder.parent / "toy", tmp_path / "last.html")
    assert '"live":null' in (tmp_path / "last.html").read_text()


@pytest.mark.full
def test_the_report_of_a_long_journal_is_written_by_another_process(tmp_path, study, monkeypatch):
    folder = tmp_path / "toy"
    folder.mkdir()
    for name in ("facts.json", "journal.jsonl"):
        shutil.copy(study / name, folder / name)
    monkeypatch.setattr(report, "LONG_BYTES", 0)
    monkeypatch.setattr(report, "write", None)  # it would fail in this process
    with report.LiveReport(folder, seconds=0.1, first_seconds=0.0) as live:
        deadline = time.monotonic() + 120
        while not (folder / "report.html").is_file():
            assert time.monotonic() < deadline
            assert not live.problem
            time.sleep(0.05)
        assert '"live":{"seconds":' in (folder / "report.html").read_text()
    (folder / "facts.json").write_text("{")
    with report.LiveReport(folder, first_seconds=0.0) as live:
        while not live.problem:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert live.problem.startswith("the report was not written: ")
    assert "facts.json" in live.problem


def test_a_study_that_ended_has_a_report_that_stays(study):
    assert '"live":null' in (study / "report.html").read_text()
    assert "driven by" not in (study / "report.html").read_text()


def test_rungs_are_drawn_into_the_curves(tmp_path, open_page):
    asked = {"assignment": {}, "words": []}
    lines = [
        _line("opened", 0.0, slices=[SLICE]),
        *(_line("asked", 0.5, setting=n, trials=[n], **asked) for n in (0, 1)),
        *(_line("leased", 1.0, trial=n, slice=0, fence=n) for n in (0, 1)),
        *(_line("reported", 2.0, trial=n, step=40, value=2.0 + n) for n in (0, 1)),
        *(_line("reached", 2.0, trial=n, step=40, rung=1, value=2.0 + n) for n in (0, 1)),
        *(_line("paused", 3.0, trial=n, step=40, rung=1, value=2.0 + n) for n in (0, 1)),
        _line("promoted", 3.5, trial=0, step=40, rung=1, value=2.0),
        _line("leased", 4.0, trial=0, slice=0, fence=2),
        _line("reported", 5.0, trial=0, step=120, value=1.0),
        _line("ended", 6.0, trial=0, outcome="complete", values=[1.0], reason=""),
    ]
    found = timeline_of(lines)
    assert found.rungs == {1: {40}}
    assert [(span.trial, span.end, span.outcome) for span in found.spans] == [
        *((0, 3.0, "paused"), (1, 3.0, "paused"), (0, 6.0, "complete"))
    ]
    facts = {"name": "rungs", "metrics": ["loss"], "directions": ["lower"], "trials": 2}
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = open_page(report.render(tmp_path))
    curves = page.get_by_role("img", name="Learning curves of 2 trials")
    assert curves.locator("line.rung").count() == 1
    assert curves.get_by_text("rung 1").count() == 1
    left, line = curves.locator("path.curve").first, curves.locator("line.rung")
    assert f"M{float(line.get_attribute('x1')):.1f} " in left.get_attribute("d")


SLICE = {"index": 0, "name": "cpu:0", "num_devices": 1}


def _line(kind, at, **fields):
    return {"kind": kind, "at": at, **fields}


def test_trials_stand_on_slices_for_as_long_as_they_ran():
    found = timeline_of(
        [
            _line("opened", 100.0, slices=[SLICE]),
            _line("asked", 100.5, setting=0, trials=[0], assignment={"rate": 0.1}, words=[]),
            _line("leased", 101.0, trial=0, slice=0, fence=1),
            _line("leased", 102.0, trial=1, slice=0, fence=2),
            _line("lost", 103.0, trial=1, reason="signal 9", counts=True),
            _line("leased", 103.5, trial=1, slice=0, fence=3),
            _line("ended", 104.0, trial=0, outcome="complete"),
            _line("noted", 106.0, notice="text"),
        ]
    )
    assert found.spans == [
        Span(0, 0, 1.0, 4.0, "complete"),
        Span(1, 0, 2.0, 3.0, "lost"),
        Span(1, 0, 3.5, 6.0, "running"),
    ]
    assert found.slices == {0: "cpu:0"}
    assert found.assignments == {0: {"rate": 0.1}}
    assert found.seconds == 6.0


def test_time_without_a_driver_does_not_count():
    found = timeline_of(
        [
            _line("noted", 99.0, notice="text"),
            _line("opened", 100.0, slices=[SLICE]),
            _line("closed", 110.0, over=False),
            _line("opened", 9000.0, slices=[SLICE]),
            _line("leased", 9001.0, trial=0, slice=0, fence=1),
            _line("ended", 9003.0, trial=0, outcome="pruned"),
        ]
    )
    assert found.spans == [Span(0, 0, 11.0, 13.0, "pruned")]
    assert found.seconds == 13.0


@pytest.mark.parametrize(
    "end", [[], [_line("closed", 110.0, over=False)]], ids=["killed", "closed"]
)
def test_what_a_driver_writes_before_it_opens_is_no_driven_time(end):
    resumed = [
        *(_line("noted", 9000.0, notice="text"), _line("retried", 9001.0, trial=0)),
        _line("noted", 9002.0, notice="text"),
    ]
    lines = [
        _line("opened", 100.0, slices=[SLICE]),
        _line("leased", 101.0, trial=0, slice=0, fence=1),
        _line("ended", 110.0, trial=0, outcome="failed"),
        *(*end, *resumed),
    ]
    assert timeline_of(lines).seconds == 10.0
    opened = [
        _line("opened", 9010.0, slices=[SLICE]),
        _line("leased", 9011.0, trial=0, slice=0, fence=2),
        _line("noted", 9013.0, notice="text"),
    ]
    assert timeline_of([*lines, *opened]).seconds == 13.0
    ended = _line("ended", 9014.0, trial=0, outcome="complete")
    found = timeline_of([*lines, *opened, ended])
    assert found.spans == [Span(0, 0, 1.0, 10.0, "failed"), Span(0, 0, 11.0, 14.0, "complete")]
    assert found.seconds == 14.0


def test_a_clock_that_is_set_back_makes_no_time_negative():
    found = timeline_of(
        [
            _line("opened", 100.0, slices=[SLICE]),
            _line("leased", 105.0, trial=0, slice=0, fence=1),
            _line("ended", 95.0, trial=0, outcome="complete"),
        ]
    )
    assert found.spans == [Span(0, 0, 5.0, 5.0, "complete")]


def test_a_trial_that_was_refused_was_on_no_slice():
    found = timeline_of([_line("ended", 1.0, trial=0, outcome="infeasible")])
    assert found.spans == []
    assert timeline_of([]).seconds == 0.0


DISTRIBUTIONS = {
    "rate": distribution_to_json(FloatDistribution(1e-4, 1e-1, log=True)),
    "width": distribution_to_json(IntDistribution(3, 8)),
    "kind": distribution_to_json(CategoricalDistribution((0, 1))),
}


def _complete(count, value):
    found = []
    for i in range(count):
        rate, width, kind = 10 ** (-4 + 3 * (i * 0.618 % 1)), 3 + i % 6, i * 7 % 5 % 2
        chosen = {"rate": rate, "width": width, "kind": kind}
        found.append((chosen, value(rate, width)))
    return found


@pytest.mark.parametrize("direction", ["lower", "higher"])
def test_what_decides_counts_most(direction):
    sign = 1 if direction == "lower" else -1
    complete = _complete(
        60, lambda rate, width: [sign * ((math.log10(rate) + 3) ** 2 + 0.01 * width)]
    )
    shares, count = importance(complete, DISTRIBUTIONS, [direction])
    assert count == 60
    assert next(iter(shares)) == "rate"
    assert shares["rate"] > 0.5
    assert sum(shares.values()) == pytest.approx(1.0)


def test_few_settings_give_no_importance():
    complete = _complete(FEWEST - 1, lambda rate, width: [rate])
    assert importance(complete, DISTRIBUTIONS, ["lower"]) == ({}, FEWEST - 1)
    assert importance([], {}, ["lower"]) == ({}, 0)


def test_what_has_no_number_or_no_choice_is_left_out():
    complete = _complete(30, lambda rate, width: [rate])
    odd = [({}, [0.0]), ({"rate": 1e-3, "width": 3, "kind": 0}, [math.nan])]
    assert importance([*odd, *complete], DISTRIBUTIONS, ["lower"])[1] == 30


def test_dimensions_may_take_part_in_some_settings_only():
    complete = _complete(60, lambda rate, width: [abs(width - 5)])
    for chosen, _ in complete[::2]:
        del chosen["rate"]
    shares, _ = importance(complete, DISTRIBUTIONS, ["lower"])
    assert set(shares) == {"rate", "width", "kind"}
    assert next(iter(shares)) == "width"


def test_several_objectives_are_judged_by_their_front():
    complete = _complete(
        60, lambda rate, width: [abs(math.log10(rate) + 3), abs(math.log10(rate) + 2.9)]
    )
    shares, _ = importance(complete, DISTRIBUTIONS, ["lower", "lower"])
    assert next(iter(shares)) == "rate"


def test_the_time_is_bounded():
    complete = _complete(20_000, lambda rate, width: [rate, 1 / width])
    start = time.process_time()
    _, count = importance(complete, DISTRIBUTIONS, ["lower", "lower"])
    assert count == MOST
    assert time.process_time() - start < 5.0


def test_the_rungs_of_a_real_study_are_in_its_report(tmp_path):
    scheduler = fdl.Config(studies.Asha, reduction=3, num_rungs=3)
    folder = _run(tmp_path, 12, base=fdl.Config(toys.Toy, steps=9), scheduler=scheduler)
    data = report.describe(folder)
    assert data["curves"]["rungs"][:2] == [[1, [1]], [2, [3]]]
    lengths = {number: steps[-1] for number, steps, _ in data["curves"]["rows"]}
    assert set(lengths.values()) == {1, 3, 9}
    states = {trial["number"]: trial["state"] for trial in data["trials"]}
    assert all((states[n] == "complete") == (last == 9) for n, last in lengths.items())
    assert "paused" in {span[4] for span in data["spans"]}
