"""The page of sweeps; its table of spaces is read by the very parser of the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from luthier.study import objective_grammar, samplers
from luthier.study.driver import trial_table
from luthier.study.space_grammar import parse_dimension

_TEXT = """\
# Sweeps

A study changes values in an experiment's config, and runs the trials on the devices of this
machine.

    luthier sweep configs.lm.quickstart --space 'optimizer.learning_rate.peak=log(1e-4,1e-2)'
    luthier sweep sweeps.lm_learning_rate base.training.steps=100 budget.trials=8
    luthier sweep sweeps.lm_learning_rate --devices cpu:8 --slices 4
    luthier sweep configs.lm.quickstart --space 'optimizer.b2=uniform(0.9,0.999)' \\
        --sampler 'tpe(n_startup_trials=5)' --seeds 2 --budget no_improvement=12 \\
        --constraint 'peak_bytes<=8GiB' --packing auto
    luthier sweep --resume lm_learning_rate budget.trials=40
    luthier sweep --resume lm_learning_rate --retry failed
    luthier sweep show lm_learning_rate/7
    luthier sweep show lm_learning_rate [--all] [--html FILE] [--sync wandb]
    luthier sweep best lm_learning_rate --as overrides
    luthier sweep rerun lm_learning_rate/7
    luthier train study:lm_learning_rate/7

A study is itself a config (see `sweeps/lm_learning_rate.py`). The first name in the path of an
override selects a part of it (`base`, `space`, `objectives`, `sampler`, `pruner`, `scheduler`,
`budget`, `engine`, ...). Trial 0 is the unchanged experiment. Overrides are applied after
`--sampler`, `--pruner`, `--scheduler` and `--objective`, so that they may change what these set:
`--pruner median pruner.n_startup_trials=1`.

## Spaces

`--space PATH=...`, where PATH can be any pattern of `luthier help overrides`:

{spaces}

`--when 'PATH=OPTION: PATH=...'` samples a dimension only if that option of a `choice` is selected.
`--sweep lr,seeds` calls the functions `sweep_lr` and `sweep_seeds` of the experiment's module,
which yield tables of overrides, and tries all combinations.

## Samplers

{samplers}

`--sampler NAME` also accepts arguments of the sampler: `--sampler 'tpe(n_startup_trials=6)'`. The
equivalent override of a study is `sampler=tpe(n_startup_trials=6)`. You can also use any other
Optuna sampler, or a subclass of `optuna.samplers.BaseSampler` in a package of your project, by its
full name: `--sampler 'my_package.samplers.Halton(offset=3)'`. A new sampler is built for each
setting, with the argument `seed` if its constructor has one. It cannot keep state between settings,
so it must derive everything that it needs from the trials of the study.

`--pruner NAME` stops bad trials early: `--pruner 'median(n_startup_trials=3)'`. Available pruners:
{pruners}.
If a pruner could not act within the budget, this is reported as an error before the first trial.

## Rungs

`--scheduler asha` or `--scheduler successive-halving`, with arguments as `'asha(num_rungs=3)'`,
pauses trials at fractions of their length, and continues the best from their checkpoints.
[Stop or pause bad trials early](schedule_trials.md) compares schedulers and pruners.

## Objectives

`--objective WORD`, the override `objectives=WORD`, or `luthier.sweep(..., objective=WORD)` in
Python. Without it, the metric of `checkpoints.keep_best` is the objective, and the
sweep prints a line that names it; without `keep_best`, it is the first metric of the only
evaluation.

| word | objective |
| --- | --- |
| `held_out/loss` | the last value of a metric of an evaluation |
| `held_out/loss:best` | its best value |
| `held_out/loss:mean3` | the mean of its last three values |
| `train/loss:mean100` | the mean of the last 100 training steps |
| {objectives} | a property of the trial |
| `steps_to(held_out/loss<=2.0)` | steps until a metric reaches a value; `tokens_to`, `seconds_to` |
| `held_out/loss + 0.1 * step_time` | an expression, which is minimized |
| `maximize(held_out/accuracy - 1e-9 * parameters)` | the same, maximized |

Expressions can contain numbers, `+ - * / **`, parentheses and `min`, `max`, `abs`, `sqrt`, `exp`,
`log`. If a trial never reaches the value of `steps_to`, its objective is `inf`: it is shown as `not
reached`, ranks last and is never the best. Seconds count training only, without compilation and
evaluations. A pruner needs `EVALUATION/METRIC`. With several objectives, the result is a Pareto
front.

`--constraint 'peak_bytes<=8GiB'` bounds any of these (`<=` or `>=`; K, M, B, KiB, MiB, GiB). It is
checked when a trial ends: a trial that violates it is complete, but cannot be the best, and TPE,
NSGA-II and GP use the size of the violation. `space.constraints` can also contain conditions on the
config (`model.dim % 64 == 0`), which are checked before a trial runs.

## The life of a trial

The sampler suggests a setting -> the config is built -> is it equal to an earlier trial? -> is it
feasible on a device group? -> the trial waits for a device group or a slot among packed trials ->
it reports each evaluation -> it ends in one of these states:
{states}.

Trials that differ only in scalars (learning rates, decays, seeds, loss weights) share one compiled
program: the scalars are runtime arguments. `--packing auto`
measures whether several trials in one program (packed trials, `lanes`) are faster. When a packed
trial ends, the next one takes its slot.

## Budgets

The first limit that is reached ends a study: `budget.trials` (by default every point of a grid, and
32 trials for other samplers), `budget.wall_seconds`, `budget.device_hours`,
`budget.no_improvement` (trials in a row without a better one) and `budget.target` (a value of the
objective); `--budget NAME=VALUE` sets one. `wall_seconds` counts the time during which the study
runs, over all resumes, but not the time between them. Infeasible trials, and duplicates that copy
the result of an equal earlier trial, are numbered and count as trials; the last line of a study
prints how many there were. If a budget cuts off a grid, this is reported before the first trial and
at the end. Device time is the number of devices times the time from lease to end, including
compilation, evaluations and lost work; packed trials share it. `budget.trial_seconds` limits a
single trial, which fails if it takes longer; changes of the system clock and the time during which
the machine is suspended do not count.

## Faults and retries

- A fault of the machine (a full disk, EIO, a lost mount, ECC, NCCL): the trial is requeued without
  counting a retry. A device group with two faults in a row is excluded; if none is left,
  the study stops.
- The worker process dies: the trial is requeued up to `budget.retries` times, then it fails.
- An error in code or data: the trial fails, with `traceback.txt` in its folder. The study stops
  after `budget.failures` such trials in a row, or if the baseline fails.
- Divergence, or more than `budget.trial_seconds`: the trial fails, and the study continues.
- A trial that cannot run, or cannot be recorded, is infeasible, and does not take a device group.
  If this is the baseline, the study stops.

`luthier sweep show NAME/7` prints the traceback of trial 7. `luthier sweep --resume DIR` reruns
trials that were interrupted by a fault of the machine under their old numbers; the suggestions are
the same as in an undisturbed study. `--retry failed` also reruns failed trials, and
`--retry failed:REGEX` those whose reason matches. From then on, all trials run the source code as
it was at the time of the retry. If a study stopped before any trial was complete, the same command
restarts it, and renames the old folder to `NAME.1`.

| exit code | |
| --- | --- |
| 0 | the study is finished, and at least one trial is complete |
| 1 | no trial is complete; or the study stopped because trials in a row, or the baseline, failed |
| 2 | bad input; or the study stopped because of faults of the machine: `--resume` continues |
| 75 | preempted (SIGTERM, SIGHUP): running trials are saved, `--resume` continues |
| 130 | interrupted: `--resume` continues |

## Nothing is lost

`studies/NAME` contains the journal (`journal.jsonl`), the study (`study.json`), the source code
that its trials run (`source`), a directory for each trial with its config, its result and its run,
the report (`report.html`), and a copy for Optuna (`optuna.journal`, for optuna-dashboard). Ctrl-C
saves the running trials; `--resume` continues them, even if a process was killed. In W&B, the
trials are runs of one group, and an additional run summarizes them.

The report is one HTML file that needs neither a server nor a network. It shows the learning curves
of all trials, the history and the distribution of an objective, the Pareto front, importance,
slices and contours of the dimensions, parallel coordinates, the use of each device group, and a
table of trials that can be sorted by any column and filtered by state and text. While the study
runs, the driver updates the report at most every ten seconds, and an open page reloads itself
without losing its position. If there are thousands of trials, the report draws the best and an
evenly spaced sample of the others, and shows how many it drew.

The copy for Optuna contains every trial with its intermediate values, including running trials, and
with sizes and choices as in the config; `optuna.load_study` and `trials_dataframe` can read it. If
it is missing, `--resume` writes it again. `storage=sqlite:///all.db` keeps the copies of several
studies in one database, and `storage=None` disables the copy.
"""

_SPACES = {
    "optimizer.learning_rate.peak=log(1e-4,1e-2)": "a number, evenly spread in its logarithm",
    "any:weight_decay=uniform(0,0.5)": "a number, evenly spread",
    "any:dropout=uniform(0,0.3,step=0.1)": "0, 0.1, 0.2 or 0.3",
    "optimizer.b1=normal(0.9,0.02)": "a number, normal: mean and standard deviation",
    "optimizer.eps=lognormal(-18,2)": "a number whose logarithm is normal",
    "model.num_layers=int(2,8,step=2)": "2, 4, 6 or 8",
    "training.global_batch_size=int(8,256,log=true)": "a whole number, evenly spread in its "
    "logarithm",
    "model.dim=pow2(64,512)": "64, 128, 256 or 512",
    "data.length=ordinal(128,256,384)": "one value of an ordered list",
    "optimizer.weight_decay=choice(None,0.1)": "one value of an unordered list",
    "parallelism=choice(@fsdp,@tensor(2))": "one of several fiddlers",
    "model.dim,model.num_layers=rows((64,8),(128,4))": "one row of a table of values that are set "
    "together",
}


def render() -> str:
    """Return the page."""
    return _TEXT.format(
        spaces=_table(("space", "values", "in Python"), map(_space, _SPACES)),
        samplers=_table(
            ("name", "sampler"), ((f"`{n}`", f"`{_name(x)}`") for n, x in samplers.SAMPLERS.items())
        ),
        pruners=", ".join(f"`{name}`" for name in samplers.PRUNERS),
        objectives=", ".join(f"`{name}`" for name in objective_grammar.FACTS),
        states=", ".join(f"`{state}`" for state in trial_table.ENDED),
    )


def _space(word: str) -> tuple[str, str, str]:
    _, dimension = parse_dimension(word)
    return f"`{word}`", _SPACES[word], f"`{_name(type(dimension))}`"


def _name(target: Any) -> str:
    if target.__module__.startswith("optuna"):
        return f"optuna.samplers.{target.__name__}"
    return f"luthier.study.{target.__name__}"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
