"""Docstrings that a machine can hold to account: arguments are told, formulas name their source."""

from __future__ import annotations

import ast
import re

import pytest

ROOMS_WITH_FORMULAS = ("layers", "losses", "optim", "metrics")

# Modules of those rooms that implement no formula, and what they hold instead.
WITHOUT_FORMULA = {
    "layers/attention/masks.py": "who may see whom",
    "layers/declared.py": "what others count",
    "layers/linear.py": "matrix products",
    "layers/parameters.py": "how parameters are made and named",
    "layers/stacks.py": "how layers are run",
    "losses/chunking.py": "how many positions at a time",
    "metrics/metric.py": "names",
    "metrics/ratio.py": "a sum and a weight",
    "metrics/selector.py": "which metric decides",
    "metrics/totals.py": "sums over batches",
    "contrib/optimizers/kronecker.py": "the state that Shampoo and SOAP share",
    "optim/layouts.py": "how parameters are made up, and what arrays are stored in",
    "optim/masks.py": "which parameters by name",
    "optim/optimizer.py": "what a recipe returns",
    "optim/partition.py": "which optimizer for which parameter",
}


def _docstrings(module) -> str:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(module.tree) if isinstance(node, kinds)]
    return "\n".join(ast.get_docstring(node) or "" for node in nodes)


def _exported(facade) -> set[str]:
    for node in facade.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def _parameters(node) -> list[str]:
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    extra = [a for a in (arguments.vararg, arguments.kwarg) if a]
    return [a.arg for a in (*named, *extra) if a.arg not in ("self", "cls") and a.arg[0] != "_"]


def _constructor_parameters(node: ast.ClassDef) -> list[str]:
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            return _parameters(statement)
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return [
            statement.target.id
            for statement in node.body
            if isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and not statement.target.id.startswith("_")
            and "ClassVar" not in ast.unparse(statement.annotation)
            and "init=False" not in (ast.unparse(statement.value) if statement.value else "")
        ]
    return []


def _undocumented(node, parameters: list[str]) -> list[str]:
    """Parameters that a docstring does not name, below `Args:` or in its sentences."""
    text = ast.get_docstring(node) or ""
    return [name for name in parameters if not re.search(rf"\b{name}\b", text)]


@pytest.mark.full
def test_public_names_document_their_arguments(modules):
    """What a facade exports names every argument in its docstring."""
    exported: dict[str, set[str]] = {}
    for facade in modules:
        if facade.is_facade and facade.room:
            exported.setdefault(facade.room, set()).update(_exported(facade))
    problems = []
    for module in modules:
        for node in module.tree.body:
            name = getattr(node, "name", "")
            if name.startswith("_") or name not in exported.get(module.room, ()):
                continue
            of_class = isinstance(node, ast.ClassDef)
            parameters = _constructor_parameters(node) if of_class else _parameters(node)
            missing = _undocumented(node, parameters)
            if missing:
                problems.append(f"{module.place}:{node.lineno} {name}: {', '.join(missing)}")
    assert not problems, "arguments that no docstring tells:\n" + "\n".join(problems)


def test_modules_with_formulas_name_their_source(modules):
    ours = [m for m in modules if m.room in ROOMS_WITH_FORMULAS and not m.is_facade]
    assert ours
    without = [m.place for m in ours if "Source:" not in _docstrings(m)]
    unknown = [place for place in without if place not in WITHOUT_FORMULA]
    assert not unknown, f"no `Source:` (authors, year, arXiv, equation) in {unknown}"


@pytest.mark.full
def test_the_list_of_modules_without_formula_is_current(modules):
    sourceless = {m.place for m in modules if "Source:" not in _docstrings(m)}
    assert set(WITHOUT_FORMULA) <= sourceless


@pytest.mark.full
def test_docstrings_begin_with_one_sentence(modules):
    """The first line stands alone in lists and pages: a sentence with its full stop."""
    problems = []
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node)
                first = text.split("\n\n")[0].strip() if text else "."
                if not first.endswith((".", ":", "!", "?")):
                    name = getattr(node, "name", "module")
                    problems.append(f"{module.place}:{getattr(node, 'lineno', 1)} {name}: {first}")
    assert not problems, "first paragraphs without a full stop:\n" + "\n".join(problems)
