from luthier.checkpoint.foreign.families import GPT2


def test_queries_keys_and_values_are_one_tensor(shapes_of):
    kernels = {f"blocks.3.attention.{n}.kernel": (8, 2, 4) for n in ("query", "key", "value")}
    biases = {f"blocks.3.attention.{n}.bias": (2, 4) for n in ("query", "key", "value")}
    assert shapes_of(GPT2, kernels | biases) == {
        "transformer.h.3.attn.c_attn.weight": (8, 24),
        "transformer.h.3.attn.c_attn.bias": (24,),
    }


def test_kernels_are_as_ours(shapes_of):
    ours = {
        "embedding.position.table": (9, 8),
        "blocks.0.mlp.up.kernel": (8, 32),
        "blocks.0.attention.output.kernel": (2, 4, 8),
        "norm.bias": (8,),
    }
    assert shapes_of(GPT2, ours) == {
        "transformer.wpe.weight": (9, 8),
        "transformer.h.0.mlp.c_fc.weight": (8, 32),
        "transformer.h.0.attn.c_proj.weight": (8, 8),
        "transformer.ln_f.bias": (8,),
    }


def test_the_mask_is_a_buffer_and_the_bias_is_not():
    assert GPT2.is_ignored("transformer.h.0.attn.bias")
    assert not GPT2.is_ignored("transformer.h.0.attn.c_attn.bias")
