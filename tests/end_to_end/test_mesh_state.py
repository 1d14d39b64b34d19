"""Where the state of every optimizer lies, told by shapes: nothing is compiled."""

import jax
import pytest

from luthier import graph as graphs
from luthier import program as programs
from luthier.parallel import array_bytes, bytes_per_device, sharding_table

RECIPES = (
    "adafactor",
    "adamw",
    "capped_adamw",
    "lamb",
    "lion",
    "muon",
    "nesterov",
    "sgd",
    "shampoo",
    "soap",
)
SIZES = (
    "model.dim=256",
    "model.num_layers=2",
    "model.block.mlp.hidden_dim=768",
    "training.ema:=luthier.optim.Ema(0.9)",
)


@pytest.fixture(scope="module")
def placements():
    """Return a function from an optimizer and further words to placements on eight devices."""

    def place(optimizer, *words):
        graph = graphs.resolve("configs.lm.quickstart")
        swap = f"fiddler:swap_optimizer(luthier.optim.{optimizer})"
        graph = graphs.apply(graph, [*SIZES, swap, *words], shelves=("luthier.recipes",))
        return programs.make(graph, jax.devices()).placements

    return place


@pytest.mark.parametrize("optimizer", RECIPES)
def test_bytes_per_device_fall_with_fsdp(placements, optimizer):
    whole = placements(optimizer).values()
    total = bytes_per_device(whole)
    assert total == sum(array_bytes(p.shape, p.dtype) for p in whole)
    for size in (2, 4, 8):
        held = bytes_per_device(placements(optimizer, f"fiddler:fsdp({size})").values())
        assert total / size <= held < 1.001 * total / size


@pytest.mark.parametrize("optimizer", RECIPES)
def test_every_large_array_is_shared_out_by_every_axis(placements, optimizer):
    found = placements(optimizer, "fiddler:fsdp(4)", "fiddler:tensor(2)")
    text = sharding_table(found.values(), {"fsdp": 4, "tensor": 2})
    lines = {line.split()[0]: line for line in text.splitlines()[2:-1]}
    assert set(lines) == set(found)
    for name, placement in found.items():
        assert placement.reason in lines[name]
        size = array_bytes(placement.shape, placement.dtype)
        if name.startswith("optimizer/") and size > 2**20:
            assert placement.bytes_per_device * 8 == size, name
