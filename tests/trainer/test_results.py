from pathlib import Path

import pytest

from luthier.trainer import Result


@pytest.mark.parametrize(
    ("status", "code"), [("finished", 0), ("interrupted", 130), ("preempted", 75), ("pruned", 0)]
)
def test_every_status_has_its_exit_code(status, code):
    assert Result(Path("runs/a/b"), status, 3).exit_code == code
