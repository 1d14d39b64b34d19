"""The command line: one module per command, each a thin face of a call in Python.

Nothing here imports JAX, or any other room, before a command needs it.
"""

__all__: list[str] = []
