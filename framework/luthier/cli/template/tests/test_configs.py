"""Every experiment is valid, and its smoke-test config trains and is evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest

import luthier
from luthier import graph
from luthier.cli import find_experiments
from luthier.recipes import quick_compile, tiny

PACKAGES = ["my_project"]
CONFIGS = Path(__file__).parents[1] / "configs"
# Functions with required arguments are recipes for others; they are not experiments by themselves.
EXPERIMENTS = [found.reference for found in find_experiments(CONFIGS) if not found.arguments]


@pytest.mark.parametrize("reference", EXPERIMENTS)
def test_an_experiment_is_valid(reference):
    graph.validate(graph.resolve(reference), PACKAGES)


@pytest.mark.parametrize("reference", EXPERIMENTS)
def test_a_small_version_takes_a_step(reference, tmp_path):
    one_step = ["training.stop=Steps(1)", "checkpoints=None", f"records.directory={tmp_path}"]
    experiment = graph.apply(quick_compile(tiny(graph.resolve(reference))), one_step)
    result = luthier.train(experiment, packages=PACKAGES)
    assert result.step == 1
