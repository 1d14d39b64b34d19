import pytest

from luthier.launch.gang import trials
from luthier.parallel import distributed
from luthier.sweep.protocol import TrialWork, Work
from luthier.train.interrupt import Watcher


class Answering(Watcher):
    """Answers every report alike."""

    requested = "interrupted"

    def __init__(self):
        self.told = []

    def evaluated(self, step, metrics, last):
        """Take note, and end the trial."""
        self.told.append((step, dict(metrics), last))
        return "pruned"


def test_alone_the_first_process_answers_itself():
    own = Answering()
    together = trials.Together(own, "0")
    assert together.requested == "interrupted"
    assert together.evaluated(4, {"loss": 1.0}, False) == "pruned"
    assert own.told == [(4, {"loss": 1.0}, False)]


def test_another_process_hears_the_answer_and_tells_nobody(monkeypatch):
    def exchange(self, mine, decide, give_up=None):
        return "what the first one decided"

    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    own = Answering()
    together = trials.Together(own, "0")
    assert together.evaluated(4, {"loss": 1.0}, False) == "what the first one decided"
    assert own.told == []


def test_a_trial_is_described_for_the_others():
    trial = TrialWork(3, 7, "/studies/a/trials/0003")
    work = Work((trial,), ("seed",), lanes="auto", asks=True)
    assert trials.described(trials.describe(work, trial)) == (
        Work((trial,), ("seed",), asks=True),
        trial,
    )


def test_a_process_that_fails_alone_ends_itself(monkeypatch, capsys):
    def exchange(self, mine, decide, give_up):
        if give_up():
            raise distributed.GaveUp(1)
        return decide([mine])

    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    monkeypatch.setattr(trials, "APART_SECONDS", -1.0)
    monkeypatch.setattr(trials.os, "_exit", leave)
    assert trials._gathered(None, "0") == [""]
    with pytest.raises(SystemExit) as caught:
        trials._gathered(ValueError("a\nb"), "1")
    assert caught.value.code == trials.EXIT_APART
    assert capsys.readouterr().err == "luthier: this process failed alone: ValueError: a b\n"
