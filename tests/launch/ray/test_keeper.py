import pytest

from luthier.launch import ray_actors


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
