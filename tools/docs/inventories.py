"""Write Sphinx inventories of other projects (docs/inventories) that the site links to.

A project's own inventory would have to be downloaded at every build, and holds thousands of
objects. These hold the objects that our docstrings and pages name.

Command: python tools/docs/inventories.py  (needs `pip install sphobjinv`)
"""

from __future__ import annotations

import argparse
import importlib
import inspect
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "inventories"

# By project and page, below the address in docs/conf.py; `{name}` is the full name of an object.
PAGES: dict[str, dict[str, tuple[str, ...]]] = {
    "jax": {
        "_autosummary/{name}.html": (
            *("jax.Array", "jax.Device", "jax.ShapeDtypeStruct", "jax.checkpoint"),
            *("jax.custom_vjp", "jax.debug.print", "jax.default_matmul_precision"),
            *("jax.device_put", "jax.devices", "jax.distributed.initialize", "jax.eval_shape"),
            *("jax.jit", "jax.lax.optimization_barrier", "jax.lax.ragged_dot", "jax.lax.scan"),
            *("jax.make_mesh", "jax.nn.dot_product_attention", "jax.nn.gelu", "jax.nn.logsumexp"),
            *("jax.nn.relu", "jax.nn.sigmoid", "jax.nn.silu", "jax.nn.softmax"),
            *("jax.numpy.where", "jax.random.key", "jax.random.normal", "jax.vmap"),
        ),
        "jax.sharding.html": (
            *("jax.sharding.Mesh", "jax.sharding.NamedSharding", "jax.sharding.PartitionSpec"),
        ),
    },
    "flax": {
        "api_reference/flax.nnx/graph.html": (
            *("flax.nnx.merge", "flax.nnx.split", "flax.nnx.state"),
        ),
        "api_reference/flax.nnx/module.html": ("flax.nnx.Module",),
        "api_reference/flax.nnx/nn/linear.html": ("flax.nnx.Linear",),
        "api_reference/flax.nnx/rnglib.html": ("flax.nnx.Rngs",),
        "api_reference/flax.nnx/spmd.html": ("flax.nnx.with_partitioning",),
        "api_reference/flax.nnx/state.html": ("flax.nnx.State",),
        "api_reference/flax.nnx/transforms.html": ("flax.nnx.jit",),
        "api_reference/flax.nnx/variables.html": ("flax.nnx.Param", "flax.nnx.Variable"),
    },
    "optax": {
        "api/combining_optimizers.html": ("optax.chain",),
        "api/optimizers.html": ("optax.adamw", "optax.sgd"),
        "api/transformations.html": (
            *("optax.GradientTransformation", "optax.GradientTransformationExtraArgs"),
        ),
    },
    "optuna": {
        "reference/generated/{name}.html": (
            *("optuna.pruners.BasePruner", "optuna.study.Study", "optuna.trial.FrozenTrial"),
        ),
        "reference/samplers/generated/{name}.html": (
            *("optuna.samplers.BaseSampler", "optuna.samplers.CmaEsSampler"),
            *("optuna.samplers.NSGAIISampler", "optuna.samplers.QMCSampler"),
            *("optuna.samplers.RandomSampler", "optuna.samplers.TPESampler"),
        ),
    },
    "fiddle": {
        "api_reference/core.html": (
            *("fiddle.ArgFactory", "fiddle.Buildable", "fiddle.Config", "fiddle.Partial"),
            "fiddle.build",
        ),
    },
}


def load(name: str) -> Any:
    """Return the object of a full name."""
    package, _, attributes = name.partition(".")
    value: Any = importlib.import_module(package)
    for attribute in attributes.split("."):
        package = f"{package}.{attribute}"
        if not hasattr(value, attribute):
            importlib.import_module(package)
        value = getattr(value, attribute)
    return value


def objects(project: str) -> dict[str, tuple[str, str]]:
    """Return the role and the page of every object of a project's inventory, by full name."""
    return {
        name: ("class" if inspect.isclass(load(name)) else "function", page.format(name=name))
        for page, names in PAGES[project].items()
        for name in names
    }


def main() -> None:
    """Write all inventories."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    import sphobjinv

    FOLDER.mkdir(exist_ok=True)
    for project in PAGES:
        inventory = sphobjinv.Inventory()
        inventory.project, inventory.version = project, ""
        for name, (role, page) in sorted(objects(project).items()):
            inventory.objects.append(
                sphobjinv.DataObjStr(
                    name=name, domain="py", role=role, priority="1", uri=f"{page}#$", dispname="-"
                )
            )
        text = sphobjinv.compress(inventory.data_file())
        sphobjinv.writebytes(FOLDER / f"{project}.inv", text)


if __name__ == "__main__":
    main()
