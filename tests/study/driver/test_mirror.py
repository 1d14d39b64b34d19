import dataclasses
import json
import math

import fiddle as fdl
import optuna
import pytest
import simulated_engine as toys
from optuna.storages.journal import JournalFileBackend

from luthier import study as studies
from luthier.errors import RunError
from luthier.study.driver import study_facts, update_mirror
from luthier.study.views import read_status


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
    for trial, ours in zip(study.trials, driven.ledger.trials, strict=True):
        words = dict(word.split("=") for word in driven.ledger.settings[ours.setting].words)
        # 32, and not its exponent; trial 0 is the base, whose words set nothing.
        assert trial.params["width"] == int(words.get("width", 8))
        reports = trial.intermediate_values
        assert list(reports) == ([1, 2, 3, 4] if trial.state.name == "COMPLETE" else [])
        assert not reports or reports[4] == pytest.approx(trial.value)


def test_optuna_sees_natural_values_and_constraints(tmp_path):
    space = studies.Space(
        {
            "rate": studies.LogNormal(-5.0, 1.0),
            "optimizer.momentum": studies.Gaussian(0.9, 0.01),
            "optimizer.rate": studies.Uniform(0.1, 0.7, step=0.1),
            "width": studies.Int(2, 512, log=True),
        },
        [studies.Constraint(studies.Parameters(), 32)],
    )
    base = fdl.Config(toys.Toy, heads=1)
    graph = toys.make_study(
        base=base, space=space, directory=str(tmp_path), storage="optuna.journal"
    )
    outcome = studies.run(graph, packages=toys.PACKAGES, engine=toys.InstantEngine())
    trials = _study(outcome.directory / "optuna.journal").trials
    for trial, ours in list(zip(trials, outcome.ledger.trials, strict=True))[1:]:
        words = dict(word.split("=") for word in outcome.ledger.settings[ours.setting].words)
        assert trial.params == {name: float(value) for name, value in words.items()}
        assert trial.constraints == {"cannot run": 0.0, "parameters<=32": 1.0}
    assert round(10 * trials[1].params["optimizer.rate"]) / 10 == trials[1].params["optimizer.rate"]
    assert read_status(outcome.directory).best() == []


def _look_after(directory, lines):
    """Update the copy as if the journal had only its first lines; return the trials."""
    path = directory / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:lines]))
    update_mirror(directory)
    path.write_bytes(whole)
    return _study(directory / "optuna.journal").trials


def test_a_trial_is_followed_while_it_runs(driven):
    lines = (driven.directory / "journal.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    second_report = [number for number, kind in enumerate(kinds) if kind == "reported"][1]
    (trial,) = _look_after(driven.directory, second_report + 1)
    assert (trial.state.name, sorted(trial.intermediate_values)) == ("RUNNING", [1, 2])
    assert _look_after(driven.directory, second_report + 1) == [trial]
    assert update_mirror(driven.directory) == 12
    study = _study(driven.directory / "optuna.journal")
    assert len(study.trials) == 12
    assert (study.trials[0].state.name, len(study.trials[0].intermediate_values)) == ("COMPLETE", 4)
    assert study.trials[0].value == driven.ledger.trials[0].values[0]
    assert study.trials[0].user_attrs["outcome"] == "complete"
    assert study.trials[7].constraints == {"cannot run": 1.0}


def test_a_copy_of_an_older_luthier_is_written_again_and_one_of_others_is_left(driven):
    path = driven.directory / "optuna.journal"
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    old = optuna.create_study(study_name="toy", storage=storage)
    exponent = optuna.distributions.IntDistribution(3, 8)
    old.add_trial(
        optuna.create_trial(
            params={"width": 5},
            distributions={"width": exponent},
            value=1.0,
            user_attrs={"setting": 0},
        )
    )
    assert update_mirror(driven.directory) == 12
    assert {t.params["width"] for t in _study(path).trials} <= {8, 16, 32, 64, 128, 256}
    path.unlink()
    theirs = optuna.create_study(
        study_name="toy", storage=optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    )
    theirs.add_trial(optuna.create_trial(value=1.0))
    with pytest.raises(RunError, match="a study 'toy' that luthier did not write"):
        update_mirror(driven.directory)
    assert len(_study(path).trials) == 1


def test_choices_are_shown_by_their_labels(tmp_path):
    space = studies.Space(
        {
            "note": studies.Ordinal(["a", "b"]),
            "optimizer": studies.Choice([fdl.Config(toys.Momentum), fdl.Config(toys.Adaptive)]),
            "mode": studies.Choice([studies.Option(overrides=["steps=2"], name="short"), 1, True]),
            "table": studies.Zipped([{"rate": 0.1, "heads": 1}, {"rate": 0.2, "heads": 2}]),
        }
    )
    study = studies.build(toys.make_study(directory=str(tmp_path), space=fdl.Config(studies.Space)))
    shown = study_facts(dataclasses.replace(study, space=space))["shown"]
    labels = {name: [label for _, label in one["values"]] for name, one in shown.items()}
    assert labels == {
        "note": ["a", "b"],
        "optimizer": ["Momentum", "Adaptive"],
        "mode": ["0: short", "1: 1", "2: True"],
        "table": ["rate=0.1, heads=1", "rate=0.2, heads=2"],
    }


def test_a_deleted_copy_is_written_again_when_the_finished_study_is_resumed(tmp_path):
    graph = toys.make_study(directory=str(tmp_path), storage="optuna.journal")
    outcome = studies.run(graph, packages=toys.PACKAGES, engine=toys.InstantEngine())
    path = outcome.directory / "optuna.journal"
    path.unlink()
    again = studies.resume(outcome.directory, packages=toys.PACKAGES, engine=toys.InstantEngine())
    assert again.is_over
    assert len(_study(path).trials) == 12


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
