import dataclasses
import json

import numpy as np
import pytest

from luthier.data import Bytes, Documents, plan_layout, survey
from luthier.errors import DataError

TEXTS = [f"document {number} " * (number % 9) for number in range(300)]


def test_a_survey_of_everything_is_exact():
    found = survey(Documents(TEXTS[:50]), Bytes())
    total = sum(map(len, TEXTS[:50]))
    assert (found.documents, found.sampled) == (50, 50)
    assert (found.num_bytes, found.num_tokens) == (total, total + 100)
    assert found.disk_bytes == 2 * (total + 100) + 8 * 50


def test_a_survey_of_a_few_is_an_estimate():
    found = survey(Documents(TEXTS), Bytes())
    assert found.sampled == 64
    assert found.num_bytes == pytest.approx(sum(map(len, TEXTS)), rel=0.2)


@pytest.mark.parametrize(("wanted", "shards"), [(None, 16), (3, 3), (1000, 300)])
def test_every_document_stands_in_one_shard(wanted, shards):
    source = Documents(TEXTS)
    layout = plan_layout(source, Bytes(), survey(source, Bytes()), wanted)
    assert layout.num_shards == shards
    assert (layout.bounds[0], layout.bounds[-1]) == (0, 300)
    assert np.all(np.diff(layout.bounds) >= 1)


def test_differences_are_listed():
    source = Documents(TEXTS)
    layout = plan_layout(source, Bytes(), survey(source, Bytes()))
    written = json.loads(json.dumps(dataclasses.asdict(layout)))
    assert layout.differences(written) == []
    assert layout.differences({**written, "digest": "x"}) == ["another corpus"]
    assert layout.differences({**written, "bounds": [0, 300]}) == [
        "another number of documents or shards"
    ]
    tokenizer = {**written["tokenizer"], "name": "Bytes in another folder"}
    assert layout.differences({**written, "tokenizer": tokenizer}) == []
    tokenizer = {**written["tokenizer"], "fingerprint": "x"}
    assert layout.differences({**written, "tokenizer": tokenizer}) == ["another tokenizer"]


def test_facts_of_a_tokenizer():
    source = Documents(TEXTS)
    facts = plan_layout(source, Bytes(), survey(source, Bytes())).tokenizer
    assert facts == json.loads(json.dumps(facts))
    assert (facts["vocab_size"], facts["bos"], facts["eos"]) == (258, 256, 257)


def test_no_documents():
    with pytest.raises(DataError, match="no documents"):
        survey(Documents([]), Bytes())
