"""A run's directory, and processes that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from luthier.records import Configuration, RunDirectory


@pytest.fixture
def configuration():
    return Configuration(
        graph='{"dim": 8}',
        history={"dim": [{"value": 8, "origin": "argument 1"}]},
        text="dim = 8",
        values={"model": {"dim": 8}, "seed": 0},
    )


@pytest.fixture
def run(tmp_path, configuration):
    return RunDirectory.create(tmp_path / "runs", "demo", "abc123", configuration=configuration)


@pytest.fixture
def start():
    """Start Python processes, which are killed when the test ends."""
    processes = []

    def start_one(code, *arguments, **options):
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **options.pop("env", {})},
            **options,
        )
        processes.append(process)
        return process

    yield start_one
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()
