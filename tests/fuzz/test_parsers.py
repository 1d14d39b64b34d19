"""Every parser of luthier, given broken inputs: it accepts or refuses, and does nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutation import mutate
from tests.fuzz.targets import TARGETS
from tests.fuzz.watching import Violation, attempt

NAMES = [target.name for target in TARGETS]
FEW, MANY = 60, 10_000


def _drill(target, folder, inputs):
    """Give a parser its corpus, and inputs made of it by a seeded mutator."""
    corpus, draw = [data for _, data in target.corpus()], random.Random(f"{target.name} 0")
    for name, data in target.corpus():
        try:
            attempt(target.parse, data, folder, target.packages)
        except Violation as violation:
            pytest.fail(f"{name}: {violation}")
    outcomes = {"accepted": 0, "refused": 0}
    for _ in range(inputs):
        data = mutate(draw, corpus)
        try:
            outcomes[attempt(target.parse, data, folder, target.packages)] += 1
        except Violation as violation:
            pytest.fail(f"{violation}, given {data!r}")
    return outcomes


def _search(target, folder, examples):
    """Have Hypothesis choose the changes, and shrink what it finds."""
    corpus = [data for _, data in target.corpus()]

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.randoms(use_true_random=False))
    def check(draw):
        attempt(target.parse, mutate(draw, corpus), folder, target.packages)

    check()


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_a_few_broken_inputs(target, tmp_path):
    assert target.corpus()
    assert sum(_drill(target, tmp_path, FEW).values()) == FEW
    _search(target, tmp_path, FEW // 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_ten_thousand_broken_inputs(target, tmp_path):
    assert sum(_drill(target, tmp_path, MANY).values()) == MANY


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_ten_thousand_inputs_of_hypothesis(target, tmp_path):
    _search(target, tmp_path, MANY)


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_mutations_depend_on_the_seed_alone_and_reach_the_parser(target):
    corpus = [data for _, data in target.corpus()]
    draws = [random.Random(3), random.Random(3), random.Random(4)]
    first, again, other = ([mutate(draw, corpus) for _ in range(20)] for draw in draws)
    assert first == again != other
    assert len(set(first) - set(corpus)) > 10
