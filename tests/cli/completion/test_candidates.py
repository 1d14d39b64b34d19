from __future__ import annotations

import os
import subprocess
import sys

import pytest

from luthier import cli
from luthier.cli import COMMANDS, completion, experiments
from luthier.cli.completion import candidates


def words(line: str) -> list[str]:
    return [found.word for found in candidates.complete(line.split(" "))]


@pytest.fixture
def started(monkeypatch) -> list[str]:
    """The experiments whose index was begun in the background."""
    begun: list[str] = []
    monkeypatch.setattr(candidates, "start", begun.append)
    return begun


def test_commands(indexed):
    assert words("") == list(COMMANDS)
    assert words("e") == ["evaluate", "export"]
    assert words("--v") == ["--version"]
    assert words("nothing ") == []


def test_options_and_their_values(indexed):
    assert "--dry-run" in words("train --")
    assert words("train --wandb o") == ["off", "offline", "online"]
    assert words("train --wandb=on") == ["--wandb=online"]
    assert words("train --run ") == ["0a1b2c3d"]
    assert words("help over") == ["overrides"]
    assert words("help trai") == ["train"]
    assert words("completion ") == ["bash", "zsh", "fish"]


def test_actions_have_arguments_of_their_own(indexed, project):
    assert words("data ") == ["inspect", "prepare", "train-tokenizer"]
    assert {"--text", "--verify"} < set(words("data prepare --"))
    assert "--batches" not in words("data prepare --")
    assert "--batches" in words("data inspect --")
    assert "configs.toy" in words("data inspect ")
    assert {"show", "best", "repair"} < set(words("sweep "))
    assert "--space" in words("sweep --")
    assert words("sweep best --as ") == ["overrides", "python", "json"]
    (project / "studies" / "rates").mkdir(parents=True)
    assert words("sweep best ") == []
    (project / "studies" / "rates" / "study.json").write_text("{}")
    assert words("sweep best ") == words("sweep --resume ") == ["rates"]


def test_references(indexed):
    assert {"configs.toy", "configs.lm.quickstart", "run:"} < set(words("train "))
    assert words("train run:") == ["run:0a1b2c3d"]
    assert "configs.toy" in words("train --exp ")
    assert "configs.toy" in words("check configs.lm.quickstart ")
    assert "configs.lm.quickstart" in words("init my_models --from ")
    (found,) = candidates.complete(["train", "configs.t"])
    assert found.text == "Train a toy."


def test_a_changed_file_is_listed_anew(indexed, project):
    assert words("train configs.t") == ["configs.toy"]
    (project / "configs" / "toy.py").write_text("def experiment():\n    'Other.'\n")
    (project / "configs" / "new.py").write_text("def experiment():\n    'New.'\n")
    found = candidates.complete(["train", "configs."])
    assert found[:2] == [("configs.new", "New."), ("configs.toy", "Other.")]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("opt", ["optimizer."]),
        ("optimizer.learning_rate.", ["optimizer.learning_rate.value="]),
        ("optimizer.b", ["optimizer.b1=", "optimizer.b2="]),
        ("precision.matmul=HIGH", ["precision.matmul=HIGHEST"]),
        ("records.wandb", ["records.wandb="]),
        ("training.early_stopping=", ["training.early_stopping=None"]),
        ("training.steps=", []),
        ("training.steps=ref:training.acc", ["training.steps=ref:training.accumulation"]),
        ("reset:training.st", ["reset:training.steps", "reset:training.stop"]),
        ("any:clip", ["any:clip_norm="]),
        ("class:Const", ["class:Constant."]),
        ("class:Constant.", ["class:Constant.value="]),
        ("fiddler:tra", ["fiddler:train_only"]),
        ("ta", ["task=", "tag:"]),
        ("--fdl.optimizer.b", ["--fdl.optimizer.b1=", "--fdl.optimizer.b2="]),
        ("nothing.here", []),
    ],
)
def test_overrides(indexed, typed, expected):
    assert sorted(words(f"train configs.toy seed=1 {typed}")) == sorted(expected)


def test_paths_without_a_value_and_flags_of_fiddle(indexed):
    assert words("show configs.toy --why optimizer.b") == ["optimizer.b1", "optimizer.b2"]
    assert words("train configs.toy --fiddler tra") == ["train_only"]
    assert words("train --exp configs.toy training.acc") == ["training.accumulation="]


@pytest.fixture
def files(indexed):
    """Gin files and a ConfigDict in the project."""
    (indexed / "sub").mkdir()
    (indexed / "sub" / "more.gin").write_text("include 'rest.gin'\nWIDTH = 3\nMlp.dim = %WIDTH\n")
    (indexed / "sub" / "rest.gin").write_text("s/RATE=0.1\n")
    (indexed / "a.gin").write_text("include 'sub/more.gin'\nDEPTH = 2\n")
    (indexed / "vit.py").write_text("""
def get_config(arg):
    config = config_dict.ConfigDict({"name": "a", "model": dict(width=3)})
    config.optimizer = ConfigDict(dict(lr=0.1))
    config.optimizer.b2 = 0.9
""")
    return indexed


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--gin_file ", ["a.gin", "configs/", "runs/", "sub/"]),
        ("--gin_file=sub/m", ["--gin_file=sub/more.gin"]),
        ("--gin_search_paths s", ["sub/"]),
        ("--config_dict v", ["vit.py"]),
        ("--gin_file a.gin gin:", ["gin:DEPTH=", "gin:WIDTH=", "gin:s/RATE="]),
        ("gin_file:sub/more.gin gin:W", ["gin:WIDTH="]),
        ("--gin_file=absent.gin gin:", []),
        (
            "--config_dict vit.py:16 config_dict:mo",
            ["config_dict:model.width=", "config_dict:model="],
        ),
        (
            "--config_dict=vit.py config_dict:optimizer.",
            ["config_dict:optimizer.b2=", "config_dict:optimizer.lr="],
        ),
        ("config_dict:vi", ["config_dict:vit.py"]),
        ("gi", ["gin:"]),
    ],
)
def test_names_of_gin_and_config_dicts(files, typed, expected):
    assert sorted(words(f"train configs.toy {typed}")) == expected


def test_the_index_is_begun_where_it_is_missing_or_stale(project, started):
    assert words("train configs.toy opt") == []
    assert started == ["configs.toy"]
    completion.save("configs.toy", ["configs/toy.py"], [completion.Entry("path", "optimizer", ".")])
    assert words("train configs.toy opt") == ["optimizer."]
    assert started == ["configs.toy"]
    (project / "configs" / "toy.py").write_text("x = 1\n")
    assert words("train configs.toy opt") == ["optimizer."]  # an old answer is better than none
    assert started == ["configs.toy"] * 2


def test_a_damaged_cache_is_made_anew(indexed, started):
    folder = completion.folder()
    expected = words("train configs.")
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(b"\xff{]")
    assert words("train configs.") == expected
    assert words("tr") == ["train"]
    assert words("train configs.toy opt") == []
    assert started == ["configs.toy"]


HEAVY = ("jax", "flax", "fiddle", "optax", "numpy", "argparse", "dataclasses", "pathlib")


@pytest.mark.full
def test_a_tab_imports_little_and_writes_nothing_into_the_project(indexed):
    code = f"""
import sys
sys.argv = ["luthier", "completion", "words"]
before = set(sys.modules)
from luthier import __main__
try:
    __main__.console()
except SystemExit as end:
    assert not end.code
found = [name for name in {HEAVY!r} if name in sys.modules and name not in before]
print("imported:", *found)
"""
    for typed in ("tr\n", "train\nconfigs.toy\nopt\n"):
        words("train configs.")  # so that the caches are there
        environment = os.environ | {"LUTHIER_WORDS": typed}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines()[-1] == "imported:"
        assert len(done.stdout.splitlines()) == 2
    there = {
        str(p.relative_to(indexed)) for p in indexed.rglob("*") if "__pycache__" not in p.parts
    }
    assert {path for path in there if not path.startswith(("configs", "runs"))} == set()


def test_macros_of_a_file_that_includes_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.gin").write_text("include 'a.gin'\nA = 1\n# B = 2\nC.d = 3\n  E = 4\nf/G=5\n")
    assert list(completion.macros(["a.gin", "absent.gin"])) == ["A", "f/G"]


def test_what_cannot_be_read_has_no_names(tmp_path):
    (tmp_path / "a.gin").write_bytes(b"\xff\xfe=")
    (tmp_path / "a.py").write_text("def get_config(:\n")
    assert list(completion.macros([str(tmp_path / "a.gin"), str(tmp_path)])) == []
    assert list(completion.keys(str(tmp_path / "a.py"))) == []
    assert list(completion.offered(str(tmp_path / "absent" / "x"), (".py",))) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("c.a.b = 1", ["a.b"]),
        ("c = ConfigDict({'a': {'b': 1}, key: 2})", ["a", "a.b"]),
        ("c = cd.ConfigDict(dict(a=dict(b=1)))", ["a", "a.b"]),
        ("c.a = f(b=1)", ["a"]),
        ("c.a = c.b = 1", ["a", "b"]),
        ("f().a = 1; x[0] = 2; c.update(a=1)", []),
        ("c = dict(**other)", []),
    ],
)
def test_keys_that_a_line_sets(line, expected, tmp_path):
    (tmp_path / "a.py").write_text(line)
    assert list(completion.keys(f"{tmp_path}/a.py:argument")) == expected


def test_hidden_files_come_when_their_dot_is_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (".hidden.gin", "seen.gin", "other.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "__pycache__").mkdir()
    assert [found.word for found in completion.offered("", (".gin",))] == ["seen.gin"]
    assert [found.word for found in completion.offered(".h", (".gin",))] == [".hidden.gin"]


def test_experiments(project):
    first, *others = candidates.experiments()
    assert first == ("configs.toy", "Train a toy.")
    assert "sweeps.lm_learning_rate" in [candidate.word for candidate in others]


def test_where_there_is_no_project_only_luthier_has_experiments(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "configs.lm.quickstart" in [candidate.word for candidate in candidates.experiments()]
    assert list(candidates.runs()) == []


def test_runs(project):
    (project / "runs" / "toy" / "unfinished").mkdir()
    assert list(candidates.runs()) == [("0a1b2c3d", "toy")]
    assert (candidates.RUN, candidates.RUNS) == (experiments.RUN, experiments.RUNS)


def test_pages():
    assert [page.word for page in candidates.pages()] == cli.manual_pages()


def test_what_is_cached_is_what_the_parsers_say(cache):
    first = completion.commands()
    assert first == completion.commands()
    assert first["commands"] == COMMANDS
    assert first["options"]["train"]["--wandb"][:2] == [True, ["off", "offline", "online"]]
    assert first["options"]["train"]["--new"][0] is False
    assert first["places"]["train"][0] == ["REF", []]
    assert first["places"]["data"][0][1] == ["inspect", "prepare", "train-tokenizer"]
    assert len(list(cache.iterdir())) == 1


def test_it_is_made_anew_when_the_command_line_changes(cache, monkeypatch):
    completion.commands()
    monkeypatch.setattr("luthier.__version__", "0.0.0")
    completion.commands()
    assert len(os.listdir(cache)) == 2
