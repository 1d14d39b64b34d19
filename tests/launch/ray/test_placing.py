import sys
import types

import pytest

from luthier.launch import ray_actors
from luthier.launch.ray_actors import RayRequest


class Group:
    def __init__(self, waits):
        self.waits = waits

    def wait(self, seconds):
        self.waits -= 1
        return self.waits < 0


@pytest.fixture
def asked(monkeypatch):
    """Return what Ray is asked; a node is free at the second look, a slice at the third."""
    found, busy = [], [True, True]

    def group(bundles, strategy, name):
        found.append(("group", bundles, strategy, name))
        return Group(1)

    def slice_group(**given):
        if busy:
            busy.pop()
            raise TimeoutError
        found.append(("slice", given))
        return types.SimpleNamespace(
            placement_group=Group(1), shutdown=lambda: found.append("slice is free")
        )

    ray, util, tpu = (types.ModuleType(name) for name in ("ray", "ray.util", "ray.util.tpu"))
    ray.util, util.tpu, util.placement_group = util, tpu, group
    util.remove_placement_group = lambda group: found.append("nodes are free")
    tpu.slice_placement_group = slice_group
    for module in (ray, util, tpu):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


def test_nodes_are_reserved_all_at_once(asked):
    places = ray_actors.reserve(RayRequest(hosts=2, cpus=4), "luthier lab-0", lambda: False)
    assert asked == [("group", [{"CPU": 4}] * 2, "STRICT_SPREAD", "luthier lab-0")]
    places.release()
    assert asked[1:] == ["nodes are free"]
    ray_actors.reserve(RayRequest(), "luthier lab-0", lambda: False)
    assert asked[2][2] == "PACK"


def test_a_slice_is_waited_for(asked):
    request = RayRequest(topology="2x4", accelerator="v6e", chips_per_host=4)
    places = ray_actors.reserve(request, "luthier lab-0", lambda: False)
    ((_, given),) = asked
    assert (given["topology"], given["accelerator_version"]) == ("2x4", "v6e")
    assert given["resources_per_bundle"] == {"CPU": 1, "TPU": 4}
    assert (given["strategy"], given["chips_per_vm"]) == ("STRICT_SPREAD", 4)
    places.release()
    assert asked[1:] == ["slice is free"]


def test_what_nobody_wants_any_more_is_given_back(asked):
    assert ray_actors.reserve(RayRequest(), "luthier lab-0", lambda: True) is None
    assert asked[1:] == ["nodes are free"]
    topology = RayRequest(topology="2x4", accelerator="v6e")
    assert ray_actors.reserve(topology, "luthier lab-0", lambda: True) is None
    assert len(asked) == 2
