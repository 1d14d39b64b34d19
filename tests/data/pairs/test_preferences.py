import numpy as np
import pytest

from luthier.data import Arithmetic, Bytes, Preferences, Skip
from luthier.errors import DataError


def node(length=16, **settings):
    return Preferences(Arithmetic(30), Bytes(), length, num_threads=0, **settings)


def test_rows_are_prompt_and_response():
    whole = node().rows.gather(np.arange(30))
    for row in range(30):
        prompt, *responses = Arithmetic(30)[row]
        for side, response in zip(("chosen", "rejected"), responses, strict=True):
            tokens = [256, *prompt, *response, 257]
            count = len(tokens) - 1
            assert whole[f"{side}_inputs"][row].tolist() == tokens[:-1] + [0] * (16 - count)
            assert whole[f"{side}_targets"][row].tolist() == tokens[1:] + [0] * (16 - count)
            weights = [0] * len(prompt) + [1] * (len(response) + 1) + [0] * (16 - count)
            assert whole[f"{side}_weights"][row].tolist() == weights
            assert whole[f"{side}_segments"][row].tolist() == [1] * count + [0] * (16 - count)
            assert whole[f"{side}_positions"][row, :count].tolist() == list(range(count))
    assert whole["examples"].tolist() == list(range(1, 31))


def test_batches_are_what_the_spec_says():
    data = node()
    expected = data.batch_spec(8)
    assert len(expected) == 12
    batches = [next(data.iterator(global_batch_size=8, seed=0)), *data.batches(global_batch_size=8)]
    for batch in batches:
        assert {name: (a.shape, a.dtype) for name, a in batch.items()} == expected
    assert batches[-1]["weights"].tolist() == [1] * 6 + [0] * 2
    assert not any(batches[-1][name][6:].any() for name in expected)
    assert sum(batch["weights"].sum() for batch in batches[1:]) == 30


def test_prompts_without_room():
    need = [len(p) + max(len(c), len(r)) + 1 for p, c, r in (Arithmetic(30)[i] for i in range(30))]
    shortest = max(need)
    assert node(shortest).num_rows == 30
    with pytest.raises(DataError, match=rf"{shortest} targets do not fit into a row of"):
        node(shortest - 1).num_rows  # noqa: B018
    described = node(shortest - 1, too_long=Skip()).describe()
    assert described["too_long"] == sum(n >= shortest for n in need) > 0
    assert described["rows"] == 30 - described["too_long"]


def test_describe_and_digest():
    described = node().describe()
    triples = [Arithmetic(30)[index] for index in range(30)]
    assert described["prompt_tokens"] == sum(len(prompt) for prompt, _, _ in triples)
    assert described["chosen_targets"] == sum(len(chosen) + 1 for _, chosen, _ in triples)
    assert described["rejected_targets"] == sum(len(rejected) + 1 for *_, rejected in triples)
    assert node().rows.digest == node().rows.digest != node(17).rows.digest
