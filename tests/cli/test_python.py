"""What can be named on the command line can be named in Python: one project, and one grammar."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import pydoc
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import luthier
from luthier import graph
from luthier.cli import main
from luthier.cli.completion import candidates
from luthier.errors import BadInput
from luthier.trainer import Result

OWN = """
from luthier import layers

class Norm(layers.RMSNorm):
    pass
"""
FIDDLERS = """
import fiddle as fdl

def wider(config: fdl.Config) -> fdl.Config:
    config.model.dim = 24
"""


@pytest.fixture
def own(importable_project):
    """A project with a package and a fiddler of its own."""
    (importable_project / "own_parts.py").write_text(OWN)
    (importable_project / "own_fiddlers.py").write_text(FIDDLERS)
    settings = '[tool.luthier]\npackages = ["own_parts"]\nfiddlers = ["own_fiddlers"]\n'
    (importable_project / "pyproject.toml").write_text(settings)
    return importable_project


def test_overrides_find_fiddlers_and_packages_of_the_project(own):
    words = ["fiddler:wider", "fiddler:seed(3)", "model.norm:=partial:own_parts.Norm()"]
    config = graph.apply(graph.resolve("trials.tiny"), words)
    assert graph.equal(config, luthier.experiment("trials.tiny", words))
    assert graph.get(config, "model.dim") == 24
    assert graph.get(config, "seed") == 3
    graph.validate(config)
    with pytest.raises(BadInput, match="which recorded graphs may not name"):
        graph.validate(config, packages=())
    with pytest.raises(BadInput, match="there is no fiddler 'wider'"):
        graph.apply(config, ["fiddler:wider"], shelves=())
    # A file may come from anybody, and so may not name the code of the project by itself.
    (own / "words.txt").write_text(words[-1] + "\n")
    with pytest.raises(BadInput, match="own_parts"):
        graph.apply(graph.resolve("trials.tiny"), ["file:words.txt"])


def test_an_experiment_is_found_as_the_command_finds_it(trained, monkeypatch):
    monkeypatch.chdir(trained)
    monkeypatch.syspath_prepend(trained)
    config = luthier.experiment("quickstart", ["training.steps=3", "fiddler:debug"])
    assert graph.get(config, "name") == "quickstart-debug"
    (run,) = luthier.runs()
    again = luthier.experiment("trials.tiny", run.overrides)
    assert graph.equal(luthier.experiment("run:last"), again)
    with pytest.raises(BadInput) as caught:
        luthier.experiment("trials.tiny", ["sede=3", "optimizer=", "training.steps=3"])
    assert len(caught.value.problems) == 2


def test_a_rerun_of_a_finished_run_has_its_metrics_and_its_model(trained, monkeypatch):
    monkeypatch.chdir(trained)
    monkeypatch.syspath_prepend(trained)
    result = luthier.train(luthier.experiment("trials.tiny"))
    assert result.was_over
    (run,) = luthier.runs()
    assert (run.status, run.step) == ("finished", 4)
    assert run.overrides == ['records.wandb=luthier.records.Wandb(mode="off")']
    assert result.metrics == run.evaluations
    assert result.metrics["held_out"]["nats_per_byte"] > 0
    losses = run.metrics()["loss"]
    assert losses.shape == (4,)
    assert np.isfinite(losses).all()
    assert result.model is result.model
    logits = result.model(np.zeros((1, 5), np.int32))
    assert logits.shape[:2] == (1, 5)


def test_a_script_in_a_folder_below_finds_the_experiments_of_the_project(own, monkeypatch):
    (own / "scripts").mkdir()
    monkeypatch.chdir(own / "scripts")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p or ".").resolve() != own])
    for module in [name for name in sys.modules if name.split(".")[0] == "trials"]:
        monkeypatch.delitem(sys.modules, module)
    path = list(sys.path)
    assert luthier.experiment("trials.tiny", ["seed=4"]).seed == 4
    assert sys.path == path, "nothing of the process has changed"
    remedy = r"not in one list; write luthier.experiment\('trials.tiny', \['a=1', 'b=2'\]\)"
    with pytest.raises(BadInput, match=remedy):
        luthier.experiment("trials.tiny", "a=1", "b=2")
    with pytest.raises(BadInput, match=r"not in one list; .*, \['seed=4'\]\)"):
        luthier.experiment("trials.tiny", "seed=4")
    with pytest.raises(
        BadInput, match=r"is not a graph; write luthier.experiment\('trials.tiny'\)"
    ):
        luthier.train("trials.tiny")


def test_runs_belong_to_the_project_whichever_folder_a_script_is_in(
    trained, tmp_path, monkeypatch, capsys
):
    own = tmp_path / "own"
    shutil.copytree(trained, own)
    (own / "scripts").mkdir()
    shutil.copy(own / "text.txt", own / "scripts")
    monkeypatch.chdir(own / "scripts")
    monkeypatch.syspath_prepend(trained)
    result = luthier.train(luthier.experiment("trials.tiny"))
    assert result.was_over
    assert result.directory.parent == own / "runs" / "tiny"
    (run,) = luthier.runs()
    assert run.directory.path == result.directory
    assert [str(found[0]) for found in candidates.runs()] == [run.id]
    assert main(["runs", run.id]) == 0
    assert f"folder {result.directory}" in " ".join(capsys.readouterr().out.split())
    new = ["train", "trials.tiny", "--dry-run", "seed=9"]
    assert main(new) == 0
    assert f"would start a new run in {result.directory.parent}\n" in capsys.readouterr().out
    # A path that the user sets starts at the working directory.
    assert luthier.runs("./runs") == []
    assert main([*new, "records.directory=./runs"]) == 0
    assert "would start a new run in runs/tiny\n" in capsys.readouterr().out
    assert [str(path) for path in Path().iterdir()] == ["text.txt"]


def test_results_are_plotted_and_differences_are_shown_as_they_are_printed(trained, monkeypatch):
    monkeypatch.chdir(trained)
    (run,) = luthier.runs(last=1)
    result = Result(run.directory.path, "finished", run.step)
    assert luthier.plot(result) == luthier.plot(run) == luthier.plot([result])
    last = luthier.experiment("last")
    difference = luthier.diff(last, graph.apply(last, ["seed=7"]))
    assert repr(difference) == str(difference)
    assert "seed" in repr(difference)


def test_a_sweep_takes_what_the_command_takes(monkeypatch, tmp_path):
    seen = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("luthier.study.start.run", lambda study, **_: seen.append(study))
    settings = ["seed=20", "pruner=optuna.pruners.NopPruner()", "budget.trials=3"]
    luthier.sweep("quickstart", ["optimizer.b2=uniform(0.9,0.99)"], overrides=settings, name="b2")
    (study,) = seen
    assert (study.name, study.budget.trials, study.base.seed) == ("b2", 3, 20)
    assert study.pruner.__fn_or_cls__.__name__ == "NopPruner"


@pytest.mark.parametrize("name", sorted(luthier._FUNCTIONS))
def test_functions_at_the_root_have_names_and_signatures(name):
    function = getattr(luthier, name)
    assert (
        pydoc.plain(pydoc.render_doc(function))
        .splitlines()[0]
        .endswith(f"function {name} in module luthier")
    )
    assert pickle.loads(pickle.dumps(function)) is function
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        assert parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        assert parameter.annotation is not parameter.empty
    assert signature.return_annotation is not signature.empty


def test_names_that_are_elsewhere_are_pointed_to():
    for name, place in luthier._ELSEWHERE.items():
        assert pydoc.locate(place) is not None
        with pytest.raises(AttributeError, match=rf"has no attribute '{name}'; use {place}$"):
            getattr(luthier, name)
    meant = {"Experiment": "luthier.program.Experiment", "trian": "luthier.train"}
    for name, place in meant.items():
        with pytest.raises(AttributeError, match=f"; did you mean {place}"):
            getattr(luthier, name)
    assert not hasattr(luthier, "nothing_like_this")
    result = Result(Path("x"), "finished", 3, {"held_out": {"loss": 1.0}, "own": {"loss": 2.0}})
    places = r"result.metrics\['held_out'\]\['loss'\] or result.metrics\['own'\]\['loss'\]\?"
    with pytest.raises(AttributeError, match=f"has no attribute 'loss'; did you mean {places}"):
        result.loss  # noqa: B018
    assert pickle.loads(pickle.dumps(result)) == copy.deepcopy(result) == result

    def load():
        raise AttributeError("of the model")

    with pytest.raises(AttributeError, match=r"^of the model$"):
        Result(Path("x"), "finished", 3, load_model=load).model  # noqa: B018


def test_type_checkers_see_all_names_of_the_root():
    stub = Path(luthier.__file__).with_name("__init__.pyi")
    names = set()
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):  # `import x as x` exports it
            names |= {alias.name for alias in node.names if alias.asname == alias.name}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets}
    assert names | {"__version__"} == set(luthier.__all__)
