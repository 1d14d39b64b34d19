import threading
import types

from luthier.parallel.distributed import Skew, clock_skew, messages


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
