"""Annotations of layers for counting FLOPs and for plans: masked pairs, FLOPs of kernels.

The products of a traced program can be counted from its jaxpr. The jaxpr shows neither that a
kernel may skip the pairs that a mask hides, nor the work of an opaque kernel; and some kernels
cannot even be traced where their device is absent. Layers declare these here.

Shapes: L queries, S keys.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from fractions import Fraction
from typing import Any

import jax

# The numbers travel as text, in names of scopes and of jitted functions. It is the only annotation
# that JAX carries through `vmap`, `grad`, `scan` and `checkpoint` into the jaxpr of a whole step; a
# primitive of our own would need rules for each of these, and a lowering.
_PAIRS = re.compile(r"pairs_(\d+)_of_(\d+)")
_KERNEL = re.compile(r"kernel_of_(\d+)_flops_.*")
_is_abstract = contextvars.ContextVar("is_abstract", default=False)


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


def kernel(
    call: Callable[..., Any], abstract: Callable[..., Any], *, flops: int
) -> Callable[..., Any]:
    """Return an opaque kernel as one operation that declares its FLOPs.

    The forward and the backward function of a `jax.custom_vjp` are two kernels, each with FLOPs of
    its own.

    Args:
      call: Runs the kernel.
      abstract: Computes the same by operations that can be traced anywhere; it stands in for the
        kernel within `abstract_forms`.
      flops: Multiplications and additions of its products, all pairs included; those that a mask
        hides are declared by `visible` around the call.
    """

    def named(*arguments: Any) -> Any:
        return call(*arguments)

    named.__name__ = f"kernel_of_{flops}_flops_{getattr(call, '__name__', 'call')}"
    run = jax.jit(named)

    def either(*arguments: Any) -> Any:
        return abstract(*arguments) if _is_abstract.get() else run(*arguments)

    return either


def kernel_flops(name: str) -> int | None:
    """Return the FLOPs that a kernel declared; None if the name is not that of a kernel.

    Args:
      name: The name of a jitted function, as its equation has it.
    """
    match = _KERNEL.fullmatch(name)
    return None if match is None else int(match[1])


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
