import threading
import time

import pytest

from luthier.parallel.distributed import (
    NOTES_VARIABLE,
    GaveUp,
    Notes,
    ProcessLost,
    Rounds,
    ended,
    farewell,
    from_primary,
    gather,
    is_several,
    process_count,
    process_index,
)


def test_one_process_answers_itself():
    assert (process_index(), process_count(), is_several()) == (0, 1, False)
    assert gather("alone") == ["alone"]
    assert from_primary(lambda: {"a": 1}) == {"a": 1}
    assert Rounds("test").exchange(3, sum) == 3


def test_all_processes_get_the_answer_of_the_primary(processes):
    def several(index):
        rounds = Rounds("test")
        sums = [rounds.exchange((index, number), decide) for number in range(5)]
        return sums, gather(f"of {index}"), from_primary(lambda: f"by {index}"), is_several()

    def decide(values):
        return [sum(index for index, _ in values), {number for _, number in values}.pop()]

    expected = (
        [[6, number] for number in range(5)],
        ["of 0", "of 1", "of 2", "of 3"],
        "by 0",
        True,
    )
    assert processes(4, several) == [expected] * 4


def test_what_all_have_read_is_deleted(processes, service):
    def several(index):
        rounds = Rounds("test")
        for number in range(20):
            rounds.exchange(number, sum)

    processes(3, several)
    assert {key.split("/")[3] for key in service.values} == {"19"}


def test_whoever_waits_hears_why_another_process_ended(processes):
    def several(index):
        if index == 1:
            farewell("there is no such file")
            return None
        return Rounds("test").exchange(None, list)

    first, _, third = processes(3, several)
    for error in (first, third):
        assert isinstance(error, ProcessLost)
        assert str(error) == "process 1 of 3 ended: there is no such file"
        assert error.exit_code == 1


def test_waiting_can_be_given_up(processes):
    enough = threading.Event()

    def several(index):
        if index == 1:
            enough.set()
            return None
        return Rounds("test").exchange(None, list, enough.is_set)

    (gave_up, _) = processes(2, several)
    assert isinstance(gave_up, GaveUp)
    assert gave_up.process == 1


def test_what_the_service_itself_says_is_raised(processes, service, monkeypatch):
    import jax

    def gone(key, milliseconds):
        raise jax.errors.JaxRuntimeError("UNAVAILABLE: socket closed")

    monkeypatch.setattr(service, "blocking_key_value_get", gone)
    for error in processes(2, lambda index: gather(index)):
        with pytest.raises(jax.errors.JaxRuntimeError, match="UNAVAILABLE"):
            raise error


def test_process_0_stays_until_the_others_have_left(processes):
    late = threading.Event()

    def several(index):
        if index == 1:
            late.wait(0.2)
        farewell(f"of {index}")
        return ended()

    first, _ = processes(2, several)
    assert first == {0: "of 0", 1: "of 1"}
    start = time.monotonic()
    processes(2, lambda index: None if index else farewell("alone"))
    assert time.monotonic() - start >= 0.5


def test_the_parent_learns_which_process_a_thread_waits_for(processes, tmp_path, monkeypatch):
    kept = Notes(tmp_path / "notes.json")
    monkeypatch.setenv(NOTES_VARIABLE, str(kept.path))
    processes(2, lambda index: farewell("no disk") if index else gather(index))
    assert kept.read() == {"lost": "process 1 of 2 ended: no disk"}
