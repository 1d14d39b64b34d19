"""The page of metrics: every number that a run records, its unit, and its name in W&B."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from luthier import metrics, tasks
from luthier.contrib.contrastive import Contrastive
from luthier.contrib.mean_teacher import MeanTeacher
from luthier.contrib.series.forecasting import Forecasting
from luthier.records import events

START = """\
# Metrics

This page describes every number that a run records. It lists the meaning, the unit, and the key in
`metrics.jsonl` and in Weights & Biases. To list, plot or read metrics, see
[Runs](../how_to/runs.md).

The key of a metric depends on where you read it:

| | line of `metrics.jsonl` | commands | W&B |
|---|---|---|---|
| a training step | `step`: `values` | `loss` | `train/loss`, `performance/mfu` |
| an evaluation | `evaluation`: `name`, `values` | `held_out/loss` | `eval/held_out/loss` |

Here, `held_out` is a key of the dict `evaluations`. With `luthier runs --sort` and `--plot`, use
the keys in the *commands* column. In a config, refer to the metric of an evaluation with
`Selector("held_out", "loss")`, for example in `checkpoints.keep_best`, in
`training.early_stopping`, or as an objective of a study.

Losses, accuracies and similar metrics are exact means over the whole batch or evaluation set.
luthier accumulates the weighted sum and the total weight across devices, microbatches and batches,
and divides once at the end. Padding has weight 0.
"""

STEP = """
## Training steps

luthier records these values at every step:

| name | unit | W&B key | meaning |
|---|---|---|---|
"""

# Values of a step beside the metrics of its task: unit, and meaning.
STEP_VALUES = {
    "loss": (
        "nats, or the unit of the loss",
        "The minimized loss of the whole batch, including auxiliary losses, label smoothing and "
        "z-loss.",
    ),
    "gradient_norm": ("", "The L2 norm of the gradient of the whole batch, before clipping."),
    "parameter_norm": ("", "The L2 norm of all parameters after the step."),
    "learning_rate": ("", "The learning rate of the step."),
    "learning_rate/NAME": (
        "",
        "The learning rate of each part, if the optimizer has several parts "
        "(`luthier.optim.partition`).",
    ),
    "skipped": (
        "",
        "1 if `training.guard` skipped the update of the step. Only recorded with a guard.",
    ),
    "consecutive_skipped": (
        "steps",
        "The number of skipped steps in a row, up to this step. Only recorded with a guard.",
    ),
    "tokens": (
        "tokens",
        "The number of targets with nonzero weight since the start of the run. For images, the "
        "number of examples.",
    ),
    "epochs": (
        "epochs",
        "The number of examples since the start of the run, divided by the size of the training "
        "set.",
    ),
    "seconds": ("s", "The training time since the start of the run, over all resumes."),
    "step_seconds": ("s", "The time between the ends of two steps, measured on the host."),
    "steps_per_second": ("1/s", "The inverse of `step_seconds`."),
    "tokens_per_second": ("1/s", "The tokens of the step on all devices, divided by its time."),
    "data_wait_seconds": ("s", "The time for which the step waited for its batch."),
    "memory_bytes": (
        "bytes",
        "The peak memory of the device with the highest use since the start of the process, as "
        "the device reports it. On CPUs, the peak memory of the process.",
    ),
    "mfu": (
        "",
        "The model FLOPs per second of the step, divided by the peak FLOP/s of all devices. Only "
        "recorded if the peak of the device is known.",
    ),
}

OF_TASKS = """
## Metrics of tasks

Each task defines its own metrics. The metrics in the *steps* column are recorded at every training
step, under `train/NAME` in W&B. Those in the *evaluations* column are computed over the whole
evaluation set, and recorded under `eval/SET/NAME`. The second table describes the metrics. An arrow
shows whether lower (↓) or higher (↑) values are better.

| task | steps | evaluations |
|---|---|---|
"""

# In the order of `luthier.metrics`: unit, and meaning.
METRICS = {
    "loss": (
        "the unit of the loss",
        "The loss of the task, including label smoothing and z-loss, but without router losses.",
    ),
    "nats_per_token": ("nats", "The mean cross-entropy per target token."),
    "nats_per_byte": (
        "nats",
        "The cross-entropy of all targets, divided by the number of bytes of their text. It does "
        "not depend on the tokenizer.",
    ),
    "bits_per_byte": ("bits", "`nats_per_byte` / ln 2."),
    "perplexity": ("", "exp(`nats_per_token`) of the whole set. It is infinite above 709 nats."),
    "accuracy": ("", "The fraction of targets that the model predicts as the most likely class."),
    "exact_match": ("", "The fraction of texts in which every target is predicted correctly."),
    "nats_per_example": ("nats", "The mean cross-entropy per example."),
    "top_5_accuracy": (
        "",
        "The fraction of targets that are among the five most likely classes. With five classes "
        "or fewer, it is always 1, so you cannot use it as an objective.",
    ),
    "mean_squared_error": (
        "squared unit of the data",
        "The mean squared error of the point forecast.",
    ),
    "mean_absolute_error": ("unit of the data", "The mean absolute error of the point forecast."),
    "mean_absolute_scaled_error": (
        "",
        "The absolute error, divided by that of the seasonal naive forecast within the input "
        "(MASE).",
    ),
    "preference_accuracy": (
        "",
        "The fraction of pairs in which the chosen text has the larger reward.",
    ),
    "reward_margin": ("", "The mean reward of the chosen text, minus that of the rejected text."),
    "chosen_reward": ("", "The mean implied reward of the chosen texts."),
    "rejected_reward": ("", "The mean implied reward of the rejected texts."),
    "retrieval_accuracy": (
        "",
        "The fraction of rows whose matching row is the nearest row in the batch.",
    ),
    "consistency": (
        "",
        "The mean squared distance between the probabilities of the model and the teacher.",
    ),
    "load_balance": (
        "",
        "The load-balance loss (Switch Transformer), as a mean over layers. The best value is 1.",
    ),
    "router_z": ("nats²", "The mean squared log-normalizer of the router, as a mean over layers."),
    "dropped_fraction": (
        "",
        "The fraction of choices that were dropped because an expert was full.",
    ),
    "largest_load": (
        "",
        "The load of the most used expert of any layer, divided by the mean load.",
    ),
    "smallest_load": (
        "",
        "The load of the least used expert of any layer, divided by the mean load.",
    ),
}

KEYS = {
    "`train/NAME`": "a value of a training step; `learning_rate/NAME` keeps its name",
    "`performance/NAME`": "a speed or memory value of a step: "
    + ", ".join(f"`{name}`" for name in sorted(events.PERFORMANCE)),
    "`tokens`, `epochs`": "the position in training, as x-axes for charts",
    "`eval/SET/NAME`": "a metric of an evaluation set; the summary contains the best value "
    "(`.min` or `.max`) and the last value",
    "`eval/SET/unigram_entropy`, `eval/SET/bigram_entropy`": "summary only: the baselines of a "
    "set, in nats per byte",
    "`sample`, `sample/NAME`": "generated text (`records.samples`)",
    "`images/NAME`": "images (`records.images`)",
    "`histograms/NAME`": "histograms of parameters, by their names in `luthier show --params` "
    "(`records.histograms`)",
    "`parameters`, `flops_per_step`, `memory_bytes_per_device`, `devices`, `status`": "summary "
    "only: facts about the run",
    "`SET/NAME`": "summary only: the metrics of the last evaluation",
}

WANDB = """
## Keys in Weights & Biases

KEYS
The step in W&B is the number of finished optimizer steps. The config of the W&B run contains every
setting under its path. For a trial, the config also contains `study`, `trial`, `outcome`,
`summary_run`, and `swept/PATH` for each dimension of the search space. In online mode, the config
also contains `summary_url`. W&B's system metrics describe the process that runs the training.

A study also has a summary run. It has one row per completed trial rather than one per step:

| key | contents |
|---|---|
| `trial` | the number of the trial |
| `objectives/NAME` | the value of an objective |
| `best/NAME` | the best value of this objective in all trials up to this one |
| `runs` | a table of all trials with their settings |
| `device_hours`, `trials`, `trials_STATE`, `best_trial` | summary only: facts about the study |

Repeating a run on the same hardware reproduces all values exactly, except for `performance/...` and
`seconds`, which measure time and memory. See [The exactness contract](../explanation/exactness.md).
"""

TASKS = (
    *(getattr(tasks, name) for name in sorted(tasks.__all__)),
    Contrastive,
    Forecasting,
    MeanTeacher,
)
ARROWS = {"lower": "↓", "higher": "↑"}


def render() -> str:
    """Return the page."""
    rows = [f"| `{n}` | {unit} | {_key(n)} | {text} |" for n, (unit, text) in STEP_VALUES.items()]
    keys = [f"| {key} | {text} |" for key, text in KEYS.items()]
    return "".join(
        [
            START,
            STEP,
            "\n".join(rows) + "\n",
            OF_TASKS,
            "\n".join(_tasks()) + "\n",
            "\n| metric | | unit | meaning |\n|---|---|---|---|\n",
            "\n".join(_metrics()) + "\n",
            WANDB.replace("KEYS", "\n".join(["| key | contents |", "|---|---|", *keys]) + "\n"),
        ]
    )


def metric_constants() -> dict[str, metrics.Metric]:
    """Return the metrics of `luthier.metrics` by name, in their order."""
    values = [getattr(metrics, name) for name in metrics.__all__]
    found = {value.name: value for value in values if isinstance(value, metrics.Metric)}
    return {name: found[name] for name in METRICS if name in found} | found


def tasks_with_metrics() -> dict[str, tuple[list[str], list[str]]]:
    """Return the metrics of steps and of evaluations, by the name of the task."""
    found = {}
    for task in TASKS:
        own = [getattr(task, kind, None) for kind in ("loss_metrics", "metrics")]
        if inspect.isclass(task) and all(isinstance(one, tuple) for one in own):
            steps, evaluations = ([metric.name for metric in one] for one in own)
            found[task.__name__] = (steps, evaluations)
    # Those of the task that it wraps, and these.
    ours = tasks.Routed(task=tasks.LanguageModelling())
    wrapped = set(ours.task.metrics)
    names = [metric.name for metric in ours.metrics if metric not in wrapped]
    found["Routed"] = (names, names)
    return found


def _key(name: str) -> str:
    if name in events.PERFORMANCE:
        return f"`performance/{name}`"
    return (
        f"`{name}`" if name in (events.TOKENS, events.EPOCHS) or "/" in name else f"`train/{name}`"
    )


def _tasks() -> Iterator[str]:
    for task, (steps, evaluations) in tasks_with_metrics().items():
        note = " (in addition to those of its `task`)" if task == "Routed" else ""
        cells = [", ".join(f"`{name}`" for name in names) for names in (steps, evaluations)]
        yield f"| `{task}`{note} | {cells[0]} | {cells[1]} |"


def _metrics() -> Iterator[str]:
    for name, metric in metric_constants().items():
        unit, text = METRICS[name]
        yield f"| `{name}` | {ARROWS[metric.better]} | {unit} | {text} |"
