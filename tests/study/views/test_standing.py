import fiddle as fdl
import simulated_engine as toys

from luthier import study as studies
from luthier.study.driver.trial_table import Ledger, ParameterSet, Trial
from luthier.study.views.text import StudyStatus, read_status


def _standing(values, directions):
    ledger = Ledger()
    for number, found in enumerate(values):
        state = "failed" if found is None else "complete"
        ledger.trials.append(Trial(number, number, state, found))
        ledger.settings.append(ParameterSet(number, (number,), (f"rate={number}",)))
    return StudyStatus("toy", ["loss", "time"][: len(directions)], directions, 9, ledger)


def _best(values, directions):
    return [trial.number for trial in _standing(values, directions).best()]


def test_the_best_trial_is_the_first_with_the_best_value():
    values = [(3.0,), None, (1.0,), (float("nan"),), (1.0,)]
    assert _best(values, ["lower"]) == [2]
    assert _best(values, ["higher"]) == [0]
    assert _best([None], ["lower"]) == []


def test_with_several_objectives_all_that_none_beats_are_the_best():
    values = [(3.0, 1.0), (1.0, 3.0), (2.0, 2.0), (3.0, 3.0), (2.0, 2.5)]
    assert _best(values, ["lower", "lower"]) == [1, 2, 0]
    assert _best(values, ["lower", "higher"]) == [1]


def test_a_study_is_read_from_its_folder(tmp_path):
    budget = fdl.Config(studies.Budget, trials=3)
    study = toys.make_study(directory=str(tmp_path), budget=budget)
    outcome = studies.run(study, packages=toys.PACKAGES, engine=toys.InstantEngine())
    standing = read_status(outcome.directory)
    assert (standing.name, standing.metrics, standing.num_trials) == ("toy", ["held_out/loss"], 3)
    assert standing.ledger.trials == outcome.ledger.trials
    assert standing.driver is None
    assert standing.words(standing.ledger.trials[0]) == "(the baseline)"
    assert standing.words(standing.ledger.trials[1]).startswith("rate=")
