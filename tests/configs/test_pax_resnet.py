"""Pax's ResNet-50: its size, its schedule, and two steps of a small twin."""

import numpy as np
import pytest

from luthier import graph as graphs
from luthier import optim
from luthier.recipes import tiny
from tests.configs.pax_twins import (
    assert_takes_two_steps,
    mesh_sizes,
    num_parameters,
    pax_names,
)

REFERENCE = "configs.pax.resnet"
EPOCH = 1_281_167 // 512


@pytest.mark.full
def test_size_batch_and_mesh_are_those_of_pax():
    graph = graphs.resolve(REFERENCE)
    graphs.validate(graph)
    assert num_parameters(graph.model) == 25_557_032
    experiment = graphs.build(graph)
    assert mesh_sizes(experiment) == ({"data": 8}, {})
    assert experiment.training.global_batch_size == 512
    assert experiment.training.steps == 90 * EPOCH
    assert pax_names(REFERENCE) == ["ResNet50Pjit"]


def test_the_rate_falls_to_a_tenth_after_30_60_and_80_epochs():
    schedule = graphs.build(graphs.resolve(REFERENCE).optimizer.learning_rate)
    epochs = [0, 1, 2.5, 5, 29, 30, 59, 60, 79, 80, 89]
    expected = [0, 0.04, 0.1, 0.2, 0.2, 0.02, 0.02, 0.002, 0.002, 2e-4, 2e-4]
    found = [schedule(int(epoch * EPOCH)) for epoch in epochs]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_optimizer_decays_matrices_alone():
    node = graphs.resolve(REFERENCE).optimizer
    assert node.__fn_or_cls__ is optim.nesterov
    assert (node.momentum, node.weight_decay) == (0.9, 1e-4)
    built = graphs.build(graphs.resolve(REFERENCE).model)
    assert built.keywords["stem"].keywords["norm"].keywords["epsilon"] == 1e-3
    mask = optim.DECAYED
    assert mask("stages.0.0.first.kernel")
    assert not mask("stages.0.0.last_norm.scale")


@pytest.fixture
def folder(tmp_path):
    """Two classes of random images, to train and to validate on."""
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    for split in ("train", "validation"):
        for kind in ("cats", "dogs"):
            (tmp_path / split / kind).mkdir(parents=True)
            for number in range(8):
                pixels = draw.integers(0, 256, (40, 36, 3), dtype=np.uint8)
                image.fromarray(pixels).save(tmp_path / split / kind / f"{number}.png")
    return tmp_path


@pytest.mark.slow
def test_its_twin_takes_two_steps(folder):
    graph = tiny(graphs.resolve(REFERENCE))
    source = graph.data.source
    source.directory.left.value = str(folder)
    for split in (source, graph.evaluations["validation"].data.source):
        split.height = split.width = 32
    graph.model.num_classes, graph.model.stage_sizes = 2, (1, 1)
    graph.data.augmentations[1].at_most = 2
    graphs.validate(graph)
    # The last norm of a block is zero until the second step, so that those before it get nothing.
    experiment = assert_takes_two_steps(graph, still=r"stages.*norms\.[01]\.")
    assert mesh_sizes(experiment) == ({"data": 2}, {})
    (whole,) = experiment.evaluations["validation"].data.batches(global_batch_size=16)
    assert whole["labels"].tolist() == [0] * 8 + [1] * 8
