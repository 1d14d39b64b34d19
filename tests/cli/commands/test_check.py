from __future__ import annotations

import json
import subprocess
import sys

import pytest

from luthier.cli import main

STUDY = '''"""A study."""
import fiddle as fdl
import optuna

from luthier import graph, metrics
from luthier import study as studies


def study(metric="loss") -> fdl.Config[studies.Study]:
    """Search the learning rate."""
    return fdl.Config(
        studies.Study,
        name="rates",
        base=graph.resolve("configs.tiny"),
        space=fdl.Config(studies.Space, {"optimizer.learning_rate.peak": studies.Log(1e-3, 1e-1)}),
        objectives=[
            fdl.Config(studies.Measured, fdl.Config(metrics.Selector, "held_out", metric, "lower"))
        ],
        sampler=fdl.Config(optuna.samplers.TPESampler),
        budget=fdl.Config(studies.Budget, trials=2),
        engine=fdl.Config(studies.Local),
    )


def misjudged() -> fdl.Config[studies.Study]:
    """Search by a metric that the task does not have."""
    return study("los")
'''


@pytest.fixture
def own(project, monkeypatch):
    """A project whose `configs` and `sweeps` are packages of this test alone."""

    def forget():
        names = [n for n in sys.modules if n.partition(".")[0] in ("configs", "sweeps")]
        return {name: sys.modules.pop(name) for name in names}

    before = forget()
    (project / "trials").rename(project / "configs")
    for name in ("broken", "raising", "other"):
        (project / "configs" / f"{name}.py").unlink()
    (project / "sweeps").mkdir()
    (project / "sweeps" / "__init__.py").write_text("")
    (project / "sweeps" / "rates.py").write_text(STUDY)
    monkeypatch.syspath_prepend(project)
    yield project
    forget()
    sys.modules.update(before)


def test_each_config_of_a_project_is_one_line(own, capsys):
    (own / "configs" / "needy.py").write_text("def experiment(size):\n    raise ValueError\n")
    before = sorted(path for path in own.rglob("*") if "__pycache__" not in path.parts)
    assert main(["check", "--all"]) == 2
    out = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in out[:2]] == [
        ["configs.needy", "skipped  needs arguments (size)"],
        ["configs.tiny", "ok       5,808 parameters"],
    ]
    assert out[2].split() == ["sweeps.rates", "ok", "a", "study", "of", "5,808", "parameters"]
    assert out[3].startswith("sweeps.rates:misjudged  problem  objectives[0].")
    assert "did you mean loss?" in out[3]
    assert out[4:] == ["4 checked: 2 ok, 1 with problems"]
    after = sorted(path for path in own.rglob("*") if "__pycache__" not in path.parts)
    assert before == after, "nothing is written"


def test_every_stage_is_checked_and_every_problem_listed(own, capsys):
    text = (own / "configs" / "tiny.py").read_text()
    for name, old, new in (
        ("no_data", '"text.txt"', '"txt/*.txt"'),
        ("odd_heads", "num_kv_heads=2", "num_kv_heads=3"),
        ("small_vocabulary", "vocab_size=258", "vocab_size=64"),
    ):
        (own / "configs" / f"{name}.py").write_text(text.replace(old, new))
    (own / "configs" / "bug.py").write_text("def experiment():\n    return 1 / 0\n")
    names = ["no_data", "odd_heads", "small_vocabulary", "bug", "absent"]
    assert main(["check", *(f"configs.{name}" for name in names), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [check["status"] for check in found] == ["problem"] * 5
    texts = [check["problems"] for check in found]
    line = text.splitlines().index('        source=fdl.Config(data.TextFiles, "text.txt"),') + 1
    assert texts[0] == [
        f"data.source.pattern: no file matches 'txt/*.txt' [set by configs/no_data.py:{line}]; "
        f"relative patterns start at {own}"
    ]
    assert "num_kv_heads" in texts[1][0]
    assert "vocab" in texts[2][0]
    assert texts[3] == [
        "configs.bug:experiment failed: ZeroDivisionError: division by zero "
        "(configs/bug.py:2, in experiment)"
    ]
    assert "there is no module 'configs.absent'" in texts[4][0]


TASK = """
import dataclasses
from luthier import metrics, tasks


@dataclasses.dataclass(frozen=True)
class Undeclared(tasks.LanguageModelling):
    def evaluate(self, model, batch):
        found = super().evaluate(model, batch)
        return {**found, metrics.Metric("margin"): found[metrics.LOSS]}
"""


def test_an_evaluation_that_cannot_run_is_found_before_the_first_step(own, capsys):
    (own / "own_judge.py").write_text(TASK)
    (own / "pyproject.toml").write_text('[tool.luthier]\npackages = ["own_judge"]\n')
    text = (own / "configs" / "tiny.py").read_text()
    imported = "import own_judge\n\n\ndef experiment"
    task = "task=fdl.Config(own_judge.Undeclared)"
    text = text.replace("def experiment", imported)
    text = text.replace("task=fdl.Config(tasks.LanguageModelling)", task)
    (own / "configs" / "judged.py").write_text(text)
    line = "task: evaluate returns margin, which `metrics` does not declare; add it to `metrics`"
    assert main(["check", "configs.judged"]) == 2
    assert line in capsys.readouterr().out
    for words in ([], ["--dry-run"]):
        assert main(["train", "configs.judged", *words]) == 2
        assert line in capsys.readouterr().err
    assert not (own / "runs").exists()


@pytest.mark.full
def test_a_mesh_of_several_devices_is_planned_on_virtual_ones(own):
    text = (own / "configs" / "tiny.py").read_text()
    mesh = "parallelism=fdl.Config(parallel.Parallelism, mesh=fdl.Config(parallel.Mesh, fsdp=4)),"
    text = text.replace("optim, program", "optim, parallel, program")
    (own / "configs" / "sharded.py").write_text(text.replace("task=", f"{mesh}\n        task="))
    # In a process of its own: JAX runs here already, on one device.
    command = [sys.executable, "-m", "luthier", "check", "configs.sharded", "configs.tiny"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sharded, tiny, _ = done.stdout.splitlines()
    assert sharded.endswith(" parameters on 4 devices")
    assert tiny.endswith("5,808 parameters")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no experiment is given; write `luthier check configs.lm.quickstart`, or --all"),
        (["seed=3"], "'seed=3' is an override; check takes experiments and studies"),
        (["--all"], "there is nothing below configs/ and sweeps/ here"),
    ],
)
def test_what_cannot_be_checked(project, capsys, words, message):
    assert main(["check", *words]) == 2
    assert message in capsys.readouterr().err
