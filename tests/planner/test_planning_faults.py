"""Thirty faults of an experiment, each told by shapes alone: every line, to the letter.

goldens/faults.txt has what is wrong, as overrides of the quickstart on eight devices, and what is
told of it: path, fault, where it was set (lines of files as N), and the remedy.
"""

import re
import time
from pathlib import Path

import pytest

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.planner import plan_here, targets

GOLDEN = Path(__file__).parent / "goldens" / "faults.txt"
FAULTS = dict(
    block.split("\n", 1) for block in re.split(r"^\$ ", GOLDEN.read_text(), flags=re.MULTILINE)[1:]
)


@pytest.fixture(scope="module")
def graph():
    return graphs.resolve("configs.lm.quickstart")


@pytest.mark.parametrize("words", FAULTS)
def test_a_fault_is_reported_with_its_path_and_its_remedy(graph, words):
    start = time.process_time()
    with pytest.raises(BadInput) as caught:
        plan_here(graphs.apply(graph, words.split(" ")), targets.read("v5e-8"), level="shapes")
    assert time.process_time() - start < 3
    message = re.sub(r"(\.py):\d+", r"\1:N", str(caught.value))
    assert message == FAULTS[words].strip("\n")


def test_there_are_thirty():
    assert len(FAULTS) >= 30
