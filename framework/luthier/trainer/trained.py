"""Loads a trained run, evaluates it, and lets it generate text."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from luthier import graph as graphs
from luthier import planner
from luthier.checkpoint import Store
from luthier.errors import Problem, RunError, ShardingError
from luthier.graph import Graph
from luthier.metrics import Metric
from luthier.models import generate
from luthier.program import Exported, Program, Weights, export
from luthier.program.program import Leaves, Values
from luthier.program.state import model_arrays, split
from luthier.program.step import model_of
from luthier.records import RunDirectory, find
from luthier.trainer.evaluate import Evaluator
from luthier.trainer.resume import settle_defaults


@dataclasses.dataclass(frozen=True)
class Trained:
    """A run's state, on the devices.

    Args:
      directory: The run.
      program: Its program.
      values: Its hoisted scalars.
      leaves: The state.
      step: When it was saved.
      notices: Notices for the user, a line each.
    """

    directory: RunDirectory
    program: Program
    values: Values
    leaves: Leaves
    step: int
    notices: Sequence[str] = ()


def load_run(
    run: str,
    *,
    root: str = "runs",
    step: int | str | None = None,
    devices: Sequence[jax.Device] | None = None,
    packages: Sequence[str] = (),
    overrides: Sequence[str] = (),
    shelves: Sequence[str] = (),
) -> Trained:
    """Rebuild a run from its directory alone.

    Args:
      run: The run's directory, id, or name.
      root: Where runs are kept.
      step: The checkpoint: a step, `best`, or None for the latest.
      devices: Where the state goes; None means all devices of the default backend. Where they do
        not make up the run's mesh, the first of them serves alone.
      packages: The user's modules that the recorded graph may name.
      overrides: Changes of the recorded graph that leave the arrays of the state as they are, such
        as `fiddler:int8`.
      shelves: Modules whose fiddlers may be named without their module.

    Raises:
      BadInput: There is no such run or checkpoint, it is damaged, or it does not fit the changes.
    """
    directory = find(root, run)
    graph = graphs.from_json(directory.read_config(), packages=packages)
    # A run means what it meant when it was recorded, also where defaults have changed since.
    notices = settle_defaults(directory, graph)
    if overrides:
        graph = graphs.apply(graph, overrides, shelves=shelves, packages=packages)
        graphs.validate(graph, packages)
    plan = _plan_here(graph, devices)
    checkpoints = plan.program.experiment.checkpoints
    if checkpoints is None:
        remedy = "train with checkpoints=Checkpoints(...)"
        raise RunError(Problem(f"{directory.id} keeps no checkpoints", "checkpoints", "", remedy))
    # The durable store alone: the fast tier belongs to the run while it trains.
    store = Store(directory.checkpoints_path, checkpoints)
    try:
        # Restoring checks every file against its checksum, and reads straight into the shardings of
        # this machine.
        chosen = _choose(store, directory, step)
        arrays = store.restore(chosen, plan.program.abstract_state, None)
    finally:
        store.close()
    leaves = tuple(arrays[name] for name in plan.program.names)
    return Trained(directory, plan.program, plan.program.values(), leaves, chosen, notices)


def evaluate_run(
    run: str,
    *,
    evaluations: Sequence[str] = (),
    weights: Weights | None = None,
    **where: Any,
) -> tuple[Trained, dict[str, dict[Metric, float]]]:
    """Evaluate a run on its named sets, every row once.

    Args:
      run: The run's directory, id, or name.
      evaluations: Names of the sets; none means all.
      weights: The trained parameters or their moving average; None as each set says.
      **where: As for `load_run`.

    Returns:
      The run, and the metrics of every set.

    Raises:
      BadInput: There is no such run, checkpoint, set, or moving average.
    """
    # Loaded first, names checked after: overrides may add sets, and only the built experiment knows
    # them all.
    trained = load_run(run, **where)
    known = trained.program.experiment.evaluations
    problems = [
        Problem(
            f"there is no evaluation {name!r}",
            nearest=graphs.nearest(name, list(known)),
            remedy=f"there are: {', '.join(known) or 'none'}",
        )
        for name in evaluations
        if name not in known
    ]
    if weights is Weights.EMA and trained.program.experiment.training.ema is None:
        problems.append(Problem(f"{trained.directory.id} keeps no moving average", "training.ema"))
    if problems:
        raise RunError(problems)
    metrics = {}
    for name in evaluations or known:
        evaluation = known[name]
        # A copy with other weights, and not an override of the graph: the state fits any of them.
        if weights is not None:
            evaluation = dataclasses.replace(evaluation, weights=weights)
        evaluator = Evaluator(trained.program, evaluation, f"evaluations.{name}")
        metrics[name] = evaluator(trained.values, trained.leaves)
    return trained, metrics


def sample_run(
    run: str,
    prompts: Sequence[str] = ("",),
    *,
    weights: Weights = Weights.PARAMETERS,
    stop: str = "",
    options: dict[str, Any],
    **where: Any,
) -> list[str]:
    """Let a run's language model continue prompts.

    Args:
      run: The run's directory, id, or name.
      prompts: Text to continue.
      weights: The trained parameters, or their moving average.
      stop: Text at which a continuation ends; empty for none.
      options: As for `luthier.models.generate`: `max_new_tokens`, `temperature`, `seed`, ...
      **where: As for `load_run`.

    Raises:
      BadInput: There is no such run or checkpoint, or the model cannot generate.
    """
    trained = load_run(run, **where)
    if not can_generate(trained.program):
        remedy = "sampling needs data with a tokenizer and a model with init_cache and decode"
        raise RunError(Problem(f"{trained.directory.id} cannot generate text", "", "", remedy))
    _check_average(trained, weights)
    return sample_text(
        trained.program, trained.leaves, prompts, weights=weights.value, stop=stop, **options
    )


def export_run(
    run: str,
    output: str | os.PathLike[str] | None = None,
    *,
    weights: Weights = Weights.PARAMETERS,
    family: str | None = None,
    merge: bool = False,
    **where: Any,
) -> tuple[Trained, Exported]:
    """Write a run's weights as a folder of safetensors that others can read.

    Args:
      run: The run's directory, id, or name.
      output: The folder; None means `export-<step>` in the run's directory.
      weights: The trained parameters, or their moving average.
      family: Whose names and layouts; None finds it by the graph; `luthier` keeps our own names.
      merge: Whether adapters are merged into the kernels that they stand beside.
      **where: As for `load_run`.

    Returns:
      The run, and what was written.

    Raises:
      BadInput: There is no such run, checkpoint or average, the model is of no family, or the
        folder cannot be written.
    """
    trained = load_run(run, **where)
    _check_average(trained, weights)
    directory = trained.directory
    # The header of each file names the run and the step. Settings of the weights that the run
    # started from (a config.json with token ids, say) are kept, since the graph does not hold them.
    exported = export(
        trained.program,
        trained.leaves,
        directory.path / f"export-{trained.step}" if output is None else output,
        weights=weights.value,
        family=family,
        merge=merge,
        tokenizer=directory.tokenizer_path,
        original=directory.read_restored(),
        metadata={"run": f"{directory.name}/{directory.id}", "step": str(trained.step)},
    )
    return trained, exported


def _check_average(trained: Trained, weights: Weights) -> None:
    if weights is Weights.EMA and trained.program.experiment.training.ema is None:
        raise RunError(Problem(f"{trained.directory.id} keeps no moving average", "training.ema"))


def module_of(program: Program, leaves: Leaves, weights: str = "parameters") -> Any:
    """Return the model with the arrays of a state in it.

    Args:
      program: The program of the state.
      leaves: The state.
      weights: `parameters` or `ema`.
    """
    experiment = program.experiment
    # Only the structure of the model is made here; its arrays are those of the state.
    abstract = nnx.eval_shape(lambda: model_of(experiment))
    state = program.named(leaves)
    return split(abstract)[0].merge(model_arrays(state, weights))


def can_generate(program: Program) -> bool:
    """Return whether the experiment has what sampling needs: a tokenizer and a decoding model.

    Args:
      program: The program of the experiment.
    """
    experiment = program.experiment
    if getattr(experiment.data, "tokenizer", None) is None:
        return False
    make = experiment.model
    # The model is a partial (`functools.partial`) of its class.
    kind = getattr(make, "func", make)
    # A model that encodes a source has nothing to continue: `luthier.models.transduce` is for it.
    return all(hasattr(kind, name) for name in ("init_cache", "decode")) and not hasattr(
        kind, "encode"
    )


def sample_text(
    program: Program,
    leaves: Leaves,
    prompts: Sequence[str],
    *,
    weights: str = "parameters",
    stop: str = "",
    **options: Any,
) -> list[str]:
    """Return the model's continuation of each prompt.

    Args:
      program: The program of the state.
      leaves: The state.
      prompts: Text to continue; may be empty.
      weights: `parameters` or `ema`.
      stop: Text at which a continuation ends (it is not returned); empty for none.
      **options: As for `luthier.models.generate`.

    Raises:
      BadInput: An option is out of its range.
    """
    data: Any = program.experiment.data
    tokenizer = data.tokenizer
    model = module_of(program, leaves, weights)
    tokens = [[tokenizer.bos, *tokenizer.encode(prompt)] for prompt in prompts]
    drawn = generate(model, tokens, stop_tokens=(tokenizer.eos,), **options)
    texts = [tokenizer.decode(row) for row in drawn]
    return [text.partition(stop)[0] for text in texts] if stop else texts


def final_sample(program: Program, leaves: Leaves) -> str:
    """Return a short text of the trained model, or nothing where it shows or can generate none.

    Args:
      program: The program of the experiment.
      leaves: The flat state.
    """
    samples = program.experiment.records.samples
    if samples is None or not can_generate(program):
        return ""
    prompt = samples.prompts[0] if samples.prompts else ""
    data: Any = program.experiment.data
    # With its first token no longer than a row of training, where learned positions end.
    room = data.tokens_per_row - 1
    text = sample_text(
        program,
        leaves,
        [prompt],
        max_new_tokens=min(samples.num_tokens, room),
        temperature=samples.temperature,
        seed=samples.seed,
    )[0]
    return jax.device_get(text)


def _plan_here(graph: Graph, devices: Sequence[jax.Device] | None) -> planner.Plan:
    devices = jax.devices() if devices is None else devices
    try:
        graphs.build(graphs.get(graph, "parallelism")).mesh.sizes(len(devices))
    except ShardingError:
        # A run that was trained on many devices must be usable on a laptop: Orbax restores into any
        # sharding.
        graph = graphs.apply(graph, ["parallelism.mesh:=luthier.parallel.Mesh()"])
        devices = devices[:1]
    return planner.make(graph, devices)


def _choose(store: Store, directory: RunDirectory, step: int | str | None) -> int:
    known = list(store.steps())
    chosen = store.latest() if step is None else store.best() if step == "best" else int(step)
    if chosen is not None and chosen in known:
        return chosen
    what = "no checkpoint yet" if not known else f"no checkpoint {step}"
    listed = ", ".join(map(str, known))
    remedy = f"it has {listed}" if known else "train it first"
    raise RunError(Problem(f"{directory.name}/{directory.id} has {what}", remedy=remedy))
