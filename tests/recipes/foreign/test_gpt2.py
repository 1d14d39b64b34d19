from luthier.recipes.foreign import Settings, gpt2

SETTINGS = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}


def test_the_hidden_size_is_four_times_the_width_by_default():
    model = gpt2.read(Settings(SETTINGS))
    assert gpt2.write(model)["n_inner"] == 32
    assert gpt2.write(gpt2.read(Settings(SETTINGS | {"n_inner": 5})))["n_inner"] == 5


def test_what_changes_scores_by_layer_is_refused():
    settings = Settings(SETTINGS | {"scale_attn_by_inverse_layer_idx": True})
    gpt2.read(settings)
    assert "scale_attn_by_inverse_layer_idx" in str(settings.problems[0])
