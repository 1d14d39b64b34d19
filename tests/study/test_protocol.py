import dataclasses
import json

from luthier.study import protocol


def test_messages_are_plain_json():
    work = protocol.Work(
        [protocol.TrialWork(3, 7, "study/trials/0003")], hoist=["seed"], lanes="vmap"
    )
    ended = protocol.TrialEnded(0, 3, 7, "complete", result={"metrics": {"held_out/loss": 1.5}})
    for message in (work, ended, protocol.SliceInfo(0, "cpu:0-1", 2), protocol.Lost(1, "signal 9")):
        fields = dataclasses.asdict(message)
        assert json.loads(json.dumps(fields)) == fields
