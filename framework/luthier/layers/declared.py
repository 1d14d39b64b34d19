"""What layers declare to who counts and plans them: pairs that masks hide, FLOPs of kernels.

A traced program tells its products by itself. It tells neither that a kernel may skip the pairs
that a mask hides, nor what an opaque kernel computes; and some kernels cannot even be traced where
their device is absent. They declare it here.

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

_PAIRS = re.compile(r"pairs_(\d+)_of_(\d+)")
_KERNEL = re.compile(r"kernel_of_(\d+)_flops_.*")
_is_abstract = contextvars.ContextVar("is_abstract", default=False)


def visible(share: Fraction) -> AbstractContextManager[Any]:
    """Say, to who counts FLOPs, which share of all pairs a mask lets through.

    Products of pairs are traced within it: scores, and their use.

    Args:
      share: Of the pairs of queries and keys, from 0 to 1.
    """
    return jax.named_scope(f"pairs_{share.numerator}_of_{share.denominator}")


def visible_share(name_stack: str) -> Fraction:
    """Return which share of its pairs an operation needs: all, unless traced within `visible`.

    Args:
      name_stack: The names of the scopes around the operation.
    """
    found = _PAIRS.search(name_stack)
    return Fraction(1) if found is None else Fraction(int(found[1]), int(found[2]))


def kernel(
    call: Callable[..., Any], abstract: Callable[..., Any], *, flops: int
) -> Callable[..., Any]:
    """Return an opaque kernel as one operation that tells what it computes.

    The forward and the backward function of a `jax.custom_vjp` are two kernels, each with FLOPs of
    its own.

    Args:
      call: Runs the kernel.
      abstract: Gives the same by operations that can be traced anywhere; it stands for the kernel
        within `abstract_forms`.
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
    """Return the FLOPs that a kernel declared; None where the name is of no kernel.

    Args:
      name: The name of a jitted function, as its equation has it.
    """
    found = _KERNEL.fullmatch(name)
    return None if found is None else int(found[1])


def is_abstract() -> bool:
    """Return whether kernels stand by their abstract forms."""
    return _is_abstract.get()


@contextlib.contextmanager
def abstract_forms() -> Iterator[None]:
    """Let kernels stand by their abstract forms, which can be traced without their device."""
    token = _is_abstract.set(True)
    try:
        yield
    finally:
        _is_abstract.reset(token)
