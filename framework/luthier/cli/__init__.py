"""The command line: one module per command, each a thin wrapper around a call in Python.

Nothing here imports JAX, or another package of luthier, before a command needs it.
"""

__all__: list[str] = []
