import json
import math

import optuna
import pytest
import simulated_engine as toys
from optuna.storages.journal import JournalFileBackend

from luthier import study as studies
from luthier.study.driver import study_facts, update_mirror


def _study(path):
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    return optuna.load_study(study_name="toy", storage=storage)


@pytest.fixture
def driven(tmp_path):
    graph = toys.make_study(directory=str(tmp_path))
    engine = toys.InstantEngine(1, {5: ["failed"], 7: ["infeasible"]})
    outcome = studies.run(graph, packages=toys.PACKAGES, engine=engine)
    graph.storage = "optuna.journal"
    facts = study_facts(studies.build(graph))
    (outcome.directory / "facts.json").write_text(json.dumps(facts))
    return outcome


def test_optuna_sees_what_the_journal_says(driven):
    assert update_mirror(driven.directory) == 12
    assert update_mirror(driven.directory) == 0
    study = _study(driven.directory / "optuna.journal")
    assert study.metric_names == ["held_out/loss"]
    states = [trial.state.name for trial in study.trials]
    assert (states[5], states[7], states.count("COMPLETE")) == ("FAIL", "PRUNED", 10)
    for trial, ours in zip(study.trials, driven.ledger.trials, strict=True):
        assert trial.user_attrs["setting"] == ours.setting
        assert trial.state.name != "COMPLETE" or trial.values == list(ours.values)
    assert study.trials[7].constraints == {"cannot run": 1.0}
    best = min(t.values[0] for t in driven.ledger.trials if t.values)
    assert study.best_value == best
    assert 1e-4 <= study.trials[1].params["rate"] <= 1e-1


def test_a_torn_copy_is_mended_and_completed(driven):
    update_mirror(driven.directory)
    path = driven.directory / "optuna.journal"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * 0.7)])
    assert update_mirror(driven.directory) > 0
    assert sorted(t.user_attrs["setting"] for t in _study(path).trials) == list(range(12))


@pytest.mark.full
def test_a_copy_is_made_beside_the_driver(tmp_path):
    graph = toys.make_study(
        directory=str(tmp_path), storage="sqlite:///" + str(tmp_path / "all.db")
    )
    outcome = studies.run(graph, packages=toys.PACKAGES, engine=toys.InstantEngine())
    study = optuna.load_study(study_name="toy", storage=f"sqlite:///{tmp_path}/all.db")
    assert len(study.trials) == 12
    assert math.isfinite(study.best_value)
    assert outcome.ledger.notices == []


def test_a_copy_that_cannot_be_written_stops_nothing(tmp_path):
    graph = toys.make_study(directory=str(tmp_path), storage="sqlite:////absent/all.db")
    outcome = studies.run(graph, packages=toys.PACKAGES, engine=toys.InstantEngine())
    assert outcome.is_over
    log = tmp_path / "toy" / "optuna.log"
    assert outcome.ledger.notices == [f"Optuna's copy could not be written: see {log}"]
    assert log.read_text()
