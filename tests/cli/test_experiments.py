"""Includes the table of bad inputs: one line for each problem, and nothing is written."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from luthier import cli
from luthier import graph as graphs
from luthier.cli import Problems, load, main
from luthier.errors import EXIT_BAD_INPUT, BadInput

TINY = "trials.tiny"

# The words of a command line, and what each line of the answer must hold.
BAD_INPUTS = [
    # experiments
    (["train"], ["no experiment is given"]),
    (["train", "training.steps=3"], ["is an override, not an experiment"]),
    (["train", "trials.tinny"], ["trials.tiny"]),
    (["train", "no_such_package.tiny"], ["no_such_package"]),
    (["train", "trials.tiny:experimnt"], ["experiment"]),
    (["train", "trials.tiny:experiment(layers=2)"], ["layers"]),
    (["train", "trials.tiny:experiment(num_layers="], ["num_layers"]),
    (["train", "trials.broken"], ["broken.py"]),
    (["train", "trials.raising"], ["module_that_is_not_there"]),
    (["train", "trials.other"], ["trials.other"]),
    (["train", "trials/tiny.py"], ["trials.tiny"]),
    (["show", "trials.nothing"], ["trials.nothing"]),
    # overrides
    (["train", TINY, "optimzer.b2=0.9"], ["optimizer.b2"]),
    (["train", TINY, "training.stpes=10"], ["training.steps"]),
    (["train", TINY, "training.steps=ten"], ["ten"]),
    (["train", TINY, "training.steps=1.5"], ["1.5"]),
    (["train", TINY, "training.steps=True"], ["training.steps"]),
    (["train", TINY, "training.steps"], ["training.steps"]),
    (["train", TINY, "training.steps="], ["training.steps"]),
    (["train", TINY, "=3"], ["=3"]),
    (["train", TINY, "model=3"], ["model"]),
    (["train", TINY, "optimizer=nowhere.sgd(1)"], ["nowhere"]),
    (["train", TINY, "optimizer=luthier.optim.sdg(1)"], ["sgd"]),
    (["train", TINY, "seed=__import__('os').getcwd()"], ["seed"]),
    (["train", TINY, "any:droput=0.1"], ["droput"]),
    (
        ["train", TINY, "optimzer.learning_rate=abc", "training.stpes=10"],
        ["optimizer.learning_rate", "training.steps"],
    ),
    # flags, fiddlers and files
    (["train", TINY, "--fdl.training.stpes=10"], ["argument 1: training.stpes=10"]),
    (["train", "--fdl_config", TINY, "--fdl_set", "seed=x"], ["argument 1: seed=x"]),
    (["train", "--exp=tinny"], ["there is no experiment 'tinny'"]),
    (["train", TINY, "--exp=trials.tiny"], ["got 'trials.tiny'"]),
    (["train", TINY, "--fdl_sett", "seed=1"], ["--fdl_set"]),
    (["train", TINY, "--fiddler", "freez('x')"], ["did you mean fiddler:freeze?"]),
    (["train", TINY, "fiddler:freeze"], ["freeze needs pattern"]),
    (["train", TINY, "--overrides", "gone.txt"], ["'gone.txt'"]),
    (["train", TINY, "--overrides"], ["--overrides has no value"]),
    (["train", TINY, "--fdl_tag.Rate=1"], ["argument 1: tag:Rate=1"]),
    (["train", "--fdl_config_file", "gone.json"], ["gone.json"]),
    (["train", TINY, "model=run:gone.model"], ["gone"]),
    (["evaluate", "nothing", "--fdl.seed=1"], ["nothing"]),
    # what shells make of words
    (["train", TINY, "seed="], ["put the whole word in single quotes"]),
    (["train", TINY, "training.steps=.dim*4"], ["put the whole word in single quotes"]),
    (["train", TINY, "name=a", "run"], ["put the whole word in single quotes"]),
    (["show", TINY, "training.stpes=10"], ["training.steps"]),
    (["show", TINY, "optimzer"], ["optimizer"]),
    # ranges and relations
    (["train", TINY, "optimizer.b2=1.5"], ["optimizer.b2"]),
    (["train", TINY, "seed=-1"], ["seed"]),
    (["train", TINY, "training.steps=0"], ["steps", "steps", "steps"]),
    (["train", TINY, "training.accumulation=3"], ["accumulation"]),
    # what only the whole can tell
    (["train", TINY, "parallelism.mesh.tensor=3"], ["3"]),
    (["train", TINY, "data.source.pattern=gone.txt"], ["gone.txt"]),
    (["train", TINY, "training.global_batch_size=4096"], ["4096"]),
    (["train", TINY, "name=a/b"], ["a/b"]),
    # options
    (["train", TINY, "--devcies", "cpu:8"], ["--devices"]),
    (["train", TINY, "--devices", "cpu:many"], ["cpu:many"]),
    (["train", TINY, "--devices"], ["--devices"]),
    (["train", TINY, "--wandb", "maybe"], ["maybe"]),
    (["train", TINY, "--profile", "10"], ["steps=10:15"]),
    (["train", TINY, "--run", "nothing"], ["nothing"]),
    (["train", TINY, "--run", "x", "--new"], ["--new"]),
    (["train", TINY, "--nwe", "training.stpes=1"], ["--new", "training.steps"]),
    (["show", TINY, "--devices", "cpu:8"], ["--sharding"]),
    (["train", TINY, "--seed=3"], ["unknown option '--seed'; did you mean seed=3?"]),
    (["train", TINY, "--optimizer.b2", "0.9"], ["did you mean optimizer.b2=0.9?"]),
    (["train", TINY, "--batch-size", "16"], ["did you mean training.global_batch_size=16?"]),
    (["train", TINY, "--epochs", "5"], ["did you mean training.steps=Epochs(5)?"]),
    (["train", TINY, "--device", "4"], ["did you mean --devices?"]),
    (["train", TINY, "-m"], ["`luthier sweep REF --space PATH=choice(A,B)`"]),
    (["show", TINY, "--why", "optimzer.b2"], ["optimizer.b2"]),
    # other commands
    (["trian", TINY], ["train"]),
    (["evaluate"], ["no run is given"]),
    (["evaluate", "nothing"], ["nothing"]),
    (["evaluate", "nothing", "--step", "soon"], ["soon", "nothing"]),
    (["generate", "nothing", "--temperature", "warm"], ["warm"]),
    (["generate", "nothing", "--top-p", "2"], ["top-p"]),
    (["generate", "nothing", "--max-new-tokens", "0"], ["max-new-tokens"]),
    (["runs", "nothing"], ["nothing"]),
    (["runs", "--sync", "wandb"], ["needs a run"]),
    (["init"], ["no name"]),
    (["data"], ["no action"]),
    (["data", "train-tokenizer", "bpe.json"], ["nothing to learn from"]),
]


def test_the_table_is_long():
    assert len(BAD_INPUTS) >= 30


@pytest.mark.parametrize(("words", "messages"), BAD_INPUTS, ids=lambda value: " ".join(value)[:60])
def test_bad_inputs(project, capsys, words, messages):
    before = sorted(path for path in project.rglob("*") if "__pycache__" not in path.parts)
    assert main(words) == EXIT_BAD_INPUT
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == len(messages), captured.err
    for line, part in zip(lines, messages, strict=True):
        assert line.startswith("luthier: ")
        assert part in line
    assert "Traceback" not in captured.err + captured.out
    after = sorted(path for path in project.rglob("*") if "__pycache__" not in path.parts)
    assert after == before, "nothing is written"


@pytest.mark.full
@pytest.mark.parametrize(
    "words",
    [
        ["train", TINY, "optimzer.learning_rate=abc", "training.stpes=10"],
        ["train", TINY, "--devices", "cpu:2", "parallelism.mesh.tensor=3"],
        ["generate", "nothing"],
    ],
    ids=["overrides", "mesh", "run"],
)
def test_bad_inputs_of_a_process(project, words):
    command = [sys.executable, "-m", "luthier", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == EXIT_BAD_INPUT, done.stderr
    assert "Traceback" not in done.stderr
    assert all(line.startswith("luthier: ") for line in done.stderr.splitlines())
    assert not (project / "runs").exists()


def test_errors_name_the_argument_that_set_the_value(project, capsys):
    assert main(["train", TINY, "seed=1", "training.stpes=10"]) == EXIT_BAD_INPUT
    assert re.search(r"argument 2: training\.stpes=10", capsys.readouterr().err)


def test_overrides_are_applied_to_the_graph(project, monkeypatch):
    monkeypatch.syspath_prepend(str(project))
    problems = Problems()
    graph, packages = cli.load(TINY, ["seed=7"], problems, command="train")
    assert graphs.get(graph, "seed") == 7
    assert packages == ()


def test_a_recorded_run_is_an_experiment(project, monkeypatch):
    monkeypatch.syspath_prepend(str(project))
    graph, _ = cli.load(TINY, ["seed=7"], Problems(), command="train")
    folder = project / "somewhere"
    folder.mkdir()
    (folder / "config.json").write_text(graphs.to_json(graph))
    again, _ = cli.load(str(folder), ["name=other"], Problems(), command="show")
    assert graphs.get(again, "seed") == 7
    assert graphs.get(again, "name") == "other"


def test_flags_files_and_fiddlers_in_order(project, monkeypatch, capsys):
    (project / "words.txt").write_text("# seeds\nseed=3\n#Nothing=4\n")
    words = ["seed=1", "--overrides", "words.txt", "--fiddler=freeze('embedding')"]
    assert main(["show", "--exp", TINY, *words]) == EXIT_BAD_INPUT
    assert "words.txt:3: #Nothing=4" in capsys.readouterr().err
    (project / "words.txt").write_text("# seeds\nseed=3\n")
    words += ["--job_log_dir=logs", "--fdl.seed+=1"]
    assert main(["show", "--exp", TINY, *words]) == 0
    out = capsys.readouterr().out
    assert "seed = 4" in out
    assert "luthier.optim.NotMatching" in out
    assert "directory = logs" in out.replace("'", "")


def test_a_recorded_graph_in_a_file_and_nodes_of_a_run(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    (config,) = trained.glob("runs/tiny/*/config.json")
    recorded = tmp_path / "graph.json"
    recorded.write_text(config.read_text())
    words = ["--fdl_config_file", str(recorded), "model.dim=8", "model=run:last.model"]
    assert main(["show", *words, "model"]) == 0
    assert "dim = 16" in capsys.readouterr().out


@pytest.mark.parametrize(
    "reference", ["graph.json", "graph.yaml", "graph.gin", "hydra:graph.yaml", "konfig:graph.json"]
)
def test_a_file_that_is_not_text_is_refused_on_one_line(project, capsys, reference):
    file = reference.rpartition(":")[2]
    (project / file).write_bytes(b"\xff\xfe\x00")
    assert main(["show", reference]) == 2
    assert capsys.readouterr().err == (
        f"luthier: cannot read the file {file!r}: it is not text in UTF-8\n"
    )


@pytest.mark.parametrize("reference", ["hydra:absent.yaml", "konfig:absent.json"])
def test_a_file_of_another_framework_that_is_not_there(project, capsys, reference):
    assert main(["show", reference]) == 2
    file = reference.rpartition(":")[2]
    assert f"cannot read the file {file!r}: No such file" in capsys.readouterr().err


def test_a_run_whose_record_is_not_text_gives_no_node(importable_project, make_run, capsys):
    run = make_run(graphs.resolve(TINY), "ab12cd34")
    run.config_path.write_bytes(b"\xff\xfe\x00")
    assert main(["show", TINY, "model=run:ab12.model"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "ab12cd34/config.json is damaged: " in line


def test_fiddlers_of_the_project(project, monkeypatch, capsys):
    text = "import fiddle as fdl\ndef seven(graph: fdl.Config):\n    graph.seed = 7\n"
    (project / "fiddlers_of_mine.py").write_text(text)
    (project / "pyproject.toml").write_text('[tool.luthier]\nfiddlers = ["fiddlers_of_mine"]\n')
    assert main(["show", TINY, "fiddler:seven"]) == 0
    assert "seed = 7" in capsys.readouterr().out


def test_problems_known_before_are_raised_with_the_others(project):
    problems = Problems()
    problems.add("one")
    with pytest.raises(BadInput) as caught:
        cli.load("no_such_package", [], problems, command="train")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("a=1", True),
        ("a+=1", True),
        ("a~", True),
        ("~a", True),
        ("reset:a", True),
        ("fiddler:a", True),
        ("file:a", True),
        ("a=f(b=1)", True),
        ("a.b[0]", False),
        ("a.b:c(d=1)", False),
    ],
)
def test_is_override(word, expected):
    assert cli.is_override(word) is expected


def test_a_trial_that_is_trained_again_has_a_name_of_its_own_in_wandb(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.luthier]\n")
    words = ["records.wandb:=luthier.records.Wandb(name='mine/7', group='mine')"]
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), words)
    trial = tmp_path / "studies" / "mine" / "trials" / "0007"
    trial.mkdir(parents=True)
    (trial / "config.json").write_text(graphs.to_json(graph))
    (trial.parents[1] / "study.json").write_text(graphs.to_json(graph))
    for command, overrides, name in (
        ("show", [], "mine/7"),
        ("train", [], None),
        ("train", ["records.wandb.name=again"], "again"),
    ):
        found, _ = load("study:mine/7", overrides, Problems(), command=command)
        wandb = graphs.build(graphs.get(found, "records.wandb"))
        assert (wandb.name, wandb.group) == (name, "mine")
