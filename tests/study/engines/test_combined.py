"""Several engines as one: groups of different sizes, and each trial where it fits."""

import fiddle as fdl
import pytest
import simulated_engine as toys

from luthier import study as studies
from luthier.errors import BadInput, RunError
from luthier.study import Back, Combined, Lost, Reported, SliceInfo, TrialWork, Work
from luthier.study.driver import read_journal


class Recording:
    """An engine that writes down what it is asked to do.

    Args:
      sizes: Devices of each of its groups.
      error: Raised when it is opened.
    """

    def __init__(self, *sizes, error=None):
        self.calls, self.pending, self.waited = [], [], []
        self._sizes, self._error = sizes, error

    def open(self, directory):
        """Return the groups."""
        self.calls.append(("open", directory))
        if self._error is not None:
            raise self._error
        return [SliceInfo(i, f"study-{i}", size) for i, size in enumerate(self._sizes)]

    def events(self, timeout):
        """Return what is pending."""
        self.waited.append(timeout)
        found, self.pending = self.pending, []
        return found

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, *arguments))

        return call


def test_groups_are_numbered_one_engine_after_another_and_messages_find_their_way():
    first, second = Recording(1, 1), Recording(2)
    engine = Combined([first, second])
    infos = engine.open("here")
    assert [(info.index, info.name, info.num_devices) for info in infos] == [
        (0, "study-0.0", 1),
        (1, "study-1", 1),
        (2, "study-0.1", 2),
    ]
    trial = TrialWork(4, 9, "/trials/0004")
    work = Work((trial,))
    engine.start(1, work)
    engine.refill(2, trial)
    engine.answer(2, 4, 9, "pause")
    engine.stop(0, 4, 9)
    assert first.calls[1:] == [("start", 1, work), ("stop", 0, 4, 9)]
    assert second.calls[1:] == [("refill", 0, trial), ("answer", 0, 4, 9, "pause")]
    first.pending = [Reported(1, 4, 9, 5, {})]
    second.pending = [Lost(0, "gone"), Back(0)]
    assert engine.events(5.0) == [Reported(1, 4, 9, 5, {}), Lost(2, "gone"), Back(2)]
    engine.close()
    assert first.calls[-1] == second.calls[-1] == ("close",)


def test_each_engine_is_waited_for_in_its_turn_until_the_time_is_over():
    engines = [Recording(1), Recording(1)]
    engine = Combined(engines)
    engine.open("here")
    engines[1].pending = []
    assert engine.events(0.0) == []
    assert [one.waited for one in engines] == [[0.0], [0.0]]

    def late(timeout):
        return [Back(0)] if timeout else []

    engines[1].events = late
    assert engine.events(60.0) == [Back(1)]


def test_an_engine_that_does_not_open_closes_the_others():
    first, second = Recording(1), Recording(1, error=RunError("no machines"))
    with pytest.raises(RunError, match="no machines"):
        Combined([first, second]).open("here")
    assert first.calls[-1] == ("close",)


def test_without_engines_nothing_runs():
    with pytest.raises(BadInput, match=r"^engine\.engines: has no engine"):
        Combined([])


class Sized(toys.InstantEngine):
    """An engine whose groups have a number of devices.

    Args:
      num_devices: Of each group.
    """

    def __init__(self, num_devices, slices=1):
        super().__init__(slices)
        self._num_devices = num_devices

    def open(self, directory):
        """Return the groups."""
        return [SliceInfo(i, f"toy:{i}", self._num_devices) for i in range(self.slices)]


class WidthGate:
    """A gate by which a trial fits as many devices as its width needs, or more."""

    def __call__(self, graph, slice):
        """Return why a trial cannot run."""
        fits = graph.width <= 32 * slice.num_devices
        return "" if fits else f"width {graph.width} is too wide for {slice.num_devices}"


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_each_group_takes_only_trials_that_fit_it_and_what_fits_none_is_never_leased(
    tmp_path, sampler
):
    engines = [Sized(4), Sized(1, slices=2), Sized(2)]
    study = toys.make_study(
        sampler,
        directory=str(tmp_path),
        gate=fdl.Config(WidthGate),
        budget=fdl.Config(studies.Budget, trials=24),
    )
    packages = (*toys.PACKAGES, __name__)
    outcome = studies.run(study, packages=packages, engine=Combined(engines))
    assert outcome.is_over
    lines = read_journal(tmp_path / "toy" / "journal.jsonl")
    leased = {line["trial"]: line["slice"] for line in lines if line["kind"] == "leased"}
    widths = {
        trial.number: toys.read_values(tmp_path / "toy" / "trials" / f"{trial.number:04d}").get(
            "width", 8
        )
        for trial in outcome.ledger.trials
    }
    sizes = (4, 1, 1, 2)
    for trial in outcome.ledger.trials:
        if widths[trial.number] > 128:
            assert (trial.state, trial.number in leased) == ("infeasible", False)
            parts = [f"on {n} x cpu: width 256 is too wide for {n}" for n in (4, 1, 2)]
            assert trial.reason == "; ".join(parts)
        else:
            assert trial.state == "complete"
            assert widths[trial.number] <= 32 * sizes[leased[trial.number]]
    assert {256, 128, 64, 8} <= set(widths.values())


def test_a_group_leaves_a_trial_that_it_cannot_run_to_one_that_waits_for_it(tmp_path):
    """The large group starts before further trials are validated for the small one."""
    engines = [Sized(1), Sized(4)]
    study = toys.make_study(
        "random",
        directory=str(tmp_path),
        base=fdl.Config(toys.Toy, width=128),
        space=fdl.Config(studies.Space, {"width": studies.Choice([64, 128, 16])}),
        dedupe=None,
        gate=fdl.Config(WidthGate),
    )
    packages = (*toys.PACKAGES, __name__)
    studies.run(study, packages=packages, engine=Combined(engines))
    lines = read_journal(tmp_path / "toy" / "journal.jsonl")
    kinds = [(line["kind"], line.get("slice")) for line in lines]
    # The baseline fits the large group only: it is leased there before a second one is asked.
    first = [kind for kind in kinds if kind[0] in ("asked", "leased")][:2]
    assert first == [("asked", None), ("leased", 1)]


class Late(Sized):
    """An engine whose group has no worker at first: until it has one, trials are validated."""

    looks = 0

    def events(self, timeout):
        """Return what happened."""
        self.looks += 1
        if self.looks == 1:
            return [Lost(0, "it has no worker yet", counts=False, is_away=True)]
        if self.looks < 20:
            return []
        return [Back(0), *super().events(timeout)] if self.looks == 20 else super().events(timeout)


def test_a_group_takes_first_what_the_fewest_groups_can_run(tmp_path):
    study = toys.make_study(
        directory=str(tmp_path),
        space=fdl.Config(
            studies.Space, {"width": studies.Choice([8, 128]), "rate": studies.Log(1e-4, 1e-1)}
        ),
        gate=fdl.Config(WidthGate),
    )
    packages = (*toys.PACKAGES, __name__)
    studies.run(study, packages=packages, engine=Combined([Late(4), Late(1)]))
    waiting, taken = {}, []
    for line in read_journal(tmp_path / "toy" / "journal.jsonl"):
        if line["kind"] == "admitted":
            values = toys.read_values(tmp_path / "toy" / "trials" / f"{line['trial']:04d}")
            waiting[line["trial"]] = values.get("width", 8)
        elif line["kind"] == "leased":
            if line["slice"] == 0:
                taken.append((waiting[line["trial"]], max(waiting.values())))
            del waiting[line["trial"]]
    # The large group took the wide ones, which only it can run, as long as there were some.
    assert len(taken) >= 4
    assert all(width == widest for width, widest in taken)
