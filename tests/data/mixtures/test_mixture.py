import dataclasses
import json
import math

import fiddle as fdl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luthier import graph
from luthier.data import Bytes, Concatenate, Documents, Mixture, Packed, Stage, Unpacked
from luthier.errors import DataError


def packed(letter, count, length=16):
    documents = [f"{letter}{number} " * (1 + number % 3) for number in range(count)]
    return Packed(Documents(documents), Bytes(), length, Unpacked(), num_threads=0)


COMPONENTS = {"a": packed("a", 60), "b": packed("b", 25), "c": packed("c", 40)}
STAGES = [Stage({"a": 0.6, "b": 0.3, "c": 0.1}), Stage({"a": 0.1, "c": 0.9}, start_step=20)]
DATA = Mixture(COMPONENTS, STAGES, num_threads=0)


def iterator(data=DATA, size=8, seed=5, index=0, count=1):
    return data.iterator(
        global_batch_size=size, seed=seed, process_index=index, process_count=count
    )


def take(stream, count):
    return [next(stream) for _ in range(count)]


def assert_equal(first, second):
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def letters(batches):
    """Whose row each row is: the first byte of its document."""
    return [chr(row[1]) for batch in batches for row in batch["inputs"]]


@pytest.mark.parametrize("count", [2, 4])
def test_hosts_together_read_what_one_host_reads(count):
    single = take(iterator(), 40)
    hosts = [take(iterator(index=index, count=count), 40) for index in range(count)]
    joined = [
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*hosts, strict=True)
    ]
    assert_equal(single, joined)


@pytest.mark.full
@given(step=st.integers(0, 60), count=st.sampled_from([1, 2, 4]))
@settings(max_examples=25, deadline=None)
def test_resuming_anywhere_on_any_number_of_hosts(step, count):
    stream = iterator()
    take(stream, step)
    state = json.loads(json.dumps(stream.get_state()))
    after = take(stream, 3)
    for index in range(count):
        resumed = iterator(index=index, count=count)
        resumed.set_state(state)
        rows = slice(index * 8 // count, (index + 1) * 8 // count)
        expected = [{name: array[rows] for name, array in batch.items()} for batch in after]
        assert_equal(take(resumed, 3), expected)


def test_shares_and_stages():
    whose = letters(take(iterator(), 200))
    first, second = whose[: 20 * 8], whose[20 * 8 :]
    assert abs(first.count("a") - 0.6 * 160) <= 2
    assert abs(first.count("b") - 0.3 * 160) <= 2
    assert second.count("b") == 0
    assert abs(second.count("c") - 0.9 * len(second)) <= 2


def test_shares_over_ten_thousand_examples():
    data = Mixture(COMPONENTS, STAGES[:1])
    rows, _ = data.order(seed=3, global_batch_size=8)(np.arange(10_000))
    ends = np.cumsum([node.num_rows for node in COMPONENTS.values()])
    shares = np.bincount(np.searchsorted(ends, rows, side="right")) / 10_000
    np.testing.assert_allclose(shares, [0.6, 0.3, 0.1], rtol=0.005)


def test_batches_are_rows_of_the_components_with_numbers_of_their_own():
    batches = list(DATA.batches(global_batch_size=8))
    whole = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    first, ids = 0, 0
    for node in COMPONENTS.values():
        expected = node.rows.gather(np.arange(node.num_rows))
        for name, values in expected.items():
            found = whole[name][first : first + node.num_rows]
            if name == "documents":
                values = np.where(values > 0, values + ids, 0)
            np.testing.assert_array_equal(found, values)
        first, ids = first + node.num_rows, ids + node.rows.num_examples
    assert all(not values[DATA.num_rows :].any() for values in whole.values())
    numbers = whole["documents"]
    assert len(np.unique(numbers[numbers > 0])) == ids == DATA.rows.num_examples


def test_a_batch_of_padding_alone():
    batch = DATA.rows.gather(np.array([-1, -1]))
    spec = DATA.batch_spec(2)
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == spec
    assert not any(array.any() for array in batch.values())


def test_a_component_is_not_disturbed_by_the_others():
    alone = Mixture({"a": COMPONENTS["a"]}, [Stage({"a": 1.0})])
    rows, _ = alone.order(seed=7, global_batch_size=1)(np.arange(50))
    mixed, _ = DATA.order(seed=7, global_batch_size=1)(np.arange(400))
    np.testing.assert_array_equal(rows, mixed[mixed < COMPONENTS["a"].num_rows][:50])


def test_epochs_are_limited():
    data = Mixture(COMPONENTS, STAGES[:1], max_epochs={"b": 1.0})
    whose = letters(take(iterator(data), 100))
    assert whose.count("b") == COMPONENTS["b"].num_rows
    assert whose[-200:].count("a") == pytest.approx(200 * 6 / 7, abs=2)


def test_a_mixture_in_a_mixture():
    inner = Mixture({"b": COMPONENTS["b"], "c": COMPONENTS["c"]}, [Stage({"b": 1, "c": 1})])
    data = Mixture({"a": COMPONENTS["a"], "rest": inner}, [Stage({"a": 2, "rest": 2})])
    whose = letters(take(iterator(data), 100))
    counts = [whose.count(letter) for letter in "abc"]
    np.testing.assert_allclose(counts, [400, 200, 200], atol=3)
    assert data.tokenizer == Bytes()
    assert data.tokens_per_row == 16


def test_a_state_of_another_mixture_is_refused():
    state = iterator().get_state()
    others = [
        Mixture(COMPONENTS, STAGES[:1]),
        Mixture({**COMPONENTS, "a": packed("a", 61)}, STAGES),
        Mixture(COMPONENTS, STAGES, max_epochs={"a": 3}),
    ]
    for other in others:
        with pytest.raises(DataError, match="not what it was at the checkpoint"):
            iterator(other).set_state(state)
    with pytest.raises(DataError, match="not what it was at the checkpoint"):
        iterator(size=16).set_state(state)  # stages begin at other rows
    same = iterator(Mixture(dict(COMPONENTS), list(STAGES)))
    same.set_state(state)


def test_describe():
    found = json.loads(json.dumps(DATA.describe()))
    assert found["rows"] == DATA.num_rows
    assert found["components"]["a"]["shares"] == pytest.approx([0.6, 0.1], abs=1e-4)
    assert found["components"]["c"]["documents"] == 40


def test_all_that_is_wrong_at_once():
    data = Mixture(
        {**COMPONENTS, "long": packed("d", 3, length=32)},
        [Stage({"a": 1, "d": 1}, 3), Stage({"a": -1}, 2), Stage({"a": 0.0}, 9)],
        max_epochs={"a": math.inf, "b": 0, "e": 1},
    )
    with pytest.raises(DataError) as error:
        iterator(data)
    text = str(error.value)
    assert len(error.value.problems) == 8
    for part in (
        "'a' and 'long' have different",
        "begin at steps 3, 2, 9",
        "stage 0 weighs 'd'",
        "stage 1 has weights [-1]",
        "stage 2 has weights [0.0]",
        "max_epochs of 'a' is inf; give a finite number above 0, or leave it out of max_epochs",
        "max_epochs of 'b' is 0",
        "max_epochs names 'e', which is not a component",
    ):
        assert part in text
    for empty in (Mixture({}, STAGES), Mixture(COMPONENTS, [])):
        with pytest.raises(DataError, match="a mixture without"):
            empty.batch_spec(8)


def test_a_stage_at_a_fraction_of_the_run():
    steps = graph.value(100, name="steps")
    text = fdl.Config(
        Packed, fdl.Config(Documents, ["abc"] * 9), fdl.Config(Bytes), 4, fdl.Config(Concatenate)
    )
    config = fdl.Config(
        Mixture,
        components={"a": text},
        stages=[
            fdl.Config(Stage, weights={"a": 1.0}),
            fdl.Config(
                Stage,
                weights={"a": 0.5},
                start_step=graph.floor_divide(graph.multiply(steps, 6), 10),
            ),
        ],
    )
    assert graph.build(config).stages[1].start_step == 60


def test_the_same_data_under_two_names_is_refused():
    twice = dataclasses.replace(DATA, components={**DATA.components, "again": DATA.components["a"]})
    with pytest.raises(DataError) as raised:
        twice.batch_spec(8)
    assert str(raised.value) == (
        "components 'a' and 'again' are the same data; leave one out and add up their weights, "
        "or give it another seed or source"
    )
