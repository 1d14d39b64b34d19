"""Loads a trained run, evaluates it, and lets it generate text."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding

from luthier import graph as graphs
from luthier import planner, project
from luthier.checkpoint import Store
from luthier.checkpoint.foreign.safetensors_folder import CONFIG
from luthier.data import Bytes
from luthier.errors import Problem, RunError, ShardingError
from luthier.facade import root_function
from luthier.graph import Graph
from luthier.models import generate, part_without_cache, transduce
from luthier.program import Exported, Program, WarmStart, Weights, export, materialize
from luthier.program.materialize import abstract_model, targets
from luthier.program.program import Leaves, Values, users_errors
from luthier.program.state import model_arrays, split
from luthier.program.step import model_of
from luthier.records import RunDirectory, find, object_storage, trust
from luthier.tasks import LanguageModelling
from luthier.trainer.evaluate import Evaluator
from luthier.trainer.resume import settle_defaults

_TRAIN_NORMS = "training.trainable:=luthier.optim.Matching(pattern='norm')"


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model's state, on the devices.

    Args:
      title: The run, or the folder of the weights, for the user.
      directory: The run; None where the weights are not those of a run.
      program: Its program.
      values: Its hoisted scalars.
      leaves: The state.
      step: When it was saved.
      tokenizer: The folder of the tokenizer that came with the weights, if there is one.
      settings: The files of settings that came with them, by name.
      initialized: Parameters that are new, since the weights have none for them.
      notices: Notices for the user, a line each.
    """

    title: str
    directory: RunDirectory | None
    program: Program
    values: Values
    leaves: Leaves
    step: int
    tokenizer: pathlib.Path | None = None
    settings: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    initialized: Sequence[str] = ()
    notices: Sequence[str] = ()

    @functools.cached_property
    def model(self) -> Any:
        """The trained NNX model with its arrays in place, ready to be called."""
        return module_of(self.program, self.leaves)


def load_run(
    run: str | os.PathLike[str],
    *,
    root: str = "runs",
    step: int | str | None = None,
    devices: Sequence[jax.Device] | None = None,
    packages: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    shelves: Sequence[str] | None = None,
) -> Trained:
    """Rebuild a run from its directory alone.

    Args:
      run: The run's directory, id, or name.
      root: Where runs are kept.
      step: The checkpoint: a step, `best`, or None for the latest.
      devices: Where the state goes; None means all devices of the default backend. Where they do
        not make up the run's mesh, the first of them serves alone.
      packages: The user's modules that the recorded graph may name; None means those of the
        project, if the run is one of its own or trusted (`--trust`, LUTHIER_TRUST).
      overrides: Changes of the recorded graph that leave the arrays of the state as they are, such
        as `fiddler:int8`.
      shelves: Modules whose fiddlers may be named without their module; None means
        `luthier.recipes` and those of the project.

    Returns:
      The program and its state, on the devices.

    Raises:
      BadInput: There is no such run or checkpoint, it is damaged, or it does not fit the changes.
    """
    directory = find(root, run)
    text = directory.read_config()
    if packages is None:
        own = project.find().packages
        packages = trust.packages_for(directory.config_path, text, own)
    graph = graphs.from_json(text, packages=packages)
    # A run means what it meant when it was recorded, also where defaults have changed since.
    notices = settle_defaults(directory, graph)
    total_steps = directory.read_status().total_steps
    if total_steps and graphs.is_deferred(graphs.evaluate(graphs.get(graph, "training.steps"))):
        # As many as they were: the training data need not be here, or what it was.
        graphs.set_value(graph, "training.steps", total_steps)
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
    return Trained(
        f"{directory.name}/{directory.id}",
        directory,
        plan.program,
        plan.program.values(),
        leaves,
        chosen,
        directory.tokenizer_path,
        directory.read_restored(),
        notices=notices,
    )


def load_weights(graph: Graph, title: str, devices: Sequence[jax.Device] | None = None) -> Trained:
    """Return the state that an experiment starts from, with the weights that `restore` names.

    Args:
      graph: The graph of the experiment.
      title: The place of the weights, for the user.
      devices: Where the state goes, as for `load_run`.

    Returns:
      The program and its state at step 0, with the names of the parameters that were initialized.

    Raises:
      BadInput: The weights do not exist, or do not fit the model.
    """
    # Nothing is trained here, and an optimizer's moments would take twice the memory of the model:
    # they are kept for the norms only, of which every model has some.
    graph = graphs.apply(graph, [_TRAIN_NORMS])
    plan = _plan_here(graph, devices)
    values = plan.program.values()
    with WarmStart(plan.program) as warm:
        restoration = warm.open()
        if restoration is None:
            raise RunError(Problem(f"{title} names no weights", "restore"))
        leaves = materialize(plan.program, values, restoration=restoration)
        settings, tokenizer = restoration.settings, restoration.tokenizer
        new = sorted(set(targets(plan.program)) - restoration.taken)
    notices = [f"{', '.join(new)}: not in {title}, and initialized"] if new else []
    return Trained(title, None, plan.program, values, leaves, 0, tokenizer, settings, new, notices)


@root_function("evaluate")
def evaluate_run(
    run: str | os.PathLike[str] | Trained,
    *,
    evaluations: Sequence[str] = (),
    weights: Weights | None = None,
    root: str = "runs",
    step: int | str | None = None,
    devices: Sequence[jax.Device] | None = None,
    packages: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    shelves: Sequence[str] | None = None,
) -> tuple[Trained, dict[str, dict[str, float]]]:
    """Evaluate a run on its named sets, every row once.

    Args:
      run: The run's directory, id, or name; or a state that is loaded already.
      evaluations: Names of the sets; none means all.
      weights: The trained parameters or their moving average; None as each set says.
      root: Where runs are kept.
      step: The checkpoint; this argument and the following ones are those of `load_run`.
      devices: Where the state goes.
      packages: The user's modules that the recorded graph may name; None means those of the
        project, if the run is one of its own or trusted (`--trust`, LUTHIER_TRUST).
      overrides: Changes of the recorded graph that leave its arrays as they are.
      shelves: Modules whose fiddlers may be named without their module.

    Returns:
      The run, and the metrics of every set by their names: `metrics["held_out"]["loss"]`.

    Raises:
      BadInput: There is no such run, checkpoint, set, or moving average.
    """
    # Loaded first, names checked after: overrides may add sets, and only the built experiment knows
    # them all.
    trained = (
        run
        if isinstance(run, Trained)
        else load_run(
            run,
            root=root,
            step=step,
            devices=devices,
            packages=packages,
            overrides=overrides,
            shelves=shelves,
        )
    )
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
        problems.append(Problem(f"{trained.title} keeps no moving average", "training.ema"))
    if problems:
        raise RunError(problems)
    metrics = {}
    for name in evaluations or known:
        evaluation = known[name]
        # A copy with other weights, and not an override of the graph: the state fits any of them.
        if weights is not None:
            evaluation = dataclasses.replace(evaluation, weights=weights)
        path = f"evaluations.{name}"
        with users_errors(trained.program.graph, path):
            evaluator = Evaluator(trained.program, evaluation, path)
            values = evaluator(trained.values, trained.leaves)
        metrics[name] = {metric.name: value for metric, value in values.items()}
    return trained, metrics


def _silent(notice: str) -> None:
    pass


def sample_run(
    run: str | os.PathLike[str] | Trained,
    prompts: Sequence[str] = ("",),
    *,
    weights: Weights = Weights.PARAMETERS,
    stop: str = "",
    options: dict[str, Any],
    on_notice: Callable[[str], None] = _silent,
    **where: Any,
) -> list[str]:
    """Let a run's language model continue prompts, or an encoder-decoder transduce them.

    Args:
      run: The run's directory, id, or name; or a state that is loaded already.
      prompts: Text to continue, or to transduce.
      weights: The trained parameters, or their moving average.
      stop: Text at which a continuation ends; empty for none.
      options: As for `luthier.models.generate`: `max_new_tokens`, `temperature`, `seed`, ...
      on_notice: Takes a line about how the text is sampled, if there is anything to know.
      **where: As for `load_run`.

    Returns:
      The text for each prompt, without the prompt.

    Raises:
      BadInput: There is no such run or checkpoint, or the model cannot generate.
    """
    trained = run if isinstance(run, Trained) else load_run(run, **where)
    _check_generates(trained)
    tokenizer = _tokenizer(trained.program)
    # Bytes stand in for the tokenizer that a folder of weights lacks.
    if tokenizer is None or (trained.directory is None and isinstance(tokenizer, Bytes)):
        remedy = "give token ids (--tokens)"
        raise RunError(Problem(f"{trained.title} has no tokenizer", "data", remedy=remedy))
    _check_average(trained, weights)
    with users_errors(trained.program.graph, "model"):
        if notice := slow_sampling(trained.program):
            on_notice(notice)
        return sample_text(
            trained.program, trained.leaves, prompts, weights=weights.value, stop=stop, **options
        )


def sample_tokens(
    trained: Trained,
    prompts: Sequence[Sequence[int]],
    *,
    weights: Weights = Weights.PARAMETERS,
    options: dict[str, Any],
    on_notice: Callable[[str], None] = _silent,
) -> list[list[int]]:
    """Let a language model continue rows of tokens, or an encoder-decoder transduce them.

    Args:
      trained: The state.
      prompts: Token ids, at least one for each prompt; none is added.
      weights: The trained parameters, or their moving average.
      options: As for `sample_run`.
      on_notice: As for `sample_run`.

    Returns:
      The new token ids for each prompt.

    Raises:
      BadInput: The model cannot generate, or a token is outside its vocabulary.
    """
    _check_generates(trained)
    _check_average(trained, weights)
    tokenizer = _tokenizer(trained.program)
    with users_errors(trained.program.graph, "model"):
        model = module_of(trained.program, trained.leaves, weights.value)
        if not transduces(trained.program):
            if notice := slow_sampling(trained.program):
                on_notice(notice)
            return generate(model, prompts, **options)
        # The settings of pretrained weights name the start, whatever tokenizer there is.
        start = trained.settings.get(CONFIG, {}).get("decoder_start_token_id")
        if start is None:
            start = 0 if tokenizer is None else tokenizer.bos
        return transduce(model, prompts, start_token=start, **options)


def export_run(
    run: str | os.PathLike[str] | Trained,
    output: str | os.PathLike[str] | None = None,
    *,
    weights: Weights = Weights.PARAMETERS,
    family: str | None = None,
    merge: bool = False,
    **where: Any,
) -> tuple[Trained, Exported]:
    """Write a run's weights as a folder of safetensors that others can read.

    Args:
      run: The run's directory, id, or name; or a state that is loaded already.
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
    trained = run if isinstance(run, Trained) else load_run(run, **where)
    _check_average(trained, weights)
    if trained.initialized:
        what = f"{', '.join(trained.initialized)}: not in {trained.title}, so there is no value"
        raise RunError(Problem(what, "model", remedy="train them first, and export the run"))
    # The header of each file names the run and the step. Settings of the weights that the run
    # started from (a config.json with token ids, say) are kept, since the graph does not hold them.
    exported = export(
        trained.program,
        trained.leaves,
        _export_place(trained) if output is None else output,
        weights=weights.value,
        family=family,
        merge=merge,
        tokenizer=trained.tokenizer,
        original=trained.settings,
        metadata=_provenance(trained),
    )
    return trained, exported


def _check_average(trained: Trained, weights: Weights) -> None:
    if weights is Weights.EMA and trained.program.experiment.training.ema is None:
        raise RunError(Problem(f"{trained.title} keeps no moving average", "training.ema"))


def _provenance(trained: Trained) -> dict[str, str]:
    if trained.directory is None:
        return {"source": trained.title}
    return {"run": trained.title, "step": str(trained.step)}


def _export_place(trained: Trained) -> pathlib.Path:
    """Return the folder of an export of which nobody has named one: in the directory of the run."""
    home = None if trained.directory is None else object_storage.home_of(trained.directory.path)
    if trained.directory is not None and home is None:
        return trained.directory.path / f"export-{trained.step}"
    what = f"{trained.title} is not a run, in whose directory its weights could be written"
    if home is not None:  # its working copy is replaced by what the bucket holds
        what = f"{trained.title} is in an object store, and exports are written to a disk"
    raise RunError(Problem(what, remedy="name a folder with --output"))


def _check_generates(trained: Trained) -> None:
    if not _decodes(trained.program):
        kind = _kind(trained.program)
        what = f"{trained.title} cannot generate: {kind.__name__} is not a language model"
        remedy = "sampling needs a model with hidden and logits"
        raise RunError(Problem(what, "model", remedy=remedy))


def _kind(program: Program) -> Any:
    """Return the class of the model."""
    make = program.experiment.model
    return getattr(make, "func", make)  # a partial (`functools.partial`) of its class


def transduces(program: Program) -> bool:
    """Return whether the model makes a target from a source, and does not continue a text.

    Args:
      program: The program of the experiment.

    Returns:
      True for an encoder-decoder.
    """
    return hasattr(_kind(program), "encode")


def _tokenizer(program: Program) -> Any:
    return getattr(program.experiment.data, "tokenizer", None)


def module_of(program: Program, leaves: Leaves, weights: str = "parameters") -> Any:
    """Return the model with the arrays of a state in it.

    Args:
      program: The program of the state.
      leaves: The state.
      weights: `parameters` or `ema`.

    Returns:
      The model, an `nnx.Module` on the devices of the state.
    """
    experiment = program.experiment
    # Only the structure of the model is made here; its arrays are those of the state.
    abstract = nnx.eval_shape(lambda: model_of(experiment))
    state = program.named(leaves)
    arrays = jax.tree.map(_automatic, model_arrays(state, weights))
    return split(abstract)[0].merge(arrays)


def _automatic(array: Any) -> Any:
    """Return an array on a mesh whose axes are automatic; nothing is copied."""
    # With explicit axes a layer computes under the rules of its experiment only, while this module
    # is for whoever calls it: to generate, to export, or in a notebook.
    sharding = getattr(array, "sharding", None)
    if not isinstance(sharding, NamedSharding) or AxisType.Explicit not in sharding.mesh.axis_types:
        return array
    mesh = Mesh(sharding.mesh.devices, sharding.mesh.axis_names)
    return jax.device_put(
        array, NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind)
    )


def can_generate(program: Program) -> bool:
    """Return whether the experiment has what sampling needs: a tokenizer and a decoding model.

    Args:
      program: The program of the experiment.

    Returns:
      True if `sample_text` works with it; False for an encoder-decoder.
    """
    # A model that encodes a source has nothing to continue: `luthier.models.transduce` is for it.
    return _tokenizer(program) is not None and not transduces(program) and _decodes(program)


def _decodes(program: Program) -> bool:
    kind, task = _kind(program), program.experiment.task
    if all(hasattr(kind, name) for name in ("init_cache", "decode")):
        return True
    # Without a cache, a token is computed from all those before it. It is right where the model is
    # causal, which only the task shows.
    is_causal = isinstance(getattr(task, "task", task), LanguageModelling)
    return is_causal and all(hasattr(kind, name) for name in ("hidden", "logits"))


def slow_sampling(program: Program) -> str:
    """Return a line about sampling that computes each token from all before it; or nothing.

    Args:
      program: The program of an experiment that can generate.
    """
    part = "" if transduces(program) else part_without_cache(abstract_model(program.experiment))
    return (
        f"sampling recomputes every token: {part} has no cache (init_cache, decode)" if part else ""
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
    """Return the model's continuation of each prompt, or the target that it makes of it.

    Args:
      program: The program of the state.
      leaves: The state.
      prompts: Text to continue; may be empty.
      weights: `parameters` or `ema`.
      stop: Text at which a continuation ends (it is not returned); empty for none.
      **options: As for `luthier.models.generate`.

    Returns:
      The text for each prompt, without the prompt.

    Raises:
      BadInput: An option is out of its range.
    """
    tokenizer = _tokenizer(program)
    model = module_of(program, leaves, weights)
    encoded = [tokenizer.encode(prompt) for prompt in prompts]
    options["stop_tokens"] = (tokenizer.eos,)
    if transduces(program):
        sources = [[*tokens, tokenizer.eos] for tokens in encoded]
        drawn = transduce(model, sources, start_token=tokenizer.bos, **options)
    else:
        drawn = generate(model, [[tokenizer.bos, *tokens] for tokens in encoded], **options)
    texts = [tokenizer.decode(row) for row in drawn]
    return [text.partition(stop)[0] for text in texts] if stop else texts


def final_sample(program: Program, leaves: Leaves) -> str:
    """Return a short text of the trained model, or nothing where it shows or can generate none.

    Args:
      program: The program of the experiment.
      leaves: The flat state.

    Returns:
      The text, without the prompt.
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
