from __future__ import annotations

import copy

import fiddle as fdl
import pytest

from luthier import data
from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.recipes import text

QUICKSTART = "configs.lm.quickstart"
HELD_OUT = "evaluations.held_out.data"


@pytest.fixture(autouse=True)
def _notes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("".join(f"note {number:03}\n" for number in range(400)))


def built(experiment):
    return [graphs.build(graphs.get(experiment, path)) for path in ("data", HELD_OUT)]


def test_one_override_changes_both_parts_which_share_nothing():
    before = graphs.resolve(QUICKSTART)
    override = 'fiddler:text("notes.txt")'
    experiment = graphs.apply(before, [override], shelves=["luthier.recipes"])
    graphs.validate(experiment)
    train, held_out = built(experiment)
    assert train.stream.num_bytes + held_out.stream.num_bytes == 400 * 9
    assert held_out.source[0].startswith(b"note 360\n")
    assert isinstance(train.tokenizer, data.Bytes)
    assert "notes.txt" in graphs.to_json(experiment)
    assert graphs.equal(before, graphs.resolve(QUICKSTART)), "the original is untouched"
    assert override in graphs.origin_of(experiment, f"{HELD_OUT}.source")


@pytest.mark.parametrize("place", ["data", HELD_OUT])
def test_what_the_parts_have_in_common_is_one_value(place):
    override = f"{place}.source.fraction=0.5"
    experiment = graphs.apply(text(graphs.resolve(QUICKSTART), "notes.txt"), [override])
    train, held_out = built(experiment)
    assert train.source[0] + held_out.source[0] == (train.source.source)[0]
    assert len(held_out.source[0]) == 1800


def test_random_tokens_become_text_where_a_tokenizer_is_given():
    experiment = graphs.resolve(QUICKSTART)
    tokens = fdl.Config(data.Synthetic, vocab_size=258, length=experiment.data.length)
    for place in ("data", HELD_OUT):
        graphs.set_value(experiment, place, copy.copy(tokens))
    with pytest.raises(BadInput) as error:
        text(experiment, "notes.txt")
    remedy = 'fiddler:text("notes.txt", tokenizer=Bytes())'
    assert all(remedy in problem.remedy for problem in error.value.problems)
    changed = graphs.apply(experiment, [remedy, "data.length=32"], shelves=["luthier.recipes"])
    graphs.validate(changed)
    train, held_out = built(changed)
    assert train.stream.num_bytes + held_out.stream.num_bytes == 400 * 9
    assert (train.length, held_out.length) == (32, 32)


def test_what_has_no_documents_or_text_is_refused():
    with pytest.raises(BadInput, match=r"no file matches 'nots.txt'; did you mean notes.txt"):
        text(graphs.resolve(QUICKSTART), "nots.txt")
    with pytest.raises(BadInput, match="data: Classification does not read documents") as error:
        text(graphs.resolve("configs.vision.digits"), "notes.txt")
    assert [p.path for p in error.value.problems] == ["data", HELD_OUT]
    with pytest.raises(BadInput, match="a model alone has no data"):
        text(graphs.resolve(QUICKSTART).model, "notes.txt")
