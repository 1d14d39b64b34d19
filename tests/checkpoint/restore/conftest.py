"""A toy family, its files, and parameters that wait for them."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from luthier.checkpoint import Target
from luthier.checkpoint.foreign import Family, joined, tensor

TOY = Family(
    name="toy",
    model_types=("toy",),
    architecture="Toy",
    prefix="model.",
    tensors=(
        tensor("model.embed", "embedding.table", "vocab embed"),
        joined(
            "model.h.{layer}.qk",
            1,
            ("blocks.{layer}.q", "embed (heads head_dim) -> embed heads head_dim"),
            ("blocks.{layer}.k", "embed (heads head_dim) -> embed heads head_dim"),
        ),
        tensor("head", "head.kernel", "vocab embed -> embed vocab", copy_of="model.embed"),
    ),
)


def make_targets(depth=2, head=False, rows=8, dtype=np.float32, unrolled=False):
    found = {"embedding.table": Target((rows, 4), dtype)}
    for name, heads in (("q", 3), ("k", 2)):
        if unrolled:
            own = Target((4, heads, 5), dtype)
            found |= {f"blocks.{layer}.{name}": own for layer in range(depth)}
        else:
            found[f"blocks.{name}"] = Target((depth, 4, heads, 5), dtype, is_stacked=True)
    if head:
        found["head.kernel"] = Target((4, rows), dtype)
    return found


@pytest.fixture
def toy():
    return TOY


@pytest.fixture
def targets():
    return make_targets


@pytest.fixture
def tensors():
    """The foreign tensors of two layers and seven tokens."""
    rng = np.random.default_rng(0)
    shapes = {"model.embed": (7, 4), "model.h.0.qk": (4, 25), "model.h.1.qk": (4, 25)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def write(tmp_path):
    def write(tensors, name="weights", metadata=None):
        folder = tmp_path / name
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors", metadata=metadata or {"format": "pt"})
        return str(folder)

    return write
