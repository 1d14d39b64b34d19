from __future__ import annotations

import os
import subprocess
import sys

import pytest

from luthier.cli import COMMANDS
from luthier.cli.completion import candidates, index


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
    assert words("help over") in ([], ["overrides"])
    assert words("completion ") == ["bash", "zsh", "fish"]


def test_references(indexed):
    assert words("train ") == ["configs.toy", "run:"]
    assert words("train run:") == ["run:0a1b2c3d"]
    assert words("train --exp ") == ["configs.toy"]
    (found,) = candidates.complete(["train", "configs."])
    assert found.text == "Train a toy."


def test_a_changed_file_is_listed_anew(indexed, project):
    assert words("train configs.") == ["configs.toy"]
    (project / "configs" / "toy.py").write_text("def experiment():\n    'Other.'\n")
    (project / "configs" / "new.py").write_text("def experiment():\n    'New.'\n")
    found = candidates.complete(["train", "configs."])
    assert found == [("configs.new", "New."), ("configs.toy", "Other.")]


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
    index.save("configs.toy", ["configs/toy.py"], [index.Entry("path", "optimizer", ".")])
    assert words("train configs.toy opt") == ["optimizer."]
    assert started == ["configs.toy"]
    (project / "configs" / "toy.py").write_text("x = 1\n")
    assert words("train configs.toy opt") == ["optimizer."]  # an old answer is better than none
    assert started == ["configs.toy"] * 2


def test_a_damaged_cache_is_made_anew(indexed, started):
    folder = index.folder()
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
