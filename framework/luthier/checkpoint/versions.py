"""Which packages wrote a checkpoint, and what it means when they have changed."""

from __future__ import annotations

import functools
from collections.abc import Mapping

_PACKAGES = (*("flax", "grain", "jax", "jaxlib", "luthier", "numpy", "optax", "orbax-checkpoint"),)


@functools.cache
def current() -> Mapping[str, str]:
    """Return the versions of the packages that decide what a checkpoint is."""
    import importlib.metadata

    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "unknown"
    return versions


def notices(saved: Mapping[str, str]) -> list[str]:
    """Return one line for each change of version that may change what follows."""
    now = current()
    changed = {name: old for name, old in saved.items() if name in now and now[name] != old}
    reasons = {
        "grain": "it promises to restore the order of the data only within one version",
        "jax": "the same program may round differently",
        "jaxlib": "the same program may round differently",
        "flax": "layers may compute something else",
        "optax": "updates may be computed otherwise",
        "numpy": "random data may differ",
        "orbax-checkpoint": "",
        "luthier": "",
    }
    return [
        f"the checkpoint was written with {name} {old}, this is {now[name]}"
        + (f": {reasons[name]}" if reasons[name] else "")
        for name, old in sorted(changed.items())
    ]
