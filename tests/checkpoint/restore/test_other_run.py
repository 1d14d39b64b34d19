import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.checkpoint import FromRun, Restoration, Store, Target
from luthier.errors import CheckpointError

ARRAYS = {
    "step": jnp.zeros((), jnp.int32),
    "parameters/blocks.k": jnp.arange(6.0).reshape(2, 3),
    "parameters/norm.scale": jnp.ones(3),
    "variables/count": jnp.full((), 5.0),
    "ema/norm.scale": jnp.full(3, 2.0),
    "optimizer/blocks.k": jnp.zeros((2, 3)),
}


@pytest.fixture
def run(tmp_path):
    with Store(tmp_path / "run" / "checkpoints") as store:
        store.save(3, ARRAYS)
        store.save(4, {name: array + 1 for name, array in ARRAYS.items()})
        store.wait()
    return tmp_path / "run"


def _targets(**changes):
    found = {
        "blocks.k": Target((2, 3), np.dtype("float32"), None, True),
        "norm.scale": Target((3,), np.dtype("float32")),
        "count": Target((), np.dtype("float32")),
    }
    return found | changes


def _read(restore, targets):
    with Restoration(restore, targets, {}) as restoration:
        return {name: np.asarray(array) for name, array in restoration.read().items()}


def test_the_newest_checkpoint_or_a_step(run):
    assert _read(FromRun(str(run)), _targets())["count"] == 6.0
    found = _read(FromRun(str(run / "checkpoints"), step=3), _targets())
    np.testing.assert_array_equal(found["blocks.k"], ARRAYS["parameters/blocks.k"])
    assert found["count"] == 5.0


def test_the_average_and_what_has_none_as_it_is(run):
    found = _read(FromRun(str(run), step=3, weights="ema"), _targets())
    np.testing.assert_array_equal(found["norm.scale"], np.full(3, 2.0))
    np.testing.assert_array_equal(found["blocks.k"], ARRAYS["parameters/blocks.k"])


def test_another_stack_and_another_dtype(run):
    own = Target((3,), np.dtype("float32"))
    targets = _targets(**{"blocks.0.k": own, "blocks.1.k": own})
    del targets["blocks.k"]
    targets["norm.scale"] = Target((3,), jnp.dtype("bfloat16"))
    found = _read(FromRun(str(run), step=3), targets)
    np.testing.assert_array_equal(found["blocks.1.k"], [3.0, 4.0, 5.0])
    assert found["norm.scale"].dtype == jnp.bfloat16


def test_arrays_go_straight_into_their_shards(run):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("a",))
    spec = jax.sharding.PartitionSpec("a")
    sharding = jax.sharding.NamedSharding(mesh, spec)
    targets = _targets(**{"blocks.k": Target((2, 3), np.dtype("float32"), sharding, True)})
    with Restoration(FromRun(str(run)), targets, {}) as restoration:
        assert restoration.read()["blocks.k"].sharding == sharding


def test_all_misfits_are_reported(run):
    targets = _targets(extra=Target((2,), np.dtype("float32")))
    del targets["norm.scale"]
    with pytest.raises(CheckpointError) as caught:
        Restoration(FromRun(str(run)), targets, {})
    lines = [str(problem) for problem in caught.value.problems]
    assert len(lines) == 2
    assert lines[0].startswith("restore: extra [2] is not in")
    assert "norm.scale float32[3]" in lines[1]


def test_runs_that_are_not_there_empty_or_damaged(run, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    for restore, message in (
        (FromRun(str(tmp_path / "no")), "does not exist"),
        (FromRun(str(tmp_path / "empty")), "holds no checkpoint"),
        (FromRun(str(run), step=7), "no checkpoint of step 7"),
    ):
        with pytest.raises(CheckpointError, match=message):
            Restoration(restore, _targets(), {})
    (tmp_path / "runs" / "tiny" / "03fce420").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"did you mean runs/tiny/03fce420\?"):
        Restoration(FromRun("03fce420"), _targets(), {})
    file = max(
        (path for path in (run / "checkpoints" / "4").rglob("*") if path.is_file()),
        key=lambda path: path.stat().st_size,
    )
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="damaged"):
        Restoration(FromRun(str(run)), _targets(), {})


def test_weights_that_a_run_does_not_keep_are_refused_by_name(tmp_path):
    with Store(tmp_path / "run" / "checkpoints") as store:
        store.save(3, {n: array for n, array in ARRAYS.items() if not n.startswith("ema/")})
        store.wait()
    with pytest.raises(CheckpointError) as caught:
        Restoration(FromRun(str(tmp_path / "run"), weights="ema"), _targets(), {})
    assert str(caught.value) == f"restore.weights: {tmp_path}/run keeps no ema at step 3"
