"""Compiling for tests that only look whether something runs, not at its last bits or its speed."""


def quick_step(program):
    """Compile the training step of a program without optimizing its machine code.

    It computes the same up to rounding, and takes half as long to compile. What compares bits or
    follows a training compiles with `Program.compile_step`, as users do.
    """
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    return program.traced_step.lower().compile(compiler_options=options)
