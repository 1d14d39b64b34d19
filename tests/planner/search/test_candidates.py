import jax
import pytest

from luthier import graph as graphs
from luthier.planner import checked_program
from luthier.planner.search import (
    RematChange,
    apply_candidate,
    can_change,
    candidates,
    in_chunks,
    remats,
    written_out,
)

WIDE = ["training.global_batch_size=16", "parallelism.mesh.fsdp=2"]


@pytest.fixture(scope="module")
def graph():
    return graphs.apply(graphs.resolve("configs.lm.quickstart"), WIDE)


@pytest.fixture(scope="module")
def program(graph):
    return checked_program(graph, jax.devices()[:8])


def test_policies_are_those_the_experiment_does_not_have(graph):
    names = [policy.name for policy in remats(graph)]
    assert names == ["", "SaveProjections", "FullRemat"]
    full = graphs.apply(
        graph, ["model.stack=luthier.layers.Scanned(remat=luthier.layers.FullRemat())"]
    )
    found = remats(full)
    assert [policy.name for policy in found] == ["", "NoRemat", "SaveProjections"]
    named = remats(full, ["mlp_up", "query", "attention_context"])[3:]
    names = [["query", "attention_context", "mlp_up"], ["query", "attention_context"]]
    assert [p.name for p in named[:2]] == [f"SaveNamed({', '.join(n)})" for n in names]
    assert all(can_change(full, policy) for policy in named)
    assert found[1].overrides == ("model.stack.remat=luthier.layers.NoRemat()",)
    assert all(can_change(full, policy) for policy in found)
    assert not can_change(graph, RematChange("x", ("model.no_such_path=1",)))


def test_what_saves_memory_makes_unrolled_layers_a_loop(graph):
    found = {p.name: p.overrides for p in remats(graphs.apply(graph, ["model.stack.unroll=4"]))}
    full = "luthier.layers.FullRemat()"
    assert found["FullRemat"] == (f"model.stack=luthier.layers.Scanned(remat={full})",)
    # With `auto`, the policy decides, too.
    found = {p.name: p.overrides for p in remats(graphs.apply(graph, ["model.stack.unroll=auto"]))}
    assert found["FullRemat"] == (f"model.stack.remat={full}",)


def test_layers_are_written_out_with_the_policy_that_there_is(graph, program):
    for policy in ("FullRemat()", "SaveNamed(names=['attention_context'])"):
        words = [f"model.stack=luthier.layers.Scanned(remat=luthier.layers.{policy})"]
        found = written_out(graphs.apply(graph, words), program)
        stack = f"luthier.layers.Unrolled(remat=luthier.layers.{policy})"
        assert found.overrides == (f"model.stack={stack}",)
    assert written_out(graphs.apply(graph, list(found.overrides)), program) is None
    deep = graphs.apply(graph, ["model.num_layers=33"])
    assert written_out(deep, checked_program(deep, jax.devices()[:8])) is None


def test_every_candidate_is_what_its_overrides_make(graph, program):
    found = list(candidates(graph, program, 8, remats(graph)[:1]))
    assert len({(tuple(c.sizes.items()), c.accumulation) for c in found}) == len(found)
    for candidate in found:
        made = checked_program(apply_candidate(graph, candidate), jax.devices()[:8])
        assert dict(made.sizes) == dict(candidate.sizes)
        assert made.experiment.training.accumulation == candidate.accumulation


def test_the_layout_that_there_is_needs_no_override(graph, program):
    own = [c for c in candidates(graph, program, 8, remats(graph)) if not c.overrides]
    assert [(c.sizes["data"], c.sizes["fsdp"], c.accumulation) for c in own] == [(4, 2, 1)]


def test_what_cannot_be_divided_is_no_candidate(graph, program):
    found = list(candidates(graph, program, 8, remats(graph)[:1]))
    assert {c.sizes["tensor"] for c in found} == {1, 2}  # two heads for keys and values
    shards = {c.sizes["data"] * c.sizes["fsdp"] * c.accumulation for c in found}
    assert all(16 % number == 0 for number in shards)


def test_logits_may_be_computed_in_chunks(graph, program):
    halves, quarters = in_chunks(graph, program, [RematChange("", ())])
    assert halves.overrides == ("task.chunking=luthier.losses.Chunked(length=64)",)
    assert quarters.overrides == ("task.chunking=luthier.losses.Chunked(length=32)",)
    chunked = graphs.apply(graph, list(quarters.overrides))
    assert in_chunks(chunked, checked_program(chunked, jax.devices()[:8]), [quarters]) == []
