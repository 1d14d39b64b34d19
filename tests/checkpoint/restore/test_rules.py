import pytest

from luthier.checkpoint.restore import Init, Resize, Skip, Take, claim
from luthier.errors import BadInput, CheckpointError


def test_the_first_rule_that_matches_has_the_parameter():
    rules = (Init(r"^head\."), Skip("norm"), Take())
    found = claim(rules, ["head.kernel", "norm.scale", "blocks.mlp.kernel"])
    assert {name: str(claimed) for name, claimed in found.items()} == {
        "head.kernel": "1 init",
        "norm.scale": "2 skip",
        "blocks.mlp.kernel": "3 take",
    }


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (Take(), "encoder.norm.scale"),
        (Take(r"^encoder\.", ""), "norm.scale"),
        (Take(r"^encoder\.(\w+)\.scale$", r"model.\1.weight"), "model.norm.weight"),
    ],
)
def test_templates_give_the_name_in_the_source(rule, source):
    assert claim([rule], ["encoder.norm.scale"])["encoder.norm.scale"].source == source


def test_all_that_nobody_claims_is_listed():
    with pytest.raises(CheckpointError) as caught:
        claim([Take(r"^blocks\.")], ["head.kernel", "blocks.kernel", "norm.scale"])
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("restore.rules: 2 parameters are not matched by any rule")
    assert lines[1:] == ["head.kernel", "norm.scale"]


@pytest.mark.parametrize(
    "make", [lambda: Take("("), lambda: Init("["), lambda: Take("a", r"\1"), lambda: Resize(size=0)]
)
def test_broken_patterns_and_templates_are_refused(make):
    with pytest.raises(BadInput):
        make()
