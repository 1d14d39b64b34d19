"""Scripted lives of runs, of which the script itself knows where the time went."""

from __future__ import annotations

import dataclasses
import random

import pytest

from luthier.records import Ended, Goodput, Header, Spans, Step, account_of, read_spans


@dataclasses.dataclass
class Script:
    """Lives of processes on a clock of their own; `truth` is what the script itself counted."""

    path: object
    now: float = 0.0
    truth: dict = dataclasses.field(default_factory=dict)
    undone: list = dataclasses.field(default_factory=list)  # (step, kind, seconds) not saved yet

    def spend(self, kind, seconds, step=None):
        self.now += seconds
        self.truth[kind] = self.truth.get(kind, 0.0) + seconds
        if step is not None:
            self.undone.append((step, kind, seconds))

    def lose(self, restored):
        """What was done after the restored step was done in vain."""
        for step, kind, seconds in self.undone:
            if step > restored:
                self.truth[kind] -= seconds
                self.truth["lost"] = self.truth.get("lost", 0.0) + seconds
        self.undone = [entry for entry in self.undone if entry[0] <= restored]

    def live(self, draw, restored, steps, every, end, beat=None):
        """Live as a process from a restored step; return the last saved step.

        Args:
          draw: Random numbers.
          restored: Steps done at the beginning.
          steps: Steps that it takes.
          every: Steps from one save to the next.
          end: `killed`, or how it says that it ended.
          beat: The file is written after so many steps, as the thread would; None only by saves.
        """
        self.lose(restored)
        goodput = Goodput(lambda: self.now)
        spans = Spans(self.path, goodput, wall=lambda: 1e9 + self.now, follow=False)
        init = draw.uniform(1, 5)
        self.spend("init", init)
        goodput.add("init", init)
        spans.emit(Header("demo", step=restored))
        saved = restored
        with goodput.span("step"):
            with goodput.span("compile"):
                self.spend("compile", draw.uniform(5, 30))
            for step in range(restored + 1, restored + steps + 1):
                wait = draw.expovariate(20)
                self.spend("data_wait", wait, step)
                goodput.add("data_wait", wait)
                self.spend("step", draw.uniform(0.2, 2), step)
                spans.emit(Step(step, {}))
                if step % 7 == 0:
                    with goodput.span("evaluate"):
                        self.spend("evaluate", draw.uniform(1, 3), step)
                if step % every == 0:
                    with goodput.span("save"):
                        spans.flush()
                        self.spend("save", draw.uniform(0.1, 1), step)
                    saved = step
                if beat and step % beat == 0:
                    spans.write()
        if end == "killed":
            return saved
        spans.emit(Ended(end, restored + steps))
        spans.close()
        return restored + steps

    def wait(self, seconds):
        self.spend("idle", seconds)


def _agree(path, truth, tolerance):
    account = account_of(read_spans(path))
    total = sum(truth.values())
    assert account.total == pytest.approx(total, rel=tolerance)
    for kind in set(truth) | set(account.seconds):
        difference = account.seconds.get(kind, 0.0) - truth.get(kind, 0.0)
        assert abs(difference) <= tolerance * total, (kind, difference / total)
    return account


def test_the_account_is_exact_where_every_step_was_written(tmp_path):
    """Ten processes: two killed, one of which fell back by two saves; the rest preempted."""
    script, draw = Script(tmp_path / "goodput.jsonl"), random.Random(5)
    step = 0
    for number in range(10):
        end = "killed" if number in (3, 6) else "preempted"
        saved = script.live(draw, step, draw.randrange(40, 90), 10, end, beat=1)
        step = saved - 20 if number == 6 else saved
        script.wait(draw.uniform(10, 60))
    script.live(draw, step, 35, 10, "finished")
    account = _agree(script.path, script.truth, 1e-6)
    assert account.restarts == 10
    assert [life.status for life in account.lifetimes].count("killed") == 2
    assert account.seconds["lost"] > 20
    assert sum(account.seconds.values()) == pytest.approx(account.total)


@pytest.mark.parametrize("seed", range(20))
def test_the_account_agrees_where_processes_are_killed_between_two_lines(tmp_path, seed):
    """Kills at any step; the file is written every four steps only, as a thread would."""
    script, draw = Script(tmp_path / "goodput.jsonl"), random.Random(seed)
    step = 0
    for _ in range(draw.randrange(3, 12)):
        step = script.live(draw, step, draw.randrange(50, 300), 25, "killed", beat=4)
        script.wait(draw.uniform(5, 200))
    script.live(draw, step, 40, 25, "finished")
    _agree(script.path, script.truth, 0.02)


def _began(time, step):
    return {"kind": "began", "time": time, "step": step}


def _span(start, end, first, last, **seconds):
    return {
        "kind": "span", "start": start, "end": end, "first": first, "last": last,
        "seconds": seconds,
    }  # fmt: skip


def test_a_span_that_a_restart_falls_into_is_lost_in_part():
    lines = [_began(0, 0), _span(0, 10, 0, 10, step=10.0), _began(12, 4)]
    account = account_of([*lines, _span(12, 18, 4, 10, step=6.0)])
    assert account.seconds == pytest.approx({"step": 10.0, "lost": 6.0, "idle": 2.0})
    assert account.fraction == pytest.approx(10 / 18)


def test_a_save_is_lost_where_a_restart_went_behind_it():
    lines = [_began(0, 0), _span(0, 1, 5, 5, save=1.0), _span(1, 2, 5, 5, evaluate=1.0)]
    assert account_of([*lines, _began(2, 5)]).seconds == {"save": 1.0, "evaluate": 1.0}
    assert account_of([*lines, _began(2, 4)]).seconds == {"lost": 2.0}


def test_getting_ready_is_never_lost():
    lines = [_began(0, 5), _span(0, 1, 5, 5, compile=1.0), _span(1, 2, 5, 5, step=1.0)]
    assert account_of([*lines, _began(2, 0)]).seconds == {"compile": 1.0, "lost": 1.0}


def test_time_between_spans_is_reported():
    lines = [_began(0, 0), _span(0, 1, 0, 1, step=1.0), _span(4, 5, 1, 2, step=1.0)]
    assert account_of(lines).seconds == {"step": 2.0, "other": 3.0}


def test_a_clock_that_went_backwards_makes_no_negative_time():
    lines = [_began(100, 0), _span(100, 110, 0, 1, step=10.0), _began(50, 1)]
    account = account_of([*lines, _span(50, 55, 1, 2, step=5.0)])
    assert account.seconds == {"step": 15.0}
    assert account.total == 15.0


def test_the_last_process_may_still_run():
    lines = [_began(0, 0), _span(0, 1, 0, 1, step=1.0)]
    assert account_of(lines, alive=True).lifetimes[-1].status == "running"
    assert account_of(lines).lifetimes[-1].status == "killed"


def test_a_run_without_spans_has_an_empty_account():
    account = account_of([])
    assert (account.total, account.fraction, account.restarts) == (0, 0.0, 0)
