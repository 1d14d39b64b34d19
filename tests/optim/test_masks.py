import pytest

from luthier.errors import BadInput
from luthier.optim import DECAYED, Matching, NotMatching


@pytest.mark.parametrize("prefix", ["blocks", "blocks.0", "decoder.blocks.11"])
@pytest.mark.parametrize(
    ("name", "decays"),
    [
        ("attention.query.kernel", True),
        ("attention.query.bias", False),
        ("mlp.up.kernel", True),
        ("mlp.up.bias", False),
        ("attention_norm.scale", False),
        ("mlp_norm.bias", False),
        ("attention.query_norm.weight", False),
    ],
)
def test_the_default_mask_of_layers(prefix, name, decays):
    assert DECAYED(f"{prefix}.{name}") is decays


@pytest.mark.parametrize(
    ("name", "decays"),
    [
        ("embedding.table", False),
        ("embedding.position.table", False),
        ("token_embedding.kernel", False),
        ("positions", False),
        ("norm.scale", False),
        ("unembedding.kernel", True),
        ("head.kernel", True),
        ("biased.kernel", True),
        ("normalizer.kernel", True),
        ("embedder.up.kernel", True),
    ],
)
def test_the_default_mask_outside_of_layers(name, decays):
    assert DECAYED(name) is decays


def test_patterns_match_anywhere_in_the_name():
    mask, other = Matching(r"mlp\.(up|down)\.kernel$"), NotMatching(r"mlp\.(up|down)\.kernel$")
    for name in ("blocks.mlp.up.kernel", "blocks.3.mlp.down.kernel"):
        assert mask(name)
        assert not other(name)
    assert not mask("blocks.mlp.up.kernel_scale")
    assert Matching("a") == Matching("a")


@pytest.mark.parametrize("make", [Matching, NotMatching])
def test_what_is_no_regular_expression_is_refused(make):
    with pytest.raises(BadInput, match=r"'\(kernel' is not a regular expression: missing \)"):
        make("(kernel")
