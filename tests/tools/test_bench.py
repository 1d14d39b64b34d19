"""What the benches share: processes that tell what they found, turns, ratios, tables."""

import json

import pytest

from tools.bench import child, report
from tools.bench import step as bench_step
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
    assert "\nWith core 0, rounds 3. 20" in page
    unmeasured = page.partition("## Input")[2].partition("\n## ")[0]
    assert unmeasured.rstrip().endswith(performance.UNMEASURED)
