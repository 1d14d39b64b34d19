"""A run goes on with another number of processes and another mesh, and comes to the same."""

import signal

import numpy as np
import pytest
from staging import EVERY, STEPS, Stage

# Processes, and the mesh of each part of the run.
PARTS = (
    (1, "parallelism.mesh.data=-1"),
    (2, "parallelism.mesh.fsdp=2"),
    (4, "parallelism.mesh.data=4"),
    (1, "parallelism.mesh.data=-1"),
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_that_changes_hosts_and_mesh_comes_to_the_same(machine, truths, tmp_path):
    truth = truths.of(1)
    stage = Stage(machine, tmp_path / "elastic")
    run = []
    for part, (processes, mesh) in enumerate(PARTS):
        stage.processes = processes
        if part == len(PARTS) - 1:
            stage.hurry()
            stage.train(mesh, *run)
            break
        stage.slow()
        started = stage.start(mesh, *run)
        stage.until_saved((part + 1) * EVERY, started)
        started.send(signal.SIGTERM)
        assert started.wait() == 75
        run = ["--run", stage.run.name]
    restarts = [row["step"] for row in stage.rows("header")]
    assert len(restarts) == len(PARTS)
    assert restarts == sorted(set(restarts)), "each part took it further"
    found = stage.losses()
    assert [step for step, _ in found] == list(range(1, STEPS + 1))
    expected = [loss for _, loss in truth.losses]
    np.testing.assert_allclose([loss for _, loss in found], expected, rtol=1e-5)
    tokens = [row["values"]["tokens"] for row in stage.rows("step")]
    assert tokens == sorted(set(tokens)), "tokens are counted over all processes, once"
    for name, array in stage.parameters().items():
        np.testing.assert_allclose(array, truth.arrays[name], rtol=1e-4, atol=1e-5, err_msg=name)
