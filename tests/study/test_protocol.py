import dataclasses
import json
import math

import pytest

from luthier.errors import RunError
from luthier.study import Lost, SliceInfo, TrialEnded, TrialWork, Work, read_result, write_result


def test_messages_are_plain_json():
    work = Work([TrialWork(3, 7, "study/trials/0003")], hoist=["seed"], lanes="vmap")
    ended = TrialEnded(0, 3, 7, "complete", result={"metrics": {"held_out/loss": 1.5}})
    for message in (work, ended, SliceInfo(0, "cpu:0-1", 2), Lost(1, "signal 9")):
        fields = dataclasses.asdict(message)
        assert json.loads(json.dumps(fields)) == fields


def test_a_result_is_read_as_it_was_written(tmp_path):
    result = {"metrics": {"held_out/loss": math.inf}, "series": [[1, {"held_out/loss": 2.5}]]}
    ended = TrialEnded(1, 7, 3, "complete", result=result)
    assert read_result(tmp_path) is None
    write_result(tmp_path, ended)
    assert read_result(tmp_path) == ended
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_damaged_result_is_reported(tmp_path):
    (tmp_path / "result.json").write_text('{"trial"')
    with pytest.raises(RunError, match=r"result\.json is damaged"):
        read_result(tmp_path)


@pytest.mark.parametrize("text", ["[]", '{"trial": 3}'], ids=["no fields", "too few"])
def test_a_result_that_lacks_its_fields_is_reported_as_damaged(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(RunError, match=r"result\.json is damaged: "):
        read_result(tmp_path)
