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

Look up the meaning of each recorded number, its unit, and its key in `metrics.jsonl` and in Weights
& Biases. [Runs](../how_to/runs.md) explains how to list, plot and read metrics.

| | line of `metrics.jsonl` | in commands | in W&B |
|---|---|---|---|
| a training step | `step`: `values` | `loss` | `train/loss`, `performance/mfu` |
| an evaluation | `evaluation`: `name`, `values` | `held_out/loss` | `eval/held_out/loss` |

`held_out` is the name of an evaluation set in `evaluations`. The commands are `luthier runs --sort`
and `--plot`. In a config, `Selector("held_out", "loss")` selects the metric of an evaluation, for
`checkpoints.keep_best`, `training.early_stopping` and the objectives of studies.

Metrics are exact means over the whole batch or evaluation set: sums and weights are added up over
devices, microbatches and batches, and divided once. Padding has weight 0.
"""

STEP = """
## Training steps

Every step records these values:

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
    "skipped": ("", "1 if `training.guard` skipped the update of the step; only with a guard."),
    "consecutive_skipped": ("steps", "Skipped steps in a row, up to this one; only with a guard."),
    "tokens": (
        "tokens",
        "Targets with nonzero weight since the start of the run; for images, examples.",
    ),
    "epochs": ("epochs", "Examples so far, as a multiple of the training set."),
    "seconds": ("s", "Training time since the start of the run, over all resumes."),
    "step_seconds": ("s", "Time between the ends of two steps, measured on the host."),
    "steps_per_second": ("1/s", "The inverse of `step_seconds`."),
    "tokens_per_second": ("1/s", "Tokens of the step divided by its time, over all devices."),
    "data_wait_seconds": ("s", "Time for which the step waited for its batch."),
    "memory_bytes": (
        "bytes",
        "Peak memory of the fullest device since the start of the process, as the device reports "
        "it; on CPUs, the peak memory of the process.",
    ),
    "mfu": (
        "",
        "Model FLOPs per second of the step, divided by the peak FLOP/s of all devices; only if "
        "the peak of the device is known.",
    ),
}

OF_TASKS = """
## Metrics of tasks

A task defines its metrics. The metrics in the column *steps* are recorded at every training step,
under `train/NAME` in W&B; those in the column *evaluations* are computed over the whole evaluation
set, under `eval/SET/NAME`. An arrow shows whether lower (↓) or higher (↑) values are better.

| task | steps | evaluations |
|---|---|---|
"""

# In the order of `luthier.metrics`: unit, and meaning.
METRICS = {
    "loss": (
        "the unit of the loss",
        "The loss of the task, including label smoothing and z-loss, without router losses.",
    ),
    "nats_per_token": ("nats", "Mean cross-entropy per target token."),
    "nats_per_byte": (
        "nats",
        "Cross-entropy of all targets divided by the number of bytes of their text: independent "
        "of the tokenizer.",
    ),
    "bits_per_byte": ("bits", "`nats_per_byte` / ln 2."),
    "perplexity": ("", "exp(`nats_per_token`) of the whole set; infinite above 709 nats."),
    "accuracy": ("", "Fraction of targets that the model predicts as the most likely class."),
    "exact_match": ("", "Fraction of texts in which every target is predicted correctly."),
    "nats_per_example": ("nats", "Mean cross-entropy per example."),
    "top_5_accuracy": (
        "",
        "Fraction of targets among the five most likely classes; always 1 with five classes or "
        "fewer, so it is then refused as an objective.",
    ),
    "mean_squared_error": ("squared unit of the data", "Mean squared error of the point forecast."),
    "mean_absolute_error": ("unit of the data", "Mean absolute error of the point forecast."),
    "mean_absolute_scaled_error": (
        "",
        "Absolute error divided by that of the seasonal naive forecast within the input (MASE).",
    ),
    "preference_accuracy": (
        "",
        "Fraction of pairs in which the chosen text has the larger reward.",
    ),
    "reward_margin": ("", "Mean reward of the chosen text minus that of the rejected one."),
    "chosen_reward": ("", "Mean implied reward of chosen texts."),
    "rejected_reward": ("", "Mean implied reward of rejected texts."),
    "retrieval_accuracy": (
        "",
        "Fraction of rows whose matching row is the nearest one in the batch.",
    ),
    "consistency": (
        "",
        "Mean squared distance between the probabilities of the model and the teacher.",
    ),
    "load_balance": (
        "",
        "Load-balance loss (Switch Transformer), mean over layers; 1 at best.",
    ),
    "router_z": ("nats²", "Mean squared log-normalizer of the router, mean over layers."),
    "dropped_fraction": (
        "",
        "Fraction of choices dropped because an expert was full.",
    ),
    "largest_load": ("", "Load of the most used expert of any layer, divided by the mean load."),
    "smallest_load": ("", "Load of the least used expert of any layer, divided by the mean load."),
}

KEYS = {
    "`train/NAME`": "a value of a training step; `learning_rate/NAME` keeps its name",
    "`performance/NAME`": "a speed or memory value of a step: "
    + ", ".join(f"`{name}`" for name in sorted(events.PERFORMANCE)),
    "`tokens`, `epochs`": "the position in training, as x-axes for charts",
    "`eval/SET/NAME`": "a metric of an evaluation set; the summary contains the best value "
    "(`.min` or `.max`) and the last one",
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
setting by its path. For a trial, it also contains `study`, `trial`, `outcome`, `swept/PATH` for
each dimension of the space, `summary_run` and, if W&B is online, `summary_url`. W&B's system
metrics describe the process that trains.

The summary run of a study has one row for each complete trial instead of one for each step:

| key | contents |
|---|---|
| `trial` | number of the trial |
| `objectives/NAME` | value of an objective |
| `best/NAME` | the best value of this objective so far |
| `runs` | a table of all trials with their settings |
| `device_hours`, `trials`, `trials_STATE`, `best_trial` | summary only |

`performance/...` and `seconds` differ between two runs that are otherwise bit-identical; all other
values are reproducible ([The exactness contract](../explanation/exactness.md)).
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
        note = " (beside those of its `task`)" if task == "Routed" else ""
        cells = [", ".join(f"`{name}`" for name in names) for names in (steps, evaluations)]
        yield f"| `{task}`{note} | {cells[0]} | {cells[1]} |"


def _metrics() -> Iterator[str]:
    for name, metric in metric_constants().items():
        unit, text = METRICS[name]
        yield f"| `{name}` | {ARROWS[metric.better]} | {unit} | {text} |"
