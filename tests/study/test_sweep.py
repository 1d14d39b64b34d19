from __future__ import annotations

import pytest
import simulated_engine as toys

import luthier
from luthier.errors import BadInput


def test_a_study_is_one_call_that_shows_its_trials(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.luthier]\npackages = ["simulated_engine"]\n')
    outcome = luthier.sweep("simulated_engine:study")
    assert outcome.is_over
    assert [word.partition("=")[0] for word in outcome.best] == ["rate", "width"]
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
