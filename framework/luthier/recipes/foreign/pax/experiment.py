"""Conversion of a dumped task of Paxml to the graph of an experiment."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fiddle as fdl
import jax.numpy as jnp

from luthier import checkpoint, durations, layers, parallel, tasks
from luthier.errors import BadInput, Problem
from luthier.recipes.foreign.pax.data import batch_size, data
from luthier.recipes.foreign.pax.decoder import decoder
from luthier.recipes.foreign.pax.nodes import Dump, Leftover, Node, is_number, read_dump
from luthier.recipes.foreign.pax.optimizers import average, optimizer
from luthier.recipes.stacks import pipeline

_AXES = {"stage": "stage", "replica": "data", "data": "fsdp", "mdl": "tensor"}
_DTYPES = {"float32": None, "bfloat16": jnp.bfloat16, "float16": jnp.float16}
_INERT = (
    *("variable_norm_summary", "apply_mutable_list", "inputs_split_mapping", "max_inflight_steps"),
    *("enforce_input_specs", "always_use_train_for_model_init", "async_summary_writing"),
)


@dataclasses.dataclass(frozen=True)
class Imported:
    """An imported experiment of Pax.

    Args:
      name: Its name in Pax.
      graph: The experiment.
      leftovers: Settings that have no place in it.
    """

    name: str
    graph: fdl.Config[Any]
    leftovers: Sequence[Leftover]


def import_dump(
    path: str | Path, program: Any, weights: str | None = None, is_partial: bool = False
) -> Imported:
    """Read a dump and return the graph of its experiment, and the settings without a place in it.

    Args:
      path: The file that `dump_pax.py` wrote.
      program: The package `luthier.program`, which has the classes; recipes may not import it.
      weights: A checkpoint of Pax, or an exported file, to initialize the experiment from.
      is_partial: Whether it may compute something else than in Pax.

    Raises:
      BadInput: The file is not a dump; or settings that change the results of the model have no
        equivalent, and `is_partial` is not set: all problems at once.
    """
    dump = read_dump(path)
    graph = _experiment(dump, program, weights)
    leftovers = _leftovers(dump)
    refused = [one for one in leftovers if one.is_essential]
    if refused and not is_partial:
        raise BadInput(_problem(one) for one in refused)
    return Imported(dump.experiment, graph, leftovers)


def _problem(one: Leftover) -> Problem:
    kind = one.target.rpartition(".")[2]
    what = f"{one.field} of {kind} is {one.value}, which has no equivalent here"
    return Problem(what, one.path, remedy=one.why)


def _leftovers(dump: Dump) -> list[Leftover]:
    # What was never read, inside of the model, counts as essential, except for decoding and
    # shardings: it cannot be known whether it changes results. What was reported has been judged
    # already.
    found = [*dump.leftovers]
    model = dump.task.peek("model")
    for node in (dump.task, *dump.datasets):
        found += node.unread(is_essential=False)
    inside = f"{model.path}." if isinstance(model, Node) else ""
    decoding = f"{inside}decoder_tpl"
    leftovers = [
        dataclasses.replace(one, is_essential=_is_of_model(one, inside, decoding))
        if one not in dump.leftovers
        else one
        for one in found
    ]
    return sorted(set(leftovers), key=lambda one: (not one.is_essential, one.path, one.field))


def _is_of_model(one: Leftover, inside: str, decoding: str) -> bool:
    where = f"{one.path}.{one.field}"
    is_layout = "split_dims_mapping" in where
    return where.startswith(inside) and not where.startswith(decoding) and not is_layout


def _experiment(dump: Dump, program: Any, weights: str | None) -> fdl.Config[Any]:
    """Return the graph of an experiment; what has no place in it is reported to the dump."""
    # Only what makes the import impossible raises here: without a language model there is no graph.
    task = dump.task
    model, train = task.get("model"), task.get("train")
    if not isinstance(model, Node) or not model.is_a("LanguageModel") or not model.has("lm_tpl"):
        kind = model.kind if isinstance(model, Node) else type(model).__name__
        remedy = "only language models with a TransformerLm can be imported"
        raise BadInput(Problem(f"{dump.source} holds a {kind}", "task.model", remedy=remedy))
    if model.kind != "LanguageModel":
        task.leave("model", "what this class changes itself is not known here")
    lm = model.get("lm_tpl")
    if not isinstance(lm, Node) or lm.kind != "TransformerLm":
        model.refuse("lm_tpl", "supported: TransformerLm")
        raise BadInput(_problem(one) for one in dump.leftovers)
    model.only("model_type", "causal")
    model.pass_over("count_tokens", "return_predictions", "report_strict_acc")
    template = decoder(lm)
    _set_dtypes(model, template)
    found = fdl.Config(
        program.Experiment,
        name=_name(dump.experiment),
        model=template,
        task=_task(lm),
        parallelism=_parallelism(model),
    )
    if isinstance(train, Node):
        _set_training(found, fdl.Config(program.Training), train, dump)
    # Read and not passed over: these nodes are then searched, so that each setting in them is
    # reported by itself.
    for name in ("decode", "evaluate", "infer", "vn"):
        task.get(name)
    # Dumps come from elsewhere: an interval below one step is as good as Pax's default, 100.
    interval = train.get("eval_interval_steps") if isinstance(train, Node) else None
    interval = int(interval) if is_number(interval) and interval >= 1 else 100
    known = data(dump.datasets, template.vocab_size)
    if known.training is not None:
        found.data = known.training
    if known.validation is not None:
        found.evaluations = {
            "validation": fdl.Config(
                program.Evaluation,
                data=known.validation,
                every=fdl.Config(durations.Steps, interval),
                global_batch_size=known.validation_rows,
            )
        }
    if weights is not None:
        found.restore = _restore(weights, dump)
    return _pipelined(found, lm)


def _pipelined(found: fdl.Config[Any], lm: Node) -> fdl.Config[Any]:
    """Return an experiment with its layers in a pipeline where Pax's `lm` has one."""
    # Pax has either the number of microbatches or their rows; from rows the number follows only if
    # the data, and with it the batch, was dumped.
    stack = lm.peek("stacked_transformer_tpl")
    if not isinstance(stack, Node) or stack.kind != "PipelinedTransformer":
        return found
    stages, repeats = stack.peek("num_pipeline_stages"), stack.peek("circular_repeat") or 1
    parts, rows = stack.peek("num_pipeline_microbatches"), stack.peek("pipeline_microbatch_size")
    batch = getattr(found.training, "global_batch_size", None)
    if not parts and rows and isinstance(batch, int):
        parts = batch // rows  # Pax itself requires that the rows divide the batch
    how = "add fiddler:pipeline(stages=S, microbatches=M)"
    if not parts:
        stack.leave("pipeline_microbatch_size", f"the batch is not known, so is its cut; {how}")
        return found
    schedule = fdl.Config(layers.Circular, repeats=repeats) if repeats > 1 else layers.GPipe
    sizes = dict(found.parallelism.mesh.__arguments__)
    try:
        found = pipeline(found, stages, parts, schedule)
    except BadInput as error:
        stack.leave("num_pipeline_stages", f"{error.problems[0].what}; then {how}")
        return found
    # `pipeline` put all stages into one slice. Pax's mesh has its own stage axis, which may cross
    # slices: then it has fewer stages within a slice, and the rest in `across_slices`.
    if "stage" in sizes:
        found.parallelism.mesh.stage = sizes["stage"]
    return found


def _restore(weights: str, dump: Dump) -> fdl.Config[Any]:
    found = fdl.Config(checkpoint.Pax, directory=weights)
    if dump.interleaved:
        found.interleaved = True
    if dump.heads_first is not None:
        found.heads_first = dump.heads_first
    return found


def _name(path: str) -> str:
    """Return `c4-spmd1b` for `my.experiments.C4Spmd1B`."""
    own = path.rpartition(".")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", own).lower() or "pax"


def _set_dtypes(model: Node, template: Any) -> None:
    fields = {"fprop_dtype": "dtype", "dtype": "param_dtype"}
    for theirs, ours in fields.items():
        dtype = model.get(theirs)
        if dtype in _DTYPES and _DTYPES[dtype] is not None:
            setattr(template, ours, _DTYPES[dtype])
        elif dtype is not None and dtype not in _DTYPES:
            model.leave(theirs, f"set model.{ours}")


def _task(lm: Node) -> fdl.Config[Any]:
    found = fdl.Config(tasks.LanguageModelling)
    head = lm.peek("softmax_tpl")
    if isinstance(head, Node):
        weight = head.get("z_loss_weight", 0.0)
        if weight:
            found.z_loss = weight
        if head.get("label_smoothing_prob", 0.0):
            head.leave("label_smoothing_prob", "spread over other tokens there; see task")
        for field in ("bi_tempered_loss_tpl", "chunk_size"):
            if head.get(field):
                head.leave(field, "the loss is plain cross entropy here; see task")
    balance = _balance(lm)
    if balance is None:
        return found
    return fdl.Config(tasks.Routed, task=found, load_balance=balance, router_z=None)


def _balance(lm: Node) -> float | None:
    """Return the weight of the load balance; None where there are no experts."""
    stack = lm.peek("stacked_transformer_tpl")
    while isinstance(stack, Node) and stack.kind != "StackedTransformer":
        stack = stack.peek("pipeline_stage" if stack.has("pipeline_stage") else "block")
    if not isinstance(stack, Node) or not stack.peek("moe_layers"):
        return None
    experts = stack.peek("moe_layer_tpl")
    weight = experts.peek("moe_load_balance_loss_weight") if isinstance(experts, Node) else None
    return float(weight) if is_number(weight) else None


def _parallelism(model: Node) -> fdl.Config[parallel.Parallelism]:
    """Return the mesh: devices of a slice times slices, axis by axis."""
    # Pax's `data` axis shards parameters as well: that is our `fsdp`. Its `replica` is our `data`.
    names = model.get("mesh_axis_names") or []
    within, across = (model.get(f"{kind}_mesh_shape") for kind in ("ici", "dcn"))
    sizes, slices = {"data": 1}, {}
    for place, name in enumerate(names):
        size = within[place] if within and place < len(within) else 1
        others = across[place] if across and place < len(across) else 1
        if name in _AXES:
            sizes[_AXES[name]] = size
            if others > 1:
                slices[_AXES[name]] = others
        elif size * others > 1:
            model.leave("mesh_axis_names", f"no axis here is like {name}; see parallelism.mesh")
    if not names:
        sizes = {}
    mesh = fdl.Config(parallel.Mesh, **sizes)
    if slices:
        mesh.across_slices = fdl.Config(parallel.AcrossSlices, **slices)
    return fdl.Config(parallel.Parallelism, mesh=mesh)


def _set_training(found: Any, training: Any, train: Node, dump: Dump) -> None:
    """Set optimizer, seed, steps, batch and checkpoints; what Pax leaves open keeps our default."""
    # Pax has the moving average as a setting of the optimizer, and the batch as one of the data.
    train.pass_over(*_INERT)
    learner = train.get("learner")
    average_node = None
    if isinstance(learner, Node):
        learner.pass_over("loss_name", "grad_norm_summary", "var_norm_summary")
        for field in ("bprop_variable_exclusion", "bprop_variable_inclusion"):
            if learner.get(field):
                learner.leave(field, "set training.trainable")
        chosen = optimizer(learner)
        if chosen is not None:
            found.optimizer = chosen
        average_node = average(learner)
    seed = train.get("random_seed")
    found.seed = seed if isinstance(seed, int) else 0  # 0 is our default, too
    steps, rows = train.get("num_train_steps"), batch_size(dump.datasets)
    found.training = training
    if is_number(steps) and steps >= 1:
        training.steps = int(steps)
    if rows is not None:
        training.global_batch_size = rows
    if average_node is not None:
        training.ema = average_node
    every, kept = train.get("save_interval_steps"), train.get("save_max_to_keep")
    # Dumps come from elsewhere: a number of saves below one is as good as none.
    found.checkpoints = fdl.Config(checkpoint.Checkpoints)
    if is_number(every) and every >= 1:
        found.checkpoints.every = fdl.Config(durations.Steps, int(every))
    if is_number(kept) and kept >= 1:
        found.checkpoints.keep_latest = int(kept)
    # Every step is recorded here, so that an interval of summaries has nothing to set.
    train.pass_over("summary_interval_steps")
    # Nothing keeps a checkpoint for its age. Pax's default, 12 hours, is not listed: what a file
    # does not set is not missed.
    if train.get("save_keep_interval_duration") and train.is_set("save_keep_interval_duration"):
        why = "none is kept for its age here; see checkpoints.keep_every, which counts steps"
        train.leave("save_keep_interval_duration", why)
