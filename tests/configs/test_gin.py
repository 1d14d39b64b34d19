"""Every experiment is written as gin that gin itself accepts, and read back to an equal graph."""

import gin
import pytest

from luthier import graph as graphs


@pytest.fixture(autouse=True)
def clean():
    yield
    gin.clear_config()


def test_gin_accepts_it_and_it_is_read_to_an_equal_graph(experiment):
    graph = graphs.resolve(experiment.reference)
    text = graphs.to_gin(graph)
    gin.parse_config(text)
    assert gin.config_str()
    loaded = graphs.from_gin(text)
    assert graphs.equal(loaded, graph)
    assert graphs.fingerprint(loaded) == graphs.fingerprint(graph)
