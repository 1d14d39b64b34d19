"""Random search for a device time, with rungs (asynchronous successive halving) and without.

Paper: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning" (arXiv:1810.05934).
Command: luthier sweep sweeps.rungs, and luthier sweep sweeps.rungs:random_search; the same for
  `digits` and `digits_random_search`, `translation` and `translation_random_search`
Hardware: 2 CPU cores, under 4 minutes each.
Expected: in 90 device seconds, ASHA was as good as random search at its end after 0.43 (language
  model), 0.42 (digits) and 0.47 (translation) of its device seconds, the median of five seeds
  (2026-11-26, tools/bench/results/schedulers.json).
"""

from __future__ import annotations

import fiddle as fdl
import optuna

from luthier import graph as graphs
from luthier import metrics
from luthier import study as studies
from . import lm_learning_rate

# Of luthier's own experiments, also from the wheel, where they are in another package.
_PACKAGE = __name__.partition("sweeps.")[0]
DEVICE_SECONDS = 90.0
STEPS = 360
UNTUNED = 2e-4
_RATES = {
    "optimizer.learning_rate.peak": studies.Log(1e-4, 1e-1),
    "optimizer.weight_decay": studies.Log(1e-3, 1.0),
}


def study() -> fdl.Config[studies.Study]:
    """Search learning rate and weight decay of a small language model, with rungs."""
    return _with_rungs(random_search(), "rungs")


def random_search() -> fdl.Config[studies.Study]:
    """Search the space of `study`, and train every trial to its end."""
    words = [f"training.steps={STEPS}", "evaluations.held_out.num_batches=4"]
    base = graphs.apply(lm_learning_rate.shrunk(), words)
    return _search("rungs_random_search", base, _RATES, "nats_per_byte")


def digits() -> fdl.Config[studies.Study]:
    """Search the rates, label smoothing and augmentation of a vision transformer, with rungs."""
    return _with_rungs(digits_random_search(), "rungs_digits")


def digits_random_search() -> fdl.Config[studies.Study]:
    """Search the space of `digits`, and train every trial to its end."""
    words = [f"training.steps={STEPS}", "model.num_layers=2"]
    base = graphs.apply(graphs.resolve(f"{_PACKAGE}configs.vision.digits"), words)
    space = {
        **_RATES,
        "task.label_smoothing": studies.Uniform(0.0, 0.3),
        "data.augmentations[0].at_most": studies.Int(0, 2),
    }
    return _search("rungs_digits_random_search", base, space, "nats_per_example")


def translation() -> fdl.Config[studies.Study]:
    """Search the rates and moments of a small encoder-decoder, with rungs."""
    return _with_rungs(translation_random_search(), "rungs_translation")


def translation_random_search() -> fdl.Config[studies.Study]:
    """Search the space of `translation`, and train every trial to its end."""
    words = [f"training.steps={STEPS}", "training.global_batch_size=4"]
    words.append("evaluations.held_out.num_batches=4")
    base = graphs.apply(graphs.resolve(f"{_PACKAGE}configs.seq2seq.translation"), words)
    space = {
        **_RATES,
        "optimizer.b1": studies.Uniform(0.5, 0.99),
        "optimizer.b2": studies.Uniform(0.9, 0.9999),
    }
    return _search("rungs_translation_random_search", base, space, "nats_per_token")


def _search(
    name: str, base: fdl.Config, space: dict[str, studies.Dimension], metric: str
) -> fdl.Config[studies.Study]:
    words = ["evaluations.held_out.every=Steps(40)", f"checkpoints.every=Steps({STEPS})"]
    # The experiments have a tuned learning rate, and trial 0 is the experiment as it is: a search
    # that begins with the answer would show nothing.
    words.append(f"optimizer.learning_rate.peak={UNTUNED}")
    graph = lm_learning_rate.study()
    graph.name = name
    graph.base = graphs.apply(base, words)
    graph.space = fdl.Config(studies.Space, space)
    selector = fdl.Config(metrics.Selector, "held_out", metric, "lower")
    graph.objectives = [fdl.Config(studies.Measured, selector)]
    graph.sampler = fdl.Config(optuna.samplers.RandomSampler)
    # By device time and not by trials: trials that pause take a fraction of what others take.
    graph.budget = fdl.Config(studies.Budget, trials=None, device_hours=DEVICE_SECONDS / 3600)
    return graph


def _with_rungs(graph: fdl.Config[studies.Study], name: str) -> fdl.Config[studies.Study]:
    """Pause trials at 40 and 120 of 360 steps, and train the best third of each rung on."""
    graph.name = name
    graph.scheduler = fdl.Config(studies.Asha, reduction=3, num_rungs=3)
    return graph
