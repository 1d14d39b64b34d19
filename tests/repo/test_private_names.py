"""Private names of libraries that luthier touches: a list that only shrinks, each with a reason.

A name that a library keeps to itself may vanish with its next release. Where there is no public
way, a comment at the line says why.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize

# (module, private name) of every use there is. Do not add to it: look for a public way first.
KNOWN: set[tuple[str, str]] = {
    ("checkpoint/arrays.py", "_src"),
    ("checkpoint/bucket_path.py", "_src"),
    ("cli/arguments.py", "_actions"),
    ("cli/arguments.py", "_option_string_actions"),
    ("cli/completion/candidates.py", "_actions"),
    ("graph/formats/config_dict/overlay.py", "_ops"),
    ("graph/formats/config_dict/references.py", "_ops"),
    ("graph/formats/gin/lookup.py", "_REGISTRY"),
    ("graph/signatures.py", "_signature_cache"),
    ("graph/signatures.py", "_src"),
    ("layers/attention/cudnn.py", "_src"),
    ("parallel/distributed/messages.py", "_src"),
    ("parallel/distributed/rendezvous.py", "_src"),
    ("parallel/random_bits.py", "_platform_specific_lowerings"),
    ("parallel/random_bits.py", "_src"),
}
_PRIVATE = re.compile(r"_(?!_)\w+")
_DOCUMENTED = {"_exit", "_getframe"}  # of os and sys: public in spite of their names


def _defined(modules) -> set[str]:
    """Return every private name that luthier itself defines."""
    found = set()
    for module in modules:
        for node in ast.walk(module.tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    found.add(node.name)
                case ast.Name(ctx=ast.Store()):
                    found.add(node.id)
                case ast.Attribute(ctx=ast.Store()):
                    found.add(node.attr)
                case ast.arg():
                    found.add(node.arg)
                case ast.alias():
                    found.add((node.asname or node.name).rpartition(".")[2])
    return {name for name in found if _PRIVATE.fullmatch(name)}


def _uses(module, defined: set[str]):
    """Yield the private names of libraries in a module, with their lines."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            parts = [*node.module.split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            parts = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.Attribute) and node.attr not in defined:
            parts = [node.attr]
        else:
            continue
        if isinstance(node, ast.ImportFrom) and parts[0] == "luthier":
            continue
        for part in parts:
            if _PRIVATE.fullmatch(part) and part not in _DOCUMENTED:
                yield part, node.lineno


def _comments(text: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def test_private_names_of_libraries_are_listed_and_explained(modules):
    defined = _defined(modules)
    found, explained = set(), set()
    for module in modules:
        comments = _comments(module.text)
        for name, line in _uses(module, defined):
            found.add((module.place, name))
            # At the line, a few lines above it, or where the comment names it.
            is_near = comments.keys() & set(range(line - 6, line + 3))
            if is_near or any(name in comment for comment in comments.values()):
                explained.add((module.place, name))
    assert found <= KNOWN, f"new: {sorted(found - KNOWN)}"
    assert found >= KNOWN, f"gone, so take them off the list: {sorted(KNOWN - found)}"
    assert explained == found, f"no comment says why: {sorted(found - explained)}"
