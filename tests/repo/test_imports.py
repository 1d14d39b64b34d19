"""What importing does: no warning, no circle, and no heavy library where none is needed."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
import tomllib

import pytest

# Libraries are loaded once; each module is then imported first in a child of its own.
IMPORT_EACH_FIRST = """
import contextlib, importlib, os, sys, traceback, warnings

for library in ("fiddle", "flax.nnx", "grain", "jax", "numpy", "optax", "orbax.checkpoint"):
    with contextlib.suppress(ImportError):
        importlib.import_module(library)
failed = 0
for name in sys.argv[1:]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child:
        failed += os.waitpid(child, 0)[1] != 0
        continue
    try:
        importlib.import_module(name)
        os._exit(0)
    except BaseException:
        print(name, traceback.format_exc(limit=-3), sep="\\n", flush=True)
        os._exit(1)
sys.exit(failed)
"""

HEAVY = ("jax", "flax", "optax", "orbax", "grain", "wandb", "optuna", "fiddle", "numpy", "rich")


def _python(*arguments, cwd=None):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd)


def _imported_first(modules, chosen):
    names = [m.import_name for m in modules if m.path.name != "__main__.py" and chosen(m.path)]
    assert names
    done = _python("-W", "error", "-c", IMPORT_EACH_FIRST, *names)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


@pytest.mark.full
def test_every_room_imports_alone_with_warnings_as_errors(modules):
    """Every package is imported first, before any other of ours: circles show."""
    _imported_first(modules, lambda path: path.name == "__init__.py")


@pytest.mark.slow
def test_every_module_imports_alone_with_warnings_as_errors(modules):
    _imported_first(modules, lambda path: path.name != "__init__.py")


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = _python("-c", code)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    assert not _loaded_by("import luthier") & set(HEAVY)


def test_importing_the_command_loads_nothing_heavy():
    assert not _loaded_by("import luthier.cli.command_line") & set(HEAVY)


def test_importing_the_graph_loads_no_array_library():
    assert not _loaded_by("import luthier.graph") & {"jax", "flax", "optax"}


def _module_level_imports(tree: ast.Module):
    """The top-level names that a module imports when it is imported."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            waiting.extend(ast.iter_child_nodes(node))


def _imports(tree: ast.Module, known: set[str]):
    """Every module of ours that a module imports, in functions and for type checkers too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in known else node.module


def test_no_two_modules_need_each_other(modules):
    """A circle cannot hide in a function either, as it can from import-linter."""
    known = {module.import_name for module in modules}
    needs = {
        module.import_name: (set(_imports(module.tree, known)) & known) - {module.import_name}
        for module in modules
    }
    try:
        order = list(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" needs ".join(reversed(error.args[1])))
    assert set(order) == known


def test_every_module_is_reached_from_a_command_a_facade_or_an_entry_point(modules, root):
    """What only tests import is dead."""
    by_name = {module.import_name: module for module in modules}
    known = set(by_name)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    groups = [*project["entry-points"].values(), project["scripts"]]
    waiting = {place.partition(":")[0] for group in groups for place in group.values()}
    waiting |= {m.import_name for m in modules if m.is_facade or "/commands/" in m.place}
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        reached.add(name)
        tree = by_name[name].tree
        waiting |= (set(_imports(tree, known)) & known) - reached
        # Modules are named in texts, too: `luthier.launch.worker` for `python -m`, names in tables
        # of lazy facades (`engines.planned`), and a file that is printed (`dump_pax.py`).
        package = name if by_name[name].is_facade else name.rpartition(".")[0]
        texts = {str(n.value) for n in ast.walk(tree) if isinstance(n, ast.Constant)}
        named = {text.partition(":")[0] for text in texts}
        named |= {f"{package}.{text}" for text in named}
        files = {m.import_name for m in modules if m.path.name in texts}
        waiting |= ((named | files) & known) - reached
    assert reached == known, sorted(known - reached)


def test_graph_names_no_array_library_at_module_level(modules):
    graph = [module for module in modules if module.room == "graph"]
    assert graph
    bad = [
        f"{module.place}: {name}"
        for module in graph
        for name in _module_level_imports(module.tree)
        if name in ("jax", "flax", "optax")
    ]
    assert not bad, bad


def test_modules_say_annotations_from_the_future(modules):
    """PEP 563 keeps annotations cheap, and the same on every Python that we support."""
    without = [
        module.place
        for module in modules
        if module.path.name not in ("__init__.py", "__main__.py")
        and "from __future__ import annotations" not in module.text
    ]
    assert not without, without
