"""What W&B is told of a study."""

import pytest
import simulated_engine as toys

from luthier import graph as graphs
from luthier import records
from luthier import study as studies
from luthier.study.driver import StudyDirectory
from luthier.study.views import mirror_study, read_status, summary_of, wandb_of


@pytest.fixture
def study(tmp_path):
    """A small study that ended, in its folder: one of its trials could not run."""
    space = studies.Space(
        {"rate": studies.Choice([1e-3, 1e-2, 1e-1]), "heads": studies.Choice([2, 3])}
    )
    graph = toys.make_study("grid", directory=str(tmp_path), space=space)
    outcome = studies.run(graph, packages=toys.PACKAGES, engine=toys.InstantEngine())
    return outcome.directory


def _summary(directory):
    graph = StudyDirectory(directory).read_study()
    return summary_of(graph, read_status(directory), records.Wandb(), {})


def test_the_table_has_a_row_for_each_trial_with_what_it_sets_and_why_it_did_not_run(study):
    summary = _summary(study)
    assert summary.columns == ["trial", "state", "held_out/loss", "rate", "heads", "reason"]
    assert summary.rows[0][:2] == [0, "complete"]
    assert summary.rows[0][3:] == [None, None, ""]
    refused = [row for row in summary.rows if row[1] == "infeasible"]
    assert {row[4] for row in refused} == {"3"}
    assert all(
        row[5].startswith("Toy needs width % heads == 0, and heads = 3") for row in refused
    ), refused
    assert all(row[2] is None for row in refused)


def test_the_history_has_the_best_so_far(study):
    summary = _summary(study)
    best = [row["best/held_out/loss"] for row in summary.history]
    losses = [row["objectives/held_out/loss"] for row in summary.history]
    assert best == [min(losses[: n + 1]) for n in range(len(losses))]
    assert len(losses) == summary.facts["trials_complete"]
    assert summary.facts["best/held_out/loss"] == min(losses)
    assert summary.facts["best_trial"] == summary.history[losses.index(min(losses))]["trial"]
    assert summary.better == {"objectives/held_out/loss": "lower"}
    assert summary.group == "toy"


def test_an_experiment_that_is_not_mirrored_has_no_summary(study):
    graph = StudyDirectory(study).read_study()
    assert wandb_of(graph.base) is None
    assert mirror_study(study, graph, read_status(study), {}) is None
    assert not (study / "wandb").exists()


def test_the_summary_is_in_the_group_of_the_runs(study, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    graph = StudyDirectory(study).read_study()
    node = records.Wandb(group="all of them")
    assert summary_of(graph, read_status(study), node, {}).group == "all of them"


def test_the_node_is_that_of_the_experiment():
    base = graphs.resolve("configs.lm.quickstart")
    assert wandb_of(base) == records.Wandb()
    assert wandb_of(graphs.apply(base, ["records.wandb=None"])) is None
