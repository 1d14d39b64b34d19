import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier.errors import ValidationError
from luthier.study import Budget


def test_limits_are_above_zero():
    node = fdl.Config(Budget, trials=0, wall_seconds=0.0, device_hours=-1.0, retries=-1)
    with pytest.raises(ValidationError) as caught:
        graphs.validate(node)
    paths = [problem.path for problem in caught.value.problems]
    assert paths == ["trials", "wall_seconds", "device_hours", "retries"]
    graphs.validate(fdl.Config(Budget))
