import pathlib
import subprocess
import sys
import threading
import time
import types

import pytest

from luthier.launch import RayRequest, ray_actors
from luthier.launch.ray_actors import Member, num_chips


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


def _keep(group, *starts, cancelled=lambda: False):
    left = list(starts)
    code = ray_actors.keep(group, lambda: left.pop(0), cancelled)
    return code, len(left)


def test_a_group_that_is_done_is_not_started_again(group):
    assert _keep(group(restarts=5), [0, 0], [0, 0]) == (0, 1)


def test_a_group_that_saved_and_left_is_always_started_again(group):
    assert _keep(group(restarts=0), *[[75, ray_actors.LOST]] * 9, [0, 0]) == (0, 0)


def test_a_group_that_dies_is_started_again_so_often(group):
    assert _keep(group(restarts=2), [1], [ray_actors.LOST], [3], [0]) == (3, 1)
    assert _keep(group(restarts=2), [1], [75], [1], [0]) == (0, 0)


def test_a_group_whose_driver_is_done_is_not_started_again(group, tmp_path):
    (tmp_path / "closed").touch()
    assert _keep(group(restarts=5), [1], [0]) == (1, 1)


def test_a_group_that_is_taken_back_is_not_started_again(group):
    assert _keep(group(restarts=5), [75], [0], cancelled=lambda: True) == (75, 1)


@pytest.mark.parametrize(
    ("codes", "code"), [([0, 0], 0), ([0, 1, 2], 1), ([ray_actors.LOST, 75], 75), ([0, 75], 75)]
)
def test_one_code_for_all(codes, code):
    assert ray_actors.worst(codes) == code


def test_processes_learn_their_ranks(group):
    assert ray_actors.variables(group(), 1, 2, "10.0.0.1:8476") == {
        "GREETING": "hello",
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:8476",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
    }
    assert ray_actors.variables(group(), 0, 1, "10.0.0.1:8476") == {"GREETING": "hello"}


def _run(tmp_path, code, **environment):
    log = tmp_path / "logs" / "rank-0.log"
    ended = Member().run(["-c", code], str(tmp_path), environment, str(log))
    return ended, log.read_text()


def test_a_process_runs_in_its_directory_and_prints_into_its_log(tmp_path):
    code = "import os, sys; print(os.getcwd(), os.environ['GREETING']); sys.exit(75)"
    assert _run(tmp_path, code, GREETING="hello") == (75, f"{tmp_path} hello\n")
    assert _run(tmp_path, "print('again')", GREETING="")[1].endswith("hello\nagain\n")


def test_it_is_asked_to_save_and_leave(tmp_path):
    code = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
pathlib.Path("ready").touch()
time.sleep(60)
"""
    member, codes = Member(), []
    member.end()  # nothing runs yet
    arguments = (["-c", code], str(tmp_path), {}, str(tmp_path / "log"))
    thread = threading.Thread(target=lambda: codes.append(member.run(*arguments)))
    thread.start()
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    member.end()
    thread.join(30)
    assert codes == [75]
    member.end()  # it has ended


def _lives(process):
    try:
        return "Z" not in pathlib.Path(f"/proc/{process}/stat").read_text().split()
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends orphans")
def test_a_process_dies_with_its_actor(tmp_path):
    code = """
from luthier.launch.ray_actors import Member
Member().run(["-c", "import os,time; open('pid','w').write(str(os.getpid())); time.sleep(60)"],
             ".", {}, "log")
"""
    actor = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    path = pathlib.Path(tmp_path, "pid")
    while not (path.exists() and path.read_text()):
        assert actor.poll() is None
        time.sleep(0.01)
    actor.kill()
    actor.wait()
    process, deadline = int(path.read_text()), time.monotonic() + 10
    while _lives(process):
        assert time.monotonic() < deadline
        time.sleep(0.01)
