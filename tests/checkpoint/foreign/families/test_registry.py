import pytest

from luthier.checkpoint.foreign import families
from luthier.errors import CheckpointError

ENCODERS = ("albert", "bert", "t5", "t5_gated", "vit")
DECODERS = (
    *("gemma", "gemma2", "gemma3", "gpt2", "llama", "mistral", "mixtral", "olmo2", "qwen2"),
    *("qwen3", "qwen3_moe"),
)


def test_families_are_found_by_name_and_by_type():
    assert {*DECODERS, *ENCODERS} == set(families.names())
    for name in families.names():
        family = families.named(name)
        assert family.name == name
        assert family.model_types
        for model_type in family.model_types:
            config = {"model_type": model_type}
            if name == "t5_gated":
                config["feed_forward_proj"] = "gated-gelu"
            assert families.of_config(config, "DIR") is family


@pytest.mark.parametrize(("projection", "name"), [("relu", "t5"), ("gated-gelu", "t5_gated")])
def test_kindred_families_differ_by_their_settings(projection, name):
    config = {"model_type": "t5", "feed_forward_proj": projection}
    assert families.of_config(config, "DIR").name == name


def test_no_two_tensors_of_a_family_have_a_name_in_common():
    for name in families.names():
        family = families.named(name)
        for names in (
            [tensor.foreign for tensor in family.tensors],
            [part.ours for tensor in family.tensors for part in tensor.parts],
        ):
            assert len(names) == len(set(names)), name


def test_an_unknown_family_is_reported_with_the_known_ones():
    with pytest.raises(CheckpointError, match="did you mean llama"):
        families.named("lamma")
    with pytest.raises(CheckpointError, match="DIR has model_type None"):
        families.of_config({}, "DIR")
