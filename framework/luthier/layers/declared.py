"""Annotations of layers for counting FLOPs and for plans: masked pairs, kernels, chosen cores.

The products of a traced program can be counted from its jaxpr. The jaxpr shows neither that a
kernel may skip the pairs that a mask hides, nor the work of an opaque kernel; and some kernels
cannot even be traced where their device is absent. What is compiled there instead, a kernel's
abstract form, writes arrays that the kernel never does: the program's bytes are not the kernel's.
Layers declare these here.

Shapes: L queries, S keys.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from fractions import Fraction
from typing import Any

import jax

# The numbers travel as text, in names of scopes and of jitted functions. It is the only annotation
# that JAX carries through `vmap`, `grad`, `scan` and `checkpoint` into the jaxpr of a whole step; a
# primitive of our own would need rules for each of these, and a lowering.
_PAIRS = re.compile(r"pairs_(\d+)_of_(\d+)")
_COUNTED = re.compile(r"active_(\d+)_of_(\d+)")
_UNBALANCED = "unbalanced_only"
_CHOICE = re.compile(r"attention_by_([A-Za-z]+)_for_([a-z_]+)")
_KERNEL = re.compile(r"kernel_of_(\d+)_flops_(\d+)_bytes_")
_is_abstract = contextvars.ContextVar("is_abstract", default=False)
_is_merged = contextvars.ContextVar("is_merged", default=False)


def visible(share: Fraction) -> AbstractContextManager[Any]:
    """Declare the share of all pairs that a mask leaves visible.

    Products of pairs are traced within the context: scores, and their use.

    Args:
      share: Of the pairs of queries and keys, from 0 to 1.
    """
    return jax.named_scope(f"pairs_{share.numerator}_of_{share.denominator}")


def visible_share(name_stack: str) -> Fraction:
    """Return the share of its pairs that an operation needs: all, unless traced within `visible`.

    Args:
      name_stack: The names of the scopes around the operation.
    """
    # Anywhere in the stack: transformations wrap names, as in `transpose(jvp(pairs_1_of_2))`.
    match = _PAIRS.search(name_stack)
    return Fraction(1) if match is None else Fraction(int(match[1]), int(match[2]))


def counted(active: int, places: int) -> AbstractContextManager[Any]:
    """Declare, for the count of FLOPs, how many of the computed places hold a choice at best.

    Around a loop whose number of turns is data, `places` are those of one turn: the count sees only
    one of them.

    Args:
      active: Choices to compute.
      places: Places that are computed.
    """
    return jax.named_scope(f"active_{active}_of_{places}")


def share_of(name_stack: str) -> tuple[int, int] | None:
    """Return active and all places of an operation, if it was traced within `counted`.

    Args:
      name_stack: The names of the scopes around the operation.
    """
    match = _COUNTED.search(name_stack)
    return None if match is None else (int(match[1]), int(match[2]))


def unbalanced() -> AbstractContextManager[Any]:
    """Declare that a loop traced within the context has no turn where the load is balanced.

    FLOPs and plans leave it out, as they are those of a balanced load.
    """
    return jax.named_scope(_UNBALANCED)


def is_unbalanced(name_stack: str) -> bool:
    """Return whether an operation was traced within `unbalanced`.

    Args:
      name_stack: The names of the scopes around the operation.
    """
    return _UNBALANCED in name_stack


def chosen(core: str, reasons: Sequence[str]) -> AbstractContextManager[Any]:
    """Declare the core that attends within the context, where it was chosen and not set.

    Args:
      core: Name of its class.
      reasons: Why, as words of lower case letters.
    """
    return jax.named_scope(f"attention_by_{core}_for_{'_'.join(reasons)}")


def choice(name_stack: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the class and the reasons of the core that an operation belongs to, if it was chosen.

    Args:
      name_stack: The names of the scopes around the operation.
    """
    match = _CHOICE.search(name_stack)
    return None if match is None else (match[1], tuple(match[2].split("_")))


def kernel(
    call: Callable[..., Any],
    abstract: Callable[..., Any],
    *,
    flops: int,
    bytes: int | None = None,
) -> Callable[..., Any]:
    """Return an opaque kernel as one operation that declares its FLOPs and its bytes.

    Its abstract form declares the same: plans count neither the products nor the bytes of that
    form. The forward and the backward function of a `jax.custom_vjp` are two kernels, each with
    costs of its own.

    Args:
      call: Runs the kernel.
      abstract: Computes the same by operations that can be traced anywhere; it stands in for the
        kernel within `abstract_forms`.
      flops: Multiplications and additions of its products, all pairs included; those that a mask
        hides are declared by `visible` around the call.
      bytes: Bytes that it reads from memory and writes to it, over all devices; None means that it
        reads its arguments and writes its results once.
    """

    # JAX splits a jitted function where a part of it can be moved out of a loop, such as a mask
    # that depends on positions alone, and both parts keep its name. The barrier needs all
    # arguments, so it is in one of them: that part is the kernel (`is_kernel`). Nor can the
    # compiler fuse the arrays before a kernel into its abstract form, as it cannot for the kernel.
    def either(*arguments: Any) -> Any:
        form = abstract if _is_abstract.get() else call

        def named(*arguments: Any) -> Any:
            return form(*jax.lax.optimization_barrier(arguments))

        moved = bytes
        if moved is None:
            arrays = (arguments, jax.eval_shape(form, *arguments))
            moved = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arrays))
        name = getattr(call, "__name__", "call")
        named.__name__ = f"kernel_of_{flops}_flops_{moved}_bytes_{name}"
        return jax.jit(named)(*arguments)

    return either


def is_kernel(name: str, primitives: Collection[str]) -> bool:
    """Return whether a jitted function is a kernel that declares its costs.

    Args:
      name: Its name, as its equation has it.
      primitives: The names of the primitives of its body.
    """
    return _KERNEL.match(name) is not None and "optimization_barrier" in primitives


def kernel_flops(name: str) -> int | None:
    """Return the FLOPs that a kernel declared; None if the name is not that of a kernel.

    Args:
      name: The name of a jitted function, as its equation has it.
    """
    match = _KERNEL.match(name)
    return None if match is None else int(match[1])


def kernel_bytes(name: str) -> int | None:
    """Return the bytes that a kernel declared; None if the name is not that of a kernel.

    Args:
      name: The name of a jitted function, as its equation has it.
    """
    match = _KERNEL.match(name)
    return None if match is None else int(match[2])


def is_of_kernel(name_stack: str) -> bool:
    """Return whether an operation is part of a kernel that declares its costs.

    Args:
      name_stack: The names of the scopes around the operation.
    """
    return _KERNEL.search(name_stack) is not None


def is_abstract() -> bool:
    """Return whether kernels are replaced by their abstract forms."""
    return _is_abstract.get()


@contextlib.contextmanager
def abstract_forms() -> Iterator[None]:
    """Replace kernels by their abstract forms, which can be traced without their device.

    Yields:
      Nothing; use it as `with abstract_forms():` around a trace.

    Example:
      >>> from luthier import layers
      >>> with layers.abstract_forms():
      ...     pass  # trace a program for a device that is absent
    """
    token = _is_abstract.set(True)
    try:
        yield
    finally:
        _is_abstract.reset(token)


def is_merged() -> bool:
    """Return whether scans of one iteration are traced without their remat policy."""
    return _is_merged.get()


@contextlib.contextmanager
def merged() -> Iterator[None]:
    """Trace scans of one iteration without their remat policy, as XLA for GPUs leaves them.

    Where a scan of all layers is no loop, XLA merges a layer with its recomputation, or computes
    the gradients of the parameters of all layers last; then it keeps about as much as without a
    policy.

    Yields:
      Nothing; use it as `with merged():` around a trace whose memory is estimated.
    """
    token = _is_merged.set(True)
    try:
        yield
    finally:
        _is_merged.reset(token)
