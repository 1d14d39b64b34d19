import jax.numpy as jnp
import pytest

from luthier.errors import BadInput
from luthier.optim import StoredAs


def test_a_rule_is_for_names_with_a_match_anywhere():
    rule = StoredAs(r"mlp\.(up|down)", jnp.bfloat16)
    assert rule("blocks.mlp.up.kernel")
    assert not rule("blocks.attention.query.kernel")
    assert StoredAs("", jnp.float32)("anything")


def test_all_problems_are_raised_at_once():
    with pytest.raises(BadInput) as raised:
        StoredAs("(", jnp.float8_e4m3fn)
    pattern, kind = str(raised.value).splitlines()
    assert pattern.startswith("pattern: '(' is not a regular expression: ")
    assert kind == (
        "dtype: arrays cannot be stored as float8_e4m3fn: its range is too small; "
        "use bfloat16, float16, float32 or float64"
    )
    with pytest.raises(BadInput, match="arrays cannot be stored as int32"):
        StoredAs("", jnp.int32)
