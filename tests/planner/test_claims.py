from __future__ import annotations

import importlib

import pytest

from luthier.planner import claimed, contradiction
from luthier.planner.checks import FACTOR, SMOKE_TEST_SUFFIXES


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("llama_7b", 7e9),
        ("gpt2-125M", 125e6),
        ("pax 1.3B", 1.3e9),
        ("lm_1_3b", 1.3e9),
        ("c4_1p3b_adam", 1.3e9),
        ("1b", 1e9),
        ("qwen3_0.6b", 0.6e9),
    ],
)
def test_names_claim_sizes(name, size):
    assert claimed(name)[1] == pytest.approx(size)


@pytest.mark.parametrize(
    "name", ["mnist5k", "7bit", "100mb", "quickstart", "b1", "gpt2", "v2.1", "8bit_lm", "7b_to_1b"]
)
def test_names_without_a_size(name):
    assert claimed(name) is None


def test_a_twin_has_the_name_of_the_whole_and_not_its_size():
    modules = ("luthier.recipes.debug", "luthier.recipes.tiny")
    assert tuple(importlib.import_module(name).SUFFIX for name in modules) == SMOKE_TEST_SUFFIXES
    assert [claimed(f"llama_7b{suffix}") for suffix in SMOKE_TEST_SUFFIXES] == [None, None]


def test_a_count_far_from_the_claim_is_reported():
    """The two of Pax that its users found: the 1.3B has 2.93B parameters, the 22B has 0.87B."""
    assert contradiction("lm_1.3b", 2_930_000_000) == (
        "'lm_1.3b' says 1.3b, but the model has 2,930,000,000 parameters"
    )
    assert contradiction("22B", 870_000_000) == (
        "'22B' says 22B, but the model has 870,000,000 parameters"
    )
    assert contradiction("gemma_2b", 2_506_172_416) == ""  # embeddings are not counted in its name
    assert contradiction("llama_7b", 6_738_415_616) == ""
    assert contradiction("quickstart", 1) == ""
    assert contradiction("1b", int(1e9 * FACTOR)) == ""
    assert contradiction("1b", int(1e9 * FACTOR) + 1) != ""
