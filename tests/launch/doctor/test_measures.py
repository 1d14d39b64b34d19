import jax
import pytest

from luthier.launch import doctor


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(doctor, "_SECONDS", 0.01)
    monkeypatch.setattr(doctor, "_NUM_SUMS", 1)


def test_rates_of_a_device_are_those_of_a_machine():
    device = jax.devices()[0]
    assert 1e8 < doctor.matmul_flops(device) < 1e16
    assert 1e7 < doctor.memory_rate(device) < 1e14


def test_a_sum_takes_several_devices():
    rate = doctor.all_reduce_rate(jax.devices()[:2])
    assert rate is not None
    assert 1e5 < rate < 1e13
    assert doctor.all_reduce_rate(jax.devices()[:1]) is None


def test_a_call_is_repeated_and_what_it_takes_is_the_mean(monkeypatch):
    clock = iter([10.0, 10.004, 10.008, 10.012])
    monkeypatch.setattr(doctor.time, "perf_counter", lambda: next(clock))
    calls = []
    assert doctor._seconds(calls.append, 1) == pytest.approx(0.004)
    assert calls == [1] * 4
