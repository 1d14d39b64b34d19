"""Pretrained models, with their weights."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any


def load(directory: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Any:
    """Return the model of a Hugging Face folder, with its weights.

        model, graph, tokenizer = luthier.models.load("Qwen3-0.6B")
        prompt = [tokenizer.bos, *tokenizer.encode("The capital of France is")]
        tokens = luthier.models.generate(model, [prompt], max_new_tokens=20)

    Nothing in the folder is executed.

    Args:
      directory: A folder with config.json and safetensors, as `huggingface-cli download` and
        `save_pretrained` make them.
      overrides: Changes of the model's graph that its weights still fit, such as
        `dtype=bfloat16` and `param_dtype=bfloat16`.

    Returns:
      A named tuple: `model`, a Flax NNX module whose parameters are float32 by default; `graph`,
      the template that it was built from, which an experiment can have as its `model`; and
      `tokenizer`, None where the folder has none.

    Raises:
      BadInput: The folder or its weights do not exist, its family is unknown, or its settings are
        not supported; all problems at once.
    """
    # By name, as the functions of the root package are, since the layers above read config.json:
    # recipes are made of models.
    return importlib.import_module("luthier.recipes.foreign").load(directory, overrides)
