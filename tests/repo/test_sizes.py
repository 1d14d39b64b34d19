"""The sizes that DESIGN sets: a reader can hold every module, function and constructor in mind."""

from __future__ import annotations

import ast
import collections
import dataclasses
import statistics

MODULE_CAP, MODULE_P90, MODULE_MEDIAN = 500, 350, 150
FUNCTION_CAP = 100
CLASS_CAP = 300
MODULES_IN_A_FOLDER = 12
CONSTRUCTOR_ARGUMENTS = 12
EXPERIMENT_FIELDS = 15

# The roots of graphs are counted by a rule of their own.
ROOT_NODES = ("Experiment", "Study")


def _lines(node) -> int:
    return node.end_lineno - node.lineno + 1


def _named(module, kinds):
    return [node for node in ast.walk(module.tree) if isinstance(node, kinds)]


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _is_field(statement: ast.stmt) -> bool:
    if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
        return False
    value = ast.unparse(statement.value) if statement.value else ""
    return "ClassVar" not in ast.unparse(statement.annotation) and "init=False" not in value


def constructor_arguments(node: ast.ClassDef) -> list[str]:
    """The names that a class's constructor takes, `self` left out."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            arguments = statement.args
            names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            return [a.arg for a in names if a.arg != "self"]
    if _is_dataclass(node):
        return [s.target.id for s in node.body if _is_field(s)]
    return []


def test_no_module_is_over_the_cap(modules):
    long = [f"{m.place}: {m.num_lines} lines" for m in modules if m.num_lines > MODULE_CAP]
    assert not long, f"modules over {MODULE_CAP} lines: {long}"


def test_test_modules_are_under_the_cap(root):
    counts = {path: path.read_text().count("\n") for path in (root / "tests").rglob("*.py")}
    long = [f"{p.relative_to(root)}: {n} lines" for p, n in counts.items() if n > MODULE_CAP]
    assert not long, f"test modules over {MODULE_CAP} lines: {long}"


def test_most_modules_are_short(modules):
    counts = sorted(m.num_lines for m in modules if not m.is_facade)
    assert statistics.median(counts) <= MODULE_MEDIAN
    ninetieth = counts[min(len(counts) - 1, int(0.9 * len(counts)))]
    assert ninetieth <= MODULE_P90, f"90 % of the modules should be <= {MODULE_P90} lines: {counts}"


def test_functions_are_under_the_cap(modules):
    long = [
        f"{module.place}:{node.lineno} {node.name}: {_lines(node)} lines"
        for module in modules
        for node in _named(module, (ast.FunctionDef, ast.AsyncFunctionDef))
        if _lines(node) > FUNCTION_CAP
    ]
    assert not long, f"functions over {FUNCTION_CAP} lines: {long}"


def test_classes_are_under_the_cap(modules):
    long = [
        f"{module.place}:{node.lineno} {node.name}: {_lines(node)} lines"
        for module in modules
        for node in _named(module, ast.ClassDef)
        if _lines(node) > CLASS_CAP
    ]
    assert not long, f"classes over {CLASS_CAP} lines: {long}"


def test_folders_hold_a_dozen_modules(modules):
    counts = collections.Counter(m.path.parent for m in modules if not m.is_facade)
    full = [f"{folder.name}: {n}" for folder, n in counts.items() if n > MODULES_IN_A_FOLDER]
    assert not full, f"folders with more than {MODULES_IN_A_FOLDER} modules: {full}"


def test_constructors_take_a_dozen_arguments(modules):
    wide = [
        f"{module.place}:{node.lineno} {node.name}: {len(constructor_arguments(node))}"
        for module in modules
        for node in _named(module, ast.ClassDef)
        if node.name not in ROOT_NODES and len(constructor_arguments(node)) > CONSTRUCTOR_ARGUMENTS
    ]
    assert not wide, f"constructors with more than {CONSTRUCTOR_ARGUMENTS} arguments: {wide}"


def test_the_experiment_has_few_fields():
    from luthier.program import Experiment

    names = [field.name for field in dataclasses.fields(Experiment)]
    assert len(names) <= EXPERIMENT_FIELDS, names
