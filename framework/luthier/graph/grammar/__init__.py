"""The override grammar: statements, typed values, names and selections."""

from __future__ import annotations

from luthier.graph.grammar.call_arguments import call, read_arguments
from luthier.graph.grammar.expressions import (
    ExpressionReader,
    Surroundings,
    bind,
    kind_of,
    make_node,
    parse,
    slots,
)
from luthier.graph.grammar.literals import combine, read
from luthier.graph.grammar.names import DTYPES, dtype, find_object
from luthier.graph.grammar.selection import every_place, select
from luthier.graph.grammar.statements import Statement, Unreadable, pair, parse_statement
from luthier.graph.grammar.types import (
    NOTHING,
    admits_anything,
    check,
    choice,
    choices,
    coerce,
    describe,
    element,
    expected,
    fits,
    inferred,
    is_dtype,
    is_dtype_annotation,
    is_template_at,
    key,
    members,
    shown,
    wants_template,
)

__all__ = [
    "DTYPES",
    "NOTHING",
    "ExpressionReader",
    "Statement",
    "Surroundings",
    "Unreadable",
    "admits_anything",
    "bind",
    "call",
    "check",
    "choice",
    "choices",
    "coerce",
    "combine",
    "describe",
    "dtype",
    "element",
    "every_place",
    "expected",
    "find_object",
    "fits",
    "inferred",
    "is_dtype",
    "is_dtype_annotation",
    "is_template_at",
    "key",
    "kind_of",
    "make_node",
    "members",
    "pair",
    "parse",
    "parse_statement",
    "read",
    "read_arguments",
    "select",
    "shown",
    "slots",
    "wants_template",
]
