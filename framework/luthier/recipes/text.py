"""Text of the user's own as a fiddler: one override changes training and held-out data."""

from __future__ import annotations

import dataclasses
from typing import Any

import fiddle as fdl

from luthier import data, graph
from luthier.errors import BadInput, Problem
from luthier.graph.paths import join
from luthier.recipes.selection import is_experiment


def text(
    experiment: fdl.Buildable,
    path: str,
    field: str = "",
    fraction: float = 0.1,
    tokenizer: data.Tokenizer | None = None,
) -> Any:
    """Train on the text at a path, and evaluate on a held-out part of it.

    The path is a text file, a folder or a pattern of text files, JSON lines (.jsonl) or Parquet
    files (.parquet). It can also be a folder written by `save_to_disk` of the Hugging Face library
    `datasets`. If the data has splits (`train`, and `validation` or `test`), the fiddler uses them.
    Otherwise, it holds out one document in ten. For a single text file, it holds out the last
    tenth, starting at a line break (`luthier.data.Split`).

    All evaluations read the held-out text. The sequence length does not change. The tokenizer and
    the packing do not change either, unless you pass a tokenizer. Training and evaluation share the
    values that they have in common, so one override changes both.

        luthier train configs.lm.quickstart 'fiddler:text("README.md")'
        luthier train hf:models/tiny 'fiddler:text("README.md", tokenizer=Bytes())'

    Args:
      experiment: A graph of an experiment on text; it is not changed.
      path: A file, a folder, or a pattern with `*`, `?`, `[a-z]` and `**` (any depth).
      field: The field of a record that contains the text. The default is `text`, or the only text
        field.
      fraction: The fraction to hold out if the data has no splits.
      tokenizer: The tokenizer. None keeps the tokenizer of the experiment. The argument is required
        if the experiment has no tokenizer, for example because the folder of a pretrained model
        has none.

    Returns:
      The changed copy of the config.

    Raises:
      BadInput: There is no text at the path, or the experiment does not read documents.

    Example:
      >>> import pathlib
      >>> import luthier
      >>> from luthier import recipes
      >>> config = luthier.experiment("quickstart")
      >>> _ = pathlib.Path("corpus.txt").write_text("To be, or not to be.")
      >>> changed = recipes.text(config, "corpus.txt")
      >>> changed.data.source.split, changed.evaluations["held_out"].data.source.split
      ('train', 'held_out')
    """
    if not is_experiment(experiment):
        raise BadInput(Problem("a model alone has no data", remedy="give an experiment"))
    if not 0 < fraction < 1:
        raise BadInput(Problem(f"{fraction} of the text cannot be held out", remedy="use 0.1"))
    changed = graph.copy_graph(experiment)
    names = graph.get(changed, "evaluations")
    paths = [join(join("evaluations", name), "data") for name in names]
    problems = []
    for place in ("data", *paths):
        node = graph.get(changed, place)
        made = getattr(node, "__fn_or_cls__", None)
        reads_text = isinstance(made, type) and issubclass(made, data.Packed)
        # A copy for each place: training and evaluation are built separately.
        own = tokenizer if tokenizer is None else graph.copy_graph(tokenizer)
        if own is not None and reads_text:
            graph.set_value(changed, f"{place}.tokenizer", own)
        elif own is not None and made is data.Synthetic:
            # The length is taken as it is: the constant itself, where it is one.
            length = node.__arguments__["length"]
            packing = fdl.Config(data.Concatenate)
            packed = fdl.Config(data.Packed, tokenizer=own, length=length, packing=packing)
            graph.set_value(changed, place, packed)
        elif not reads_text:
            kind = getattr(made, "__name__", None) or type(node).__name__
            remedy = "set it to luthier.data.Packed, or leave the fiddler out"
            if made is data.Synthetic:
                remedy = f'name the tokenizer: fiddler:text("{path}", tokenizer=Bytes())'
            problems.append(Problem(f"{kind} does not read documents", place, remedy=remedy))
    if problems:
        raise BadInput(problems)
    train, held_out = data.corpus(path, field, fraction)
    # Two parts of one source: what they have in common becomes shared values, so that no override
    # of one of them makes it overlap with the other.
    shared: dict[tuple[str, str], fdl.Config] = {}
    is_split = isinstance(train, data.Split)
    for place, source in (("data", train), *((path, held_out) for path in paths)):
        node = _node(source, shared if is_split else None)
        graph.set_value(changed, f"{place}.source", node)
    return changed


def _node(source: Any, shared: dict[tuple[str, str], fdl.Config] | None) -> fdl.Config:
    """Return the node that makes a source, with its own sources as nodes."""
    arguments = {}
    for field in dataclasses.fields(source):
        value = getattr(source, field.name)
        if dataclasses.is_dataclass(value):
            arguments[field.name] = _node(value, shared)
        elif value == field.default and not isinstance(source, data.Split):
            continue
        elif shared is None or field.name == "split" or not isinstance(value, str | float):
            arguments[field.name] = value
        else:
            key = (type(source).__name__, field.name)
            if key not in shared:
                shared[key] = graph.value(value, name=f"text_{field.name}")
            arguments[field.name] = shared[key]
    return fdl.Config(type(source), **arguments)
