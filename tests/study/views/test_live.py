import io

from luthier.study.driver.trial_table import Ledger, ParameterSet, Trial
from luthier.study.protocol import SliceInfo
from luthier.study.views.text import LiveView


class Terminal(io.StringIO):
    def isatty(self):
        return True


def _ledger():
    ledger = Ledger()
    ledger.trials = [
        Trial(0, 0, "complete", (2.0,)),
        Trial(1, 1, "running", slice=1, series={1: 3.0, 2: 1.0}),
        Trial(2, 2),
    ]
    ledger.settings = [ParameterSet(n, (n,), (f"width={n}",)) for n in range(3)]
    return ledger


SLICES = [SliceInfo(0, "cpu:0", 1), SliceInfo(1, "cpu:1", 1)]


def test_without_a_terminal_every_trial_that_ended_is_a_line():
    stream, ledger = io.StringIO(), _ledger()
    with LiveView("toy", ["loss"], ["lower"], 3, stream) as view:
        view.update(ledger, SLICES)
        assert stream.getvalue() == ""  # it ended before this driver began
        ledger.trials[2].state = "failed"
        ledger.notices.append("the source was edited")
        view.update(ledger, SLICES)
        view.update(ledger, SLICES)
        ledger.trials[1].state, ledger.trials[1].values = "complete", (1.0,)
        view.update(ledger, SLICES)
    assert stream.getvalue().splitlines() == [
        "notice: the source was edited",
        "trial 2: failed; width=2",
        "trial 1: complete; loss 1; width=1",
    ]


def test_on_a_terminal_slices_and_the_best_are_a_table():
    stream, ledger = Terminal(), _ledger()
    with LiveView("toy", ["loss"], ["lower"], 3, stream) as view:
        view.update(ledger, SLICES)
        ledger.trials[2].state, ledger.trials[2].values = "complete", (1.5,)
        ledger.trials[1].state, ledger.trials[1].values = "complete", (1.0,)
        view.update(ledger, SLICES)
    shown = stream.getvalue()
    assert "toy: 1 of 3 trials ended" in shown
    assert "█▁" in shown
    assert "toy: 3 of 3 trials ended" in shown
    assert "best" in shown
