from __future__ import annotations

import pytest

from luthier import data
from luthier.cli import main


@pytest.mark.parametrize(
    "source",
    [["--text", "text.txt"], ["--experiment", "trials.tiny"]],
    ids=["files", "experiment"],
)
def test_a_tokenizer_is_trained(project, capsys, source):
    words = ["data", "train-tokenizer", "made/bpe.json", "--vocab-size", "270", *source]
    assert main.main(words) == 0
    assert "model.vocab_size=270" in capsys.readouterr().out
    tokenizer = data.Bpe(str(project / "made" / "bpe.json"))
    assert tokenizer.decode(tokenizer.encode("the fox")) == "the fox"


def test_json_lines(project):
    (project / "lines.jsonl").write_text('{"words": "the quick brown fox"}\n' * 20)
    words = ["data", "train-tokenizer", "bpe.json", "--vocab-size", "262"]
    assert main.main([*words, "--json-lines", "lines.jsonl", "--field", "words"]) == 0
    assert (project / "bpe.json").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train-tokeniser"], "train-tokenizer"),
        (["train-tokenizer", "--text", "text.txt"], "no file"),
        (["train-tokenizer", "a", "--text", "x", "--json-lines", "y"], "--text and --json-lines"),
        (["train-tokenizer", "a", "--text", "gone*.txt"], "gone"),
        (["train-tokenizer", "a", "seed=1", "--text", "text.txt"], "seed=1"),
        (["train-tokenizer", "a", "--text", "text.txt", "--vocab-size", "9"], "258"),
    ],
)
def test_bad_input(project, capsys, words, told):
    assert main.main(["data", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert not (project / "a").exists()
