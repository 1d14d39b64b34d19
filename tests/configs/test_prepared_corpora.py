"""The experiments on prepared corpora train on what `luthier data prepare` writes."""

from pathlib import Path

import jax
import numpy as np
import pytest

from luthier import data
from luthier import graph as graphs
from luthier import program as programs
from luthier.recipes import debug, tiny
from tests.compiling import quick_step

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 300

reading_corpora = pytest.mark.parametrize(
    "reference", ["configs.lm.gpt2_124m", "configs.lm.llama_350m"]
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Return a folder as the headers of the experiments describe it."""
    folder = tmp_path_factory.mktemp("corpus")
    texts = (ROOT / "LICENSE").read_text().split("\n\n")
    tokenizer = data.train_bpe(data.Documents(texts), VOCABULARY, f"{folder}/bpe.json")
    for split, part in (("train", texts[4:]), ("held_out", texts[:4])):
        source = data.Documents(part)
        layout = data.plan_layout(source, tokenizer, data.survey(source, tokenizer))
        data.prepare(source, tokenizer, f"{folder}/{split}", layout)
    return folder


def reading(corpus, reference):
    """Return an experiment that reads the corpus."""
    overrides = [f"model.vocab_size={VOCABULARY}", f'fiddler:shared(folder="{corpus}")']
    return graphs.apply(graphs.resolve(reference), overrides)


@pytest.mark.full
@reading_corpora
def test_a_smoke_test_config_trains_on_the_corpus(corpus, reference):
    graph = tiny(reading(corpus, reference))
    graphs.validate(graph)
    program = programs.make(graph, jax.devices()[:1])
    values, step = program.values(), quick_step(program)
    leaves, losses = program.init(values), []
    rows = program.experiment.training.global_batch_size
    batches = program.experiment.data.iterator(global_batch_size=rows, seed=0)
    for _ in range(4):
        batch = next(batches)
        placed = {n: jax.device_put(batch[n], s.sharding) for n, s in program.batch.items()}
        leaves, scalars = step(values, leaves, placed)
        losses.append(float(scalars[program.scalar_names.index("loss")]))
    np.testing.assert_allclose(losses[0], np.log(VOCABULARY), rtol=0.02)
    assert losses[-1] < losses[0]


@reading_corpora
def test_debugging_reads_short_rows_of_all_corpora(corpus, reference):
    graph = debug(reading(corpus, reference))
    graphs.validate(graph)
    rows = [graphs.build(node) for node in (graph.data, graph.evaluations["held_out"].data)]
    assert [node.length for node in rows] == [128, 128]
    assert all(node.num_rows > 0 for node in rows)
