"""What luthier changes in other libraries, which no import does.

Three things, each without an effect on numbers:

- Flax's metaclass tells the arguments of NNX classes, so that Fiddle checks their names
  (`graph/signatures.py`).
- Fiddle's history names the lines of a reference or fiddler that set a value, and not those of
  luthier (`graph/origins.py`).
- JAX lowers its generator of random bits for CPUs without loops, which halves the time to compile
  an initialization; the bits are the same (`parallel/random_bits.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from luthier.graph import origins, signatures
from luthier.parallel import random_bits


def install() -> Callable[[], None]:
    """Install all of it now; what is installed already stays as it is.

    Functions of luthier do this themselves when they are called: `luthier.graph.resolve` before it
    imports a module of yours, and whatever compiles. Call it first in a notebook that makes nodes
    by hand, so that Fiddle refuses a wrong argument at once, and not `validate` later.

    Returns:
      A function that takes everything away again.

    Example:
      >>> import luthier
      >>> undo = luthier.install()
      >>> undo()
    """
    signatures.install()
    origins.install()
    put_back = random_bits.install()

    def undo() -> None:
        put_back()
        origins.uninstall()
        signatures.uninstall()

    return undo
