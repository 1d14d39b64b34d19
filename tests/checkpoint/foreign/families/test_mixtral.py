import pytest

from luthier.checkpoint.foreign.families import MIXTRAL, QWEN3_MOE
from luthier.recipes.decoders import mixtral, qwen3, with_experts

SIZES = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "hidden_dim": 10, "num_layers": 3}


def _qwen3_moe(**sizes):
    return with_experts(qwen3(**sizes), num_experts=3, k=2)


def _mixtral(**sizes):
    return mixtral(**sizes, num_experts=3)


@pytest.mark.parametrize(
    ("family", "make", "router", "up"),
    [
        (MIXTRAL, _mixtral, "block_sparse_moe.gate", "block_sparse_moe.experts.2.w3"),
        (QWEN3_MOE, _qwen3_moe, "mlp.gate", "mlp.experts.2.up_proj"),
    ],
)
def test_experts_go_there_and_back_bit_exactly(family, make, router, up, there_and_back):
    model = make(vocab_size=13, dim=8, **SIZES)
    shapes = there_and_back(family, model, {})
    assert shapes[f"model.layers.1.{router}.weight"] == (3, 8)
    assert shapes[f"model.layers.1.{up}.weight"] == (10, 8)
    per_layer = 2 + 4 + (2 if family is QWEN3_MOE else 0) + 1 + 3 * 3
    assert len(shapes) == 3 + 3 * per_layer
