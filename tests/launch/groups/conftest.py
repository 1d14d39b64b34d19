import pathlib

import pytest
from sweep_trials import tiny, until, write_trial  # noqa: F401

TESTS = pathlib.Path(__file__).parents[2]


@pytest.fixture
def toys(monkeypatch, tmp_path):
    """Let processes that a test starts import the toys, work in a folder of the test's own."""
    places = [TESTS.parent / "framework", TESTS / "launch", TESTS / "study"]
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, places)))
    monkeypatch.chdir(tmp_path)
    return tmp_path
