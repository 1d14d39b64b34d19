"""Rows of more documents than cuDNN's attention has room for, of which it would make NaN."""

import numpy as np
import pytest

from luthier import graph as graphs
from luthier import trainer
from luthier.data.packing import PackedRows
from luthier.errors import BadInput
from luthier.layers import abstract_forms

CORE = "model.block.attention.core"


@pytest.fixture
def make(tiny, tmp_path):
    """Return a function to an experiment whose rows have 20 documents of 24 tokens."""
    (tmp_path / "texts").mkdir()
    for name in range(200):
        (tmp_path / "texts" / f"{name}.txt").write_text("to be, or not to be ...")
    source = f"luthier.data.TextFiles({str(tmp_path / 'texts' / '*.txt')!r})"

    def make(*overrides):
        own = (
            "fiddler:luthier.recipes.bf16",
            f"{CORE}:=luthier.layers.CudnnAttention()",
            "training.steps=2",
            "training.global_batch_size=8",
            "evaluations.held_out.global_batch_size=8",
            "data.length=480",
            f"data.source:={source}",
            f"evaluations.held_out.data.source:={source}",
        )
        return graphs.apply(tiny(tmp_path / "runs", *own), overrides)

    return make


def problems_of(graph):
    with abstract_forms(), pytest.raises(BadInput) as raised:  # the kernel itself needs a GPU
        trainer.run(graph)
    return raised.value.problems


def test_more_documents_than_attention_has_room_for_are_refused_before_the_first_step(
    make, tmp_path
):
    found = problems_of(make())
    assert [problem.path for problem in found] == [f"{CORE}.max_documents"] * 2
    for problem, data in zip(found, ("data", "evaluations.held_out.data"), strict=True):
        start = f"{data} has rows of 20 documents, and attention has room for 16"
        assert problem.what == start
        assert f"{CORE}.max_documents=20" in problem.remedy
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_as_many_documents_as_there_is_room_for_train(make):
    with abstract_forms():
        result = trainer.run(make(f"{CORE}.max_documents=20"))
    assert result.step == 2
    assert all(np.isfinite(value) for value in result.metrics["held_out"].values())


@pytest.mark.full
def test_rows_that_are_not_known_beforehand_are_refused_at_their_batch(make, monkeypatch):
    monkeypatch.setattr(PackedRows, "most_documents", None)  # as of data that has no plan of rows
    (problem,) = problems_of(make())
    assert problem.what == "data has rows of 20 documents, and attention has room for 16"
