from __future__ import annotations

import functools
import re

import fiddle as fdl
import pytest
import simulated_engine as toys

import luthier
from luthier.errors import BadInput
from luthier.study.driver import find_study
from luthier.study.views.text import read_status


def test_a_study_is_one_call_that_shows_its_trials(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.luthier]\npackages = ["simulated_engine"]\n')
    outcome = luthier.sweep("simulated_engine:study")
    assert outcome.is_over
    assert [word.partition("=")[0] for word in outcome.best] == ["rate", "width"]
    (best,) = read_status(outcome.directory).best()
    assert re.fullmatch(
        rf"<Outcome toy: 12 of 12 trials ended.*; best: trial {best.number}, held_out/loss [\d.]+>",
        repr(outcome),
    )
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("trial ")]
    assert len(shown) == len(outcome.ledger.trials) == 12
    with pytest.raises(BadInput, match="there is a study in studies/toy"):
        luthier.sweep(toys.study())
    again = luthier.sweep(toys.study(), resume=True)
    assert again.is_over
    assert again.best == outcome.best
    assert "project: " not in capsys.readouterr().out
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    longer = luthier.sweep("toy", overrides=["budget.trials=13"], resume=True)
    assert len(longer.ledger.trials) == 13
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"project: {tmp_path}, from its pyproject.toml"
    monkeypatch.chdir(tmp_path)
    assert luthier.sweep("studies/toy", resume=True).is_over
    with pytest.raises(BadInput, match="space: an experiment has no search space"):
        luthier.sweep("simulated_engine:experiment")
    with pytest.raises(BadInput, match="space: a study has a space of its own"):
        luthier.sweep(toys.study(), ["rate=log(1e-3,1e-1)"])


def test_overrides_may_name_the_modules_that_the_call_allows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # no project, which would allow some
    overrides = ["engine=simulated_engine.InstantEngine()", "gate=None", "packing=None"]
    call = functools.partial(
        luthier.sweep, toys.experiment(), "rate=log(1e-3,1e-1)", overrides=overrides, trials=1
    )
    with pytest.raises(BadInput, match="simulated_engine"):
        call(name="unknown")
    assert call(name="known", packages=["simulated_engine"]).is_over


def test_objectives_are_given_as_text(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.luthier]\npackages = ["simulated_engine"]\n')
    space, engine = ["rate=log(1e-3,1e-1)"], "engine=simulated_engine.InstantEngine()"
    plain = [engine, "gate=None", "packing=None"]
    call = functools.partial(luthier.sweep, "simulated_engine:experiment", space, trials=1)
    overrides = ["objectives=held_out/accuracy", "objectives[0].over=luthier.study.Best()", *plain]
    call(overrides=overrides, name="override")
    call(objective=["held_out/accuracy:best", "step_time"], overrides=plain, name="parameter")
    override, parameter = (find_study(name).read_study() for name in ("override", "parameter"))
    assert fdl.build(override.objectives[0]) == fdl.build(parameter.objectives[0])
    assert override.objectives[0].selector.direction == "higher"
    assert [fdl.build(one).name for one in parameter.objectives] == [
        "held_out/accuracy",
        "step_seconds",
    ]
    with pytest.raises(BadInput, match="is not an objective"):
        call(objective="held_out", overrides=plain)


def test_a_search_space_in_several_arguments_is_refused_with_the_call_to_write():
    with pytest.raises(BadInput) as error:
        luthier.sweep("quickstart", "seed=int(1,4)", "optimizer.b2=uniform(0.9,0.999)")
    assert str(error.value) == (
        "the search space is not in one list; write luthier.sweep('quickstart', ['seed=int(1,4)', "
        "'optimizer.b2=uniform(0.9,0.999)'])"
    )
    with pytest.raises(BadInput, match=r"write luthier.sweep\(study, space, overrides=\[...\]\)"):
        luthier.sweep(toys.study(), [], ["budget.trials=3"])
