from __future__ import annotations

import itertools
import json
import re
import sys
import time
from pathlib import Path

import pytest

import luthier
from luthier import study as studies
from luthier.cli import main
from luthier.errors import BadInput, Problem
from luthier.study.driver import find_study

TOYS = str(Path(__file__).resolve().parents[2] / "study")
if TOYS not in sys.path:
    sys.path.insert(0, TOYS)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project whose package is the toy experiment."""
    lines = '[tool.luthier]\npackages = ["simulated_engine"]\n'
    (tmp_path / "pyproject.toml").write_text(lines)
    monkeypatch.chdir(tmp_path)
    return tmp_path


STUDY = "simulated_engine:study"
WRAPPED = ["simulated_engine:experiment", "--objective", "held_out/loss", "--space"]


def test_a_study_is_driven_and_shown_with_its_best_trial(project, capsys):
    assert main(["sweep", STUDY, "base.steps=2", "--trials", "5"]) == 0
    driven = capsys.readouterr().out
    assert "trial 4: complete; held_out/loss " in driven
    assert "toy: 5 of 5 trials ended" in driven
    assert "report: studies/toy/report.html" in driven.splitlines()
    assert main(["sweep", "show", "toy", "--all"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("toy: 5 of 5 trials ended")
    assert sum(" complete " in line for line in shown) == 5
    assert main(["sweep", "best", "studies/toy"]) == 0
    out, err = capsys.readouterr()
    assert [word.split("=")[0] for word in out.split()] == ["rate", "width"]
    number, value = re.search(r"best:\n  trial (\d+): (held_out/loss [\d.]+);", driven).groups()
    assert err == (
        f"note: trial {number} ({value}): the overrides are relative to the study's base; "
        f"`luthier train study:studies/toy/{number}` trains it\n"
    )
    assert main(["sweep", "best", "toy", "--as", "overrides"]) == 0
    assert capsys.readouterr() == (out, "")
    assert main(["sweep", "best", "toy", "--as", "python"]) == 0
    assert "simulated_engine.Toy" in capsys.readouterr().out
    assert main(["sweep", "best", "toy", "--as", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "luthier.graph"


def test_the_project_of_a_folder_below_it_is_printed_before_the_trials(
    project, capsys, monkeypatch
):
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    assert main(["sweep", STUDY, "--trials", "1"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"project: {project}, from its pyproject.toml"
    assert (project / "studies" / "toy").is_dir()


def test_a_module_of_a_study_may_import_its_experiment(project, capsys):
    (project / "study_of_toys.py").write_text(
        "from simulated_engine import experiment, study as make\n\n"
        "def study():\n    return make()\n"
    )
    assert main(["sweep", "study_of_toys", "--trials", "2"]) == 0
    assert "toy: 2 of 2 trials ended" in capsys.readouterr().out


def test_an_option_that_a_recorded_study_would_ignore_is_refused(project, capsys):
    assert main(["sweep", STUDY, "--trials", "3"]) == 0
    capsys.readouterr()
    for words in (["--sampler", "random"], ["--space", "rate=log(1,2)"], ["--objective", "a/b"]):
        (error,) = _refused(capsys, "--resume", "studies/toy", "--trials", "6", *words)
        assert error.startswith(f"luthier: {words[0]} has no effect on a recorded study; give the")
    assert main(["sweep", STUDY, "--resume", "studies/toy", "--sampler", "random"]) == 0


def test_a_study_goes_on_with_a_larger_budget_and_then_changes_nothing(project, capsys):
    assert main(["sweep", STUDY, "--trials", "3"]) == 0
    assert main(["sweep", "--resume", "studies/toy", "--trials", "6"]) == 0
    assert "toy: 6 of 6 trials ended" in capsys.readouterr().out
    journal = (project / "studies/toy/journal.jsonl").read_bytes()
    assert main(["sweep", "--resume", "studies/toy"]) == 0
    assert (project / "studies/toy/journal.jsonl").read_bytes() == journal


def test_studies_belong_to_the_project_whichever_folder_the_command_is_in(
    project, capsys, monkeypatch
):
    (project / "scripts").mkdir()
    monkeypatch.chdir(project / "scripts")
    assert main(["sweep", STUDY, "--trials", "1"]) == 0
    assert (project / "studies" / "toy" / "study.json").is_file()
    assert not list(Path().iterdir())
    assert main(["sweep", "show", "toy"]) == 0
    assert main(["sweep", "--resume", "toy", "--trials", "2"]) == 0
    assert "toy: 2 of 2 trials ended" in capsys.readouterr().out
    assert main(["show", "study:toy/1"]) == 0
    assert main(["sweep", STUDY, "--trials", "1", "directory=./studies"]) == 0
    assert Path("studies/toy/study.json").is_file()


def _refused(capsys, *words):
    assert main(["sweep", *words]) == 2
    return capsys.readouterr().err.splitlines()


def test_a_changed_space_is_refused_on_resume(project, capsys):
    assert main(["sweep", STUDY, "--trials", "2"]) == 0
    capsys.readouterr()
    words = [STUDY, "space.dimensions.rate.high=0.5", "--trials", "3", "--resume", "studies/toy"]
    (line,) = _refused(capsys, *words)
    assert line.startswith(
        "luthier: space.dimensions.rate: differs from the study in studies/toy: "
    )


def test_an_experiment_is_swept_over_what_the_command_line_says(project, capsys):
    lines = _refused(
        capsys,
        "simulated_engine:experiment",
        "--space",
        "rates=log(1e-4,1e-1)",
        "--space",
        "width=uniform(8,64)",
        "--objective",
        "held_out/lss",
        "--name",
        "mine",
    )
    assert lines == [
        "luthier: rates: does not exist [set by space: rates, at 0.0001]; did you mean rate?",
        "luthier: width: 25.82535362629228 is not an int [set by space: width, at "
        "25.82535362629228]",
        "luthier: objectives[0].metric: there is no metric named 'lss' here; did you mean loss?",
    ]
    assert not (project / "studies").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            [STUDY, "--name", "../evil"],
            "name: '../evil' cannot be the name of a study; use letters",
        ),
        ([*WRAPPED, "rate=log(1e-2,1e-4)"], "0.01 is not below 0.0001 [set by space: rate]"),
        ([*WRAPPED, "rate=choice()"], "a choice needs two options or more [set by space: rate]"),
        (["show"], "show needs one study; write luthier sweep show STUDY"),
        (["repair"], "repair needs one study; write luthier sweep repair STUDY"),
        (["rerun", "toy"], "rerun needs one trial; write luthier sweep rerun STUDY/TRIAL"),
        (["rerun", "toy/3"], "there is no study 'toy'; studies/ holds no studies"),
        ([STUDY, "--into", "x"], "--into is an option of `luthier sweep rerun`"),
        (["rate=3"], "'rate=3' is an override, and no study or experiment is given"),
        (["show", "toy/²"], "there is no study 'toy/²'; studies/ holds no studies"),
        (["show", "absent"], "there is no study 'absent'; studies/ holds no studies"),
        ([STUDY, "--sampler", "gird"], "--sampler: there is no sampler 'gird'"),
        (
            [STUDY, "--pruner", "medain"],
            "--pruner: there is no pruner 'medain'; did you mean median?",
        ),
        ([STUDY, "--space", "rate=log(1,2)"], "--space, --when and --sweep apply to experiments"),
        (
            [STUDY, "--sampler", "tpe(n_startup=3)"],
            "sampler: optuna.samplers.TPESampler has no argument 'n_startup' [set by --sampler 1: "
            "sampler:=optuna.samplers.TPESampler(n_startup=3)]; did you mean n_startup_trials?",
        ),
        ([STUDY, "sampler=tpee"], "sampler=tpee: there is no sampler 'tpee'; did you mean tpe?"),
        (
            [STUDY, "--packing", "vmapp"],
            "--packing: 'vmapp' is not a packing; did you mean vmap or map?",
        ),
        ([STUDY, "--packing", "0"], "--packing: '0' is not a packing; write single, vmap, map,"),
        (
            [STUDY, "--scheduler", "ashaa"],
            "--scheduler: there is no scheduler 'ashaa'; did you mean asha?",
        ),
        (
            [STUDY, "scheduler=asha(rungs=3)"],
            "scheduler: luthier.study.Asha has no argument 'rungs' [set by argument 1: "
            "scheduler=luthier.study.Asha(rungs=3)]; did you mean num_rungs?",
        ),
        ([STUDY, "--budget", "trials"], "--budget: 'trials' is not NAME=VALUE; write --budget"),
        (
            [STUDY, "--trials", "3", "--budget", "trials=4"],
            "budget.trials is given twice [set by --budget trials=4]",
        ),
        (
            [STUDY, "--budget", "wall_second=4"],
            "budget.wall_second: does not exist [set by option 1: budget.wall_second=4]; did you "
            "mean budget.wall_seconds or budget.trial_seconds?",
        ),
        (
            [STUDY, "--budget", "no_improvement=12"],
            "budget.no_improvement: 12 trials without a better one never come: the study ends "
            "after 12; set it to 11 or less",
        ),
        (
            [STUDY, "--budget", "target=nan"],
            "budget.target: nan is not a finite number; set a value of the objective",
        ),
        (
            [
                STUDY,
                "--budget",
                "target=1",
                "--objective",
                "step_time",
                "--objective",
                "parameters",
            ],
            "budget.target: compares trials by one objective, and there are several; leave out "
            "budget.target, or all objectives but one",
        ),
        (
            [STUDY, "--pruner", "median", "--trials", "5"],
            "pruner.n_startup_trials: 5 of 5 trials come before it acts, so that no trial is "
            "pruned; set it below 5, or budget.trials above 5",
        ),
        (
            [STUDY, "--pruner", "median", "--objective", "steps_to(held_out/loss<=1)"],
            "pruner: a pruner needs an objective that evaluations report, and "
            "steps_to(held_out/loss<=1) is not one; set pruner=None",
        ),
        (
            [STUDY, "--constraint", "held_out/lss<=1"],
            "space.constraints[0].quantity.metric: there is no metric named 'lss' here; did you "
            "mean loss?",
        ),
        ([STUDY, "--constraint", "peak_bytes"], "--constraint: 'peak_bytes' is not a constraint:"),
        ([STUDY, "--all"], "--all is an option of `luthier sweep show`"),
        ([STUDY, "--as", "python"], "--as is an option of `luthier sweep best`"),
        (["--resume", "absent"], "there is no study 'absent'"),
        ([STUDY, "--retry", "failed"], "--retry needs a study to resume; add --resume STUDY"),
        ([], "no experiment is given"),
    ],
)
def test_bad_input_is_one_line(project, capsys, words, line):
    (errors,) = _refused(capsys, *words)
    assert errors.startswith(f"luthier: {line}")
    assert not (project / "studies").exists()


FAILING = "simulated_engine:failing_study"


def test_a_baseline_that_fails_is_reported_with_its_traceback_and_ends_the_command(project, capsys):
    assert main(["sweep", FAILING]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors == [
        "luthier: the baseline failed: ValueError: boom; `luthier sweep --resume studies/toy "
        "--retry failed` reruns failed trials with the source as it is then; the same command as "
        "before restarts the study",
        "`luthier sweep show studies/toy/0` prints its traceback",
    ]
    (project / "studies/toy/trials/0000/traceback.txt").write_text("Traceback of\nValueError: boom")
    assert main(["sweep", "show", "toy/0"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "trial 0: failed; ValueError: boom; (the baseline)"
    assert shown[-2:] == ["Traceback of", "ValueError: boom"]
    assert main(["sweep", "show", "toy"]) == 0
    assert "stopped: the baseline failed: ValueError: boom" in capsys.readouterr().out
    words = ["--resume", "studies/toy", "--retry", "failed", "engine.ends={}"]
    assert main(["sweep", *words]) == 0
    assert "toy: 12 of 12 trials ended" in capsys.readouterr().out


def test_no_complete_trial_is_a_failure(project, capsys):
    assert main(["sweep", FAILING, "budget.failures=None", "--trials", "1"]) == 1
    assert "no trial is complete; `luthier sweep show studies/toy`" in capsys.readouterr().out
    assert main(["sweep", "--resume", "studies/toy"]) == 1


def test_what_a_study_does_not_have_is_refused(project, capsys):
    assert main(["sweep", FAILING, "budget.failures=None", "--trials", "1"]) == 1
    capsys.readouterr()
    assert _refused(capsys, "best", "toy") == ["luthier: no trial of studies/toy is complete yet"]
    assert _refused(capsys, "show", "toy/7") == [
        "luthier: toy has no trial 7; it has the trials 0 to 0"
    ]
    assert _refused(capsys, "show", "toy", "--sync", "wandb") == [
        "luthier: the experiment of the study does not use W&B; set "
        "base.records.wandb=luthier.records.Wandb() in the study"
    ]


def test_options_for_the_devices_set_the_engine(project, capsys):
    assert main(["sweep", STUDY, "--trials", "2", "--slices", "2"]) == 0
    assert find_study("toy").read_study().engine.slices == 2
    capsys.readouterr()
    (line,) = _refused(capsys, STUDY, "--name", "other", "--devices", "cpu:2")
    assert line.startswith("luthier: engine.devices: does not exist [set by option 2: ")
    words = ["--name", "local", "engine=None", "--devices", "cpu:2", "--slices", "3"]
    (line,) = _refused(capsys, STUDY, *words)
    assert line.startswith("luthier: slices: 2 devices cannot be split into 3 equal slices"), (
        "a study without an engine runs on this machine"
    )


def test_overrides_of_an_experiment_that_only_its_study_has_set_the_study(project, capsys):
    toys = ["engine=simulated_engine.InstantEngine()", "gate=None", "packing=None", "width=16"]
    settings = ["pruner=optuna.pruners.NopPruner()", "budget.trials=2", *toys]
    assert main(["sweep", *WRAPPED, "rate=log(1e-4,1e-2)", *settings]) == 0
    study = find_study("toy_experiment").read_study()
    assert study.pruner.__fn_or_cls__.__name__ == "NopPruner"
    assert (study.budget.trials, study.base.width) == (2, 16)
    capsys.readouterr()
    (line,) = _refused(capsys, *WRAPPED, "rate=log(1e-4,1e-2)", "budget.trails=2")
    assert line.startswith("luthier: budget.trails: does not exist")


@pytest.mark.parametrize("words", [[STUDY], [*WRAPPED[:1], "--space", "rate=log(1e-4,1e-2)"]])
def test_overrides_change_what_the_options_of_the_search_set(project, words):
    toys = ["engine=simulated_engine.InstantEngine()", "gate=None", "packing=None"]
    options = ["--pruner", "median", "--sampler", "tpe", "--scheduler", "asha"]
    changes = ["pruner.n_startup_trials=1", "sampler.n_ei_candidates=7", "scheduler=None"]
    objective = ["objectives=held_out/accuracy", "objectives[0].over=luthier.study.Best()"]
    words = [*words, *toys, *options, *changes, *objective, "--name", "mine", "--trials", "2"]
    assert main(["sweep", *words]) == 0
    study = studies.build(find_study("mine").read_study())
    assert (study.pruner.n_startup_trials, study.scheduler) == (1, None)
    assert find_study("mine").read_study().sampler.n_ei_candidates == 7
    assert study.objectives[0].over == studies.Best()
    assert study.objectives[0].direction == "higher"


def test_the_metric_that_selects_checkpoints_is_the_default_objective(project, capsys):
    toys = ["engine=simulated_engine.InstantEngine()", "gate=None", "packing=None"]
    kept = "luthier.metrics.Selector('held_out', 'accuracy', direction='higher')"
    best = f"checkpoints=luthier.checkpoint.Checkpoints(keep_best={kept})"
    words = ["sweep", "simulated_engine:experiment", *toys, "--trials", "2", best]
    words += ["--space", "rate=log(1e-4,1e-2)"]
    assert main(words) == 0
    note, first = capsys.readouterr().out.splitlines()[:2]
    assert note == ("objective: held_out/accuracy (higher is better), from checkpoints.keep_best")
    assert first.startswith("trial 0: complete; held_out/accuracy 0.2;")
    assert main([*words, "--name", "other", "--objective", "held_out/loss"]) == 0
    assert capsys.readouterr().out.startswith("trial 0: complete; held_out/loss ")
    # The same from Python.
    overrides = [*toys, best]
    luthier.sweep(
        "simulated_engine:experiment", words[-1], overrides=overrides, trials=1, name="python"
    )
    assert capsys.readouterr().out.splitlines()[0] == note


def test_options_describe_the_whole_study_of_an_experiment(project, capsys):
    toys = [
        "engine=simulated_engine.InstantEngine()",
        "gate=None",
        "packing=None",
        "sampler=random",
    ]
    space = ["--space", "rate=lognormal(-5,1)", "--space", "width,heads=rows((8,2),(18,3))"]
    limits = ["--budget", "no_improvement=8", "--budget", "failures=None", "--trials", "20"]
    others = ["--seeds", "2", "--pruner", "median(n_startup_trials=3)", "--name", "whole"]
    bounds = ["--constraint", "peak_bytes<=8GiB", "--constraint", "held_out/loss>=0.1"]
    words = ["sweep", "simulated_engine:experiment", *toys, *space, *limits, *others, *bounds]
    assert main([*words, "--objective", "held_out/loss"]) == 0
    study = studies.build(find_study("whole").read_study())
    assert (study.seeds, study.budget.no_improvement, study.budget.failures) == (2, 8, None)
    assert study.pruner.n_startup_trials == 3
    names = [constraint.name for constraint in study.space.bounds]
    assert names == ["peak_bytes<=8GiB", "held_out/loss>=0.1"]
    assert find_study("whole").read_study().sampler.__fn_or_cls__.__name__ == "RandomSampler"
    out = capsys.readouterr().out
    assert "notice: 8 trials without a better one (budget.no_improvement)" in out
    assert "heads=3" in out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", {"lanes": "auto"}),
        ("map", {"lanes": "map"}),
        ("1", {"lanes": "single"}),
        ("4", {"lanes": "vmap", "num_lanes": 4}),
    ],
)
def test_packing_is_set_by_a_word_or_a_number(project, monkeypatch, text, expected):
    started = []

    def run(graph, **settings):
        started.append(graph)
        raise BadInput(Problem("stopped by the test"))

    monkeypatch.setattr("luthier.study.start.run", run)
    assert main(["sweep", STUDY, "--packing", text]) == 2
    packing = started[0].packing
    assert packing.__fn_or_cls__ is studies.SharedPrograms
    assert dict(packing.__arguments__) == expected


def test_a_recorded_study_is_changed_where_it_stays_the_same_study(project, capsys):
    assert main(["sweep", STUDY, "--trials", "4"]) == 0
    capsys.readouterr()
    assert _refused(capsys, "--resume", "toy", "--trials", "3") == [
        "luthier: budget.trials: 3 is less than the 4 trials that were tried; give more than 4, or "
        "leave it out"
    ]
    (line,) = _refused(capsys, "--resume", "toy", "seeds=3")
    assert line.startswith("luthier: seeds: differs from the study in studies/toy: ")
    assert main(["sweep", "--resume", "toy", "budget.trials=6"]) == 0
    assert main(["sweep", "--resume", "toy", "--budget", "trials=8"]) == 0
    assert "toy: 8 of 8 trials ended" in capsys.readouterr().out


def test_a_trial_without_a_result_of_its_own_is_not_rerun(project, capsys):
    ends = "engine.ends={1: ['infeasible']}"
    space = "space.dimensions:={'width': luthier.study.Choice([8, 16])}"
    assert main(["sweep", STUDY, ends, space, "sampler=grid", "--trials", "3"]) == 0
    capsys.readouterr()
    assert _refused(capsys, "rerun", "toy/1") == [
        "luthier: trial 1 has the result of another; luthier sweep rerun toy/0"
    ]
    assert _refused(capsys, "rerun", "toy/3") == [
        "luthier: toy has no trial 3; it has the trials 0 to 2"
    ]


def test_the_trials_of_a_study_are_printed_for_other_programs(project, capsys):
    assert main(["sweep", STUDY, "--trials", "4"]) == 0
    capsys.readouterr()
    words = ["sweep", "show", "toy", "--sort", "held_out/loss", "--state", "complete"]
    assert main([*words, "--json", "--parquet", "trials.parquet"]) == 0
    rows = json.loads(capsys.readouterr().out)
    losses = [row["held_out/loss"] for row in rows]
    assert len(losses) == 4
    assert losses == sorted(losses)
    assert (project / "trials.parquet").stat().st_size > 0
    assert main([*words, "--csv"]) == 0
    assert capsys.readouterr().out.count("\n") == 5
    remedy = "--sort and --state are for rows; add --csv, --json or --parquet FILE"
    assert _refused(capsys, *words[1:]) == [f"luthier: {remedy}"]
    (line,) = _refused(capsys, *words[1:], "--csv", "--json")
    assert line == "luthier: --csv and --json both print the trials; leave one out"


def test_the_time_limit_counts_over_resumes_and_hints_are_accepted(project, capsys, monkeypatch):
    with monkeypatch.context() as patched:
        seconds = itertools.count(time.time(), 2.0)  # each line of the journal takes two seconds
        patched.setattr("luthier.study.driver.journal.time.time", lambda: next(seconds))
        words = ["--trials", "50", "budget.wall_seconds=1e-9"]
        assert main(["sweep", STUDY, *words]) == 1, "it has no complete trial yet"
    out = capsys.readouterr().out
    hint = re.search(r"time limit reached .*`luthier sweep (.* --budget wall_seconds=\d+)`", out)
    (line,) = _refused(capsys, "--resume", "studies/toy")
    assert line.startswith("luthier: budget.wall_seconds: 1e-09 is used up: studies/toy was driven")
    assert line.partition("give it more time: ")[2] == " ".join(hint[1].split()[-2:])
    assert main(["sweep", *hint[1].split(), "--trials", "3"]) == 0
    assert "toy: 3 of 3 trials ended" in capsys.readouterr().out


@pytest.mark.full
def test_a_fault_of_the_machine_is_reported_with_a_remedy(project, capsys):
    assert main(["sweep", FAILING, "engine.ends={2: ['faulted', 'faulted']}"]) == 2
    (errors,) = capsys.readouterr().err.splitlines()
    assert errors == (
        "luthier: no device group is left: cannot write there: No space left on device; free space "
        "or repair the machine, then `luthier sweep --resume studies/toy`: no trial is lost"
    )
    assert main(["sweep", "--resume", "studies/toy", "engine.ends={}"]) == 0


SAMPLER = """
import optuna


class Ends(optuna.samplers.BaseSampler):
    def __init__(self, part: float, table: str = ""):
        self.part = part
        if table:
            open(table)

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        return {}

    def sample_independent(self, study, trial, name, distribution):
        done = len(study.get_trials(deepcopy=False))
        return distribution.high * self.part ** (1 + done % 3)
"""


def test_a_sampler_of_the_users_package_suggests_and_resumes(project, capsys, monkeypatch):
    (project / "own_samplers.py").write_text(SAMPLER)
    lines = '[tool.luthier]\npackages = ["simulated_engine", "own_samplers"]\n'
    (project / "pyproject.toml").write_text(lines)
    study = [STUDY, "space.dimensions:={'rate': luthier.study.Uniform(low=0.0, high=1.0)}"]
    words = [*study, "--sampler", "own_samplers.Ends(part=0.5)"]
    assert main(["sweep", *words, "--trials", "3"]) == 0
    assert main(["sweep", "--resume", "studies/toy", "--trials", "6"]) == 0
    # It counts the trials before its own, those of the driver before among them.
    rates = [row["rate"] for row in studies.load("toy")]
    assert rates[1:] == [0.125, 0.5, 0.25, 0.125, 0.5]
    capsys.readouterr()

    # What its constructor refuses is reported before anything is written, and a value that no
    # resumed study could read back when it is suggested.
    bad = [*study, "--name", "bad", "--sampler"]
    assert main(["sweep", *bad, "own_samplers.Ends(part=0.5, table='missing.txt')"]) == 1
    assert "No such file or directory: 'missing.txt'" in capsys.readouterr().err
    assert not (project / "studies" / "bad").exists()
    assert _refused(capsys, *bad, "own_samplers.Ends(part=1.5)") == [
        "luthier: sampler: suggested 3.375 for rate, which goes from 0.0 to 1.0; mend its code"
    ]
