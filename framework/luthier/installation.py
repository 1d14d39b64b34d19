"""Patches of other libraries, which are installed explicitly and never by an import.

There are three, none of which changes numbers:

- Flax's metaclass exposes the arguments of NNX classes, so that Fiddle checks their names
  (`graph/signatures.py`).
- Fiddle's history names the lines of a reference or fiddler that set a value, and not those of
  luthier (`graph/origins.py`).
- JAX lowers its generator of random bits for CPUs without loops, which halves the time to compile
  an initialization; the bits are the same (`parallel/random_bits.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from luthier.facade import root_function
from luthier.graph import origins, signatures
from luthier.parallel import random_bits


@root_function("install")
def install() -> Callable[[], None]:
    """Install all patches now; patches that are installed already stay as they are.

    Functions of luthier do this themselves when they are called: `luthier.graph.resolve` before it
    imports a module of yours, and every function that compiles. Call `install` first in a notebook
    that makes nodes by hand, so that Fiddle rejects a wrong argument at once, and not `validate`
    later.

    Returns:
      A function that removes all patches again.

    Example:
      >>> import luthier
      >>> undo = luthier.install()
      >>> undo()
    """
    signatures.install()
    origins.install()
    restore_random_bits = random_bits.install()

    def undo() -> None:
        # In the opposite order of installing, as for all patches that may wrap each other.
        restore_random_bits()
        origins.uninstall()
        signatures.uninstall()

    return undo
