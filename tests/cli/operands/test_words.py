from __future__ import annotations

import pytest

from luthier import graph as graphs
from luthier.cli import Problems, operands
from luthier.cli.operands import words
from luthier.errors import BadInput


def _read(*words):
    return operands.read_all(words, Problems())


def test_a_reference_takes_overrides_in_one_word(tiny):
    plain, changed = _read("trials.tiny", "trials.tiny seed=3 'model.dim=32'")
    assert plain.title == "trials.tiny"
    assert changed.title == "trials.tiny seed=3 'model.dim=32'"
    loaded = changed.load()
    assert (loaded.seed, graphs.get(loaded, "model.dim")) == (3, 32)
    assert not changed.is_recorded


def test_a_record_takes_overrides_too_and_is_built_then(tiny, make_run, tmp_path):
    make_run(tiny, "ab12cd34")
    (tmp_path / "x.json").write_text(graphs.to_json(tiny))
    for word in ("run:ab seed=4", "x.json seed=4"):
        (operand,) = _read(word)
        assert not operand.is_recorded
        assert operand.load().seed == 4


def test_a_folder_with_spaces_is_one_word(tiny, tmp_path):
    folder = tmp_path / "my runs"
    folder.mkdir()
    (folder / "config.json").write_text(graphs.to_json(tiny))
    assert _read("my runs")[0].is_recorded


def test_a_study_is_all_of_its_trials(study):
    assert [operand.title for operand in _read("study:rates")] == [
        "study:rates/0",
        "study:rates/1",
        "study:rates/2",
    ]


def test_all_problems_are_reported_at_once(tiny):
    with pytest.raises(BadInput) as caught:
        _read("trials.tinny", "trials.tiny sed=1", "run:x", "", "trials.tiny 'a")
    assert str(caught.value).splitlines() == [
        "there is no module 'trials.tinny'; did you mean trials.tiny?",
        "sed: does not exist [set by argument 1: sed=1]; did you mean seed?",
        "no run 'x': there are no runs in runs",
        "an operand is empty; write configs.lm.quickstart, run:ID or HEAD~1:configs.lm.quickstart",
        'cannot read "trials.tiny \'a": no closing quotation; close the quotes',
    ]


def test_the_standard_input_is_read_once(tiny):
    with pytest.raises(
        BadInput, match=r"^the standard input can be one operand only; write - once$"
    ):
        _read("-", "-")


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ('a.b:fn(name="x", n=2) seed=1', ['a.b:fn(name="x", n=2)', "seed=1"]),
        ("a.b name='it is' x=[1, 2]", ["a.b", "name=it is", "x=[1, 2]"]),
        ('a.b:fn(x=")", y={"k": (1, 2)}) s=1', ['a.b:fn(x=")", y={"k": (1, 2)})', "s=1"]),
        (r'a.b:fn(x="\")", y=1) s="a (b"', [r'a.b:fn(x="\")", y=1)', "s=a (b"]),
        ("a.b x=[1 y=2", ["a.b", "x=[1", "y=2"]),  # the grammar refuses it, and names the override
    ],
)
def test_brackets_hold_what_is_in_them_together(word, parts):
    assert words._split(word) == parts


def test_a_call_with_spaces_is_a_reference(tiny, tmp_path):
    (tmp_path / "trials" / "sized.py").write_text(
        "from trials import tiny\n\n\ndef experiment(seed=0, name=''):\n"
        "    graph = tiny.experiment()\n    graph.seed, graph.name = seed, name\n    return graph\n"
    )
    (operand,) = _read('trials.sized:experiment(seed=3, name="a b") model.dim=32')
    loaded = operand.load()
    assert (loaded.seed, loaded.name, graphs.get(loaded, "model.dim")) == (3, "a b", 32)
