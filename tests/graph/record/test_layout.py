from __future__ import annotations

import json

import hypothesis
import pytest
from hypothesis import strategies as st

from luthier.graph.record import WIDTH, lay_out

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=30), inner, max_size=5)
    ),
    max_leaves=60,
)


@pytest.mark.full
@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(JSON)
def test_it_is_the_same_json(data):
    text = lay_out(data)
    assert json.loads(text) == data


def test_what_fits_stands_on_one_line():
    assert lay_out({"a": [1, {"b": None}]}) == '{"a": [1, {"b": null}]}'
    assert lay_out({"a": "x" * 90, "b": 1}) == '{\n "a": "' + "x" * 90 + '",\n "b": 1\n}'
    assert lay_out([]) == "[]"
    assert lay_out("ü") == '"ü"'


def test_lines_are_short():
    data = {"a": [{"name": "x" * 20, "b": [1, 2, 3]}] * 30, "c": list(range(200))}
    assert all(len(line) <= WIDTH for line in lay_out(data).splitlines())


def test_half_a_surrogate_pair_is_escaped():
    assert lay_out(["\udc80"]) == '["\\udc80"]'
    assert json.loads(lay_out({"\udc80": 1})) == {"\udc80": 1}


def test_numbers_that_json_has_not_are_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        lay_out([float("nan")])


def test_wide_and_deep_data_is_quick():
    data: list = []
    for _ in range(100):
        data = [data, list(range(50))]
    assert json.loads(lay_out(data)) == data
