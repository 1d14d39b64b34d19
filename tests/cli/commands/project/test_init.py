from __future__ import annotations

import ast
import importlib
import sys
import tomllib
from pathlib import Path

import pytest

from luthier import graph as graphs
from luthier.cli import main
from tests.hub_folders import read_golden, write_folder

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_it_makes_a_project(tmp_path, capsys):
    assert main(["init", "my-models"]) == 0
    folder = tmp_path / "my-models"
    made = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {
        ".github/workflows/ci.yml",
        ".gitignore",
        "README.md",
        "pyproject.toml",
        "configs/__init__.py",
        "configs/addition.py",
        "sweeps/__init__.py",
        "sweeps/learning_rate.py",
        "tests/test_configs.py",
        "my_models/__init__.py",
        "my_models/layers.py",
        "my_models/data.py",
        "my_models/tasks.py",
    } == made
    assert "luthier train configs.addition" in capsys.readouterr().out


def test_the_template_name_is_gone(tmp_path):
    assert main(["init", "fretwork"]) == 0
    for path in (tmp_path / "fretwork").rglob("*"):
        assert "my_project" not in path.name
        if path.is_file():
            assert "my_project" not in path.read_text()
        if path.suffix == ".py":
            ast.parse(path.read_text())


def test_its_settings_name_its_package(tmp_path):
    assert main(["init", "fretwork"]) == 0
    settings = tomllib.loads((tmp_path / "fretwork" / "pyproject.toml").read_text())
    assert settings["tool"]["luthier"]["packages"] == ["fretwork"]
    assert settings["project"]["name"] == "fretwork"


SHIPPED = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "configs").rglob("*.py")
    if path.name != "__init__.py"
)


@pytest.mark.parametrize("reference", SHIPPED)
def test_a_copied_experiment_is_source_that_stands_alone(reference, tmp_path, fresh_configs):
    """Each file is that of luthier, but for its name in the header and W&B's project."""
    assert main(["init", "fretwork", "--from", reference]) == 0
    folder = tmp_path / "fretwork"
    name = reference.rpartition(".")[2]
    copied = {path.stem for path in (folder / "configs").glob("*.py")} - {"__init__", "addition"}
    assert name in copied
    for stem in copied:
        text = (folder / "configs" / f"{stem}.py").read_text()
        at = f"{reference.rpartition('.')[0]}.{stem}"
        original = (ROOT / f"{at.replace('.', '/')}.py").read_text()
        assert f"luthier train configs.{stem}" in text or "--exp" in text
        assert at not in text
        assert text.replace(f"configs.{stem}", at).count("\n") == original.count("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1
                names = [node.module] if node.module else [one.name for one in node.names]
                assert copied >= set(names)
    study = (folder / "sweeps" / "learning_rate.py").read_text()
    assert study.count("BASE = ") == 1
    ast.parse(study)
    assert (
        f"`configs.{name}` is a copy of luthier's `{reference}`"
        in (folder / "README.md").read_text()
    )
    pyproject = tomllib.loads((folder / "pyproject.toml").read_text())
    assert pyproject["project"]["dependencies"] == ["luthier[examples]"]


def test_a_short_name_and_a_variant_may_be_copied(tmp_path, capsys):
    assert main(["init", "fretwork", "--from", "digits:resnet"]) == 0
    assert "luthier train configs.digits:resnet" in capsys.readouterr().out
    study = (tmp_path / "fretwork" / "sweeps" / "learning_rate.py").read_text()
    for line in (
        'BASE = "configs.digits:resnet"',
        'SHORTER = ["training.steps=200"]',
        "LOWEST, HIGHEST = 0.0003, 0.03",
        'OBJECTIVE = ("held_out", "',
    ):
        assert line in study


def test_weights_of_the_hub_are_a_start(tmp_path, monkeypatch, fresh_configs):
    config, tensors, _ = read_golden("mixtral")
    folder = write_folder(tmp_path / "Tiny-8x7B", config, tensors)
    assert main(["init", "fretwork", "--from", "hf:Tiny-8x7B"]) == 0
    monkeypatch.chdir(tmp_path / "fretwork")  # where the relative name means nothing
    monkeypatch.syspath_prepend(str(tmp_path / "fretwork"))
    written = graphs.resolve("configs.tiny_8x7b")
    original = graphs.resolve(f"hf:{folder}")
    assert graphs.fingerprint(written, "program") == graphs.fingerprint(original, "program")
    assert main(["show", "configs.tiny_8x7b", "restore"]) == 0
    assert main(["init", "another", "--from", "hf:nowhere"]) == 2


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("quickstrat", "did you mean quickstart"),
        ("sweeps.lm_learning_rate", "is not an experiment that comes with luthier"),
        ("own_experiments.mine", "is not an experiment that comes with luthier"),
    ],
)
def test_other_experiments_cannot_be_copied(tmp_path, capsys, monkeypatch, reference, message):
    (tmp_path / "own_experiments").mkdir()
    code = "import fiddle as fdl\n\ndef experiment():\n    return fdl.Config(dict)\n"
    (tmp_path / "own_experiments" / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["init", "fretwork", "--from", reference]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "fretwork").exists()


def test_an_empty_folder_may_exist_and_parents_are_made(tmp_path):
    (tmp_path / "there").mkdir()
    assert main(["init", "there"]) == 0
    assert main(["init", "deep/down/here"]) == 0
    assert (tmp_path / "deep/down/here/here/layers.py").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "no name"),
        ("9lives", "letters, digits"),
        ("a b", "letters, digits"),
        ("_hidden", "letters, digits"),
        ("naïve", "letters, digits"),
        ("..", "letters, digits"),
        ("class", "word of Python"),
        ("configs", "is reserved"),
        ("luthier", "is reserved"),
        ("json", "installed"),
        ("jax", "installed"),
        ("full", "not empty"),
        ("file", "not a folder"),
        ("file/inner", "not a folder"),
    ],
)
def test_bad_names_and_places(tmp_path, capsys, name, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").write_text("precious")
    (tmp_path / "file").write_text("precious")
    before = sorted(tmp_path.rglob("*"))
    assert main(["init", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written"


def test_unknown_options_and_bad_names_are_reported_together(capsys):
    assert main(["init", "9lives", "--force"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


SHORT = [
    "training.steps=2",
    "optimizer.learning_rate.warmup_steps=1",
    "data.source.limit=20",
    "training.global_batch_size=8",
    "evaluations.held_out.global_batch_size=8",
    "--wandb",
    "off",
]


@pytest.fixture
def fresh_configs(monkeypatch):
    """Forgets what another test imported as `configs`, and afterwards what this one did."""

    def imported():
        return [name for name in sys.modules if name.partition(".")[0] == "configs"]

    for name in imported():
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in imported():
        del sys.modules[name]


@pytest.mark.full
def test_its_experiment_trains_with_its_own_parts(fresh_configs, tmp_path, monkeypatch, capsys):
    name = "project_of_a_test"
    assert main(["init", name]) == 0
    monkeypatch.chdir(tmp_path / name)
    monkeypatch.syspath_prepend(str(tmp_path / name))
    assert main(["list"]) == 0
    assert "configs.addition:wide" in capsys.readouterr().out
    assert main(["train", "configs.addition", *SHORT]) == 0
    capsys.readouterr()
    assert main(["evaluate", "last"]) == 0
    assert "answer_accuracy" in capsys.readouterr().out
    (record,) = (tmp_path / name / "runs" / "addition").glob("*/config.json")
    assert f"{name}.layers" in record.read_text()


def test_the_parts_are_right(tmp_path, monkeypatch):
    import jax.numpy as jnp

    name = "parts_of_a_test"
    assert main(["init", name]) == 0
    monkeypatch.syspath_prepend(str(tmp_path / name))
    data, tasks = (importlib.import_module(f"{name}.{part}") for part in ("data", "tasks"))
    train, held_out = (data.Sums(20, split) for split in ("train", "held_out"))
    assert len(train) + len(held_out) == 400
    assert not set(train.pairs) & set(held_out.pairs)
    sums = {pair: split[i] for split in (train, held_out) for i, pair in enumerate(split.pairs)}
    assert sums[7, 18] == b"7+18=52"
    # Two documents in one row, `1+2=3` and `9+9=81`, each behind its own start token.
    texts = ["1+2=3", "9+9=81"]
    inputs = [token for text in texts for token in (256, *text.encode())]
    targets = [token for text in texts for token in (*text.encode(), 257)]
    batch = {
        "inputs": jnp.array([inputs]),
        "positions": jnp.array([[*range(6), *range(7)]]),
        "weights": jnp.ones((1, 13)),
        "target_bytes": jnp.array([[int(token < 256) for token in targets]]),
    }
    asked = tasks.answer_mask(batch)[0]
    assert bytes(t for t, a in zip(targets, asked.tolist(), strict=True) if a) == b"381"
