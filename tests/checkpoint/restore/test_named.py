import numpy as np
import pytest

from luthier.checkpoint import Target
from luthier.checkpoint.restore.named import find
from luthier.checkpoint.restore.source import Wanted, assemble

STACKED = {"blocks.k": np.arange(6.0).reshape(2, 3), "norm.scale": np.ones(3)}
UNROLLED = {
    "blocks.0.k": np.arange(3.0),
    "blocks.1.k": np.arange(3.0, 6.0),
    "norm.scale": np.ones(3),
}
TURNS = {
    "blocks.cycle.0.k": np.arange(3.0)[None],
    "blocks.rest.0.k": np.arange(3.0, 6.0),
    "blocks.cycle.1.k": np.arange(6.0, 9.0)[None],
    "norm.scale": np.ones(3),
}


def _targets(arrays):
    return {
        name: Target(array.shape, array.dtype, None, array.ndim == 2)
        for name, array in arrays.items()
    }


def _find(there, targets, skipped=None, is_skipped=lambda name: False):
    wanted = Wanted(
        {name: (name, target) for name, target in targets.items()},
        {},
        skipped or {},
        is_skipped,
        {},
    )
    described = {name: (array.shape, str(array.dtype)) for name, array in there.items()}
    return find(described, lambda name, index: there[name][index], wanted, "the source")


@pytest.mark.parametrize("there", [STACKED, UNROLLED])
@pytest.mark.parametrize("here", [STACKED, UNROLLED])
def test_layers_are_found_whatever_the_stack(there, here):
    targets = _targets(here)
    found = _find(there, targets)
    assert not found.problems
    for name, pieces in found.pieces.items():
        np.testing.assert_array_equal(assemble(targets[name], pieces), here[name])


def test_layers_by_turns_are_found_in_a_plain_stack():
    rows = np.arange(9.0).reshape(3, 3)
    there = {"blocks.k": rows, "norm.scale": np.ones(3)}
    targets = _targets(TURNS)
    found = _find(there, targets)
    assert not found.problems
    taken = {name: np.asarray(assemble(targets[name], p)) for name, p in found.pieces.items()}
    np.testing.assert_array_equal(taken["blocks.cycle.1.k"], rows[1:2])
    np.testing.assert_array_equal(taken["blocks.rest.0.k"], rows[2])


def test_what_is_missing_misshapen_or_left_over_is_told_together():
    there = STACKED | {"head": np.ones(2), "left": np.ones(2)}
    targets = {
        "blocks.k": Target((3, 3), np.float32, None, True),
        "norm.scale": Target((4,), np.float32),
        "bias": Target((4,), np.float32),
    }
    found = _find(there, targets, is_skipped=lambda name: name == "left")
    lines = [str(problem) for problem in found.problems]
    assert lines[0] == "blocks.k [3, 3] is not in the source at blocks.2.k"
    assert lines[1] == "norm.scale is [4] here, and norm.scale [3] in the source"
    assert lines[2] == "bias [4] is not in the source"
    assert lines[3].startswith("head float64[2] of the source has no place to go")
    assert len(lines) == 4
