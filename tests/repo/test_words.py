"""Coinages stay out of what people read, where the field has a word of its own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "framework" / "luthier"

# What was written here once -> the usual word.
COINAGES = {
    r"laggards?": "straggler",
    r"roll calls?": "rendezvous",
    r"twins?": "smoke-test config",
    r"gangs?": "process group, worker group",
    r"drills?": "fault-injection test",
    r"pulses?": "heartbeat",
    r"house": "codebase",
    r"rooms|(?:the|this|a|one|each|its) room(?! (?:for|in))": "package",
    r"shar(?:e|es|ed|ing) out": "split, shard",
    r"(?:lie|lies|lay|lying) over": "override",
    r"begun anew": "restarted",
    r"as yet": "yet",
    r"least time of a step": "roofline lower bound",
    r"of others": "pretrained, of other frameworks",
    r"(?<![./_])masters": "master weights",
    r"(?:tells|told)": "prints, reports, lists, raises",
    r"(?<!there )(?:is|are) no (?!longer|more|less|fewer)(?=\w)|(?:is|are) (?-i:none)": "is not a",
}
# A sentence that starts with a bare clause: "What cannot be read is refused."
CLAUSE = re.compile(r"(?:^|[.!:;] |\| |\*\*|^- )What (?!is\b[^.]*\?)[^.?|]*\.(?=\s|$|\|)")
# Public classes with one name, which are always written with their package: `data.Skip`.
PAIRS = {
    *("Change", "Classification", "Evaluation", "JsonLines", "Packed", "Packing"),
    *("Part", "Preferences", "Records", "Shift", "Skip", "Source", "Tokens", "Uniform"),
}
PATTERN = re.compile("|".join(rf"\b(?:{words})\b" for words in COINAGES), re.IGNORECASE)


def _messages(tree: ast.Module):
    """Yield the texts of a module that can reach a terminal or page, with their lines."""
    documentation = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and " " in node.value and id(node) not in documentation:
            yield node.lineno, node.value


def _without_code(text: str) -> str:
    """Return a text without code spans: names of settings and tests are not prose."""
    return re.sub(r"`[^`\n]*`", "`code`", text)


def test_people_read_the_usual_words(modules):
    texts = [
        (module.path, line, text) for module in modules for line, text in _messages(module.tree)
    ]
    # A command's docstring is its help.
    texts += [
        (module.path, 1, ast.get_docstring(module.tree) or "")
        for module in modules
        if module.place.startswith("cli/commands")
    ]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for path in [*pages, *(PACKAGE / "view").rglob("*.js")]:
        lines = path.read_text(encoding="utf-8").splitlines()
        texts += [(path, number, line) for number, line in enumerate(lines, 1)]
    assert len(texts) > 5000
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r} in {text[:60]!r}"
        for path, line, text in texts
        for pattern in (PATTERN, CLAUSE)
        for match in pattern.finditer(_without_code(text))
    ]
    assert not found, "\n".join(found)


def test_a_class_name_has_one_meaning(modules):
    places: dict[str, list[str]] = {}
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module.place)
    assert len(places) > 500
    found = {name: where for name, where in places.items() if len(where) > 1}
    assert set(found) == PAIRS, {name: found.get(name) for name in set(found) ^ PAIRS}
    assert all(len(found[name]) == 2 for name in PAIRS)
