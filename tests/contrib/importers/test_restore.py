"""The words `t5x:`, `big_vision:` and `maxtext:` of the override grammar, and what they say."""

import numpy as np
import pytest

from luthier import graph
from luthier.checkpoint import Restoration, Target
from luthier.contrib import importers
from luthier.contrib.importers import MaxText
from luthier.errors import CheckpointError
from tests import foreign_checkpoints as foreign

VALUES = np.arange(6, dtype=np.float32)


@pytest.mark.parametrize(
    ("word", "cls"),
    [
        ("t5x", importers.T5X),
        ("big_vision", importers.BigVision),
        ("maxtext", importers.MaxText),
    ],
)
def test_a_word_makes_the_node(word, cls):
    base = graph.resolve("configs.lm.quickstart")
    made = graph.apply(base, [f"restore={word}:somewhere/else:img"])
    assert made.restore.__fn_or_cls__ is cls
    assert made.restore.directory == "somewhere/else:img"


def test_a_table_says_where_parameters_come_from(tmp_path):
    foreign.write_maxtext(tmp_path, {"decoder/decoder_norm/scale": VALUES})
    targets = {"norm.scale": Target((6,), np.dtype(np.float32))}
    with Restoration(MaxText(str(tmp_path)), targets, {}) as restoration:
        assert restoration.summary == f"1 parameters from {tmp_path} (maxtext)"
        assert restoration.render().splitlines()[1:] == [
            "parameter   from                        shape  dtype    rule",
            "norm.scale  decoder/decoder_norm/scale  [6]    float32  2 take",
        ]
        np.testing.assert_array_equal(restoration.read()["norm.scale"], VALUES)


def test_arrays_without_a_parameter_are_reported(tmp_path):
    foreign.write_maxtext(tmp_path, {"decoder/moe/gate": VALUES})
    with pytest.raises(CheckpointError) as raised:
        Restoration(MaxText(str(tmp_path)), {}, {})
    (problem,) = raised.value.problems
    assert str(problem) == (
        "restore: decoder/moe/gate [6] of the files has no place to go: the family has no such "
        "tensor; leave it unread: Skip(pattern)"
    )


def test_a_missing_path_is_reported(tmp_path):
    with pytest.raises(CheckpointError) as raised:
        Restoration(MaxText(str(tmp_path / "absent")), {}, {})
    assert str(raised.value) == f"{tmp_path / 'absent'} does not exist; give its path"
    with pytest.raises(CheckpointError) as raised:
        Restoration(MaxText("gs://bucket/run"), {}, {})
    assert str(raised.value) == "gs://bucket/run does not exist; copy it to this machine first"
