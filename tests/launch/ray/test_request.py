import pytest

from luthier.launch.ray_actors import RayRequest, num_chips


def test_a_group_of_nodes():
    request = RayRequest(hosts=2, processes_per_host=4, cpus=2, gpus=1, resources={"nic": 0.5})
    assert (request.num_hosts, request.num_processes) == (2, 8)
    assert request.process_options == {"num_cpus": 2, "num_gpus": 1, "resources": {"nic": 0.5}}
    assert request.bundle == {"CPU": 8, "GPU": 4, "nic": 2.0}


def test_a_slice_of_tpus_determines_its_number_of_hosts():
    request = RayRequest(topology="4x4", accelerator="v6e", chips_per_host=4, cpus=1)
    assert (request.num_hosts, request.num_processes) == (4, 4)
    assert request.bundle == {"CPU": 1, "TPU": 4}
    two = RayRequest(topology="4x4", accelerator="v6e", chips_per_host=8, processes_per_host=2)
    assert two.process_options["resources"] == {"TPU": 4}
    assert (two.num_hosts, two.num_processes, two.bundle["TPU"]) == (2, 4, 8)


@pytest.mark.parametrize(("topology", "chips"), [("2x2", 4), ("2x2x4", 16), ("16x16", 256)])
def test_chips_of_a_topology(topology, chips):
    assert num_chips(topology) == chips
