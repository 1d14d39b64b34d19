from __future__ import annotations

import pytest
from ml_collections import config_dict

from luthier.graph import values
from luthier.graph.formats.config_dict.references import (
    References,
    is_missing,
    is_reference,
    target_of,
)


def _references(**found):
    return References(found.items(), lambda key: f"file: {key}")


def test_the_private_names_that_this_leans_on_are_there():
    reference = config_dict.FieldReference(3)
    computed = reference + 1
    assert reference._value == 3
    assert reference._ops == []
    assert computed._value is reference
    (step,) = computed._ops
    assert step.fn(1, *step.args) == 2
    assert config_dict.required_placeholder(int)._required


def test_a_reference_of_its_own_is_a_plain_value():
    reference = config_dict.FieldReference(3)
    assert _references(a=reference).convert(reference) == 3


def test_a_reference_at_two_places_is_one_constant_with_the_name_of_the_first():
    reference = config_dict.FieldReference(3)
    references = _references(a=reference, b=reference)
    node = references.convert(reference)
    assert values.is_constant(node)
    assert (node.value, node.name) == (3, "a")
    assert references.convert(reference) is node
    assert references.is_shared(node)


def test_a_reference_to_a_reference_is_that_reference():
    inner = config_dict.FieldReference(3)
    outer = config_dict.FieldReference(inner)
    assert is_reference(outer)
    assert target_of(outer) is inner
    references = _references(a=inner, b=outer)
    assert references.convert(outer) is references.convert(inner)


def test_arithmetic_is_written_with_the_names_of_its_references():
    steps, share = config_dict.FieldReference(100), config_dict.FieldReference(0.5)
    computed = 2 * steps - share * 3
    references = _references(steps=steps, computed=computed)
    node = references.convert(computed)
    assert values.expression(node) == "2 * steps - 0.5 * 3.0"
    assert values.evaluate(node) == computed.get() == 198.5


@pytest.mark.parametrize("compute", [abs, lambda ref: ref & 3, lambda ref: ref.to_float()])
def test_what_has_no_live_form_keeps_its_value(compute):
    computed = compute(config_dict.FieldReference(6))
    references = _references(a=computed)
    node = references.convert(computed)
    assert values.evaluate(node) == computed.get()
    assert references.is_frozen(computed)


def test_arithmetic_on_none_is_none_as_in_ml_collections():
    computed = config_dict.placeholder(int) + 1
    references = _references(a=computed)
    assert values.evaluate(references.convert(computed)) is None
    assert references.is_frozen(computed)


def test_a_required_placeholder_is_a_constant_without_a_value():
    placeholder = config_dict.required_placeholder(int)
    assert is_missing(placeholder)
    assert not is_missing(config_dict.placeholder(int))
    node = _references(a=placeholder).convert(placeholder)
    assert values.is_constant(node)
    assert "value" not in node.__arguments__
