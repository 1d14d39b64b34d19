import jax
import pytest

from luthier import graph as graphs
from luthier.plan.planning import checked_program
from luthier.plan.search.model import layout_of
from luthier.plan.search.search import (
    MARGIN,
    batch_bytes,
    estimates,
    proposals,
    state_bytes,
)
from luthier.plan.targets import CHIPS


@pytest.fixture(scope="module")
def graph():
    return graphs.apply(graphs.resolve("configs.lm.quickstart"), ["training.global_batch_size=64"])


@pytest.fixture(scope="module")
def program(graph):
    return checked_program(graph, jax.devices()[:8])


@pytest.fixture(scope="module")
def found(graph, program):
    make = lambda changed: checked_program(changed, jax.devices()[:8])
    return estimates(graph, program, CHIPS["v5e"], 8, make)


def test_layouts_are_ranked_by_their_cost(found):
    assert len(found) > 20
    assert [e.cost for e in found] == sorted(e.cost for e in found)


def test_proposals_fit_with_a_margin_and_change_something(found):
    needs = sorted(e.needed_bytes for e in found)
    limit = int(needs[len(needs) // 4] / MARGIN) + 1
    rows = proposals(found, limit, count=3)
    assert len(rows) == 3
    assert all(row["overrides"] and row["needed_bytes"] <= MARGIN * limit for row in rows)
    assert not any(row["is_compiled"] for row in rows)
    assert proposals(found, 1) == []


def test_the_state_is_counted_as_it_is_laid_out(program):
    held = sum(p.bytes_per_device for p in program.placements.values())
    batch = sum(e.size * e.dtype.itemsize for e in program.batch.values()) // 8
    assert state_bytes(program, layout_of(program)) == held
    assert batch_bytes(program, layout_of(program)) == batch
