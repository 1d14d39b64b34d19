import fiddle as fdl
import pytest
import simulated_engine as toys

from luthier import graph as graphs
from luthier import study as studies
from luthier.errors import BadInput, RunError
from luthier.records import Lock
from luthier.study.driver import read_journal


@pytest.fixture
def make(tmp_path):
    return lambda *args, **settings: toys.make_study(*args, directory=str(tmp_path), **settings)


def _run(study):
    return studies.run(study, packages=toys.PACKAGES, engine=toys.InstantEngine())


class Killed(BaseException):
    """The driver dies."""


def _dying(count):
    """Return an engine that dies with the driver at its `count`th look at events."""
    return toys.FailingEngine(count, Killed())


@pytest.mark.full
@pytest.mark.parametrize("sampler", ["tpe", "nsga-ii", "quasi-random", "random", "grid"])
def test_a_study_that_stopped_goes_on_to_the_same_trials(make, tmp_path, sampler):
    budget = fdl.Config(studies.Budget, trials=30)
    whole = _run(make(sampler, budget=budget, name="whole"))
    study = make(sampler, budget=budget)
    with pytest.raises(Killed):
        studies.run(study, packages=toys.PACKAGES, engine=_dying(9))
    for count in (8, 5):
        with pytest.raises(Killed):
            studies.resume(str(tmp_path / "toy"), engine=_dying(count))
    again = studies.resume(str(tmp_path / "toy"), engine=toys.InstantEngine())
    for trial in range(30):
        first, second = (graphs.to_json(_trial(o, trial)) for o in (whole, again))
        assert first == second
    assert [t.values for t in whole.ledger.trials] == [t.values for t in again.ledger.trials]


def _trial(outcome, number):
    return studies.trial_graph(f"{outcome.directory}/{number}")


def test_resuming_what_is_over_changes_nothing(make, tmp_path):
    before = _run(make())
    journal = (tmp_path / "toy" / "journal.jsonl").read_bytes()
    engine = toys.InstantEngine()
    after = studies.resume(str(tmp_path / "toy"), make(), engine=engine)
    assert after.is_over
    assert engine.started == []
    assert after.ledger.trials == before.ledger.trials
    assert (tmp_path / "toy" / "journal.jsonl").read_bytes() == journal


def test_a_larger_budget_goes_on_from_there(make, tmp_path):
    _run(make("tpe"))
    study = make("tpe", budget=fdl.Config(studies.Budget, trials=15))
    engine = toys.InstantEngine()
    outcome = studies.resume(str(tmp_path / "toy"), study, engine=engine)
    assert (len(outcome.ledger.trials), len(engine.started)) == (15, 3)
    again = studies.resume(str(tmp_path / "toy"), engine=toys.InstantEngine())
    assert len(again.ledger.trials) == 15


@pytest.mark.full
def test_a_pruner_knows_after_a_stop_what_was_reported_before(make, tmp_path):
    import optuna

    pruner = fdl.Config(optuna.pruners.MedianPruner, n_startup_trials=3)
    budget = fdl.Config(studies.Budget, trials=20)
    whole = _run(make(pruner=pruner, budget=budget, name="whole"))
    study = make(pruner=pruner, budget=budget)
    with pytest.raises(Killed):
        studies.run(study, packages=toys.PACKAGES, engine=_dying(25))
    again = studies.resume(str(tmp_path / "toy"), engine=toys.InstantEngine())
    assert [t.state for t in again.ledger.trials] == [t.state for t in whole.ledger.trials]
    assert "pruned" in [t.state for t in whole.ledger.trials]


def test_of_pruned_repeats_a_resumed_sampler_knows_the_reports_that_the_first_driver_used(
    make, tmp_path
):
    def with_trials(trials, **settings):
        budget = fdl.Config(studies.Budget, trials=trials)
        return make("tpe", budget=budget, seeds=2, pruner=fdl.Config(toys.ByNumber), **settings)

    whole = studies.run(
        with_trials(48, name="whole"), packages=toys.PACKAGES, engine=toys.InstantEngine(2)
    )
    studies.run(with_trials(32), packages=toys.PACKAGES, engine=toys.InstantEngine(2))
    again = studies.resume(
        str(tmp_path / "toy"), with_trials(48), packages=toys.PACKAGES, engine=toys.InstantEngine(2)
    )
    assert {trial.state for trial in whole.ledger.trials} == {"pruned"}
    assert [s.words for s in again.ledger.settings] == [s.words for s in whole.ledger.settings]


def test_a_changed_space_is_refused_with_the_difference(make, tmp_path):
    _run(make())
    dimensions = {"rate": studies.Log(1e-4, 1.0), "width": studies.Pow2(8, 256)}
    space = fdl.Config(studies.Space, dimensions)
    before = (tmp_path / "toy" / "journal.jsonl").read_bytes()
    with pytest.raises(BadInput) as caught:
        studies.resume(
            str(tmp_path / "toy"), make(space=space, seed=3), engine=toys.InstantEngine()
        )
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert "space.dimensions.rate" in lines[0]
    assert "0.1" in lines[0]
    assert lines[0].endswith(
        "resume without the change, or give the changed study another name (--name)"
    )
    assert (tmp_path / "toy" / "journal.jsonl").read_bytes() == before


def test_a_name_that_is_taken_is_refused(make, tmp_path):
    _run(make())
    with pytest.raises(BadInput) as caught:
        _run(make())
    path = tmp_path / "toy"
    assert str(caught.value) == (
        f"there is a study in {path}; resume it (--resume {path}; resume=True in Python), "
        "or give this one another name (--name)"
    )


@pytest.mark.full
def test_two_drivers_of_one_directory_are_refused_in_one_line(make, tmp_path):
    _run(make())
    with Lock(tmp_path / "toy" / "lock"), pytest.raises(RunError) as caught:
        studies.resume(str(tmp_path / "toy"), engine=toys.InstantEngine())
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{tmp_path / 'toy'} is already written by this process")


def test_problems_are_listed_at_once_and_nothing_is_written(make, tmp_path):
    from luthier import study as studies

    space = studies.Space({"rats": studies.Log(1e-4, 1.0)})
    objectives = [studies.objective("held_in/loss", None)]
    with pytest.raises(BadInput) as caught:
        _run(make(space=space, objectives=objectives))
    assert [str(problem) for problem in caught.value.problems] == [
        "rats: does not exist [set by space: rats, at 0.0001]; did you mean rate?",
        "objectives[0].evaluation: there is no evaluation named 'held_in' here; did you mean "
        "held_out?",
    ]
    assert not list(tmp_path.iterdir())


def test_a_study_without_an_engine_is_refused(make):
    with pytest.raises(BadInput, match="engine: is not set, so nothing runs the trials"):
        studies.run(make(), packages=toys.PACKAGES)


def test_an_edit_and_a_torn_journal_are_noted_once(make, tmp_path):
    with pytest.raises(Killed):
        studies.run(make(), packages=toys.PACKAGES, engine=_dying(3))
    (tmp_path / "toy" / "source" / "hashes.json").write_text('{"luthier": "of another day"}')
    with open(tmp_path / "toy" / "journal.jsonl", "ab") as file:
        file.write(b"{torn")
    with pytest.raises(Killed):
        studies.resume(str(tmp_path / "toy"), engine=_dying(3))
    outcome = studies.resume(str(tmp_path / "toy"), engine=toys.InstantEngine())
    assert outcome.ledger.notices == [
        "5 torn bytes were cut off the journal",
        "the source of luthier was edited since the study began: its trials keep running the "
        "source that it began with",
    ]


def test_the_journal_says_what_happened_in_its_order(make):
    outcome = _run(make(budget=fdl.Config(studies.Budget, trials=1)))
    kinds = [line["kind"] for line in read_journal(outcome.directory / "journal.jsonl")]
    reports = ["reported"] * 4
    assert kinds == ["opened", "asked", "admitted", "leased", *reports, "ended", "told", "closed"]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (
            "pruned",
            "--retry: 'pruned' does not name trials to run again; write failed, or failed:REGEX",
        ),
        (
            "failed:(out of memory",
            "--retry: '(out of memory' is not a regular expression: missing ), unterminated "
            "subpattern at position 0; write failed, or failed:REGEX",
        ),
    ],
)
def test_what_to_run_again_is_refused_before_anything_is_done(make, tmp_path, word, line):
    _run(make())
    before = (tmp_path / "toy" / "journal.jsonl").read_bytes()
    with pytest.raises(BadInput) as caught:
        studies.resume(str(tmp_path / "toy"), retry=word, engine=toys.InstantEngine())
    assert str(caught.value) == line
    assert (tmp_path / "toy" / "journal.jsonl").read_bytes() == before
