"""Folders of safetensors, as others write them."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file


def write_folder(folder, tensors, config=None, shards=1, metadata=None):
    """Write tensors as the hub has them: one file, or several with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = metadata or {"format": "pt"}
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    names = list(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata=metadata)
        return folder
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[number::shards]}
        save_file(part, folder / file, metadata=metadata)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="session")
def folder_of():
    return write_folder


@pytest.fixture
def random_tensors():
    """Return a function from shapes by name to random tensors."""

    def make(shapes, dtype=np.float32, seed=0):
        rng = np.random.default_rng(seed)
        return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}

    return make
