"""Sphinx's configuration of the documentation.

    pip install -e '.[docs]'
    sphinx-build -W -b html docs build/site

Nothing is executed and nothing is downloaded. With LUTHIER_DOCS_EXECUTE=1 in the environment, the
notebooks are executed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "framework"), str(ROOT)]

# Of this checkout, whatever is installed.
import luthier  # noqa: E402
from tools.docs import docstrings  # noqa: E402

project = "luthier"
author = "The luthier authors"
copyright = author
version = release = luthier.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "tools.docs.docstrings",
    "tools.docs.mathml",
]
exclude_patterns = ["_templates", "inventories", "**/.ipynb_checkpoints"]
templates_path = ["_templates"]
nitpicky = False

# Markdown. Pages are CommonMark, so that GitHub and `luthier help` show them as well; `index.md`
# files have directives.
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
# `$5 and $6` is text.
myst_dmath_allow_space = False
myst_dmath_allow_digits = False
highlight_language = "text"
nb_execution_mode = "force" if os.environ.get("LUTHIER_DOCS_EXECUTE") == "1" else "off"
nb_execution_in_temp = True  # runs are written to the working directory
nb_execution_raise_on_error = True
nb_execution_timeout = 600

# The Python API. A page for each package, with the names of its `__all__`.
autosummary_generate = True
autosummary_ignore_module_all = False
autosummary_context = {"module_names": docstrings.module_names()}
autodoc_default_options = {
    "members": True,
    "special-members": "__call__",
    "show-inheritance": True,
}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Source", "Deviation"]
# Written by `tools/docs/inventories.py`: only what our docstrings and pages link to.
intersphinx_mapping = {
    "jax": ("https://docs.jax.dev/en/latest/", "inventories/jax.inv"),
    "flax": ("https://flax.readthedocs.io/en/latest/", "inventories/flax.inv"),
    "optax": ("https://optax.readthedocs.io/en/latest/", "inventories/optax.inv"),
    "optuna": ("https://optuna.readthedocs.io/en/stable/", "inventories/optuna.inv"),
    "fiddle": ("https://fiddle.readthedocs.io/en/latest/", "inventories/fiddle.inv"),
}

# The reading order of a section; pages that are not named follow by name.
ORDER = {
    "get_started": ("installation", "first_run", "first_change", "own_project", "tour", "faq"),
    "tutorials": (
        *("gpt2", "fine_tune", "vision", "sweep", "mesh", "experts", "precision_step_by_step"),
        *("reproduce_a_pax_recipe", "notebook"),
    ),
    "coming_from": ("pytorch", "pax_praxis", "hydra_users", "kauldron", "maxtext", "t5x_gin"),
    "reference": ("cli", "overrides", "settings", "errors", "metrics", "fiddlers", "model_zoo"),
}

html_theme = "furo"
html_math_renderer = "mathml"
html_title = f"luthier {version}"
html_show_sourcelink = True
html_copy_source = True
# `$ ` and `>>> ` are not copied, and neither is the output below them.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def _in_order(app: Any, docname: str, source: list[str]) -> None:
    """Replace the `*` in the contents of a section by its pages, in their order."""
    section = docname.partition("/")[0]
    if docname == f"{section}/index":
        pages = sorted(path.stem for path in Path(app.srcdir, section).glob("*.md"))
        first = [name for name in ORDER.get(section, ()) if name in pages]
        rest = [name for name in pages if name not in {*first, "index"}]
        source[0] = source[0].replace("\n*\n", "\n".join(["", *first, *rest, ""]))


def setup(app: Any) -> None:
    """Connect the order of pages to Sphinx."""
    app.connect("source-read", _in_order)
