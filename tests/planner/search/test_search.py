import dataclasses
import re

import jax
import pytest

from luthier import graph as graphs
from luthier.planner import checked_program, plan_here, targets
from luthier.planner.search import (
    STORAGES,
    Candidate,
    Estimate,
    RematChange,
    apply_candidate,
    batch_bytes,
    candidates,
    estimates,
    find,
    layout_of,
    proposals,
    search,
    state_bytes,
    stored_otherwise,
    trace,
)


@pytest.fixture(scope="module")
def graph():
    return graphs.apply(graphs.resolve("configs.lm.quickstart"), ["training.global_batch_size=64"])


@pytest.fixture(scope="module")
def program(graph):
    return checked_program(graph, jax.devices()[:8])


@pytest.fixture(scope="module")
def found(graph, program):
    make = lambda changed: checked_program(changed, jax.devices()[:8])
    return estimates(graph, program, targets.CHIPS["v5e"], 8, make)


@pytest.mark.full
def test_layouts_are_ranked_by_their_cost(found):
    assert len(found) > 20
    assert [e.cost for e in found] == sorted(e.cost for e in found)


def test_proposals_fit_with_a_margin_and_change_something(found):
    needs = sorted(e.needed_bytes for e in found)
    room = needs[len(needs) // 4]
    rows = proposals(found, room, count=3)
    assert len(rows) == 3
    assert all(row["overrides"] and row["needed_bytes"] <= room for row in rows)
    assert not any(row["is_compiled"] for row in rows)
    assert proposals(found, 1) == []


def test_the_state_is_counted_as_it_is_laid_out(program):
    held = sum(p.bytes_per_device for p in program.placements.values())
    batch = sum(e.size * e.dtype.itemsize for e in program.batch.values()) // 8
    assert state_bytes(program, layout_of(program)) == held
    assert batch_bytes(program, layout_of(program)) == batch


def estimate(needed, seconds, *overrides):
    return Estimate(Candidate({}, RematChange("", ()), 1, overrides), needed, seconds, seconds)


def test_better_layouts_come_first_by_turns_the_fastest_and_the_smallest():
    own = estimate(100, 1.0)
    found = [
        own,
        estimate(300, 0.8, "fast"),
        estimate(90, 0.97, "both"),
        estimate(80, 0.99, "small"),
        estimate(95, 0.99, "beaten"),
        estimate(50, 2.0, "tiny"),
    ]
    rows = proposals(found, None, 6, own)
    assert [row["overrides"] for row in rows] == [["small"], ["both"], ["fast"], ["tiny"]]


@pytest.mark.full
def test_layers_that_are_written_out_come_last(graph, program):
    make = lambda changed: checked_program(changed, jax.devices()[:8])
    rows, _ = find(graph, program, targets.CHIPS["v5e"], 8, make, trace(program), None, 2, True)
    stacks = [row["overrides"][-1] for row in rows[-3:]]
    assert stacks == ["model.stack=luthier.layers.Unrolled(remat=luthier.layers.NoRemat())"] * 3
    assert [row["overrides"][:-1] for row in rows[-3:]] == [
        [], ["training.accumulation=2"], ["training.accumulation=4"],
    ]  # fmt: skip
    for row in rows[-3:]:
        make(graphs.apply(graph, row["overrides"]))
    assert not any("Unrolled" in word for row in rows[:-3] for word in row["overrides"])


@pytest.mark.full
def test_where_nothing_fits_the_reason_and_alternatives_are_reported(
    graph, program, found, monkeypatch
):
    make = lambda changed: checked_program(changed, jax.devices()[:8])
    chip = dataclasses.replace(targets.CHIPS["v5e"], memory_bytes=2**20, usable=1.0)
    known = (graph, program, chip, 8, make, trace(program))
    rows, notes = find(*known, 2**20, 3, False)
    assert rows == []
    assert len(notes) == 1
    start = "no layout fits 8 devices: the state takes "
    assert re.fullmatch(
        start + r".* on each, and the smallest of all layouts [\d.]+ MiB.*", notes[0]
    )
    monkeypatch.setattr(search, "estimates", lambda *known: found)
    rows, notes = find(*known, 2**40, 3, False)
    assert (len(rows), notes) == (3, [])


@pytest.mark.full
def test_the_current_layout_is_found_where_it_has_a_size_of_three():
    words = [
        *("parallelism.mesh.data=3", "parallelism.mesh.tensor=2"),
        *("training.global_batch_size=18", "training.accumulation=3"),
        "evaluations.held_out.global_batch_size=6",
    ]
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), words)
    make = lambda changed: checked_program(changed, jax.devices()[:6])
    program = make(graph)
    now = [RematChange("", ())]
    found = {
        (c.sizes["data"], c.sizes["tensor"], c.accumulation): c.overrides
        for c in candidates(graph, program, 6, now)
    }
    assert found[3, 2, 3] == ()
    # By three only rows can be divided: the sizes of the model are powers of two.
    assert {(data, tensor) for data, tensor, _ in found} == {(3, 1), (3, 2), (6, 1)}
    chip = targets.CHIPS["v5e"]
    # There is no layout of seven devices for these sizes: that is a note.
    rows, notes = find(graph, program, chip, 7, make, trace(program), 2**20, 3, False)
    assert rows == []
    assert re.fullmatch(r"no layout fits 7 devices: the state takes .* on each.*", notes[0])
    assert "smallest" not in notes[0]


@pytest.mark.full
def test_where_only_the_current_layout_fits_that_is_reported(graph, program, found):
    """Neither storage that changes results nor more devices are proposed."""
    best = min(found, key=lambda e: e.needed_bytes)
    smallest = apply_candidate(graph, best.candidate)
    chip = dataclasses.replace(
        targets.CHIPS["v5e"], memory_bytes=int(best.needed_bytes * 1.02), usable=1.0
    )
    report = plan_here(smallest, targets.TpuSlice(chip, (2, 4)), level="shapes", search=True)
    assert report.fits
    assert report.proposals == []
    note = "by the analytic model no other layout fits 8 devices; the current one does"
    assert report.notes[-1] == note


@pytest.mark.full
def test_a_state_that_takes_less_is_the_last_resort(graph):
    make = lambda changed: checked_program(changed, jax.devices()[:8])
    stored = list(stored_otherwise(graph, targets.CHIPS["v5e"], 8, make))
    assert [storage for storage, _ in stored] == list(STORAGES)
    least = [min(e.needed_bytes for e in rows) for _, rows in stored]
    assert least[0] > least[2]
    assert all(e.candidate.overrides[0].startswith("fiddler:") for _, rows in stored for e in rows)
