"""C4 as Pax has it, on shards of its schema that tools/c4_shards.py writes."""

import os
from pathlib import Path

import fiddle as fdl
import jax
import numpy as np
import pytest

from luthier import data
from luthier import graph as graphs
from luthier import program as programs
from luthier.cli import main
from luthier.recipes import published
from luthier.shipped import c4_shards
from tests.compiling import quick_step
from tests.object_stores import environment, serving

LENGTH, GROUP, DOCUMENTS, SHARDS = 32, 16, 90, 3

EXPERIMENT = f'''"""The quickstart on C4."""
from configs.lm import quickstart
from luthier.graph import value
from luthier.recipes import published


def experiment(folder: str):
    """Train on C4."""
    graph = quickstart.experiment()
    folder, length = value(folder, name="folder"), value({LENGTH}, name="length")
    graph.data = published.c4_training(folder=folder, length=length, documents_per_group={GROUP})
    graph.evaluations["held_out"].data = published.c4_validation(folder=folder, length=length)
    graph.model.vocab_size = 400
    return graph
'''


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a function from a kind of file to the folder of a small C4."""
    made = {}

    def make(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            sizes = {"num_documents": DOCUMENTS, "num_sequences": 12, "num_shards": SHARDS}
            c4_shards.make(folder, kind=kind, vocab_size=400, **sizes)
            made[kind] = str(folder)
        return made[kind]

    return make


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """Return a function from a folder to the reference of an experiment on it."""
    (tmp_path / "c4_trial.py").write_text(EXPERIMENT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return lambda folder: f'c4_trial:experiment(folder="{folder}")'


def training(folder, kind="tfrecord"):
    graph = published.c4_training(length=LENGTH, folder=folder, documents_per_group=GROUP)
    if kind == "parquet":
        pattern = f"{folder}/c4/en/3.0.4/*.parquet"
        graph.source.records = fdl.Config(data.Parquet, pattern=pattern)
    return graphs.build(graph)


def all_rows(node):
    return node.rows.gather(np.arange(node.num_rows))


def seen(batch):
    """The inputs of each row that are no padding."""
    rows = zip(batch["inputs"], batch["segments"], strict=True)
    return [inputs[segments > 0].tolist() for inputs, segments in rows]


@pytest.mark.parametrize("kind", ["tfrecord", "array_record", "parquet"])
def test_training_rows_are_cut_from_joined_documents(kind, folders):
    node = training(folders(kind), kind)
    records = c4_shards.texts(DOCUMENTS)
    texts = [text for shard in range(SHARDS) for text in records[shard::SHARDS]]
    documents = [node.tokenizer.encode(text) for text in texts]
    expected = []
    for first in range(0, len(documents), GROUP):
        joined = [token for document in documents[first : first + GROUP] for token in document]
        expected += [joined[i : i + LENGTH] for i in range(0, len(joined), LENGTH)]
    batch = all_rows(node)
    assert seen(batch) == expected
    ends = [[*row[1:], 1] for row in expected if len(row) == LENGTH]
    full = batch["segments"][:, -1] > 0
    assert batch["targets"][full].tolist() == ends
    assert batch["weights"][full].sum(axis=1).tolist() == [LENGTH - 1] * len(ends)
    assert {frozenset(node.source.records[index]) for index in (0, DOCUMENTS - 1)} == {
        frozenset({"text", "url", "timestamp"})
    }


def test_validation_rows_begin_as_the_records_do(folders):
    node = graphs.build(published.c4_validation(length=LENGTH, folder=folders("tfrecord")))
    texts = c4_shards.texts(DOCUMENTS + 12)[DOCUMENTS:]
    expected = [node.tokenizer.encode(text)[:LENGTH] for text in texts]
    batch = all_rows(node)
    assert seen(batch) == expected
    assert batch["weights"].sum() == sum(len(row) - 1 for row in expected)


@pytest.mark.parametrize("kind", ["tfrecord", "array_record", "parquet"])
def test_shards_of_an_object_store_give_the_same_rows(kind, folders, monkeypatch):
    folder = Path(folders(kind))
    paths = [path for path in folder.rglob("*") if path.is_file()]
    objects = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    with serving({kind: objects}) as (address, _):
        for name, setting in environment(address).items():
            monkeypatch.setenv(name, setting)
        there = training(f"s3://{kind}", kind)
        found, expected = all_rows(there), all_rows(training(str(folder), kind))
    for name, entry in expected.items():
        np.testing.assert_array_equal(found[name], entry)
    assert there.source.name(0).startswith(f"s3://{kind}/c4/en/3.0.4/")


@pytest.mark.full
def test_an_experiment_trains_on_eight_devices(experiment, folders):
    graph = graphs.resolve(experiment(folders("tfrecord")))
    overrides = ["model.num_layers=1", "training.steps=2", "records.wandb=None", "checkpoints=None"]
    meshes = ["parallelism.mesh.fsdp=4", "parallelism.mesh.tensor=2"]
    graph = graphs.apply(graph, [*overrides, *meshes])
    graphs.validate(graph)
    program = programs.make(graph, jax.devices()[:8])
    values, step = program.values(), quick_step(program)
    leaves = program.init(values)
    iterator = program.experiment.data.iterator(global_batch_size=8, seed=0)
    losses, index = [], program.scalar_names.index("loss")
    for _ in range(2):
        batch = next(iterator)
        placed = {n: jax.device_put(batch[n], s.sharding) for n, s in program.batch.items()}
        leaves, scalars = step(values, leaves, placed)
        losses.append(float(scalars[index]))
    assert np.isfinite(losses).all()
    assert losses[0] != losses[1]


@pytest.mark.full
def test_shards_are_prepared_for_training(experiment, folders, capsys):
    folder = folders("tfrecord")
    words = ["data", "prepare", "made", "--processes", "1", "--experiment", experiment(folder)]
    assert main(words) == 0
    assert f"prepared made: {DOCUMENTS} documents" in capsys.readouterr().out
    packed = training(folder)
    prepared = data.Prepared("made", LENGTH, packed.packing, packed.tokenizer)
    for name, entry in all_rows(packed).items():
        np.testing.assert_array_equal(all_rows(prepared)[name], entry)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
@pytest.mark.parametrize("command", [["train"], ["data", "prepare", "made", "--experiment"]])
def test_without_a_network_there_is_one_line(scheme, command, experiment, capfd, monkeypatch):
    for name, setting in environment("http://127.0.0.1:9").items():
        monkeypatch.setenv(name, setting)
    before = set(os.listdir())
    assert main([*command, experiment(f"{scheme}://unreachable")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"luthier: {scheme}://unreachable/")
    assert ": cannot be read: " in line
    assert line.endswith("; check the network and your credentials, or name a copy on this machine")
    assert set(os.listdir()) - before <= {"__pycache__"}
