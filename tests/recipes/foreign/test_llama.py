from luthier.recipes.foreign import Settings, llama

SETTINGS = {
    "vocab_size": 11,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
}


def test_biases_come_and_go():
    model = llama.read_llama(Settings(SETTINGS | {"attention_bias": True, "mlp_bias": True}))
    found = llama.write_llama(model)
    assert found["attention_bias"]
    assert found["mlp_bias"]
    plain = llama.write_llama(llama.read_llama(Settings(SETTINGS)))
    assert not plain["attention_bias"]
    assert not plain["mlp_bias"]


def test_a_mistral_without_a_window_is_a_llama():
    whole = llama.read_mistral(Settings(SETTINGS | {"sliding_window": None}))
    assert llama.write_mistral(whole)["sliding_window"] is None
    assert llama.write_mistral(llama.read_mistral(Settings(SETTINGS)))["sliding_window"] == 4096


def test_windows_of_some_layers_only_are_refused():
    settings = Settings(SETTINGS | {"use_sliding_window": True})
    llama.read_qwen2(settings)
    assert "use_sliding_window" in str(settings.problems[0])
