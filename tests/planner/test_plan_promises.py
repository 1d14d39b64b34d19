"""What plans propose, applied: it compiles for the slice, and fits. Minutes to hours each."""

import resource

import pytest

from luthier import graph as graphs
from luthier.planner import plan_apart, targets

LLAMA = (
    "configs.pax.llama",
    "h100:8",
    ["training.global_batch_size=256", "parallelism.mesh.fsdp=8"],
)
PAX_16B = ("configs.pax.c4:decoder_16b", "v4-16", ["parallelism.mesh.fsdp=4"])


def experiment(reference, slice, words):
    """Return an experiment; skip where the compiler of its slice is not installed."""
    missing = targets.missing_compiler(targets.read(slice))
    if missing:
        pytest.skip(missing)
    return graphs.apply(graphs.resolve(reference), words, shelves=("luthier.recipes",))


def used():
    """Return the processor seconds of the processes that were started and have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


@pytest.mark.slow
@pytest.mark.parametrize("case", [LLAMA, PAX_16B], ids=["llama", "pax_16b"])
def test_each_change_that_is_proposed_compiles_and_fits(case):
    graph, slice, before = experiment(*case), case[1], used()
    refused = plan_apart(graph, slice)
    assert used() - before < 30  # of a processor, however busy the machine is
    assert refused.fits is False
    assert len(refused.proposals) == 3
    for proposal in refused.proposals:
        changed = graphs.apply(graph, proposal["overrides"], shelves=("luthier.recipes",))
        report = plan_apart(changed, slice)
        assert (report.subject.level, report.fits) == ("compile", True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reference", "slice", "words"),
    [
        ("configs.pax.c4:decoder_16b", "v4-64", []),
        ("configs.pax.c4", "h100:8", ["parallelism.mesh.fsdp=8"]),
    ],
    ids=["16b", "1b"],
)
def test_a_search_finds_what_is_no_worse_or_says_that_it_does_not(reference, slice, words):
    report = plan_apart(experiment(reference, slice, words), slice, search=True)
    own = report.memory.needed_bytes, report.step["step_seconds"]
    assert report.proposals
    assert all(row["is_compiled"] and row["overrides"] for row in report.proposals)
    is_better = any(
        row["needed_bytes"] <= own[0] and row["step_seconds"] <= own[1] for row in report.proposals
    )
    notes = [note for note in report.notes if note.endswith("no more time than this one")]
    assert is_better != bool(notes)
