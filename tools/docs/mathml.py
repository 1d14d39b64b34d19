"""A Sphinx extension that writes formulas as MathML, which browsers show by themselves.

MathJax, Sphinx's default, is loaded from a server whenever a page is read.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml


def _write(translator: Any, node: Any, is_block: bool) -> None:
    """Add a formula to a page; one that docutils cannot read is an error of the build."""
    # Line breaks have no meaning in a formula, but end one that is written inline.
    formula = " ".join(node.astext().split())
    translator.body.append(latex2mathml.tex2mathml(formula, as_block=is_block))
    raise nodes.SkipNode


def _inline(translator: Any, node: Any) -> None:
    _write(translator, node, is_block=False)


def _block(translator: Any, node: Any) -> None:
    _write(translator, node, is_block=True)


def setup(app: Any) -> dict[str, bool]:
    """Connect the extension to Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
