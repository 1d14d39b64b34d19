"""The entry of an object in `luthier help NAME`: what its docstring states, and how to use it."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from luthier.cli.showing import settings
from luthier.cli.showing.formulas import readable
from luthier.cli.showing.settings import Component, ComponentSetting

INHERITED = "passed down by the component above"
_SECTIONS = (
    *("Args", "Attributes", "Deviation", "Example", "Examples", "Raises", "References", "Returns"),
    *("Source", "Yields"),
)
_HEAD = re.compile(rf"^({'|'.join(_SECTIONS)}):(?: (.*))?$")
# Sections in the order in which they are printed, after the description and the arguments.
_LAST = ("Returns", "Yields", "Raises", "Example", "Examples", "Source", "Deviation", "References")
_LONGEST = 60  # of a default; longer ones are cut, and whole in the source only


def sections(docstring: str) -> dict[str, str]:
    """Return the sections of a docstring by name; the description has the name "".

    Args:
      docstring: In Google's style, as `inspect.getdoc` returns it.
    """
    # A section continues on indented lines, and on blank ones between them; everything else, also
    # below a section, belongs to the description.
    found: dict[str, list[str]] = {"": []}
    name = ""
    for line in docstring.splitlines():
        head = _HEAD.match(line)
        if head:
            name = head[1]
            found.setdefault(name, []).append(head[2] or "")
        elif name and line and not line.startswith(" "):
            name = ""
            found[""].append(line)
        else:
            found[name].append(line)
    texts = {name: textwrap.dedent("\n".join(lines)).strip() for name, lines in found.items()}
    for name, lines in found.items():
        # The first line of `Source: ...` has no indent, those below it have.
        if name and lines[0]:
            texts[name] = " ".join(" ".join(lines).split())
    return {name: text for name, text in texts.items() if text}


def entry(name: str, target: Any, width: int, notes: Sequence[tuple[str, str]] = ()) -> str:
    """Return the entry of an object as plain text.

    Args:
      name: Its public name.
      target: The object.
      width: The most columns of a line.
      notes: Further sections at the end, each a label and its lines.
    """
    is_described = inspect.isclass(target) or inspect.isroutine(target)
    component = _described(target, name) if is_described else None
    written = sections(_docstring(target))
    lines = _fill(_signature(name, target, component), width, " " * 4, first="")
    description = written.get("", "")
    summary, _, rest = description.partition("\n\n")
    if summary:
        lines += _fill(readable(" ".join(summary.split())), width, "  ")
    if not is_described and not inspect.ismodule(target):
        lines += _fill(f"Value: {_short(repr(target))}", width, "  ")
    for block in _blocks(rest):
        lines += ["", *_block(block, width)]
    if component is not None:
        lines += _arguments(component, width)
    if members := _to_define(target):
        lines += ["", "  To define in a class of your own:"]
        for head, text in members:
            lines += [f"      {head}", *_fill(readable(text), width, " " * 10)]
    for label in _LAST:
        if label == "Raises" and label in written:
            lines += ["", f"  {label}:"]
            for each in re.split(r"\n(?=\S)", written[label]):
                lines += _fill(" ".join(each.split()), width, " " * 8, first=" " * 6)
        elif label in written:
            lines += ["", f"  {label}:", *_labelled(written[label], width)]
    for label, text in notes:
        lines += ["", f"  {label}:", *(f"      {line}" for line in text.splitlines())]
    return "\n".join(lines) + "\n"


def summary(target: Any) -> str:
    """Return the first sentence about an object; empty if it has no docstring."""
    text = readable(" ".join(_docstring(target).split("\n\n")[0].split()))
    return re.split(r"(?<=[.:]) (?=[A-Z])", text)[0]


def _docstring(target: Any) -> str:
    """Return an object's own docstring; that of its type does not describe a constant."""
    if not (inspect.isclass(target) or inspect.isroutine(target) or inspect.ismodule(target)):
        return ""
    text = inspect.cleandoc(target.__doc__ or "")
    # Dataclasses without a docstring get their signature as one.
    own_name = getattr(target, "__name__", "")
    is_made = dataclasses.is_dataclass(target) and text.startswith(f"{own_name}(")
    return "" if is_made else text


def _described(target: Any, name: str) -> Component | None:
    try:
        return settings.describe(target, name)
    except (TypeError, ValueError):  # no signature, as exceptions have none
        return None


def _signature(name: str, target: Any, component: Component | None) -> str:
    if component is None:
        return name
    own = [setting for setting in component.settings if not setting.inherited]
    arguments = [
        setting.name if setting.default is None else f"{setting.name}={_short(setting.default, 24)}"
        for setting in own
    ]
    # An abstract class, a protocol and an enumeration are not called.
    is_called = not (inspect.isabstract(target) or getattr(target, "_is_protocol", False))
    return f"{name}({', '.join(arguments)})" if is_called else name


def _to_define(target: Any) -> list[tuple[str, str]]:
    """Return the members that a class of one's own has to define, each with its first sentence."""
    is_protocol = getattr(target, "_is_protocol", False)
    if not (is_protocol or inspect.isabstract(target)):
        return []
    bases = [base for base in target.__mro__ if base.__module__ not in ("typing", "builtins")]
    written = {name: each for base in reversed(bases) for name, each in vars(base).items()}
    members = []
    for name, member in written.items():  # in the order in which they are written
        is_method = inspect.isroutine(member)
        if not (is_method or isinstance(member, property)) or not member.__doc__:
            continue
        if not is_protocol and name not in target.__abstractmethods__:
            continue
        head = name
        if is_method:
            parameters = list(inspect.signature(member).parameters.values())[1:]
            each = [p.replace(annotation=p.empty) for p in parameters]
            head = f"{name}({', '.join(map(str, each))})"
        text = " ".join(inspect.cleandoc(member.__doc__).split("\n\n")[0].split())
        members.append((head, text))
    return members


def _short(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 4]} ..."


def _blocks(text: str) -> list[str]:
    return [block for block in re.split(r"\n\s*\n", text.strip("\n")) if block.strip()]


def _block(block: str, width: int) -> list[str]:
    """Return a paragraph, a formula, an example or a list, within the width."""
    if re.fullmatch(r"\s*\$\$.*\$\$[.,]?\s*", block, re.DOTALL):
        return _fill(readable(" ".join(block.split())), width, " " * 6)
    lines = readable(block).splitlines()
    # Indented code and lists keep their lines.
    if any(line.startswith((" ", "- ", "* ", ">>>", "|")) for line in lines):
        return [f"  {line}".rstrip() for line in lines]
    return _fill(" ".join(lines), width, "  ")


def _labelled(text: str, width: int) -> list[str]:
    lines: list[str] = []
    for block in _blocks(text):
        lines += [""] if lines else []
        lines += [f"    {line}" if line else line for line in _block(block, width - 4)]
    return lines


def _arguments(component: Component, width: int) -> Iterator[str]:
    if component.settings:
        yield ""
    for setting in component.settings:
        yield from setting_lines(setting, width)
    if component.relations:
        yield from ("", "  Constraints:")
        yield from (f"      {relation}" for relation in component.relations)


def setting_lines(setting: ComponentSetting, width: int) -> list[str]:
    """Return an argument with its type, default, range and description.

    Args:
      setting: The argument.
      width: The most columns of a line.
    """
    lines = _fill(_head(setting), width, " " * 8, first="  ")
    return lines + (_fill(readable(setting.text), width, " " * 6) if setting.text else [])


def _head(setting: ComponentSetting) -> str:
    kind = f": {setting.type}" if setting.type else ""
    default = f" = {_short(setting.default)}" if setting.default is not None else ""
    notes = [
        re.sub(r"\bx\b", setting.name, setting.range),
        f"in {setting.unit}" if setting.unit else "",
    ]
    if setting.inherited:
        notes.append(INHERITED)
    elif setting.default is None:
        notes.append("required")
    note = "; ".join(filter(None, notes))
    return f"{setting.name}{kind}{default}" + (f"  ({note})" if note else "")


def _fill(text: str, width: int, indent: str, first: str | None = None) -> list[str]:
    first = indent if first is None else first
    # Names and commands stay whole, so that they can be copied.
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    ) or [first.rstrip()]


# How an object is used: an override of it in an experiment, a fiddler in a command, pages about it.


def usages(target: Any, most: int = 3) -> list[tuple[str, str, str]]:
    """Return where experiments that come with luthier use an object.

    Args:
      target: A class or function that a config may name.
      most: The most places.

    Returns:
      For each place the experiment, the path, and an override below it; the last may be empty.
    """
    from luthier import graph as graphs

    found = []
    for reference in _experiments_naming(target.__name__):
        try:
            graph = graphs.resolve(reference)
        except Exception:  # its data or a library may be missing here; it is only an example
            continue
        for place in graphs.walk(graph, defaults=False):
            if getattr(place.value, "__fn_or_cls__", None) is target and place.path:
                found.append((reference, place.path, _override(place)))
                break
        if len(found) >= most:
            break
    return found


def _experiments_naming(name: str) -> Iterator[str]:
    """Yield the small experiments whose files name an object, the quickstart first."""
    from pathlib import Path

    from luthier import folders

    root = Path(folders.shipped_folders()[0])
    word = re.compile(rf"\b{re.escape(name)}\b")
    files = [path for path in sorted(root.rglob("*.py")) if path.name != "__init__.py"]
    for path in sorted(files, key=lambda path: path.stem != "quickstart"):
        reference = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        if not reference.startswith("configs.pax.") and word.search(path.read_text("utf-8")):
            yield reference


def _override(place: Any) -> str:
    """Return an override that sets a number of a node to the value that it has; empty if none."""
    from luthier.graph import signatures

    known = signatures.arguments(place.value.__fn_or_cls__)
    for name in known.names:
        value = place.value.__arguments__.get(name, known.defaults.get(name))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return f"{place.path}.{name}={value}"
    return ""
