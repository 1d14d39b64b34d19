from __future__ import annotations

import pytest

from luthier import cli
from luthier import graph as graphs
from luthier.cli import showing

SHELVES = ("luthier.recipes",)


def _printed(before, words, capsys):
    showing.print_changes(before, graphs.apply(before, words, shelves=SHELVES))
    return capsys.readouterr().out.splitlines()


def test_changes_stand_below_the_word_that_caused_them(importable_project, capsys):
    before = cli.load_reference("trials.tiny")
    words = ["fiddler:scale_depth(2)", "seed=5", "optimizer.b2=0.9"]
    lines = _printed(before, words, capsys)
    assert lines[0] == "argument 1: fiddler:scale_depth(2)"
    assert lines[1].startswith("  ~ model.num_layers: 1 -> 2  [")
    assert "luthier/recipes/scale.py:" in lines[1]
    assert lines[2:] == [
        "argument 2: seed=5",
        "  ~ seed: 0 -> 5 (was left at its default)",
        "argument 3: optimizer.b2=0.9",
        "  ~ optimizer.b2: 0.95 -> 0.9 (was left at its default)",
    ]


def test_what_is_gone_stands_below_what_took_it(importable_project, capsys):
    before = cli.load_reference("trials.tiny")
    words = ["seed=5", "reset:optimizer.learning_rate.end", "evaluations:={}"]
    lines = _printed(before, words, capsys)
    assert lines[2] == "argument 2: reset:optimizer.learning_rate.end"
    assert lines[3].startswith("  ~ optimizer.learning_rate.end: 0.0 -> ")
    assert lines[4] == "argument 3: evaluations:={}"
    assert lines[5].startswith("  - evaluations.held_out: luthier.program.Evaluation(")


def test_a_value_that_changes_twice_is_listed_once(importable_project, capsys):
    before = cli.load_reference("trials.tiny")
    lines = _printed(before, ["seed=5", "seed=6"], capsys)
    assert lines == ["argument 2: seed=6", "  ~ seed: 0 -> 6 (was left at its default)"]


def test_the_tenth_word_comes_after_the_second(importable_project, capsys):
    before = cli.load_reference("trials.tiny")
    words = ["seed=5", "optimizer.b2=0.9", *["name=x"] * 7, "optimizer.b1=0.8"]
    heads = [line for line in _printed(before, words, capsys) if not line.startswith(" ")]
    assert [head.split(":")[0] for head in heads] == [
        "argument 1",
        "argument 2",
        "argument 9",
        "argument 10",
    ]


def test_what_no_word_changed_says_so(importable_project, capsys):
    before = cli.load_reference("trials.tiny")
    after = graphs.copy_graph(before)
    after.seed = 4
    showing.print_changes(before, after)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "not set on the command line:"
    assert "test_changes.py" in lines[1]


def test_no_change_is_reported_as_such(importable_project, capsys):
    before = cli.load_reference("trials.tiny")
    showing.print_changes(before, before)
    assert capsys.readouterr().out == "nothing changes\n"


def test_a_line_of_a_file_is_the_cause_of_what_it_sets(importable_project, tmp_path, capsys):
    before = cli.load_reference("trials.tiny")
    (tmp_path / "small.gin").write_text("Training.global_batch_size = 2\n")
    after = graphs.apply(before, [f"gin_file:{tmp_path / 'small.gin'}"])
    showing.print_changes(before, after)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("small.gin:1: Training.global_batch_size = 2")
    assert lines[1].startswith("  ~ training.global_batch_size: ")


def test_removed_keys_nested_keys_and_lost_sharing_belong_to_their_override(
    importable_project, capsys
):
    before = cli.load_reference("configs.lm.quickstart")
    overrides = [
        "training.steps=100",
        "model.block.norm=LayerNorm()",
        "compiler.cpu={xla_cpu_enable_fast_math: true}",
        "reset:evaluations.held_out",
    ]
    lines = _printed(before, overrides, capsys)
    heads = [line for line in lines if not line.startswith("  ")]
    assert heads == [f"argument {n}: {text}" for n, text in enumerate(overrides, 1)]
    # A shared value is listed where the user set it, not at its first place in the graph.
    assert lines[1].startswith("  ~ training.steps: 900 -> 100")
    assert "  = model.norm: no longer shares its settings with model.block.norm" in lines


@pytest.mark.parametrize(
    ("name", "text", "override"),
    [
        ("small.gin", "Training.steps = 100\n", "gin_file:"),
        ("words.txt", "training.steps=100\n", "file:"),
        (
            "small.py",
            "import ml_collections\n\n\ndef get_config():\n"
            "    return ml_collections.ConfigDict({'training': {'steps': 100}})\n",
            "config_dict:",
        ),
        ("", "", "gin_bindings:Training.steps = 100"),
    ],
)
def test_a_shared_value_is_listed_at_the_place_that_a_file_sets(
    importable_project, tmp_path, capsys, name, text, override
):
    if name:
        (tmp_path / name).write_text(text)
        override += str(tmp_path / name)
    before = cli.load_reference("configs.lm.quickstart")
    head, *lines = _printed(before, [override], capsys)
    assert (name or "argument 1") in head
    assert lines == ["  ~ training.steps: 900 -> 100 (shared as steps)"]
