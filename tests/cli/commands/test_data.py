from __future__ import annotations

import json
import shlex

import pytest

from luthier import data
from luthier import graph as graphs
from luthier.cli import main
from luthier.cli.commands import data as command


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
    printed = shlex.split(captured.out.splitlines()[-1])
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), printed)
    assert graphs.build(graph.data).num_rows == 14  # 1,761 targets
    assert graph.model.vocab_size == 258
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


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234, "1,234"), (0.123456, "0.1235"), ("a\n\tb", r"a\n\tb"), ([1, 2], "[1, 2]"), ("é", "é")],
)
def test_cells(value, text):
    assert command._text(value) == text


def test_a_mixture_is_shown(capsys):
    stages = {"planned": [0.75, 0.5], "observed": [0.7501, 0.5]}
    components = [{"name": "web", "rows": 1000, "epochs": 2.5, **stages}]
    report = {
        "describe": {"rows": 1000, "components": {}},
        "mixture": components,
        "spec": {"inputs": {"shape": [8, 16], "dtype": "int32"}},
        "batches": [[{"targets": "[bold]x", "segments": "AAB."}] * 9],
        "lengths": [{"from": 2, "to": 3, "count": 5}],
        "seconds": {"reading": 0.5},
    }
    command._show(report)
    out = capsys.readouterr().out
    for text in ("75.00%", "75.01%", "[bold]x", "AAB.", "the first 8 of 9", "2 to 3", "2.5"):
        assert text in out


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0:00"), (61, "1:01"), (3599.6, "1:00:00"), (90061, "25:01:01")]
)
def test_clock(seconds, text):
    assert command._clock(seconds) == text


def test_the_time_left_counts_only_shards_made_now(monkeypatch, capsys):
    now = iter([0.0, 5.0, 20.0, 40.0])
    monkeypatch.setattr(command.time, "monotonic", lambda: next(now))
    with command._bar(3, 100) as report:
        report({"documents": 20}, True)
        report({"documents": 40}, False)
        report({"documents": 40}, False)
    assert capsys.readouterr().err.splitlines() == [
        "2 of 3 shards, 60 of 100 documents, 0:20 left",
        "3 of 3 shards, 100 of 100 documents, 0:00 left",
    ]


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with command._live_bar(100) as report:
        report({"documents": 100}, False)
    assert "100/100" in capsys.readouterr().err
