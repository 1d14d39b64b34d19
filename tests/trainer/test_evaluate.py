import dataclasses
import json

import jax
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import planner, trainer
from luthier.errors import BadInput
from luthier.metrics import NATS_PER_TOKEN, PERPLEXITY
from luthier.trainer import Evaluator


@pytest.fixture(scope="module")
def program(tiny, tmp_path_factory):
    return planner.make(tiny(tmp_path_factory.mktemp("runs")), jax.devices()[:1]).program


def _evaluate(program, batch_size, num_batches=None):
    evaluation = program.experiment.evaluations["held_out"]
    evaluation = dataclasses.replace(evaluation, global_batch_size=batch_size)
    values = program.values()
    return Evaluator(program, evaluation, "evaluations.held_out")(
        values, program.init(values), num_batches
    )


@pytest.mark.full
def test_every_row_counts_once_whatever_the_batch(program):
    """The last batch is padded: padding must count nothing."""
    sizes = {size: _evaluate(program, size) for size in (8, 7, 64)}
    for metric, value in sizes[8].items():
        for other in (sizes[7], sizes[64]):
            pair = other[metric], value
            if metric is PERPLEXITY:  # the exponential would amplify the rounding of the nats
                pair = np.log(pair)
            np.testing.assert_allclose(*pair, rtol=1e-6, err_msg=metric.name)


@pytest.mark.full
def test_fewer_batches_look_at_less(program):
    assert _evaluate(program, 8, 1)[NATS_PER_TOKEN] != _evaluate(program, 8)[NATS_PER_TOKEN]


def test_an_untrained_model_is_near_the_uniform_entropy(program):
    found = _evaluate(program, 8)
    assert found[NATS_PER_TOKEN] == pytest.approx(np.log(258), abs=0.3)
    assert list(found) == sorted(found), "metrics are printed and recorded in this order"


@pytest.mark.full
def test_a_token_outside_the_vocabulary_is_refused(program):
    class Broken:
        def __init__(self, data):
            self.data = data

        def __getattr__(self, name):
            return getattr(self.data, name)

        def batches(self, **options):
            for batch in self.data.batches(**options):
                inputs, targets = (np.array(batch[name]) for name in ("inputs", "targets"))
                inputs[1, 2] = -1
                targets[0, 3], targets[np.asarray(batch["weights"]) == 0] = 300, 300
                yield {**batch, "inputs": inputs, "targets": targets}

    held_out = program.experiment.evaluations["held_out"]
    evaluation = dataclasses.replace(held_out, data=Broken(held_out.data))
    values = program.values()
    evaluator = Evaluator(program, evaluation, "evaluations.held_out")
    with pytest.raises(BadInput) as caught:
        evaluator(values, program.init(values), 1)
    assert [str(problem).partition(";")[0] for problem in caught.value.problems] == [
        f"evaluations.held_out.data: row {row} of a batch, position {place}, holds the token "
        f"{token} in {name}"
        for row, place, token, name in ((1, 2, -1, "inputs"), (0, 3, 300, "targets"))
    ]


class Counted:
    """Counts how often, and how far, a set is read."""

    def __init__(self, inner):
        self.inner, self.reads = inner, []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def batches(self, **arguments):
        self.reads.append(0)
        for batch in self.inner.batches(**arguments):
            self.reads[-1] += 1
            yield batch


def test_a_small_set_is_read_once_for_all_evaluations_of_a_program(program, monkeypatch):
    held_out = program.experiment.evaluations["held_out"]
    data = Counted(held_out.data)
    evaluation = dataclasses.replace(held_out, data=data, global_batch_size=8)
    values = program.values()
    leaves = program.init(values)

    def evaluate(num_batches=None, of=program):
        evaluator = Evaluator(of, evaluation, "evaluations.held_out")
        return evaluator(values, leaves, num_batches)

    whole = _evaluate(program, 8)
    assert evaluate(1) == _evaluate(program, 8, 1)
    assert data.reads == [1]
    assert evaluate() == whole  # a part of the set does not stand for all of it
    num_batches = data.reads[1]
    assert num_batches > 1
    # Of another graph of the same program, too: that is the next trial of a sweep.
    assert evaluate(of=program.of(program.graph)) == whole
    assert evaluate(1) == _evaluate(program, 8, 1)
    assert data.reads == [1, num_batches]

    monkeypatch.setattr("luthier.trainer.evaluate.KEPT_BYTES", 10_000)
    data = evaluation.data.inner  # a set of its own, which is larger than that
    evaluation = dataclasses.replace(evaluation, data=Counted(data))
    assert evaluate() == evaluate() == whole
    assert evaluation.data.reads == [num_batches, num_batches]


TASK = """
import dataclasses
import json
from luthier import metrics, tasks


@dataclasses.dataclass(frozen=True)
class Unmasked(tasks.LanguageModelling):
    def evaluate(self, model, batch):
        found = super().evaluate(model, batch)
        loss = found[metrics.LOSS]
        wrong = metrics.Ratio(loss.numerator * float("nan"), loss.denominator)
        return found | {metrics.LOSS: wrong}
"""


def test_a_metric_that_is_nan_is_noted_once(tiny, tmp_path, monkeypatch):
    (tmp_path / "unmasked.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    packages = ("unmasked",)
    overrides = ["task=unmasked.Unmasked()", "evaluations.held_out.every=Steps(4)"]
    graph = graphs.apply(tiny(tmp_path / "runs"), overrides, packages=packages)
    result = trainer.run(graph, packages=packages)
    lines = (result.directory / "metrics.jsonl").read_text().splitlines()
    found = [row["text"] for row in map(json.loads, lines) if row["kind"] == "notice"]
    noted = [text for text in found if text.startswith("held_out/loss: NaN, and the training loss")]
    assert len(noted) == 1
    assert "luthier.tasks.weighted_sum" in noted[0]
    assert sum('"kind": "evaluation"' in line for line in lines) > 1
