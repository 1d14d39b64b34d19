"""Build every listed name with hostile arguments, in a process that watches what that does.

    python hostile_builds.py COUNT SEED

It prints a JSON object: how many graphs were loaded and built, how many of them were refused or
failed, and every effect: files opened for writing, removed or renamed, processes, sockets,
unpickled names, libraries loaded. It is started in an empty folder that is its home as well.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import pickle
import random
import signal
import sys
import warnings
from typing import Any

from luthier import graph as graphs
from luthier.errors import LuthierError
from luthier.graph import public_names, signatures

EFFECTS = frozenset(
    {
        *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod"),
        *("os.chown", "os.truncate", "os.utime", "os.putenv", "os.unsetenv", "os.chdir", "os.kill"),
        *("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"),
        *("shutil.rmtree", "shutil.copyfile", "shutil.move", "subprocess.Popen", "pty.spawn"),
        *("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "socket.__new__"),
        *("urllib.Request", "pickle.find_class", "ctypes.dlopen", "sqlite3.connect"),
        *("tempfile.mkstemp", "tempfile.mkdtemp", "webbrowser.open", "exec_of_text"),
    }
)
TEXTS = (
    *("../../x", "/etc/passwd", "~/.profile", "file:///etc/passwd", "http://127.0.0.1:1/x"),
    *("$(touch owned)", "; touch owned #", "`touch owned`", "owned", "a/../../b\0c", "\n#SBATCH x"),
    *("sqlite:///owned.db", "gs://bucket/x", "os.system", "__import__('os').system('x')", ""),
    *("float32", "cpu:1", "(?P<a>.*", "{0.__class__}", "run:last", "best", "\x1b]0;x\x07"),
)


class _Bomb:
    def __reduce__(self) -> Any:
        return (os.system, ("touch owned",))


PICKLE = pickle.dumps(_Bomb())
SCALARS = (
    *(None, True, False, 0, 1, 2, 3, 7, -1, 0.0, 0.5, -1.5, 1e30),
    *({"float": "nan"}, {"float": "inf"}, {"bytes": PICKLE.hex()}, {"ellipsis": True}),
    *({"path": "owned", "kind": "Path"}, {"path": "/etc/passwd", "kind": "Path"}),
    *({"dtype": "float32"}, {"dtype": "object"}, {"complex": "1j"}, {"slice": [0, 2, None]}),
    *({"partition_spec": ["data", None]}, {"range": [0, 3, 1]}),
)


class Limit(Exception):
    """A build took too long."""


class Hostile:
    """Makes records at random.

    Args:
      seed: Of the random numbers.
    """

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.names = [n for n, role in public_names.listed().items() if role != public_names.NONE]
        self.nodes = [n for n in self.names if public_names.listed()[n] in public_names.NODES]

    def value(self, depth: int) -> Any:
        """Return a value of an argument."""
        kind = self.random.random()
        if kind < 0.4:
            return self.random.choice(TEXTS)
        if kind < 0.65:
            return self.random.choice(SCALARS)
        if kind < 0.75:
            return {"name": self.random.choice(self.names)}
        if kind < 0.87 and depth:
            return self.node(self.random.choice(self.nodes), depth - 1)
        items = [self.value(max(depth - 1, 0)) for _ in range(self.random.randrange(3))]
        if kind < 0.95:
            return items
        return {"dict": {self.random.choice(TEXTS) or "a": item for item in items}}

    def node(self, name: str, depth: int) -> Any:
        """Return a node of a listed class or function, with arguments that it takes."""
        try:
            known = signatures.arguments(public_names.load_object(name))
        except Exception:
            return {"config": name, "arguments": {}}
        missing = [part for part in known.names if part not in known.defaults]
        optional = [part for part in known.names if part in known.defaults]
        chosen = missing + [part for part in optional if self.random.random() < 0.3]
        if known.has_kwargs and self.random.random() < 0.3:
            chosen.append("extra")
        kind = self.random.choice(("config", "config", "config", "partial", "factory"))
        return {kind: name, "arguments": {part: self.value(depth) for part in chosen}}


def main(count: int, seed: int, control: str = "", packages: tuple[str, ...] = ()) -> None:
    """Load and build so many hostile records; print what came of it.

    Args:
      count: How many.
      seed: Of the random numbers.
      control: The last record, which shows that effects are seen; none where empty.
      packages: The user's packages, for the control.
    """
    hostile = Hostile(seed)
    _warm(hostile)
    effects: list[str] = []
    current = ["start"]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            flags = arguments[2] or 0
            if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                return
        elif event not in EFFECTS:
            return
        effects.append(f"{current[0]}: {event} {arguments!r}"[:300])

    sys.addaudithook(watch)

    def late(*_: object) -> None:
        raise Limit

    signal.signal(signal.SIGALRM, late)
    outcomes = {"built": 0, "refused": 0, "failed": 0, "late": 0}
    built: set[str] = set()
    order = list(hostile.nodes)
    for number in range(count):
        if number % len(order) == 0:
            hostile.random.shuffle(order)
        name = order[number % len(order)]
        record = {"config": name, "arguments": hostile.node(name, 2)["arguments"]}
        if number == count - 1 and control:
            record = json.loads(control)
        current[0] = json.dumps(record)[:160]
        text = json.dumps({"format": "luthier.graph", "version": 1, "graph": record})
        try:
            signal.setitimer(signal.ITIMER_REAL, 5)
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = graphs.build(graphs.from_json(text, packages))
                made = made() if number % 4 == 0 and callable(made) else made
            outcomes["built"] += 1
            built.add(name)
        except Limit:
            outcomes["late"] += 1
        except LuthierError:
            outcomes["refused"] += 1
        except Exception:
            outcomes["failed"] += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if len(effects) > 50:
            break
    print(json.dumps({**outcomes, "names": len(order), "ever": len(built), "effects": effects}))


def _warm(hostile: Hostile) -> None:
    """Import everything and compile something first: what libraries do once is none of a record."""
    import jax

    for name in hostile.names:
        with contextlib.suppress(Exception):
            public_names.load_object(name)
    jax.numpy.ones((2, 2)).sum().block_until_ready()


if __name__ == "__main__":
    faulthandler.enable()
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:4], packages=tuple(sys.argv[4:]))
