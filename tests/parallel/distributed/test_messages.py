"""What processes exchange: decisions, differences, clocks."""

from __future__ import annotations

import threading
import time
import types

import jax
import pytest

from luthier.errors import BadInput, DataError, Problem
from luthier.parallel.distributed import (
    ProcessLost,
    Skew,
    agree,
    clock_skew,
    decided,
    differences,
    farewell,
    messages,
    together,
)

REMEDY = "start all hosts with the same command, source and versions"


def test_each_process_that_differs_is_named_with_what_it_differs_in():
    found = differences(
        [
            {"the version of jax": "0.10.2", "the source of luthier": "aa"},
            {"the version of jax": "0.10.2", "the source of luthier": "aa"},
            {"the version of jax": "0.11.0", "the source of mine": "bb"},
        ]
    )
    assert list(map(str, found)) == [
        "process 2 of 3 differs in the version of jax: 0.11.0, where process 0 has 0.10.2; "
        + REMEDY,
        "process 2 of 3 differs in the source of luthier: nothing, where process 0 has aa; "
        + REMEDY,
        "process 2 of 3 differs in the source of mine: bb, where process 0 has nothing; " + REMEDY,
    ]


def test_all_processes_refuse_what_one_has_of_its_own(processes):
    assert processes(3, lambda index: agree({"a": "1"})) == [None] * 3
    for error in processes(2, lambda index: agree({"a": str(index)})):
        assert isinstance(error, BadInput)
        assert str(error) == f"process 1 of 2 differs in a: 1, where process 0 has 0; {REMEDY}"
    agree({"alone": "whatever"})


def test_nobody_waits_for_ever_for_a_process_that_is_not_ready(processes, monkeypatch):
    monkeypatch.setattr(messages, "AGREE_SECONDS", 0.05)
    found = processes(3, lambda index: None if index == 1 else agree({"a": "1"}))
    assert isinstance(found[0], ProcessLost)
    assert str(found[0]) == "process 1 of 3 is not ready 0 s after process 0"
    assert str(found[2]) == "process 0 of 3 is not ready 0 s after process 2"


def test_bad_input_of_one_process_ends_all(processes):
    def several(index):
        with together():
            if index == 1:
                raise DataError([Problem("there is no file", "data"), Problem("nor another")])
        return "went on"

    first, second = processes(2, several)
    assert type(first) is BadInput
    assert str(first) == (
        "process 1 of 2 reports: data: there is no file\nprocess 1 of 2 reports: nor another"
    )
    assert type(second) is DataError
    assert str(second) == "data: there is no file\nnor another"


def test_alone_bad_input_is_raised_as_it_is():
    with together():
        pass
    with pytest.raises(DataError, match="no file"), together():
        raise DataError("no file")


def test_the_primary_decides_also_against(processes):
    assert processes(2, lambda index: decided(lambda: [index, "here"])) == [[0, "here"]] * 2

    def refuse():
        raise DataError(Problem("no", "data"))

    first, second = processes(2, lambda index: decided(refuse))
    assert type(first) is DataError
    assert type(second) is BadInput
    assert str(first) == str(second) == "data: no"
    assert decided(lambda: "alone") == "alone"


def test_alone_a_clock_is_right():
    assert clock_skew() == Skew(0.0, 0.0)


def test_clocks_are_compared_with_that_of_process_0(processes, monkeypatch):
    import time

    own = threading.local()
    ahead = {0: 0.0, 1: 3.0, 2: -2.0}
    fake = types.SimpleNamespace(time=lambda: time.time() + own.ahead)
    monkeypatch.setattr(messages, "time", fake)

    def several(index):
        own.ahead = ahead[index]
        return clock_skew()

    first, second, third = processes(3, several)
    assert first == Skew(0.0, 0.0)
    for found, expected in ((second, 3.0), (third, -2.0)):
        assert abs(found.seconds - expected) <= found.uncertainty_seconds + 1e-6
        assert found.uncertainty_seconds < 1.0


def test_an_answer_is_not_awaited_from_a_process_that_has_ended(processes, monkeypatch):
    reported = []
    monkeypatch.setattr(messages, "notify_parent", lambda **facts: reported.append(facts))

    def several(index):
        if index == 1:
            return farewell("the disk is full")
        return messages.answer("what is left", 1, lambda: "nothing")

    first, _ = processes(2, several)
    assert isinstance(first, ProcessLost)
    assert str(first) == "process 1 of 2 ended: the disk is full"
    assert reported == [{"lost": str(first)}]


def test_who_ended_because_of_a_third_is_not_the_cause(processes):
    def several(index):
        if index == 1:
            return farewell("")
        if index == 2:
            while not messages.ended():
                time.sleep(0.01)
            return farewell("the disk is full")
        return messages.answer("what is left", 1, lambda: "nothing")

    first, *_ = processes(3, several)
    assert str(first) == "process 2 of 3 ended: the disk is full"


def test_a_farewell_that_nobody_can_read_is_left_out(processes, service, monkeypatch):
    def fail(key, text, allow_overwrite):
        raise jax.errors.JaxRuntimeError("UNAVAILABLE: the coordinator is gone")

    monkeypatch.setattr(service, "key_value_set", fail)
    assert processes(2, lambda index: farewell("the disk is full")) == [None, None]


def test_another_fault_of_the_store_is_raised_as_it_is(processes, service, monkeypatch):
    def fail(key, milliseconds):
        raise jax.errors.JaxRuntimeError("UNAVAILABLE: the coordinator is gone")

    monkeypatch.setattr(service, "blocking_key_value_get", fail)
    (error, _) = processes(2, lambda index: None if index else messages.answer("it", 1, lambda: 0))
    assert str(error) == "UNAVAILABLE: the coordinator is gone"


def test_process_0_leaves_when_all_have_given_their_reasons(processes, monkeypatch):
    monkeypatch.setattr(messages, "FAREWELL_SECONDS", 60.0)
    left = []

    def several(index):
        if index == 1:
            while not messages.ended():
                time.sleep(0.01)
        farewell(f"reason {index}")
        left.append(index)
        return messages.ended()

    both = {0: "reason 0", 1: "reason 1"}
    assert processes(2, several) == [both, both]
    assert left == [1, 0]
