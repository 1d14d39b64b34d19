"""What the benches share: processes that tell what they found, turns, ratios, tables."""

import contextlib
import json

import jax
import pytest

import luthier
from luthier.study.driver import Journal
from tools.bench import child, driver, report, schedulers, sweep
from tools.bench import step as bench_step
from tools.bench.sweep_peers import trial
from tools.docs.pages import performance


def test_the_result_of_a_process_is_its_last_line():
    code = "import json, os, sys; print('hello'); print(json.dumps([sys.argv[1], os.environ['A']]))"
    assert child.result_of(code, ["word"], {"A": "1"}) == ["word", "1"]
    assert child.result_of("import tools.bench.child as c; print(1 if c.ROOT else 0)") == 1


def test_a_process_that_fails_says_why():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        child.result_of("1 / 0")


def test_sides_take_turns_and_begin_in_turn():
    order, now = [], [0.0]

    def side(name, seconds):
        def run(count):
            order.append(name)
            now[0] += seconds * count

        return run

    sides = {"slow": side("slow", 3.0), "fast": side("fast", 2.0)}
    found = bench_step.take_turns(sides, 2, 10, clock=lambda: now[0])
    assert found == {"slow": [3.0, 3.0], "fast": [2.0, 2.0]}
    assert order == ["slow", "fast", "fast", "slow", "slow", "fast"]  # the first two warm up


def test_sides_are_compared_block_by_block():
    """A load that slows both sides of a pair down leaves its ratio as it was."""
    loads = [1.0, 5.0, 2.0, 1.0]
    row = bench_step.compared("x", [1.04 * s for s in loads], loads, "1.05")
    assert row["ratio"] == pytest.approx(1.04)
    assert row["quartiles"] == "1.040 to 1.040"
    assert row["other us"] == pytest.approx(1.5e6)


@pytest.mark.full
def test_a_table_is_written_with_what_was_asked_and_where(tmp_path, monkeypatch):
    rows = [{"what": "a", "s": 0.123456}, {"what": "b", "s": None}]
    report.write(report.Report("step", {"core": 0, "rounds": 3}, rows), tmp_path / "step.json")
    assert json.loads((tmp_path / "step.json").read_text())["environment"]["versions"]["jax"]
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    page = performance.render()
    assert "| what | s |\n| --- | --- |\n| a | 0.123 |\n| b | - |\n" in page
    assert "\nMeasured on 20" in page
    assert " Settings: core 0, rounds 3. Versions: Python " in page
    unmeasured = page.partition("## Input")[2].partition("\n## ")[0]
    assert unmeasured.rstrip().endswith(performance.UNMEASURED)


@pytest.mark.slow
def test_the_loop_by_hand_trains_what_luthier_trains(tmp_path):
    """Model, data, schedule, optimizer and evaluation: else the table compares two programs."""
    held_out = tmp_path / "held_out.txt"
    held_out.write_text("To be, or not to be, that is the question. " * 20)
    overrides = sweep.Case(32, 1, 8, held_out, tmp_path).overrides
    graph = luthier.experiment(
        "configs.lm.quickstart",
        [*overrides, f"records.directory={tmp_path}", "records.console=None", "records.wandb=None"],
    )
    found = luthier.train(graph, devices=jax.devices()[:1]).metrics["held_out"]
    expected = found["nats_per_token"]
    trainer = trial.Trainer(luthier.graph.build(graph))
    assert trainer.run(4e-3) == pytest.approx(expected, rel=1e-4)
    *_, last = trainer.losses(4e-3, trial.DECAY, every=4, num_batches=1)
    assert last == pytest.approx(found["nats_per_byte"], rel=1e-4)
    losses = trainer.run_together([4e-3, 1e-3])
    assert losses[0] == pytest.approx(expected, rel=1e-4)
    assert losses[1] == pytest.approx(trainer.run(1e-3), rel=1e-4)
    assert losses[1] > losses[0]


def test_the_time_of_a_study_is_split_over_its_parts(tmp_path):
    """Two packed trials; then one that was leased with them, and waited in the worker."""
    lines = [{"kind": "leased", "trial": trial, "at": 10.0} for trial in range(3)]
    lines += [{"kind": "ended", "trial": trial, "at": at} for trial, at in enumerate((20, 20, 26))]
    spans = [
        [(11.0, 19.0, {"step": 6.0, "evaluate": 2.0})],
        [(11.0, 14.0, {"step": 3.0}), (14.0, 20.0, {"data_wait": 3.0, "evaluate": 3.0})],
        [(22.0, 25.0, {"compile": 3.0})],
    ]
    for number, found in enumerate(spans):
        path = tmp_path / "trials" / f"{number:04d}" / "run" / "goodput.jsonl"
        path.parent.mkdir(parents=True)
        made = [{"kind": "began"}]
        for start, end, seconds in found:
            made.append({"kind": "span", "start": start, "end": end, "seconds": seconds})
        path.write_text("".join(json.dumps(line) + "\n" for line in made))
    # The trials are open for 9 + 9 + 4 s, within 13 s: each second of a trial counts 13 / 22.
    assert sweep.split_time(tmp_path, lines, 4.0, 25.0) == (
        "start 6.0 s, opening and initialization 0.0 s, compile 1.8 s, steps 7.1 s, "
        "evaluation 3.0 s, saving 0.0 s, closing (with W&B) 1.2 s, "
        "driver, reading and planning 3.0 s, end 3.0 s"
    )


def _journal(path, *lines):
    with contextlib.closing(Journal(path)) as journal:
        for kind, fields in lines:
            journal.add(kind, **fields)
    return schedulers.curve_of(path)


def _ended(trial, outcome, seconds, *values):
    fields = {"trial": trial, "outcome": outcome, "reason": "", "device_seconds": seconds}
    return "ended", fields | {"values": list(values) or None}


def test_ways_are_compared_by_the_device_time_to_the_loss_of_random_search(tmp_path):
    asked = [
        ("asked", {"setting": n, "trials": [n], "assignment": {}, "words": []}) for n in range(3)
    ]
    random = _journal(
        tmp_path / "random",
        *asked[:2],
        _ended(0, "complete", 10.0, 3.0),
        _ended(1, "complete", 10.0, 2.0),
    )
    at_rung = {"trial": 0, "step": 1, "rung": 1, "value": 1.0}
    asha = _journal(
        tmp_path / "asha",
        *asked,
        ("paused", {**at_rung, "device_seconds": 1.0}),
        _ended(1, "complete", 4.0, 2.0),
        # A value at a rung is no loss of a whole trial.
        _ended(0, "pruned", 0.0, 1.0),
        _ended(2, "complete", 9.0, 2.5),
    )
    assert asha == ([(5.0, 2.0)], {"trials": 3, "complete": 2, "device seconds": 14.0})
    never = ([(1.0, 2.5)], {"trials": 1, "complete": 1, "device seconds": 1.0})
    found = {schedulers.BASELINE: random, "ASHA": asha, "never": never}
    rows = schedulers.rows_of_seed("rungs", 0, found)
    assert [row["ratio"] for row in rows] == [1.0, 0.25, None]
    assert "rungs, ASHA: median ratio 0.25, reached in 1 of 1 seeds" in schedulers.medians(rows)
    assert "rungs, never: median ratio inf, reached in 0 of 1 seeds" in schedulers.medians(rows)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_ten_thousand_trials_with_rungs_take_no_more_time_at_the_end():
    study = {"trials": 10_000, "sampler": "random", "slices": 4, "scheduler": "asha"}
    found = child.result_of(driver.TRIALS, [json.dumps(study)])
    # In milliseconds of processor time, and mebibytes: some thousand bytes a trial.
    assert found["driver, a decision at the end"] <= 10.0
    assert found["memory at the end"] - found["memory after a tenth"] <= 64.0
    assert found["luthier sweep show"] <= 3.0
