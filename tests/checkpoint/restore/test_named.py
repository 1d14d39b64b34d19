import numpy as np
import pytest

from luthier.checkpoint import Init, Resize, Restoration, Safetensors, Skip, Take, Target
from luthier.checkpoint.restore import Wanted, assemble
from luthier.checkpoint.restore.runs import find

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


ROWS = np.arange(15.0).reshape(5, 3)


@pytest.mark.parametrize("rest", [Init(), Skip()])
@pytest.mark.parametrize(
    ("kind", "layers"), [("cycle.0", [0, 2]), ("cycle.1", [1, 3]), ("rest.0", [4])]
)
@pytest.mark.parametrize("stack", ["blocks", "encoder.blocks"])
@pytest.mark.parametrize(
    "there",
    [{"blocks.k": ROWS}, {f"blocks.{layer}.k": row for layer, row in enumerate(ROWS)}],
    ids=["scanned", "unrolled"],
)
def test_one_kind_of_layers_is_found_where_rules_leave_the_others(
    there, stack, kind, layers, rest, write
):
    here = {"cycle.0": (2, 3), "cycle.1": (2, 3), "rest.0": (3,)}
    targets = {
        f"{stack}.{name}.k": Target(shape, np.float32, is_stacked=len(shape) == 2)
        for name, shape in here.items()
    }
    # `Skip` at the end leaves the other layers of the source unread without a word.
    rules = [Take(rf"^{stack}\.{kind}", f"blocks.{kind}"), rest, Skip()]
    source = Safetensors(write(there, metadata={"format": "luthier"}), "luthier", rules)
    with Restoration(source, targets, {}) as restoration:
        (taken,) = restoration.read().values()
    np.testing.assert_array_equal(taken, ROWS[layers].reshape(here[kind]))


def test_missing_misshapen_and_left_over_arrays_are_reported_together():
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


def _resize(there, target, rule, limits=None):
    wanted = Wanted(
        {"table": ("table", target)}, {}, {}, lambda name: False, limits or {}, {"table": rule}
    )
    described = {name: (array.shape, str(array.dtype)) for name, array in there.items()}
    return find(described, lambda name, index: there[name][index], wanted, "the source")


TABLE = np.arange(1.0, 13.0).reshape(6, 2)


@pytest.mark.parametrize("rows", [4, 6, 9])
@pytest.mark.parametrize("axes", [("vocab", "embed"), ("embed", "vocab")])
def test_a_resized_table_has_the_rows_of_both(rows, axes):
    turn = (lambda array: array.T) if axes[1] == "vocab" else (lambda array: array)
    target = Target(turn(np.ones((rows, 2))).shape, np.float64, axes=axes)
    found = _resize({"table": turn(TABLE)}, target, Resize())
    assert not found.problems
    piece, both = found.pieces["table"], min(rows, 6)
    array = turn(np.asarray(assemble(target, piece)))
    np.testing.assert_array_equal(array[:both], TABLE[:both])
    np.testing.assert_array_equal(array[both:], 0)
    assert piece.held == ((axes.index("vocab"), 6) if rows == 9 else None)
    shown = {6: "table", 4: "table[:4]", 9: "table[:6]"}[rows]
    assert piece.tensor == (shown.replace("[", "[:, ") if axes[1] == "vocab" else shown)


@pytest.mark.parametrize(
    ("shape", "rule", "message"),
    [
        (
            (9, 3),
            Resize(),
            "table is [9, 3] here, and table [6, 2] in the source; only the size of",
        ),
        (
            (9, 2),
            Resize(size=7),
            "table has 6 entries in the source, not 7; correct the size in its",
        ),
        (
            (9, 2),
            Resize(),
            "table of the source ends in 1 entries of zeros, as padding does; state",
        ),
    ],
)
def test_arrays_that_cannot_be_resized_are_reported(shape, rule, message):
    table = TABLE.copy()
    table[5] = 0
    found = _resize({"table": table}, Target(shape, np.float64, axes=("vocab", "embed")), rule)
    (problem,) = found.problems
    assert str(problem).startswith(message)


def test_padding_of_both_is_no_reason_to_ask():
    table = TABLE.copy()
    table[5] = 0
    target = Target((8, 2), np.float64, axes=("vocab", "embed"))
    found = _resize({"table": table}, target, Resize(), {"vocab": 5})
    assert not found.problems
    assert found.pieces["table"].held is None


def test_a_vector_of_zeros_and_of_the_same_size_is_taken_as_it_is():
    target = Target((4,), np.float64, axes=("embed",))
    found = _resize({"table": np.zeros(4)}, target, Resize())
    assert not found.problems
    assert found.pieces["table"].tensor == "table"
