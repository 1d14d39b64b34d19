"""A Sphinx extension that reads luthier's docstrings: Markdown in Google's sections.

Docstrings are written for a terminal. Here they become the markup that Sphinx parses: formulas
between dollars, indented code, `Source:` and `Deviation:` with their text on the same line, and
names in backticks, which become links where Sphinx knows them.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from tools.docs import inventories

PACKAGES = (
    *("graph", "program", "trainer", "planner", "study", "recipes", "layers", "models", "optim"),
    *("losses", "metrics", "tasks", "data", "checkpoint", "parallel", "records", "launch"),
    *("durations", "errors", "lazy"),
)
"""The public packages of luthier, in the order of the reference."""

ALIASES = {"fdl": "fiddle", "jnp": "jax.numpy", "nnx": "flax.nnx"}
"""Short names of modules of other projects, as docstrings write them."""

_WITH_TEXT = re.compile(r"^(Source|Deviation): (.+(?:\n +\S.*)*)", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Examples?|Source|Deviation|Note):$", re.M)
_CODE_OR_FORMULA = re.compile(r"(``[^`]+``|`[^`]+`|\$[^$\s](?:[^$`]*[^$\s`])?\$)")
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_UNWANTED = re.compile(r"(?<=[\s(\[])\*(?=\w)|(?<=\w)_(?!\w)|\|(?=\w)")  # markup of Sphinx only
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) \S")


def restructured(docstring: str) -> str:
    """Return a docstring as reStructuredText in Google's sections, which napoleon reads.

    Args:
      docstring: Its text, without the indentation of the code around it.

    Returns:
      The text, in which only the markup differs.
    """
    text = _WITH_TEXT.sub(lambda x: f"\n{x[1]}:\n    {' '.join(x[2].split())}\n", docstring)
    section, is_code = "", False
    done = []
    for paragraph in re.split(r"\n(?:[ \t]*\n)+", text.strip("\n")):
        # A section ends where a paragraph without indentation begins.
        if not paragraph.startswith(" "):
            header = _SECTION.match(paragraph)
            section = header[1] if header else ""
        indent = min(len(x) - len(x.lstrip()) for x in paragraph.splitlines() if x.strip())
        formula = re.fullmatch(r"\s*\$\$(.+)\$\$[.,]?\s*", paragraph, re.DOTALL)
        was_code, is_code = is_code, False
        if formula:
            lines = textwrap.indent(formula[1].strip(), " " * (indent + 3))
            done += [f"{' ' * indent}.. math::", lines]
        elif paragraph.lstrip().startswith(">>> ") or section.startswith("Example"):
            done.append(paragraph)
        elif indent >= 4 and not section:
            done += [paragraph] if was_code else ["::", paragraph]
            is_code = True
        else:
            done.append(_prose(paragraph))
    return "\n\n".join(done)


def _prose(paragraph: str) -> str:
    """Return a paragraph with its inline code, formulas and lists in reStructuredText."""
    parts = _CODE_OR_FORMULA.split(paragraph)
    for number, part in enumerate(parts):
        if number % 2 == 0:  # text between code and formulas
            parts[number] = _UNWANTED.sub(r"\\\g<0>", part)
            continue
        content = " ".join(part.strip("`$").split())
        if part.startswith("$"):
            role = f":math:`{content}`"
        elif _NAME.fullmatch(content) and not part.startswith("``"):
            role = f":py:obj:`{content}`"
        else:
            role = f"``{content}``"
        # Inline markup ends at a space or at punctuation, and not at a letter.
        letter = re.match(r"\w", parts[number + 1])
        parts[number] = f"{role}\\ " if letter else role
    lines: list[str] = []
    for line in "".join(parts).split("\n"):
        if _ITEM.match(line) and lines and lines[-1].strip() and not _in_list(lines, line):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _in_list(lines: list[str], line: str) -> bool:
    """Return whether an item continues the list that the lines before it are in."""
    indent = len(line) - len(line.lstrip())
    for before in reversed(lines):
        if len(before) - len(before.lstrip()) <= indent:
            return _ITEM.match(before) is not None
    return False


def module_names() -> list[str]:
    """Return the full names of the modules that `luthier` and its packages export."""
    exported = {f"luthier.{package}" for package in PACKAGES}
    for package in sorted(exported):
        module = importlib.import_module(package)
        names = getattr(module, "__all__", ())
        exported |= {f"{package}.{x}" for x in names if inspect.ismodule(getattr(module, x))}
    return sorted(exported)


@functools.cache
def public_names() -> dict[str, str]:
    """Return the public name of each object that can be linked to, by where it is defined.

    An object that two packages export has the name in the package that defines it.
    """
    names: dict[str, str] = {}
    for package in (*(f"luthier.{name}" for name in PACKAGES), "luthier"):
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            if not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            place = f"{value.__module__}.{value.__qualname__}"
            # Not `Any`, which some aliases are; a module without `__all__` exports what it defines.
            is_ours = place.startswith("luthier." if hasattr(module, "__all__") else f"{package}.")
            if is_ours and (place not in names or place.startswith(f"{package}.")):
                names[place] = f"{package}.{name}"
    for name in (name for project in inventories.PAGES for name in inventories.objects(project)):
        value = inventories.load(name)
        if hasattr(value, "__qualname__"):
            names[f"{value.__module__}.{value.__qualname__}"] = name
    return names


@functools.cache
def _constants(package: str) -> dict[str, str]:
    """Return the docstrings of the constants that a package exports, by name.

    Python keeps no docstring of a constant: they are read from the modules that define them.
    """
    found: dict[str, str] = {}
    folder = Path(str(sys.modules[package].__file__))
    facade = ast.parse(folder.read_text(encoding="utf-8"))
    modules = [node.module for node in facade.body if isinstance(node, ast.ImportFrom)]
    for module in filter(None, modules):
        source = getattr(sys.modules.get(module), "__file__", None)
        statements = ast.parse(Path(source).read_text(encoding="utf-8")).body if source else []
        for statement, after in itertools.pairwise(statements):
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            text = getattr(getattr(after, "value", None), "value", None)
            if isinstance(targets[0], ast.Name) and isinstance(text, str):
                found[targets[0].id] = inspect.cleandoc(text)
    return found


def _process(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Convert the docstring of an object, in place."""
    if what == "data":
        package, _, constant = name.rpartition(".")
        lines[:] = _constants(package).get(constant, "").splitlines()
    if any(lines):
        lines[:] = [*restructured("\n".join(lines)).splitlines(), ""]


def _skip(app: Any, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Skip fields of named tuples, and classes that another package describes.

    Sphinx knows a class by the module that defines it, too, and warns if it meets it twice.
    """
    if type(value).__name__ == "_tuplegetter":
        return True  # a field of a named tuple, which `Args:` describes
    if what != "module" or not inspect.isclass(value):
        return None
    package = app.env.current_document.autodoc_module
    public = public_names().get(f"{value.__module__}.{value.__qualname__}")
    return True if public not in (None, f"{package}.{name}") else None


def _tidy(app: Any, doctree: Any) -> None:
    """Let a short name in an annotation mean that of its own package; drop bases of no interest."""
    from docutils import nodes
    from sphinx import addnodes

    for node in doctree.findall(addnodes.pending_xref):
        # Otherwise Sphinx takes any object of this name, and several packages have a `Part`.
        node.attributes.pop("refspecific", None)
    for node in list(doctree.findall(nodes.paragraph)):
        if node.astext() == "Bases: object":
            node.parent.remove(node)


def _link(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Resolve the name of where an object is defined, or a short name, to its public name."""
    if node.get("refdomain") != "py":
        return None
    package, _, rest = node["reftarget"].partition(".")
    target = f"{ALIASES.get(package, package)}.{rest}" if rest else package
    public = public_names().get(target, target)
    if not public.startswith("luthier."):
        node["reftarget"] = public  # for intersphinx, which is asked next
        return None
    domain = env.domains.python_domain
    document = node.get("refdoc", env.docname)
    return domain.resolve_xref(env, document, app.builder, "obj", public, node, content)


def setup(app: Any) -> dict[str, bool]:
    """Connect the extension to Sphinx."""
    # Before napoleon, whose priority is 500.
    app.connect("autodoc-process-docstring", _process, priority=400)
    app.connect("autodoc-skip-member", _skip)
    app.connect("doctree-read", _tidy)
    app.connect("missing-reference", _link, priority=400)  # before intersphinx
    return {"parallel_read_safe": True, "parallel_write_safe": True}
