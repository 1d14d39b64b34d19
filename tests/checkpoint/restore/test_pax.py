import numpy as np
import pytest

from luthier.checkpoint import Init, Pax, Restoration, Skip, Take, Target
from luthier.errors import CheckpointError

LIMITS = {"vocab": 7}
TARGETS = {
    "norm.scale": Target((4,), np.dtype("float32")),
    "embedding.table": Target((8, 4), np.dtype("float32")),
    "blocks.attention_norm.scale": Target((2, 4), np.dtype("float32"), is_stacked=True),
}


@pytest.fixture
def write(tmp_path):
    def make(**more):
        from safetensors.numpy import save_file

        arrays = {
            "params.lm.final_ln.scale": np.arange(4),
            "params.lm.softmax.w": np.arange(28).reshape(7, 4),
            "params.lm.transformer.repeat.sub.x_layers_0.layer_norm.scale": np.ones((2, 4)),
            **{name.replace("__", "."): array for name, array in more.items()},
        }
        path = tmp_path / "x.safetensors"
        save_file({name: array.astype(np.float32) for name, array in arrays.items()}, path)
        return str(path)

    return make


def problems(restore):
    with pytest.raises(CheckpointError) as caught:
        Restoration(restore, TARGETS, LIMITS)
    return str(caught.value).splitlines()


def test_parameters_are_read_and_padded(write):
    with Restoration(Pax(write()), TARGETS, LIMITS) as restoration:
        found = restoration.read()
        sources = {row.parameter: row.source for row in restoration.table}
    np.testing.assert_array_equal(found["embedding.table"][:7], np.arange(28).reshape(7, 4))
    assert not found["embedding.table"][7:].any()
    beginning = "lm.transformer.repeat.sub.x_layers_0"
    assert sources["blocks.attention_norm.scale"] == f"{beginning}.layer_norm.scale[{{0,1}}]"


def test_what_is_left_over_is_an_error_until_it_is_skipped(write):
    path = write(params__lm__ngrammer__w=np.ones(3))
    assert problems(Pax(path)) == [
        "restore: lm.ngrammer.w [3] of the files has no place to go: the family has no such "
        "tensor; leave it unread: Skip(pattern)"
    ]
    with Restoration(Pax(path, rules=[Skip("ngrammer"), Take()]), TARGETS, LIMITS) as restoration:
        assert len(restoration.read()) == 3


def test_what_is_missing_may_be_initialized(write):
    wanted = TARGETS | {"norm.bias": Target((4,), np.dtype("float32"))}
    with pytest.raises(CheckpointError, match=r"lm\.final_ln\.bias \[4\] is not in the files"):
        Restoration(Pax(write()), wanted, LIMITS)
    rules = [Init("norm.bias"), Take()]
    with Restoration(Pax(write(), rules=rules), wanted, LIMITS) as restoration:
        assert "norm.bias" not in restoration.read()


def test_a_path_that_does_not_exist(tmp_path):
    assert problems(Pax(f"{tmp_path}/no")) == [f"{tmp_path}/no does not exist; give its path"]
