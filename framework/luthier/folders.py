"""The folders of experiments, studies and manual pages.

A project has experiments and studies of its own. Those that come with luthier are found by their
names in the repository, `configs.lm.quickstart` and `sweeps.lm_learning_rate`, wherever a command
is run: `luthier.graph.resolve` looks here for what the project itself does not have. Nothing called
`configs` or `sweeps` is installed at top level, where it would hide the folders of a project.
"""

# Neither `typing` nor `pathlib`: a Tab imports this module.
from __future__ import annotations

import os

SHIPPED = "luthier.shipped"
EXPERIMENT_FOLDERS = ("configs", "sweeps")
"""The packages of experiments and of studies, here and in a project."""
HUGGING_FACE = "hf:"
"""The beginning of a reference to a folder of the Hugging Face hub."""
PRETRAINED = "luthier.shipped.pretrained"
"""The module of the experiment that such a reference names."""


def shipped_folders() -> tuple[str, ...]:
    """Return the folders of the experiments and of the studies that come with luthier."""
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shipped")
    return tuple(os.path.join(here, name) for name in EXPERIMENT_FOLDERS)


def manual_pages() -> dict[str, str]:
    """Return the files of the manual's pages by name, sorted by name.

    The pages are the Markdown files of `docs/`, whatever their folder; an `index.md` belongs to the
    website.
    """
    top = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pages")
    pages = {
        file.removesuffix(".md"): os.path.join(folder, file)
        for folder, _, files in os.walk(top)
        for file in files
        if file.endswith(".md") and file != "index.md"
    }
    return dict(sorted(pages.items()))


def project_folder(start: str) -> str | None:
    """Return the folder of the project that a folder belongs to.

    The nearest pyproject.toml decides, and counts only if it has `[tool.luthier]`, or if `configs`
    or `sweeps` is beside it. Without one, the folder belongs to no project: a scratch folder below
    somebody else's repository keeps its own runs.

    Args:
      start: The folder, as an absolute path.

    Returns:
      The folder of the project, or None.
    """
    at = start
    while not os.path.isfile(os.path.join(at, "pyproject.toml")):
        above = os.path.dirname(at)
        if above == at:
            return None
        at = above
    beside = any(os.path.isdir(os.path.join(at, name)) for name in EXPERIMENT_FOLDERS)
    return at if beside or _has_our_table(os.path.join(at, "pyproject.toml")) else None


def _has_our_table(path: str) -> bool:
    """Return whether a pyproject.toml has `[tool.luthier]`; a file that cannot be read may."""
    import tomllib

    try:
        with open(path, "rb") as file:
            tool = tomllib.load(file).get("tool")
    except (OSError, ValueError):
        return True  # `luthier.project.find` reports the error
    return isinstance(tool, dict) and "luthier" in tool


def is_experiment(name: str) -> bool:
    """Return whether a full name is that of an experiment or study, or of a part of one."""
    return without_prefix(name).split(".")[0] in EXPERIMENT_FOLDERS


def without_prefix(module: str) -> str:
    """Return the name by which a module is found, from its full name: without `luthier.shipped`."""
    return module.removeprefix(f"{SHIPPED}.")
