"""Folders as the Hugging Face hub has them, of goldens that transformers made.

Their weights are random and their vocabularies of 61 tokens: special ones, letters and marks.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

TESTS = Path(__file__).parent
_ENDS = {"bert": ("[CLS]", "[SEP]"), "t5": ("<pad>", "</s>")}
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV ,.'!"


def read_golden(name):
    """Return settings, tensors, inputs and outputs of a golden file."""
    of_models = name in ("albert", "bert", "gpt2", "t5", "t5_gated", "vit")
    place = "models" if of_models else "recipes"
    with np.load(TESTS / place / "goldens" / f"{name}.npz") as file:
        arrays = dict(file)
    tensors = {k.removeprefix("foreign/"): arrays.pop(k) for k in list(arrays) if "/" in k}
    return json.loads(str(arrays.pop("config"))), tensors, arrays


def write_folder(folder, config, tensors, tokenizer=True):
    """Write config.json, weights and a tokenizer; return the folder."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if tokenizer:
        write_tokenizer(folder, *_ENDS.get(config["model_type"], ("<s>", "</s>")))
    return folder


def write_tokenizer(folder, bos, eos):
    """Write the tokenizer.json of a vocabulary of letters, and what names its special tokens."""
    words = [bos, eos, "<unk>", "[MASK]", *_LETTERS]
    vocabulary = {word: number for number, word in enumerate(words)}
    special = [
        {"id": vocabulary[word], "content": word, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for word in words[:4]
    ]
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "."},
            "behavior": "Isolated",
            "invert": False,
        },
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    names = {"mask_token": "[MASK]", "eos_token": eos, "pad_token": bos}
    names |= {"sep_token": eos, "cls_token": bos} if bos == "[CLS]" else {"bos_token": bos}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
