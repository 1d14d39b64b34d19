"""Groups, and the cluster that they are applied to."""

import pathlib
import sys

import pytest

HERE = str(pathlib.Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

from luthier.launch import ProcessGroup  # noqa: E402


@pytest.fixture
def group():
    """Return what makes a group."""

    def make(name="lab-0", directory="/shared/studies/lab/launch/1", restarts=3):
        command = ["-m", "luthier", "train", "configs.lm.quickstart", "--distributed"]
        environment = {"PYTHONPATH": "/shared/project"}
        return ProcessGroup(name, command, directory, "/shared/project", environment, restarts)

    return make
