"""Compiling for tests that only look whether something runs, not at its last bits or its speed."""

import jax
import numpy as np

from luthier import program as programs

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Options for `jax.jit` and `Lowered.compile`."""

QUICK_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""The same as XLA_FLAGS, for processes."""


def quick_step(program):
    """Compile the training step of a program without optimizing its machine code.

    It computes the same up to rounding, and takes half as long to compile. What compares bits or
    follows a training compiles with `Program.compile_step`, which is as users do at night, and
    like this in the ordinary set (`tests/conftest.py`).
    """
    return program.traced_step.lower().compile(compiler_options=QUICK)


def gradient(case, batch, leaves):
    """Return the gradient, compiled without optimizing the machine code: it is computed once."""
    program = case.program

    def compute(values, leaves, batch):
        with program.tracing(values) as experiment:
            return programs.gradient_of(experiment, program.named(leaves), batch)[1]

    shardings = tuple(leaf.sharding for leaf in program.abstract_leaves)
    arguments = case.values, jax.device_put(leaves, shardings), case.put(batch)
    found = jax.jit(compute).lower(*arguments).compile(compiler_options=QUICK)(*arguments)
    return {name: np.asarray(array) for name, array in found.items()}
