"""What is saved while training goes on: the step donates its buffers, so they are copied first."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax


class Copying(abc.ABC):
    """How arrays are kept for a save from the steps that follow."""

    @property
    @abc.abstractmethod
    def in_background(self) -> bool:
        """Whether the way to the host is left to a thread, while steps are taken."""

    @abc.abstractmethod
    def __call__(self, arrays: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        """Return arrays that no step touches, once this returns or once Orbax has read them."""


@dataclasses.dataclass(frozen=True)
class HostCopy(Copying):
    """Copies to the host before the next step begins: no more device memory, a longer pause."""

    @property
    def in_background(self) -> bool:
        """False: the step waits for the copy."""
        return False

    def __call__(self, arrays: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        """Return the arrays as they are: Orbax copies them before `save` returns."""
        return arrays


@dataclasses.dataclass(frozen=True)
class DeviceCopy(Copying):
    """Copies on the device, and to the host while the next steps run: a short pause.

    It takes the memory of the state once more, from the save until the host has it.
    """

    @property
    def in_background(self) -> bool:
        """True: only the copy on the device comes before the next step."""
        return True

    def __call__(self, arrays: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        """Return copies, which the device makes in the order of its work."""
        import jax.numpy as jnp

        return {name: jnp.copy(array) for name, array in arrays.items()}
