from luthier.recipes.foreign import Settings, gemma

SETTINGS = {
    "vocab_size": 11,
    "hidden_size": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "intermediate_size": 12,
    "sliding_window": 5,
}
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def test_local_and_global_layers_take_turns():
    kinds = [LOCAL, LOCAL, GLOBAL, LOCAL]
    settings = Settings(SETTINGS | {"layer_types": kinds})
    model = gemma.read_gemma3(settings)
    assert not settings.problems
    found = gemma.write_gemma3(model)
    assert found["layer_types"] == kinds
    assert found["sliding_window_pattern"] == 3
    assert found["query_pre_attn_scalar"] == 256


def test_other_orders_of_layers_are_refused():
    settings = Settings(SETTINGS | {"layer_types": [LOCAL, GLOBAL, GLOBAL, LOCAL]})
    gemma.read_gemma2(settings)
    assert "do not repeat every 2 layers" in str(settings.problems[0])


def test_caps_may_be_absent():
    settings = Settings(SETTINGS | {"attn_logit_softcapping": None})
    found = gemma.write_gemma2(gemma.read_gemma2(settings))
    assert found["attn_logit_softcapping"] is None
    assert found["final_logit_softcapping"] == 30.0
