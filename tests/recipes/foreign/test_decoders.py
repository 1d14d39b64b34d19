"""config.json of decoders becomes a graph, and a graph config.json."""

from __future__ import annotations

from luthier.recipes.foreign import Settings, gemma, gpt2, llama

SETTINGS = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}


def test_the_hidden_size_is_four_times_the_width_by_default():
    model = gpt2.read(Settings(SETTINGS))
    assert gpt2.write(model)["n_inner"] == 32
    assert gpt2.write(gpt2.read(Settings(SETTINGS | {"n_inner": 5})))["n_inner"] == 5


def test_what_changes_scores_by_layer_is_refused():
    settings = Settings(SETTINGS | {"scale_attn_by_inverse_layer_idx": True})
    gpt2.read(settings)
    assert "scale_attn_by_inverse_layer_idx" in str(settings.problems[0])


SETTINGS_LLAMA = {
    "vocab_size": 11,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
}


def test_biases_come_and_go():
    model = llama.read_llama(Settings(SETTINGS_LLAMA | {"attention_bias": True, "mlp_bias": True}))
    found = llama.write_llama(model)
    assert found["attention_bias"]
    assert found["mlp_bias"]
    plain = llama.write_llama(llama.read_llama(Settings(SETTINGS_LLAMA)))
    assert not plain["attention_bias"]
    assert not plain["mlp_bias"]


def test_a_mistral_without_a_window_is_a_llama():
    whole = llama.read_mistral(Settings(SETTINGS_LLAMA | {"sliding_window": None}))
    assert llama.write_mistral(whole)["sliding_window"] is None
    assert (
        llama.write_mistral(llama.read_mistral(Settings(SETTINGS_LLAMA)))["sliding_window"] == 4096
    )


def test_windows_of_some_layers_only_are_refused():
    settings = Settings(SETTINGS_LLAMA | {"use_sliding_window": True})
    llama.read_qwen2(settings)
    assert "use_sliding_window" in str(settings.problems[0])


SETTINGS_GEMMA = {
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
    settings = Settings(SETTINGS_GEMMA | {"layer_types": kinds})
    model = gemma.read_gemma3(settings)
    assert not settings.problems
    found = gemma.write_gemma3(model)
    assert found["layer_types"] == kinds
    assert found["sliding_window_pattern"] == 3
    assert found["query_pre_attn_scalar"] == 256


def test_other_orders_of_layers_are_refused():
    settings = Settings(SETTINGS_GEMMA | {"layer_types": [LOCAL, GLOBAL, GLOBAL, LOCAL]})
    gemma.read_gemma2(settings)
    assert "do not repeat every 2 layers" in str(settings.problems[0])


def test_caps_may_be_absent():
    settings = Settings(SETTINGS_GEMMA | {"attn_logit_softcapping": None})
    found = gemma.write_gemma2(gemma.read_gemma2(settings))
    assert found["attn_logit_softcapping"] is None
    assert found["final_logit_softcapping"] == 30.0
