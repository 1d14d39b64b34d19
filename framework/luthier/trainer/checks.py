"""Checks of a program and of its data on the devices that are here."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from luthier import graph as graphs
from luthier import user_code
from luthier.errors import BadInput, DataError, Problem, UserCodeError, ValidationError
from luthier.graph import Graph
from luthier.graph.paths import is_node
from luthier.parallel import Share
from luthier.planner import Plan
from luthier.program import Experiment, Program
from luthier.program.program import users_errors

# Rows of more documents than a kernel of attention has room for: it gives NaN for them.

_SEGMENTS = "segments"


@dataclasses.dataclass(frozen=True)
class DocumentLimit:
    """The most documents that rows may have: of the attention that has room for the fewest.

    Args:
      most: The limit.
      path: The setting that holds it.
      origin: Where that was set.
    """

    most: int
    path: str
    origin: str

    @classmethod
    def of(cls, program: Program) -> DocumentLimit | None:
        """Return the limit of an experiment; None where its attention takes any number.

        Args:
          program: The program of the experiment.

        Returns:
          The limit, or None.
        """
        found, graph, device = [], program.graph, program.mesh.devices.flat[0]
        for place in graphs.walk(graph, defaults=False, once=True):
            # Only components with this method have a kernel with room for so many; they are found
            # by walking the graph, because attention may be nested anywhere in a model.
            if hasattr(getattr(place.value, "__fn_or_cls__", None), "document_limit"):
                path = f"{place.path}.max_documents"
                most = graphs.build(place.value).document_limit(device)
                if most is not None:
                    found.append(cls(most, path, graphs.origin_of(graph, path)))
        return min(found, key=lambda limit: limit.most, default=None)

    def check(self, batch: Mapping[str, Any], data: str) -> None:
        """Refuse a batch that attention would make NaN of.

        Args:
          batch: Host arrays by name; those of documents are int [B, L], 0 for padding.
          data: Where the data is set, for the message.

        Raises:
          DataError: A row has more documents.
        """
        for name, segments in batch.items():
            if name.endswith(_SEGMENTS):
                number = most_documents(np.asarray(segments))
                if number > self.most:
                    raise DataError(self._problem(data, number))

    def _problem(self, data: str, number: int) -> Problem:
        what = f"{data} has rows of {number} documents, and attention has room for {self.most}"
        remedy = f"set {self.path}={number}, use BlockwiseAttention, or make rows shorter"
        return Problem(what, self.path, self.origin, remedy)


def most_documents(segments_BL: np.ndarray) -> int:
    """Return the most documents of a row.

    Args:
      segments_BL: The document of every token, 0 for padding; int [B, L].
    """
    # Counts beginnings, and not the largest id: ids need not be consecutive, since rows may be cut.
    before_BL = np.pad(segments_BL[:, :-1], ((0, 0), (1, 0)))
    starts_BL = (segments_BL > 0) & (segments_BL != before_BL)
    return int(starts_BL.sum(1).max(initial=0))


def require_documents(program: Program) -> None:
    """Refuse data whose rows have more documents than attention has room for.

    Data that does not know this beforehand is checked batch by batch, by `DocumentLimit.check`.

    Args:
      program: The program of an experiment, whose data is read.

    Raises:
      ValidationError: All data with such rows.
    """
    limit = DocumentLimit.of(program)
    if limit is None:
        return
    problems = list(_problems(limit, program.experiment))
    if problems:
        raise ValidationError(problems)


def _problems(limit: DocumentLimit, experiment: Experiment) -> Iterator[Problem]:
    sets = {f"evaluations.{name}.data": e.data for name, e in experiment.evaluations.items()}
    for path, data in {"data": experiment.data, **sets}.items():
        number = getattr(getattr(data, "rows", None), "most_documents", None)
        if number is not None and number > limit.most:
            yield limit._problem(path, number)


# Token ids of batches, looked at on the host: a table has no rows beyond its vocabulary.
#
# On a device such an id is no error: it reads a NaN or, below zero, a row from the table's end.


def vocabulary(experiment: Experiment) -> int | None:
    """Return how many tokens the model of an experiment knows; None where it knows none.

    Args:
      experiment: A built experiment.
    """
    size = getattr(experiment.model, "keywords", {}).get("vocab_size")
    return size if isinstance(size, int) else None


def check_token_ids(
    batch: Mapping[str, np.ndarray], vocab_size: int | None, path: str = "data"
) -> None:
    """Refuse a batch with a token that is outside the vocabulary.

    Looked at are the entries of integers that are called `inputs` and `targets`, or end so; targets
    count where `weights` of their shape are not 0.

    Args:
      batch: Its entries, [rows, ...] each.
      vocab_size: Tokens that the model knows; None looks at nothing.
      path: Where the data stands in the graph.

    Raises:
      BadInput: There is one; the first of each entry is named by its row and position.
    """
    if vocab_size is None:
        return
    problems = []
    for name, array in batch.items():
        array = np.asarray(array)
        if not name.endswith(("inputs", "targets")) or array.dtype.kind not in "iu":
            continue
        # The usual case costs two passes without a copy; the mask is made only where something is
        # wrong.
        if not array.size or (array.min() >= 0 and array.max() < vocab_size):
            continue
        # Inputs are wrong whatever their weight: each is looked up in the table.
        wrong = (array < 0) | (array >= vocab_size)
        if name.endswith("targets"):
            # Only weights say which targets count: padding may hold any number, -100 say. Without
            # weights of their shape, targets may be no tokens at all, but one class for each row.
            weights = batch.get(name.replace("targets", "weights"))
            if weights is None or np.shape(weights) != array.shape:
                continue
            wrong &= np.asarray(weights) != 0
        if wrong.any():
            row, *place = map(int, np.argwhere(wrong)[0])
            at = f", position {', '.join(map(str, place))}," if place else ""
            what = f"row {row} of a batch{at} holds the token {array[(row, *place)]} in {name}"
            remedy = f"the model's vocabulary has the ids 0 to {vocab_size - 1}"
            problems.append(Problem(what, path, remedy=f"{remedy}: set model.vocab_size"))
    if problems:
        raise BadInput(problems)


# Whether steps repeat themselves: taken twice, compiled anew each time, and compared in bits.

_REMEDY = "set precision.repeatability=exact, or use attention without kernels of your own"


def check_repeatable(plan: Plan, num_steps: int = 2) -> str:
    """Take the first steps twice, and compare every array of the state bit by bit.

    The second time is as after a restart: initialized again, and compiled again.

    Args:
      plan: The plan of what to run.
      num_steps: Steps to take.

    Returns:
      A one-line report that all arrays are the same.

    Raises:
      ValidationError: Arrays differ; the message names them.
    """
    program = plan.program
    batches = _batches(program, num_steps)
    # `lower_and_compile` anew for each of the two: a compiler that chooses its kernels by timing
    # them may choose others, and then a run differs after a restart although each program by itself
    # repeats its bits.
    first = _bits(program, batches)
    again = _bits(program, batches)
    differing = [name for name in first if first[name] != again[name]]
    if differing:
        shown = ", ".join(differing[:5])
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        what = f"{num_steps} steps taken twice differ in {shown}{more}"
        raise ValidationError(Problem(what, remedy=_REMEDY))
    return f"{num_steps} steps taken twice: all {len(first)} arrays are the same to the last bit"


def _batches(program: Program, number: int) -> list[dict[str, Any]]:
    """Return the first batches of the training data, on the devices."""
    experiment = program.experiment
    share = Share.of(program.batch, experiment.data.iterator)
    iterator = experiment.data.iterator(
        global_batch_size=experiment.training.global_batch_size,
        seed=experiment.seed,
        **share.arguments,
    )
    with contextlib.closing(iterator) if hasattr(iterator, "close") else contextlib.nullcontext():
        batches = [next(iterator) for _ in range(number)]
    return [share.global_batch(batch, program.batch) for batch in batches]


def _bits(program: Program, batches: list[dict[str, Any]]) -> dict[str, list[bytes]]:
    """Return the bytes of every array after the batches, by the shards of this process."""
    values = program.values()
    step, leaves = program.lower_and_compile(program.traced_step), program.init(values)
    for batch in batches:
        leaves, scalars = step(values, leaves, batch)
    arrays = {**program.named(leaves), "the scalars of the step": scalars}
    return {name: _shards(array) for name, array in arrays.items()}


def _shards(array: Any) -> list[bytes]:
    # Bytes and not values: NaN differs from itself, and 0.0 equals -0.0.
    return [np.asarray(shard.data).tobytes() for shard in array.addressable_shards]


# The data of an experiment: opened, and the first batch of each set made, as training would.


def open_sets(graph: Graph, functions: Mapping[str, Callable[[], Any]]) -> None:
    """Open several data nodes, and report the problems of all with their settings.

    Args:
      graph: The experiment graph.
      functions: What opens each node, by its path, as `evaluations.held_out.data`.

    Raises:
      BadInput: Data is missing, unreadable or too small. Each problem has the path of the setting
        and its origin.
      UserCodeError: Nothing is wrong but that the user's code failed.
    """
    problems: dict[tuple[str, str], Problem] = {}
    failed: UserCodeError | None = None
    for path, function in functions.items():
        try:
            function()
        except BadInput as error:
            failed = error if isinstance(error, UserCodeError) else failed
            for problem in error.problems:
                # Training and evaluations may read the same file: it is one mistake, and one line.
                located = _located(graph, path, problem)
                problems.setdefault((problem.what, problem.path), located)
    if failed is not None and len(problems) == 1:
        raise failed  # with its lines about the place, and its exit code
    if problems:
        raise DataError(problems.values())


def _located(graph: Graph, path: str, problem: Problem) -> Problem:
    if problem.path:
        return problem
    # Sources know files and not graphs. The setting that a message is about is the one whose value
    # it quotes, or begins with: a pattern that matches no file, or the path of a damaged one.
    node = graphs.get(graph, path)
    for place in graphs.walk(node, defaults=False) if is_node(node) else ():
        value = graphs.evaluate(place.value)
        is_text = isinstance(value, str) and value
        if is_text and (repr(value) in problem.what or problem.what.startswith(value)):
            path = f"{path}.{place.path}"
            break
    return dataclasses.replace(problem, path=path, origin=graphs.origin_of(graph, path))


def check_data(plan: Plan) -> dict[str, tuple[int, int]]:
    """Open all data of an experiment, and make the first batch of each set on the host.

    Args:
      plan: The plan of the experiment.

    Returns:
      Rows of an epoch and rows of a batch by the path of each set, the training data first.

    Raises:
      BadInput: Data is missing, unreadable or too small, or a batch does not fit its
        `batch_spec` or the model's vocabulary; the problems of all sets.
      UserCodeError: Nothing is wrong but that the user's code failed.
    """
    program, experiment = plan.program, plan.program.experiment
    size = experiment.training.global_batch_size
    sets: dict[str, tuple[Any, int, Mapping[str, Any]]] = {
        "data": (experiment.data, size, program.batch)
    }
    for name, evaluation in experiment.evaluations.items():
        path, size = f"evaluations.{name}", evaluation.global_batch_size
        entries = program.abstract_batch(evaluation.data, size, f"{path}.global_batch_size")
        sets[f"{path}.data"] = (evaluation.data, size, entries)

    def check(path: str) -> None:
        # Training lets exceptions of users' data pass; `failures` records their traceback.
        with users_errors(program.graph, path):
            _check_first_batch(plan, path, *sets[path])

    open_sets(program.graph, {path: functools.partial(check, path) for path in sets})
    require_documents(program)
    return {path: (data.num_rows, size) for path, (data, size, _) in sets.items()}


def _check_first_batch(
    plan: Plan, path: str, data: Any, size: int, batch: Mapping[str, Any]
) -> None:
    # Read by the share of this process, as in training: of several, none reads what it has no use
    # for. Evaluation reads every row once, in order; training has an endless order of its own.
    program = plan.program
    if path == "data":
        share, seed = Share.of(batch, data.iterator), program.experiment.seed
        batches = data.iterator(global_batch_size=size, seed=seed, **share.arguments)
    else:
        share = Share.of(batch, data.batches)
        batches = iter(data.batches(global_batch_size=size, **share.arguments))
    with contextlib.closing(batches) if hasattr(batches, "close") else contextlib.nullcontext():
        first = next(batches, None)
    if first is None:
        raise DataError(Problem("has no rows", path))
    check_spec(first, batch, len(share.rows), data, path)
    if (limit := DocumentLimit.of(program)) is not None:
        limit.check(first, path)
    check_token_ids(first, vocabulary(program.experiment), path)


# What data promised in its `batch_spec`, which the step was compiled for, and what it gave.


def check_spec(
    batch: Mapping[str, Any],
    entries: Mapping[str, jax.ShapeDtypeStruct],
    num_rows: int,
    data: Any,
    path: str = "data",
) -> None:
    """Refuse a batch that is not what the data's `batch_spec` returned.

    Args:
      batch: Host arrays by name, [num_rows, ...] each.
      entries: Shape and dtype of the entries of the global batch.
      num_rows: Rows that this process reads.
      data: The data node.
      path: Where the data stands in the graph.

    Raises:
      UserCodeError: An entry is missing, or has another shape or dtype.
    """
    for name, entry in entries.items():
        expected = jax.ShapeDtypeStruct((num_rows, *entry.shape[1:]), entry.dtype)
        if name not in batch:
            what = f"a batch has no {name}, which batch_spec has; it has {', '.join(batch)}"
        else:
            array = batch[name] if hasattr(batch[name], "dtype") else np.asarray(batch[name])
            # Without x64, JAX narrows 64 bits to 32 when it takes an array, as it does here.
            found = jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))
            if (found.shape, found.dtype) == (expected.shape, expected.dtype):
                continue
            what = (
                f"a batch has {name} {user_code.described(found)}, and batch_spec has "
                f"{user_code.described(expected)}"
            )
        details = user_code.spec_definition(type(data))
        raise UserCodeError(Problem(f"{type(data).__qualname__}: {what}", path), details)
