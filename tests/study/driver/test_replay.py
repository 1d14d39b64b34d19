import json

import fiddle as fdl
import pytest
import simulated_engine as toys

from luthier import study as studies
from luthier.study.driver import StudyDirectory
from tests.study.driver.replay import replay


@pytest.fixture
def study(tmp_path):
    budget = fdl.Config(studies.Budget, trials=30)
    graph = toys.make_study("tpe", directory=str(tmp_path), budget=budget)
    engine = toys.InstantEngine(3, {5: ["failed"], 7: ["infeasible"]})
    outcome = studies.run(graph, packages=toys.PACKAGES, engine=engine)
    return studies.build(graph), StudyDirectory(outcome.directory)


def test_suggestions_follow_from_the_journal(study):
    found = list(replay(*study))
    assert [replayed.setting for replayed in found] == list(range(1, 30))
    assert all(replayed.again == replayed.recorded for replayed in found)


def test_a_journal_that_says_something_else_is_found_out(study):
    path = study[1].journal_path
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "ended" and line["trial"] < 12:
            line["values"] = [-line["trial"]]
            del line["n"], line["crc"]  # as a journal from before lines had checksums
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert any(replayed.again != replayed.recorded for replayed in replay(*study))
