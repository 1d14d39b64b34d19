import jax
import pytest

from luthier.errors import DataError
from luthier.parallel.distributed import explain, farewell, rendezvous

GLOO = "UNKNOWN: Gloo all-reduce failed: [pair.cc:547] Connection closed by peer [127.0.0.1]:51632"


def test_a_failed_collective_is_explained_by_what_ended_the_other_process(processes):
    def several(index):
        if index == 1:
            farewell("the disk is full")
            return None
        return explain(jax.errors.JaxRuntimeError(GLOO))

    assert str(processes(2, several)[0]) == "process 1 of 2 ended: the disk is full"


def test_without_a_farewell_the_failure_itself_is_reported(processes, monkeypatch):
    monkeypatch.setattr(rendezvous, "HEARTBEAT_SECONDS", 0.01)
    (error, _) = processes(2, lambda index: explain(jax.errors.JaxRuntimeError(GLOO)))
    assert str(error) == f"one of the 2 processes cannot be reached: {GLOO}"


@pytest.mark.parametrize(
    "error",
    [
        DataError("the connection was reset, says the data"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"),
        ValueError("gloo"),
    ],
)
def test_errors_of_ones_own_stay_what_they_are(processes, error):
    assert processes(2, lambda index: explain(error)) == [error, error]


def test_alone_every_error_is_ones_own():
    error = jax.errors.JaxRuntimeError(GLOO)
    assert explain(error) is error
