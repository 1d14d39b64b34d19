import itertools
import json
import math
import re
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
from tests.browsing import check_accessible, clipboard


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
    places = re.findall(r"[ML]([\d.]+) ([\d.]+)", front.locator("path.best-line").get_attribute("d"))
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
