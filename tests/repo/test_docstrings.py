"""Docstrings that a machine can hold to account: arguments are told, formulas name their source."""

from __future__ import annotations

import ast
import importlib
import inspect
import re

import pytest

from luthier import errors

ROOMS_WITH_FORMULAS = ("layers", "losses", "optim", "metrics")

# Modules of those rooms that implement no formula, and what they hold instead.
WITHOUT_FORMULA = {
    "layers/attention/auto.py": "the choice of others that compute attention",
    "layers/attention/kernels.py": "what others count",
    "layers/declared.py": "what others count",
    "layers/linear.py": "matrix products",
    "layers/parameters.py": "how parameters are made and named",
    "layers/stacks.py": "how layers are run",
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


# What users import: the names of each package's `__all__`, and the methods of exported classes. The
# command line (`cli`) has a manual of its own.
_SECTION = re.compile(
    r"^(Args|Attributes|Returns|Yields|Raises|Example|Source|Deviation):", re.MULTILINE
)
_CLAUSE = re.compile(r"(?:What|Who|Whose|Whom|Which|How|Why|When|Where|Whether|That)\b")
_NOTHING = ("None", "NoReturn", "Never")
_SHAPE = re.compile(r"\[|\bshapes?\b|\bscalar|\bby name\b|\b[Ll]ike\b|\bsame (?:array|values)\b")


def _sections(node) -> dict[str, str]:
    first, *parts = _SECTION.split(ast.get_docstring(node) or "")
    return {"": first, **dict(zip(parts[::2], parts[1::2], strict=True))}


def _exported_objects(modules) -> set[tuple[str, str]]:
    """Return module and name of every function and class that a package exports."""
    packages = [
        module.import_name
        for module in modules
        if module.room not in ("", "cli", "shipped")
        and (module.is_facade or module.room == "contrib")
        and module.place.count("/") <= (2 if module.room == "contrib" else 1)
    ]
    assert len(packages) > 20
    found: set[tuple[str, str]] = set()
    for package in map(importlib.import_module, ["luthier", *packages]):
        names = getattr(package, "__all__", ())
        pending = [getattr(package, name) for name in names]
        while pending:
            value = pending.pop()
            if inspect.ismodule(value) and value.__name__.startswith(f"{package.__name__}."):
                pending += [getattr(value, name) for name in getattr(value, "__all__", ())]
            elif inspect.isclass(value):
                found.add((value.__module__, value.__qualname__))
            elif inspect.isfunction(value):
                # By its code: functions of the root are named after `luthier`, not their module.
                code = inspect.unwrap(value).__code__
                found.add((inspect.getmodule(code).__name__, code.co_qualname))
    return {(module, name) for module, name in found if not module.startswith("luthier.cli.")}


@pytest.fixture(scope="module")
def public_nodes(modules):
    """Place, name and syntax tree of each exported function and class, and of public methods."""
    exported, nodes = _exported_objects(modules), []
    for module in modules:
        for node in module.tree.body:
            name = getattr(node, "name", "")
            if (module.import_name, name) not in exported:
                continue
            nodes.append((f"{module.place}:{node.lineno} {name}", node))
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if not isinstance(inner, ast.FunctionDef):
                    continue
                decorators = " ".join(map(ast.unparse, inner.decorator_list))
                is_public = not inner.name.startswith("_") or inner.name == "__call__"
                if is_public and "property" not in decorators and "setter" not in decorators:
                    nodes.append((f"{module.place}:{inner.lineno} {name}.{inner.name}", inner))
    assert len(nodes) > 1500
    return nodes


def _functions(nodes):
    for place, node in nodes:
        decorators = getattr(node, "decorator_list", ())
        if isinstance(node, ast.FunctionDef) and "overload" not in map(ast.unparse, decorators):
            yield place, node


@pytest.mark.full
def test_public_functions_document_arguments_and_results_in_sections(public_nodes):
    problems = []
    for place, node in _functions(public_nodes):
        sections = _sections(node)
        if _parameters(node) and "Args" not in sections:
            problems.append(f"{place}: no `Args:`")
        returns = ast.unparse(node.returns) if node.returns else "None"
        if returns not in _NOTHING and not sections.keys() & {"Returns", "Yields"}:
            problems.append(f"{place}: no `Returns:`")
    assert not problems, "\n".join(problems)


@pytest.mark.full
def test_public_functions_document_the_errors_that_they_raise(public_nodes):
    ours = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert "BadInput" in ours
    problems = []
    for place, node in _functions(public_nodes):
        raised = {
            ast.unparse(inner.exc.func)
            for inner in ast.walk(node)
            if isinstance(inner, ast.Raise) and isinstance(inner.exc, ast.Call)
        }
        if raised & ours and "Raises" not in _sections(node):
            problems.append(f"{place}: raises {', '.join(sorted(raised & ours))}; no `Raises:`")
    assert not problems, "\n".join(problems)


@pytest.mark.full
def test_public_functions_that_return_arrays_state_shapes(public_nodes):
    problems = []
    for place, node in _functions(public_nodes):
        returns = ast.unparse(node.returns) if node.returns else ""
        if re.search(r"\b(?:jax\.Array|np\.ndarray|ArrayLike)\b", returns):
            text = _sections(node).get("Returns", _sections(node).get("Yields", ""))
            if not _SHAPE.search(text):
                problems.append(f"{place}: no shape in {' '.join(text.split())!r}")
    assert not problems, "\n".join(problems)


@pytest.mark.full
def test_summaries_are_sentences_and_no_bare_clauses(public_nodes):
    """A list of summaries reads `A mask ...`, `Return ...`; never `What is masked.`."""
    classes = [(place, node) for place, node in public_nodes if isinstance(node, ast.ClassDef)]
    problems = [
        f"{place}: {first}"
        for place, node in (*classes, *_functions(public_nodes))
        if _CLAUSE.match(first := (ast.get_docstring(node) or "What?").partition("\n")[0])
    ]
    assert not problems, "\n".join(problems)


# Exported functions without an example, and the reason: each takes seconds, or needs more than one
# process on one machine has. A file of `SIZES` shows one for all sizes of its family.
SIZES = ("recipes/decoders/", "recipes/encoders/", "recipes/vision.py", "recipes/published.py")
COMPILES = "compiles a program, or trains"
NEEDS_RUN = "needs a recorded run, a study or a launch"
NEEDS_OTHERS = "needs other processes, hosts or W&B"
NEEDS_PACKAGE = "needs an optional package"
SETS_PROCESS = "changes the process for good"
WITHOUT_EXAMPLE = {
    COMPILES: {
        *("checked_program", "cpu_chip", "device_facts", "evaluate_step"),
        *("export", "generate", "gradient_of", "host_bytes", "init_state", "make", "materialize"),
        *("not_reused", "part_without_cache", "plan", "plan_apart", "plan_here", "predict"),
        *("query_and_others", "require_fit", "response_log_probabilities", "scale_to"),
        *("substitutions", "train_step", "transduce", "check_repeatable", "check_shows"),
        *("check_place", "check_data", "module_of", "can_generate", "transduces", "sample_text"),
        *("final_sample", "step_memory", "trace_evaluations"),
    },
    NEEDS_RUN: {
        *("find", "header_rows", "summarize", "read_source", "load", "load_run", "load_weights"),
        *("evaluate_run", "sample_run", "sample_tokens", "export_run", "open_run", "open_session"),
        *("run", "next_steps", "check_continuation", "plot", "trial_graph", "rerun", "resume"),
        *("sweep", "check_study", "fence", "engine_of", "make_launch", "move_run"),
    },
    NEEDS_OTHERS: {"examine", "check_same", "rebuild", "mirror_summary"},
    NEEDS_PACKAGE: {"int8", "int8_weights", "fp8", "without_quantization"},
    SETS_PROCESS: {"configure", "redact_output"},
}


@pytest.mark.full
def test_public_functions_show_an_example(public_nodes):
    """What runs in under a second on its own has a doctest, which `test_doctests.py` runs."""
    excused = set().union(*WITHOUT_EXAMPLE.values())
    own = [(place, node) for place, node in _functions(public_nodes) if "." not in place.split()[1]]
    shown = {place for place, node in own if ">>> " in (ast.get_docstring(node) or "")}
    files = {place.partition(":")[0] for place in shown}
    without = {
        node.name: place
        for place, node in own
        if place not in shown and not (place.startswith(SIZES) and place.partition(":")[0] in files)
    }
    missing = [place for name, place in without.items() if name not in excused]
    assert not missing, "no `Example:` in\n" + "\n".join(missing)
    current = sorted(excused - set(without))
    assert not current, f"remove from WITHOUT_EXAMPLE, as they have one or are gone: {current}"
