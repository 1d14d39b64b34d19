"""What the injections share: a machine whose processes start at once, and the undisturbed runs."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from machine import Machine
from staging import Truths


@pytest.fixture(scope="session")
def machine(tmp_path_factory):
    """Return a machine to stage faults on."""
    with Machine(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


@pytest.fixture(scope="session")
def truths(machine, tmp_path_factory):
    """Return the undisturbed runs."""
    return Truths(machine, tmp_path_factory.mktemp("truths"))
