from __future__ import annotations

import json

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
    assert main(words) == 0
    assert "model.vocab_size=270" in capsys.readouterr().out
    tokenizer = data.Bpe(str(project / "made" / "bpe.json"))
    assert tokenizer.decode(tokenizer.encode("the fox")) == "the fox"


def test_json_lines(project):
    (project / "lines.jsonl").write_text('{"words": "the quick brown fox"}\n' * 20)
    words = ["data", "train-tokenizer", "bpe.json", "--vocab-size", "262"]
    assert main([*words, "--json-lines", "lines.jsonl", "--field", "words"]) == 0
    assert (project / "bpe.json").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["train-tokeniser"], "train-tokenizer"),
        (["train-tokenizer", "--text", "text.txt"], "no file"),
        (["train-tokenizer", "a", "--text", "x", "--json-lines", "y"], "--text and --json-lines"),
        (["train-tokenizer", "a", "--text", "gone*.txt"], "gone"),
        (["train-tokenizer", "a", "seed=1", "--text", "text.txt"], "seed=1"),
        (["train-tokenizer", "a", "--text", "text.txt", "--vocab-size", "9"], "258"),
    ],
)
def test_bad_input(project, capsys, words, text):
    assert main(["data", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line
    assert not (project / "a").exists()


def test_a_corpus_is_prepared_and_verified(project, capsys):
    words = ["data", "prepare", "made/corpus", "--text", "text.txt", "--processes", "1"]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert "prepared made/corpus: 1 documents, 1,760 bytes, 1,762 tokens" in captured.out
    assert "1 of 1 shards, 1 of 1 documents" in captured.err
    assert main(["data", "prepare", "made/corpus", "--verify"]) == 0
    assert "1 shards match their digests" in capsys.readouterr().out
    node = data.Prepared("made/corpus", 32, data.Concatenate())
    packed = data.Packed(data.TextFiles("text.txt"), data.Bytes(), 32, data.Concatenate())
    assert node.num_rows == packed.num_rows


def test_files_and_a_vocabulary(project, capsys):
    (project / "a.jsonl").write_text('{"text": "the quick brown fox"}\n' * 40)
    common = ["--json-lines", "a.jsonl"]
    assert main(["data", "train-tokenizer", "v.json", "--vocab-size", "262", *common]) == 0
    words = ["data", "prepare", "made", "--tokenizer", "v.json", "--shards", "4", "--json"]
    assert main([*words, "--processes", "2", *common]) == 0
    manifest = json.loads(capsys.readouterr().out.partition("\n{")[2].join("{}")[:-1])
    assert (manifest["documents"], len(manifest["shards"])) == (40, 4)
    assert manifest["tokenizer"]["vocab_size"] == 262


def test_a_dry_run_writes_nothing(project, capsys):
    words = ["data", "prepare", "made", "--experiment", "trials.tiny", "--dry-run"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "1 documents, 1,760 bytes, 1,762 tokens" in out
    assert "nothing was written" in out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 1762
    assert not (project / "made").exists()


def test_inspect(project, capsys):
    assert main(["data", "inspect", "trials.tiny", "data.length=16"]) == 0
    out = capsys.readouterr().out
    for text in ("unigram_entropy", "AAAAAAAAAAAAAAAA", "tokenizing", "1,024 to 2,047", "8x16"):
        assert text in out
    assert main(["data", "inspect", "trials.tiny", "--json", "--batches", "3"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["batches"]) == 3
    assert "fox" in "".join(row["targets"] for batch in report["batches"] for row in batch)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["prepare", "--text", "text.txt"], "no folder"),
        (
            ["prepare", "a", "--text", "text.txt", "--vocab-size", "9"],
            "is an option of train-tokenizer",
        ),
        (["inspect", "trials.tiny", "--dry-run"], "--dry-run is an option of prepare"),
        (["prepare", "a"], "nothing to prepare is given"),
        (["prepare", "a", "--text", "x", "--json-lines", "y"], "--text and --json-lines"),
        (["prepare", "a", "--text", "gone*.txt"], "gone"),
        (["prepare", "a", "--experiment", "trials.tiny", "--tokenizer", "t"], "--tokenizer needs"),
        (["prepare", "a", "--verify"], "not a prepared corpus"),
        (["prepare", "a", "--verify", "--text", "x"], "--verify cannot be combined with --text"),
        (["inspect"], "no experiment is given"),
        (["inspect", "trials.tiny", "data.lenght=3"], "length"),
        (["inspect", "trials.tiny", "data.length=100000"], "too few for a batch of 8 rows"),
        (["inspekt", "trials.tiny"], "did you mean inspect"),
    ],
)
def test_bad_input_of_prepare_and_inspect(project, capsys, words, text):
    test_bad_input(project, capsys, words, text)
