"""The pages of all settings of all components: one for each package, and a list of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from luthier.cli.showing import PACKAGES, Component, ComponentSetting, components

FOLDER = "settings"  # of the pages of packages, in docs/reference

START = """\
# Settings

This page lists all components that you can use in a config, by package. Follow a link to find the
type, default, range and description of every argument. In a terminal, `luthier help NAME` prints
this information for one component, along with its formula and an example.
`luthier help settings_PACKAGE` prints the page of a package.

"""

ARGUMENTS = """\
Arguments whose default is `-` are required. Arguments that are passed down come from the component
above and need not be set.
"""

# What the components of a package are, and pages that show how to use or write one.
ABOUT: Mapping[str, tuple[str, str]] = {
    "program": (
        "Experiments, their training and their evaluations.",
        "[Write an experiment](../../how_to/write_an_experiment.md), "
        "[Evaluate](../../how_to/evaluate_a_run.md)",
    ),
    "models": ("Complete models.", "[Model zoo](../model_zoo.md)"),
    "layers": ("Parts of models.", "[Write a layer](../../how_to/write_a_layer.md)"),
    "tasks": (
        "Tasks, which define the losses and metrics for a kind of data.",
        "[Write a task and a metric](../../how_to/write_a_task_and_metric.md)",
    ),
    "losses": ("Losses that you can pass to a task.", "[Metrics](../metrics.md)"),
    "metrics": ("References to metrics.", "[Metrics](../metrics.md)"),
    "optim": (
        "Optimizers and learning-rate schedules.",
        "[Write an optimizer](../../how_to/write_an_optimizer.md)",
    ),
    "data": (
        "Data sets, sources, tokenizers and packing.",
        "[Write a data source](../../how_to/write_a_data_source.md), "
        "[Prepare data](../../how_to/prepare_data.md), "
        "[Mix and pack](../../how_to/mix_and_pack.md)",
    ),
    "checkpoint": (
        "Schedules for saving checkpoints, and sources of initial weights.",
        "[Checkpoint tiers](../../how_to/checkpoint_tiers.md), "
        "[Checkpoints of other frameworks](../../how_to/checkpoints.md)",
    ),
    "records": (
        "Console output, metrics, samples and trackers.",
        "[Runs](../../how_to/runs.md), [Weights & Biases](../../how_to/weights_and_biases.md)",
    ),
    "parallel": (
        "Meshes, sharding rules and options of XLA.",
        "[Parallelism](../../how_to/parallelism.md)",
    ),
    "durations": ("Lengths and intervals.", "[Extend a run](../../how_to/extend_a_run.md)"),
    "study": ("Studies, spaces and objectives.", "[Sweeps](../../how_to/sweeps.md)"),
    "contrib": (
        "Components for specialized domains, with no compatibility guarantee.",
        "[Extending luthier](../../how_to/extending.md)",
    ),
}


def render_all() -> dict[str, str]:
    """Return the pages by the path below docs/reference, without suffix."""
    return pages(components())


def pages(found: Sequence[Component]) -> dict[str, str]:
    """Return the pages of components.

    Args:
      found: The components.
    """
    used = {component.package for component in found}
    # `PACKAGES` lacks contrib, whose components are found by their entry points.
    packages = [package for package in (*PACKAGES, "contrib") if package in used]
    index, result = [], {}
    for package in packages:
        own = [component for component in found if component.package == package]
        name = f"{FOLDER}/settings_{package}"
        links = [f"[`{_short(c)}`]({name}.md#{_anchor(c)})" for c in own]
        index.append(f"- **[{package}]({name}.md)**. {ABOUT[package][0]} {', '.join(links)}")
        lines = [
            *[f"# Settings of luthier.{package}", ""],
            f"{ABOUT[package][0]} [Settings](../settings.md) lists all packages.",
            f"See also: {ABOUT[package][1]}.",
            *["", ARGUMENTS.rstrip()],
        ]
        for component in own:
            lines += ["", *_section(component)]
        result[name] = "\n".join(lines) + "\n"
    return {"settings": START + "\n".join(index) + "\n", **result}


def _short(component: Component) -> str:
    return component.name.rpartition(".")[2]


def _anchor(component: Component) -> str:
    """Return the anchor that GitHub and MyST give a heading."""
    return component.name.lower().replace(".", "")


def _section(component: Component) -> Iterator[str]:
    yield f"## {component.name}"
    yield ""
    yield component.summary
    own = [setting for setting in component.settings if not setting.inherited]
    passed = [setting.name for setting in component.settings if setting.inherited]
    if own:
        yield ""
        yield "| argument | type | default | range | |"
        yield "|---|---|---|---|---|"
        yield from map(_row, own)
    if component.relations:
        yield ""
        yield f"Constraints: {', '.join(f'`{text}`' for text in component.relations)}."
    if passed:
        yield ""
        yield f"Passed down: {', '.join(f'`{name}`' for name in passed)}."


def _row(setting: ComponentSetting) -> str:
    default = "-" if setting.default is None else _code(setting.default)
    limits = " ".join(filter(None, [_code(setting.range), setting.unit]))
    cells = [_code(setting.name), _code(setting.type), default, limits, setting.text]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
