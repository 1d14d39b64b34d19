"""The files of a tokenizer that lie beside weights, and travel with them."""

from __future__ import annotations

import pathlib
import shutil

NAMES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
)
"""Files that tokenizers are read from."""


def tokenizer_files(directory: pathlib.Path) -> list[pathlib.Path]:
    """Return the files of the tokenizer in a folder; none where there is none.

    Args:
      directory: The folder, or a file in it.
    """
    folder = directory if directory.is_dir() else directory.parent
    return [folder / name for name in NAMES if (folder / name).is_file()]


def copy_tokenizer(source: pathlib.Path, target: pathlib.Path) -> list[str]:
    """Copy the files of a tokenizer from one folder to another.

    Args:
      source: A folder, or a file in it.
      target: A folder; made where there is something to copy.

    Returns:
      The names of what was copied.
    """
    files = tokenizer_files(source)
    for file in files:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / file.name)
    return [file.name for file in files]
