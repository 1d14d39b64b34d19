from __future__ import annotations

import hypothesis
import pytest
from graph_toys.random_pairs import pairs

from luthier.graph import compare, copy_graph, diff, equal, to_json

SETTINGS = hypothesis.settings(
    deadline=None, suppress_health_check=list(hypothesis.HealthCheck), max_examples=100
)


def patched(a, source):
    module: dict = {}
    exec(source, module)
    return module["patch"](copy_graph(a))


def check(a, b):
    for make_a, make_b in ((compare.document, compare.document), (read, read)):
        comparison = compare.compare(make_a(a), make_b(b))
        source = compare.patch_of(comparison)
        assert equal(patched(a, source), b), source
        assert (comparison.changes == []) == equal(a, b)
    assert (diff(a, b) == []) == equal(a, b)


def read(graph):
    return compare.read(to_json(graph))


@pytest.mark.full
@SETTINGS
@hypothesis.given(pairs())
def test_a_patch_makes_the_second_graph_of_the_first(pair):
    check(*pair)


@pytest.mark.slow
@hypothesis.settings(SETTINGS, max_examples=2000)
@hypothesis.given(pairs())
def test_2000_patches(pair):
    check(*pair)
