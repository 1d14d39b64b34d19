from __future__ import annotations

import pytest

from luthier.graph.formats.config_dict.loading import find_lines

TEXT = """\
def get_config():
    config = ConfigDict(dict(a=1, nested={"b": 2}))
    config.lr = 1
    config.lr = 2
    config.model = dict(
        dim=3,
        mlp=ConfigDict({"hidden": 4}),
    )
    config["model"]["depth"] = 5
    head = config.head = ConfigDict()
    head.size = 6
    config.optimizer.update(b2=7)
    other(depth=8)
    one.rate = 9
    two.rate = 10
    config.names: str = "x"
    config.steps += 1
    return config
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("a", 2),
        ("nested.b", 2),
        ("lr", 4),
        ("model", 5),
        ("model.dim", 6),
        ("model.mlp.hidden", 7),
        ("model.depth", 9),
        ("head.size", 11),
        ("optimizer.b2", 12),
        ("some.rate", 0),
        ("names", 16),
        ("steps", 17),
        ("nothing", 0),
    ],
)
def test_the_line_that_sets_a_key(key, line):
    assert find_lines(TEXT)(tuple(key.split("."))) == line
