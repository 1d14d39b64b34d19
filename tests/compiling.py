"""Compiling for tests that only look whether something runs, not at its last bits or its speed."""

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
