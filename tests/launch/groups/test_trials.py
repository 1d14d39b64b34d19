import errno

import jax
import pytest

from luthier import faults
from luthier.faults import Fault
from luthier.launch import worker
from luthier.parallel import distributed
from luthier.study.engines.execution import Plans
from luthier.study.protocol import Faulted, Lost, TrialWork, Work
from luthier.trainer.interrupt import Watcher


class Answering(Watcher):
    """Answers every report alike."""

    requested = "interrupted"

    def __init__(self):
        self.evaluations = []

    def evaluated(self, step, metrics, last):
        """Take note, and end the trial."""
        self.evaluations.append((step, dict(metrics), last))
        return "pruned"


def test_alone_the_first_process_answers_itself():
    own = Answering()
    together = worker.Together(own, "0")
    assert together.requested == "interrupted"
    assert together.evaluated(4, {"loss": 1.0}, False) == "pruned"
    assert own.evaluations == [(4, {"loss": 1.0}, False)]


def test_another_process_gets_the_answer_and_reports_nothing(monkeypatch):
    def exchange(self, mine, decide, give_up=None):
        return "what the first one decided"

    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    own = Answering()
    together = worker.Together(own, "0")
    assert together.evaluated(4, {"loss": 1.0}, False) == "what the first one decided"
    assert own.evaluations == []


def test_a_trial_is_described_for_the_others():
    trial = TrialWork(3, 7, "/studies/a/trials/0003")
    work = Work((trial,), ("seed",), lanes="auto", asks=True)
    assert worker.described(worker.describe(work, trial)) == (
        Work((trial,), ("seed",), asks=True),
        trial,
    )


@pytest.mark.parametrize(
    ("error", "is_of_the_machine"),
    [(OSError(errno.ENOSPC, "No space left"), True), (ValueError("a\nb"), False)],
)
def test_a_process_that_fails_alone_ends_itself_and_blames_no_trial_for_its_machine(
    monkeypatch, capsys, tmp_path, error, is_of_the_machine
):
    def exchange(self, mine, decide, give_up):
        if give_up():
            raise distributed.GaveUp(1)
        return decide([mine])

    def leave(code):
        raise SystemExit(code)

    def fail(work):
        raise error

    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    monkeypatch.setattr(worker, "APART_SECONDS", -1.0)
    monkeypatch.setattr(worker.os, "_exit", leave)
    assert worker._gathered(None, "0") == [None]
    sent = []
    execution = worker.GroupExecution(2, Plans(jax.devices()), (), None, sent.append)
    monkeypatch.setattr(execution, "read", fail)
    work = TrialWork(3, 7, str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        execution.run_together(Work((work,)), work, Answering(), "1")
    assert caught.value.code == worker.EXIT_APART
    line = " ".join(f"{type(error).__name__}: {error}".split())
    assert capsys.readouterr().err.endswith(f"luthier: this process failed alone: {line}\n")
    events = [Faulted(2, 3, 7, line), Lost(2, line, counts=False)]
    assert sent == (events if is_of_the_machine else [])


@pytest.mark.parametrize(
    ("error", "fault"), [(MemoryError("no room"), Fault.PLACE), (KeyError("a"), Fault.CODE)]
)
def test_an_error_of_another_process_keeps_its_kind(monkeypatch, error, fault):
    def exchange(self, mine, decide, give_up):
        return decide([None, mine])

    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    theirs = worker._first_error(worker._gathered(error, "0"))
    assert str(theirs).startswith(f"process 1 of 2 says: {type(error).__name__}: ")
    assert faults.classify(theirs) is fault
