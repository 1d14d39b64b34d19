from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest

from luthier.metrics import (
    ACCURACY,
    BITS_PER_BYTE,
    LOSS,
    NATS_PER_BYTE,
    NATS_PER_TOKEN,
    PERPLEXITY,
    Metric,
    Ratio,
)

ALL = [ACCURACY, BITS_PER_BYTE, LOSS, NATS_PER_BYTE, NATS_PER_TOKEN, PERPLEXITY]


def test_names_are_distinct_and_sort():
    assert len({metric.name for metric in ALL}) == len(ALL)
    backwards = ALL[::-1]
    assert sorted(backwards) == ALL


def test_are_keys_of_what_a_jitted_function_returns():
    @jax.jit
    def outputs(x):
        return {metric: Ratio(x, x + 1) for metric in reversed(ALL)}

    assert set(outputs(jnp.float32(1))) == set(ALL)


def test_only_accuracy_is_better_higher():
    assert [metric.name for metric in ALL if metric.better == "higher"] == ["accuracy"]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [(NATS_PER_BYTE, 0.5), (BITS_PER_BYTE, 0.5 / math.log(2)), (PERPLEXITY, math.exp(0.5))],
)
def test_transforms_apply_to_the_merged_ratio(metric, expected):
    assert metric.value(Ratio(1.0, 2.0)) == pytest.approx(expected, rel=1e-15)


def test_perplexity_overflows_to_infinity():
    assert PERPLEXITY.value(Ratio(1e6, 1.0)) == math.inf


def test_a_metric_of_ones_own():
    assert Metric("error", transform=lambda value: 1 - value).value(Ratio(1.0, 4.0)) == 0.75


def test_a_metric_reads_as_its_name():
    assert f"held_out/{PERPLEXITY}" == "held_out/perplexity"
