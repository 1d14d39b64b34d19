"""Trials on a real Ray cluster whose nodes say that they have TPUs: placed, lost, placed again."""

import contextlib
import os
import pathlib
import random
import signal
import sys
import time

import pytest

ray = pytest.importorskip("ray")
HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "study"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import ray_cluster  # noqa: E402
from sweep_trials import TINY  # noqa: E402

from luthier import graph as graphs  # noqa: E402
from luthier.launch import Ray, Slices  # noqa: E402
from luthier.study import Back, Lost, TrialEnded, TrialWork, Work  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def made(monkeypatch):
    for name, value in ray_cluster.environment().items():
        monkeypatch.setenv(name, value)
    with ray_cluster.cluster() as found:
        yield found


@pytest.fixture
def tiny(tmp_path):
    """Return a function from overrides to a tiny experiment."""
    (tmp_path / "a.txt").write_text("To be, or not to be, that is the question.\n" * 30)
    text = f"luthier.data.TextFiles('{tmp_path}/*.txt')"
    own = (f"data.source:={text}", f"evaluations.held_out.data.source:={text}")
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), [*TINY, *own])
    return lambda *overrides: graphs.apply(graph, list(overrides))


@pytest.fixture
def write_trial():
    """Return a function that writes the directory of a trial and returns its work."""

    def write(study, number, graph, fence=1):
        directory = pathlib.Path(study, "trials", f"{number:04d}")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(graphs.to_json(graph))
        return TrialWork(number, fence, str(directory))

    return write


def _events(slices, kind, seconds=600):
    """Wait for events of a kind; return all that came before and with it."""
    found, deadline = [], time.monotonic() + seconds
    while not any(isinstance(event, kind) for event in found):
        assert time.monotonic() < deadline, found
        found += slices.events(1.0)
    return found


def _saved(trial):
    return list(pathlib.Path(trial.directory, "run", "checkpoints").glob("*/commit.json"))


def test_a_trial_whose_slice_is_lost_is_placed_on_another_and_resumed(
    made,
    tmp_path,
    tiny,
    write_trial,
):
    nodes = {}
    for slice_name in ("a", "b"):
        for worker in (0, 1):
            name = f"{slice_name}{worker}"
            nodes[name] = ray_cluster.add_tpu_host(made, slice_name, worker, "v6e-8", "2x4")
    made.wait_for_nodes()
    engine = Ray(address=made.address, topology="2x4", accelerator="v6e", devices="cpu:1", cpus=0.5)
    assert engine.layout.hosts == 2
    slices = Slices(engine, slices=1)
    try:
        (info,) = slices.open(str(tmp_path))
        assert info.num_devices == 2, "one device of each of two processes"
        trial = write_trial(tmp_path, 0, tiny("training.steps=60"))
        slices.start(0, Work([trial]))
        while not _saved(trial):
            slices.events(0.2)
        (first, *_) = places = ray_cluster.nodes_of("Member")
        lost = next(name for name, node in nodes.items() if node.node_id == first)
        made.remove_node(nodes[lost], allow_graceful=False)
        found = _events(slices, Back)
        assert any(isinstance(event, Lost) for event in found)
        again = write_trial(tmp_path, 0, tiny("training.steps=60"), fence=2)
        slices.start(0, Work([again]))
        ended = next(e for e in _events(slices, TrialEnded) if isinstance(e, TrialEnded))
        assert (ended.outcome, ended.fence) == ("complete", 2)
        steps = [step for step, _ in ended.result["series"]]
        assert steps == list(range(5, 61, 5)), "each step stands once"
        now = ray_cluster.nodes_of("Member")
        assert {len(places), len(now)} == {2}
        of_slice = {node.node_id: name[0] for name, node in nodes.items()}
        assert {of_slice[node] for node in places} == {lost[0]}
        assert {of_slice[node] for node in now} == {"a", "b"} - {lost[0]}
    finally:
        slices.close()


PEAK = "optimizer.learning_rate.peak"
SHORT = ("training.steps=3", "checkpoints=None", "evaluations.held_out.num_batches=1")


def _workers(folder):
    """Return the worker processes of a study, whatever started them."""
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            if b"luthier.launch.worker" in words and str(folder).encode() in b" ".join(words):
                found.append(int(place.name))
    return found


@pytest.mark.timeout(2400)
@pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc")
def test_two_hundred_trials_on_four_workers_that_are_killed_lose_nothing(
    made, tmp_path, tiny, write_trial
):
    made.add_node(num_cpus=4, object_store_memory=ray_cluster.MEMORY)
    made.wait_for_nodes()
    slices = Slices(Ray(address=made.address, devices="cpu:1"), slices=4)
    chance, kills = random.Random(7), 0
    waiting = list(reversed(range(200)))
    busy, fences, ended = {}, dict.fromkeys(range(200), 0), []
    away = set()
    next_kill = 5
    try:
        slices.open(str(tmp_path))
        while len(ended) < 200:
            for index in range(4):
                if index not in busy and index not in away and waiting:
                    number = waiting.pop()
                    fences[number] += 1
                    graph = tiny(*SHORT, f"{PEAK}={1e-3 + 1e-5 * number}")
                    work = write_trial(tmp_path, number, graph, fence=fences[number])
                    busy[index] = number
                    slices.start(index, Work([work], hoist=(PEAK,)))
            for event in slices.events(0.2):
                if isinstance(event, TrialEnded):
                    assert busy.pop(event.slice) == event.trial
                    assert (event.outcome, event.fence) == ("complete", fences[event.trial])
                    ended.append(event.trial)
                elif isinstance(event, Lost):
                    away.add(event.slice)
                    if event.slice in busy:
                        waiting.append(busy.pop(event.slice))
                elif isinstance(event, Back):
                    away.discard(event.slice)
            if len(ended) >= next_kill and not away and (found := _workers(tmp_path)):
                os.kill(chance.choice(found), signal.SIGKILL)
                kills += 1
                next_kill += chance.randrange(5, 25)
    finally:
        slices.close()
    assert sorted(ended) == list(range(200))
    assert kills >= 8
    results = [tmp_path / "trials" / f"{number:04d}" / "result.json" for number in range(200)]
    assert all(path.is_file() for path in results)
    print(f"{kills} kills, {sum(fences.values())} starts of trials")
