"""A child among the processes of its run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator

from luthier.cli.hosts.options import Process
from luthier.errors import LuthierError


@contextlib.contextmanager
def joined(process: Process) -> Iterator[None]:
    """Join the other processes; at the end of the `with` block leave them, or say why this fails.

    Args:
      process: Which process this is.

    Raises:
      BadInput: The others cannot be joined, or differ in their versions or their source.
    """
    import jax

    from luthier.parallel import distributed
    from luthier.records import read_facts

    told = distributed.Membership.of_environment(os.environ)
    known = {name: value for name, value in vars(told).items() if value is not None}
    membership = dataclasses.replace(told, **known | dict(process.membership))
    distributed.join(membership, read_facts())
    index = distributed.process_index()
    distributed.tell_parent(process=index, processes=distributed.process_count())
    if index:
        sys.stdout.close()
        sys.stdout = sys.stderr  # the log
    try:
        yield
    except BaseException as raised:
        error = distributed.explain(raised) if isinstance(raised, Exception) else raised
        distributed.farewell(_line(error))
        if error is raised:
            raise
        raise error from raised
    jax.distributed.shutdown()


def _line(error: BaseException) -> str:
    text = str(error) if isinstance(error, LuthierError) else repr(error)
    return " ".join(text.split())[:500]
