import json

import pytest

from luthier.errors import BadInput
from luthier.recipes.foreign.pax import read_dump


def refused(path):
    with pytest.raises(BadInput) as caught:
        read_dump(path)
    (line,) = str(caught.value).splitlines()
    return line.partition("; write it with")[0]


def test_what_is_not_set_is_the_default_of_the_class(dump):
    train = dump("gpt").task.get("train")
    assert train.get("random_seed") == 1234
    assert train.get("save_interval_steps") == 5000
    assert train.get("nothing", 3) == 3
    assert train.path == "task.train"


def test_a_class_knows_what_it_is_derived_from(dump):
    model = dump("gpt").task.get("model")
    assert model.kind == "LanguageModel"
    assert model.is_a("BaseModel")
    assert not model.is_a("TransformerLm")


def test_values_are_read_back(node):
    found = node(
        "Any",
        dtype={"dtype": "bfloat16"},
        policy={"enum": "praxis.Policy", "value": "save_nothing"},
        limit={"float": "inf"},
        rules={"dict": {"a": [1, None]}},
        function={"name": "my.function"},
        instance={"object": "my.Thing", "set": {"size": 3}},
    )
    assert found.get("dtype") == "bfloat16"
    assert found.get("policy") == "save_nothing"
    assert found.get("limit") == float("inf")
    assert found.get("rules") == {"a": [1, None]}
    assert str(found.get("function")) == "my.function"
    assert found.get("instance").settings == {"size": 3}


def test_what_nobody_asked_for_is_left(node):
    found = node("Any", read=1, unread=2, name="silent", refused=3)
    found.get("read")
    found.only("refused", 1)
    (leftover,) = found.dump.leftovers
    assert str(leftover) == "task.refused = 3 (Any): supported: 1"
    assert leftover.is_essential
    (left,) = found.unread(is_essential=False)
    assert (left.path, left.target, left.field, left.value) == ("task", "praxis.Any", "unread", "2")


def test_layouts_are_reported_one_by_one(lm):
    found = list(lm("gpt").unread(is_essential=True))
    layouts = [one for one in found if one.why == "layouts follow from the mesh here"]
    assert layouts
    assert not any(one.is_essential for one in layouts)


def test_settings_are_inherited_from_the_nearest_above(lm):
    head = lm("gpt").get("softmax_tpl")
    inner = head.get("feed_forward_tpl")
    found = inner.inherited("params_init", lambda init: init.peek("method") == "xavier")
    assert found.get("method") == "gaussian"


CASES = {
    "": "is not JSON: Expecting value: line 1 column 1 (char 0)",
    "[" * 100_000: "is not JSON",
    "[1]": "is not a dump of Pax",
    '{"format": "other"}': "is not a dump of Pax",
    '{"format": "luthier pax dump", "version": 9}': "is a dump of version 9, which is not known",
    '{"format": "luthier pax dump", "version": 1}': "is damaged: experiment is not a string",
}


@pytest.mark.parametrize("text", CASES, ids=range(len(CASES)))
def test_a_file_that_is_no_dump_is_refused_in_a_line(text, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(text)
    assert refused(path).startswith(f"{path} {CASES[text]}")


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    assert refused(tmp_path / "no.json") == (
        f"cannot read {tmp_path}/no.json: No such file or directory"
    )
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    assert refused(tmp_path / "x") == f"cannot read {tmp_path}/x: it is not text"


DAMAGES = [
    ({"task": 3}, "task is not a node"),
    ({"task": {"class": "a.B"}}, "task holds no settings"),
    ({"task": {"class": "a.B", "set": {"x": {}}}}, "task.x is nothing that a dump holds"),
    ({"task": {"class": "a.B", "set": {"x": [{"float": "1e"}]}}}, "task.x[0] is not a number"),
    ({"classes": []}, "classes is not an object"),
    ({"classes": {"a.B": {}}}, "classes['a.B'] has no bases"),
    ({"classes": {"a.B": {"bases": []}}}, "classes['a.B'] has no defaults"),
    ({"datasets": 3}, "datasets is not a list"),
    ({"datasets": [3]}, "datasets[0] is not a node"),
    ({"variables": 3}, "variables is not an object"),
]


@pytest.mark.parametrize(("change", "expected"), DAMAGES, ids=[text for _, text in DAMAGES])
def test_a_damaged_dump_is_refused_in_a_line(change, expected, content, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(content("gpt") | change))
    assert refused(path) == f"{path} is damaged: {expected}"
