"""Processes that are threads, with a store in the place of JAX's coordination service."""

import concurrent.futures
import threading
import types

import jax
import pytest

from luthier.parallel.distributed import messages


class Service:
    """The store; a reader who waits too long is told so in JAX's words."""

    def __init__(self):
        self.values = {}
        self._changed = threading.Condition()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self._changed:
            assert allow_overwrite or key not in self.values
            self.values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key, milliseconds):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, milliseconds / 1000):
                raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self.values[key]

    def key_value_dir_get(self, place):
        with self._changed:
            return [(key, text) for key, text in self.values.items() if key.startswith(place)]

    def key_value_delete(self, place):
        with self._changed:
            for key in [key for key in self.values if key.startswith(place)]:
                del self.values[key]


class _OfThread:
    def __init__(self, own):
        self._own = own

    def exchange(self, *given):
        return self._own.rounds.exchange(*given)


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def processes(service, monkeypatch):
    """Return what calls a function in so many processes; it returns their results, or errors."""
    own = threading.local()
    alone = types.SimpleNamespace(client=None)
    monkeypatch.setattr(messages, "_state", lambda: getattr(own, "state", alone))
    monkeypatch.setattr(messages, "POLL_MILLISECONDS", 20)
    monkeypatch.setattr(messages, "FAREWELL_SECONDS", 0.5)
    monkeypatch.setattr(messages, "_rounds", _OfThread(own))

    def run(count, function):
        service.values.clear()

        def one(index):
            own.state = types.SimpleNamespace(client=service, process_id=index, num_processes=count)
            own.rounds = messages.Rounds("run")
            try:
                return function(index)
            except Exception as error:
                return error

        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            return list(pool.map(one, range(count)))

    return run
