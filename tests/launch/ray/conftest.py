"""Groups."""

import pytest

from luthier.launch import ProcessGroup


@pytest.fixture
def group(tmp_path):
    """Return what makes a group that runs a program."""

    def make(*command, restarts=0, name="lab-0"):
        environment = {"GREETING": "hello"}
        return ProcessGroup(name, command, str(tmp_path), str(tmp_path), environment, restarts)

    return make
