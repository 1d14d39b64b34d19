"""Gangs."""

import pytest

from luthier.launch.engine import Gang


@pytest.fixture
def gang(tmp_path):
    """Return what makes a gang that runs a program."""

    def make(*command, restarts=0, name="lab-0"):
        environment = {"GREETING": "hello"}
        return Gang(name, command, str(tmp_path), str(tmp_path), environment, restarts)

    return make
