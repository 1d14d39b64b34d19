"""Budgets: what a step may cost, and what is told where it costs more."""

import dataclasses
import importlib.util
import json
import re
from pathlib import Path

import pytest

from luthier import graph as graphs
from luthier.layers import blocks, embedding, mlp
from luthier.parallel import constrain
from luthier.planner import plan_here, targets
from tools.step_budget import StepBudget

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("model.dim=64", "model.num_layers=2", "data.length=32")
TENSOR = ("fiddler:luthier.recipes.fsdp(4)", "fiddler:luthier.recipes.tensor(2)")
FSDP = ("fiddler:luthier.recipes.fsdp(8)",)


def _tool():
    source = ROOT / "tools" / "check_budgets.py"
    spec = importlib.util.spec_from_file_location("check_budgets", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_budgets = _tool()


def planned(*words):
    """Return what a small model costs, as its layers are now."""
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), [*SMALL, *words])
    return StepBudget.of(plan_here(graph, targets.read("cpu:8"), level="compile"))


@pytest.fixture(scope="module")
def budget():
    return planned(*TENSOR)


@pytest.mark.slow
def test_what_costs_no_more_is_within_the_budget(budget):
    assert StepBudget.from_dict(budget.to_dict()) == budget
    assert budget.exceeded(planned(*TENSOR)) == []


@pytest.mark.full
def test_an_extra_all_gather_is_reported_with_its_axis_and_bytes(budget, monkeypatch):
    monkeypatch.setattr(mlp, "constrain", lambda x, axes: constrain(x, axes, {"mlp": ()}))
    lines = budget.exceeded(planned(*TENSOR))
    (line,) = [line for line in lines if line.startswith("all-gather along tensor: ")]
    before = budget.collectives.get("all-gather along tensor", {"count": 0})["count"]
    now, _, _, _, _, _, was = line.removeprefix("all-gather along tensor: ").split()[:7]
    assert int(now) > int(was) == before


@pytest.mark.slow
def test_a_missing_constraint_is_reported_with_its_axis_and_bytes(monkeypatch):
    budget = planned(*FSDP)
    for module in (embedding, blocks):  # what layers hand on is laid out by nobody
        monkeypatch.setattr(module, "constrain", lambda x, axes: x)
    lines = budget.exceeded(planned(*FSDP))
    (line,) = [line for line in lines if line.startswith("all-gather along fsdp: ")]
    pattern = r"(\d+) of [\d.]+ MiB a step, (\d+) of [\d.]+ MiB before"
    now, before = map(int, re.fullmatch(pattern, line.partition(": ")[2]).groups())
    assert now > before == budget.collectives["all-gather along fsdp"]["count"]


@pytest.mark.full
def test_growth_is_reported_by_kind(budget):
    kinds = dict(budget.bytes_per_device)
    less = dataclasses.replace(budget, bytes_per_device=kinds | {"optimizer": 1000})
    (line,) = less.exceeded(dataclasses.replace(budget, bytes_per_device={"optimizer": 1500}))
    assert line == "bytes of optimizer: 1.5 KiB on each device, 1000 B before (+50.0%)"
    assert less.exceeded(dataclasses.replace(budget, bytes_per_device={"optimizer": 1019})) == []
    fewer = dataclasses.replace(budget, flops={"full": 100})
    lines = fewer.exceeded(dataclasses.replace(budget, flops={"full": 150}))
    assert lines == ["FLOPs (full): 150 a step, 100 before (+50.0%)"]
    before = {"float32_flops": 0, "kernels": 1200, "exposed_bytes": 1000, "scatters": 1}
    after = {"float32_flops": 5, "kernels": 1201, "exposed_bytes": 1500, "scatters": 1}
    fewer, more = (dataclasses.replace(budget, work=work) for work in (before, after))
    assert fewer.exceeded(more) == [
        "FLOPs of products of float32: 5, 0 before",
        "kernels: 1,201, 1,200 before (+0.1%)",
        "collectives without a product beside them: 1.5 KiB, 1000 B before (+50.0%)",
    ]
    assert more.exceeded(fewer) == []


def test_a_budget_of_other_versions_is_not_compared(monkeypatch):
    name = "quickstart-fsdp"
    made = json.loads((check_budgets.BUDGETS / f"{name}.json").read_text())["jax"]
    monkeypatch.setattr(check_budgets.jax, "__version__", made)
    assert check_budgets.why_not_compared(name) == ""
    monkeypatch.setattr(check_budgets.jax, "__version__", "0.9")
    reason = check_budgets.why_not_compared(name)
    assert reason == f"not compared: it is of jax {made}, and here is jax 0.9"


def test_a_recipe_that_takes_more_is_reported_by_its_name():
    name = "configs.pax.c4:experiment"
    kept = json.loads((check_budgets.BUDGETS / "recipes.json").read_text())
    before = StepBudget.from_dict(kept[name])
    assert check_budgets.difference_of_recipes({name: before}) == []
    more = dict(before.bytes_per_device) | {"optimizer": 2 * before.bytes_per_device["optimizer"]}
    lines = check_budgets.difference_of_recipes(
        {name: dataclasses.replace(before, bytes_per_device=more), "mine:experiment": before}
    )
    assert lines == [
        f"{name}: bytes of optimizer: 4.1 GiB on each device, 2.1 GiB before (+100.0%)",
        "mine:experiment: has no budget",
    ]
    (line,) = check_budgets.difference_of_recipes(
        {name: dataclasses.replace(before, slice="cpu:8")}
    )
    assert line == f"{name}: is of cpu:8, its budget of cpu:4"
    assert check_budgets.difference_of_recipes({name: "no"}) == [f"{name}: is refused: no"]


def test_every_shipped_experiment_has_a_budget():
    kept = json.loads((check_budgets.BUDGETS / "recipes.json").read_text())
    assert kept.keys() - {"jax"} == set(check_budgets.shipped.references())


@pytest.mark.full
def test_a_recipe_takes_what_its_budget_says():
    name = "configs.lm.quickstart:experiment"
    if reason := check_budgets.why_not_compared(check_budgets.RECIPES):
        pytest.skip(reason)
    assert check_budgets.difference_of_recipes(check_budgets.recipes([name])) == []


def test_every_budget_has_its_file():
    there = {path.stem for path in check_budgets.BUDGETS.glob("*.json")}
    assert there == set(check_budgets.NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", check_budgets.NAMES)
def test_every_budget_is_kept(name):
    reason = check_budgets.why_not_compared(name)
    if reason:
        pytest.skip(reason)
    assert check_budgets.difference(name) == []
