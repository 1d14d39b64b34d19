"""The page of sweeps; its table of spaces is read by the very parser of the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from luthier.study import objective_grammar, samplers
from luthier.study.driver import trial_table
from luthier.study.space_grammar import parse_dimension

_TEXT = """\
# Sweeps

Use a sweep to find good values for the settings of an experiment. A sweep runs a *study*: it
trains the experiment many times with different values, and compares the results. Each of these runs
is a *trial*. The trials run on the devices of this machine, or
[on a cluster](sweep_on_a_cluster.md).

The following commands start, resume and inspect studies:

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

You can sweep an experiment directly, or write a study to a file. A study is itself a config, and
`sweeps/lm_learning_rate.py` is an example. You can override any part of a study: the first name in
the path of the override selects the part (`base`, `space`, `objectives`, `sampler`, `pruner`,
`scheduler`, `budget`, `engine`, ...). For example, `base.training.steps=100` changes the experiment
that the study sweeps.

Overrides are applied after `--sampler`, `--pruner`, `--scheduler` and `--objective`, so you can use
them to adjust what these options set, as in `--pruner median pruner.n_startup_trials=1`.

Trial 0 is the baseline: it runs the experiment without any changes.

## Define the search space

Pass `--space PATH=...` once for each setting that you want to vary. PATH can be any of the patterns
that `luthier help overrides` describes. The table shows the kinds of spaces:

{spaces}

If a setting matters only for one option of a `choice`, add `--when 'PATH=OPTION: PATH=...'`. The
setting is then sampled only in trials that use this option.

To try predefined tables of overrides, write functions such as `sweep_lr` and `sweep_seeds` in the
module of the experiment. `--sweep lr,seeds` calls these functions and tries all combinations of the
overrides that they yield.

## Choose a sampler and a pruner

The sampler decides which values to try next. Select one by its name:

{samplers}

You can pass arguments to the sampler: `--sampler 'tpe(n_startup_trials=6)'`. In a study, the
override `sampler=tpe(n_startup_trials=6)` has the same effect.

You can also use any other Optuna sampler, or your own subclass of `optuna.samplers.BaseSampler`
from a package of your project. Refer to it by its full name:
`--sampler 'my_package.samplers.Halton(offset=3)'`. luthier builds a new sampler for each setting,
and passes it a `seed` if the constructor has an argument of this name. Your sampler therefore
cannot keep state between settings, and must derive everything that it needs from the trials of the
study.

A pruner stops bad trials early: `--pruner 'median(n_startup_trials=3)'`. The available pruners are
{pruners}.
If the pruner could not act within the budget, luthier reports an error before the first trial.

## Pause trials at rungs

A scheduler pauses trials at fractions of their length, and continues only the best of them from
their checkpoints. Use `--scheduler asha` or `--scheduler successive-halving`, and pass
arguments as in `--scheduler 'asha(num_rungs=3)'`. [Stop or pause bad trials
early](schedule_trials.md) compares schedulers and pruners.

## Choose an objective

The objective is the value that the study minimizes or maximizes. Set it with `--objective WORD`,
with the override `objectives=WORD`, or with `luthier.sweep(..., objective=WORD)` in Python. If you
do not set it, the study uses the metric of `checkpoints.keep_best` and prints a line with its name.
If `keep_best` is not set either, the study uses the first metric of the only evaluation.

| `WORD` | objective |
| --- | --- |
| `held_out/loss` | the last value of a metric of an evaluation |
| `held_out/loss:best` | the best value of the metric |
| `held_out/loss:mean3` | the mean of the last three values of the metric |
| `train/loss:mean100` | the mean of the last 100 training steps |
| {objectives} | a property of the trial |
| `steps_to(held_out/loss<=2.0)` | the steps until a metric reaches a value |
| `held_out/loss + 0.1 * step_time` | an expression, which is minimized |
| `maximize(held_out/accuracy - 1e-9 * parameters)` | an expression, which is maximized |

- Expressions can contain numbers, `+ - * / **`, parentheses and `min`, `max`, `abs`, `sqrt`, `exp`
  and `log`.
- If a trial never reaches the value of `steps_to`, its objective is `inf`. The trial is shown as
  `not reached`, ranks last, and can never be the best.
- `tokens_to` and `seconds_to` count tokens and seconds in place of steps. The seconds are those of
  training only, without compilation and evaluations.
- In a study file, the function `studies.objective` returns the same objectives. It needs the
  metrics of the experiment, as in
  `objectives=[studies.objective("maximize(held_out/accuracy)", studies.evaluations_of(base))]`.
- A pruner requires an objective of the form `EVALUATION/METRIC`, or an expression of metrics of
  one evaluation set.
- If you set several objectives, the result is a Pareto front.

To set a bound on any of these values, add a constraint such as `--constraint 'peak_bytes<=8GiB'`. A
constraint uses `<=` or `>=`, and its number can have the suffix K, M, B, KiB, MiB or GiB. luthier
checks constraints when a trial ends. A trial that violates a constraint is complete, but cannot be
the best. TPE, NSGA-II and GP also use the size of the violation. To reject trials before they run,
add a condition on the config, such as `model.dim % 64 == 0`, to `space.constraints`.

## Lifecycle of a trial

A trial goes through the following stages:

1. The sampler suggests a setting, and luthier builds the config of the trial from it.
2. luthier compares the config with those of earlier trials, and copies the result if it is equal to
   one of them.
3. luthier checks whether the trial is feasible on a device group.
4. The trial waits for a device group, or for a slot among packed trials.
5. The trial runs, and reports each evaluation.
6. The trial ends in one of these states: {states}.

Trials that differ only in scalars (learning rates, decays, seeds, loss weights) share one compiled
program, because these scalars are runtime arguments. Several such trials can also run in one
program as *packed trials* (`lanes`). With `--packing auto`, luthier measures whether packing is
faster. When a packed trial ends, the next trial takes its slot.

## Set a budget

Limit a study with `--budget NAME=VALUE` or with an override of `budget`. The study ends when it
reaches the first of its limits:

| limit | the study ends |
| --- | --- |
| `budget.trials` | after this number of trials |
| `budget.wall_seconds` | after it has run for this time |
| `budget.device_hours` | after it has used this much device time |
| `budget.no_improvement` | after this many trials in a row without a better one |
| `budget.target` | when the objective reaches this value |

If you do not set `budget.trials`, a grid ends with its last point, and any other sampler after 32
trials. `budget.wall_seconds` adds up all resumes of the study, but not the time between them.

The device time of a trial is the number of its devices times the time for which it uses them,
including compilation, evaluations and lost work. Packed trials divide the time of their device
group among them.

Infeasible trials are numbered and count as trials, and so do duplicates, which copy the result of
an equal earlier trial. The last line of a study prints how many there were. If the budget is too
small for a grid, luthier reports this before the first trial and at the end.

`budget.trial_seconds` limits a single trial, which fails if it takes longer. Changes of the system
clock do not count, nor does the time during which the machine is suspended.

## Handle failures and retry trials

A failed trial does not necessarily stop the study. The effect depends on the cause:

- If the machine has a fault (a full disk, EIO, a lost mount, ECC, NCCL), the trial is requeued
  without counting a retry. A device group with two faults in a row is excluded. If no device group
  is left, the study stops.
- If the worker process dies, the trial is requeued up to `budget.retries` times, and then fails.
- If the code or the data raises an error, the trial fails, and its folder contains `traceback.txt`.
  The study stops after `budget.failures` such trials in a row, or if the baseline fails.
- If the trial diverges, or exceeds `budget.trial_seconds`, it fails, and the study continues.
- If the trial cannot run, or cannot be recorded, it is infeasible, and does not take a device
  group. If it is the baseline, the study stops.

To find out why trial 7 failed, print its traceback with `luthier sweep show NAME/7`.

`luthier sweep --resume DIR` reruns the trials that a fault of the machine interrupted. They keep
their numbers, and the suggestions are the same as in an undisturbed study. Add `--retry failed` to
rerun failed trials too, or `--retry failed:REGEX` to rerun only those whose reason matches. From
then on, all trials run the source code from the time of the retry.

If failures stopped a study before any trial was complete, run the command that started it again.
luthier renames the old folder to `NAME.1`, and starts the study from the beginning.

The exit code of `luthier sweep` shows how the study ended:

| exit code | meaning |
| --- | --- |
| 0 | the study is finished, and at least one trial is complete |
| 1 | no trial is complete, or the study stopped because trials in a row, or the baseline, failed |
| 2 | the input is invalid, or the study stopped because of faults of the machine |
| 75 | the study was preempted (SIGTERM, SIGHUP), and its running trials are saved |
| 130 | the study was interrupted |

You can continue a study that ended with exit code 75 or 130, or because of faults of the machine,
with `--resume`.

## Inspect the files of a study

Everything about a study is in the directory `studies/NAME`:

- `journal.jsonl` is the journal, and `study.json` the study.
- `source` contains the source code that the trials run.
- Each trial has a directory with its config, its result and its run.
- `report.html` is the report.
- `optuna.journal` is a copy for Optuna, which you can open in optuna-dashboard.

Ctrl-C saves the running trials. `--resume` continues them, even if a process was killed. In W&B,
the trials are runs of one group, and an additional run summarizes them.

The report is one HTML file that needs neither a server nor a network. It shows:

- the learning curves of all trials
- the history and the distribution of an objective, and the Pareto front
- the importance, slices, contours and parallel coordinates of the dimensions
- the use of each device group
- a table of trials that you can sort by any column, and filter by state and text

While the study runs, the driver updates the report at most every ten seconds. An open page reloads
itself without losing its position. If there are thousands of trials, the report draws the best ones
and an evenly spaced sample of the others, and shows how many it drew.

The copy for Optuna contains every trial with its intermediate values, including running trials.
Sizes and choices appear as in the config. Read the copy with `optuna.load_study` and
`trials_dataframe`. If it is missing, `--resume` writes it again. To collect the copies of several
studies in one database, set `storage=sqlite:///all.db`. To disable the copy, set `storage=None`.
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
