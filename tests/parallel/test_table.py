import jax.numpy as jnp
from jax.sharding import PartitionSpec

from luthier.parallel import AXES, ArrayInfo, format_spec, parameter_rules, place, sharding_table


def test_the_table_shows_every_array_with_its_reason_and_bytes():
    sizes = dict.fromkeys(AXES, 1) | {"fsdp": 4, "tensor": 2}
    arrays = {
        "embedding.table": ArrayInfo((256, 64), jnp.float32, ("vocab", "embed")),
        "blocks.mlp.up.kernel": ArrayInfo((2, 64, 32), jnp.bfloat16, ("layers", "embed", "mlp")),
        "step": ArrayInfo((), jnp.int32, None),
    }
    text = sharding_table(place(arrays, parameter_rules(), sizes).values(), sizes)
    lines = text.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "mesh fsdp=4 x tensor=2",
        "name shape dtype spec reason bytes/device",
        "embedding.table 256x64 float32 tensor, fsdp vocab -> tensor; embed -> fsdp 8.0 KiB",
        "blocks.mlp.up.kernel 2x64x32 bfloat16 -, fsdp, tensor "
        "layers: stage has size 1; embed -> fsdp; mlp -> tensor 1.0 KiB",
        "step scalar int32 - scalar: replicated 4 B",
        "3 arrays, 72.0 KiB in all, 9.0 KiB on each device",
    ]
    assert len({len(line) for line in lines[1:-1]}) == 1
    assert (
        len(
            {
                line.index(word)
                for line, word in zip(lines[1:], ("reason", "vocab", "layers"), strict=False)
            }
        )
        == 1
    )


def test_a_table_of_nothing():
    assert (
        sharding_table((), {"data": 1}).splitlines()[-1]
        == "0 arrays, 0 B in all, 0 B on each device"
    )


def test_specs_for_people():
    assert format_spec(PartitionSpec(("data", "fsdp"), None, "tensor")) == "(data fsdp), -, tensor"
    assert format_spec(PartitionSpec()) == ""
