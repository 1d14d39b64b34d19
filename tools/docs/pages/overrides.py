"""The page `luthier help overrides`: the grammar, and every case that the tests run."""

from __future__ import annotations

import itertools
import textwrap
import tomllib
from pathlib import Path

TABLE = Path(__file__).resolve().parents[3] / "tests" / "graph" / "grammar" / "cases.toml"
WIDTH = 100

INTRODUCTION = """\
# Overrides

Overrides change values in an experiment's config (a Fiddle graph). Pass them after the experiment
name to `show`, `train`, `plan`, `diff` or `sweep`, or to `luthier.graph.apply` in Python. All
overrides are parsed first and then applied in order. All errors are reported together, with the
nearest names, before anything starts.

```bash
luthier show configs.lm.quickstart optimizer.learning_rate.peak=3e-4 training.steps=200
luthier show configs.lm.quickstart any:dtype=bfloat16 class:GatedMlp.hidden_dim=512
luthier show configs.lm.quickstart optimizer.b2=0.95 --why optimizer.b2
luthier show configs.lm.quickstart 'optimizer.learning_rate=Constant(3e-4)'
luthier train configs.lm.quickstart --overrides FILE --fiddler NAME
```

## Grammar

```text
override  = path operator value | "reset:" path | "fiddler:" call | "file:" FILE
operator  = "="       set; a value cannot replace a node
          | ":="      replace whatever is there, at this one path; also adds a key to a dict
          | "+="      add to a number, append to text, a list or a tuple, add keys to a dict
          | "-=" | "*="
path      = place                        one place, from the root: model.layers[0].dim
          | "any:" place                 every place whose path ends so
          | "class:" NAME "." place      below every node of a class, subclasses too
          | "tag:" NAME                  every argument with a tag, derived tags too
place     = part { "." part | "[" INDEX "]" | "[" "'" KEY "'" "]" }
part      = NAME | "*"                   "*" stands for one name or index, "**" for any number
value     = "ref:" arithmetic            follows other values: ref:model.dim*4
          | "alias:" place               the same object, shared between both paths
          | "run:" ID "." place          a node or value of a recorded run; ID as in `luthier runs`
          | "config:" node               a node, also of a bare name
          | "partial:" node              a template, which its parent calls
          | NAME ":" TEXT                where a class has this prefix: restore=safetensors:DIR
          | node | literal | TEXT        TEXT where the annotation wants text or a path
node      = DOTTED_NAME [ "(" [ argument { "," argument } ] ")" ]
argument  = [ NAME "=" ] ( node | literal )
literal   = number | "True" | "False" | "None" | "null" | STRING | MEMBER of an enum | DTYPE
          | literal "," literal | "(" ... ")" | "[" ... "]" | "{" KEY ":" literal "}"
number    = arithmetic of numbers with + - * / // % ** and brackets
call      = DOTTED_NAME [ "(" [ argument { "," argument } ] ")" ]
```

Symbols for files, which shells would interpret: `**.x` for `any:x`, `@Name.x` for `class:Name.x`,
`#Name` for `tag:Name`, `path~` for `reset:path`, `$path` for `ref:path`, `&path` for `alias:path`,
`@run:` for `run:`.

- A value is parsed by the annotation of its argument, or by its default if there is no annotation.
  A number of steps can be written in passes over the training data, `training.steps=Epochs(3)`;
  schedules that share it follow.
  An int can be written `1e3`, a `bool` only `true` or `false`, in any case.
- A bare name is looked up next to the current value, then in luthier, then as a full name. Only
  luthier, jax, flax, optax, grain, orbax, optuna, numpy, the packages of the nodes at hand, and
  `packages = [...]` under `[tool.luthier]` in pyproject.toml may be named. Nothing is evaluated as
  Python.
- A call makes a node, and a template where the place wants one: `model.block.dropout=Dropout(0.1)`
  and the parts of a layer, which the layer itself makes (`luthier.layers.Template`).
- If several paths share a value (`value` in luthier.graph, `ref:`), `=` changes it for all of them.
- A fiddler is a function that edits the config, applied at its position among the overrides. Those
  of `luthier.recipes`, and of `fiddlers = [...]` under `[tool.luthier]`, need no module before
  their name.
- A file has one override per line. `#` starts a comment at the beginning of a line unless a letter
  follows it (`#Rate=1` is a tag, `# Rate` a comment), and between spaces after an override. Paths
  of files are relative to the working directory; files that a file names, to its folder.
- Fiddle's and Pax's flags are translated to overrides: see the end of this page. `--fdl_help`
  shows the settings of the experiment, or this page.

## Quotes

Put an override in single quotes if it contains any of `( ) * [ ] { } $ & ; | < > # ~ ? '`, `"` or a
space. Without quotes, shells pass on:

SHELLS

"fails": the shell itself reports an error. Fish runs text in round brackets as a command. If the
shell mangles an override, luthier rejects it and suggests quotes, unless the mangled text is itself
valid. luthier cannot detect an override that the shell removes: write `ref:`, `tag:` and `config:f`
instead, or use a file.

## Cases

The tests run all of these cases. `->` shows the change that an override makes, `!` the error that
luthier prints instead. Most cases use this config:
"""


def render() -> str:
    """Return the page."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    introduction = INTRODUCTION.replace("SHELLS", "\n".join(_shells(table["shell"])))
    blocks = [introduction, f"```text\n{table['graph'].strip()}\n```\n"]
    for section, cases in itertools.groupby(table["case"], lambda case: case["section"]):
        block = "\n\n".join("\n".join(_lines(case)) for case in cases)
        blocks.append(f"### {section}\n\n```text\n{block}\n```\n")
    return "\n".join(blocks)


def _shells(rows: list[dict]) -> list[str]:
    lines = ["| typed | bash | zsh | fish |", "|---|---|---|---|"]
    for row in rows:
        came = [_arrived(row["typed"], row[shell]) for shell in ("bash", "zsh", "fish")]
        lines.append(f"| `{row['typed']}` | {' | '.join(came)} |")
    return lines


def _arrived(typed: str, words: list[str] | str) -> str:
    if words == [typed]:
        return "arrives"
    if isinstance(words, str):
        return words
    return " and ".join(f"`{word}`" for word in words) or "**vanishes**"


def _lines(case: dict) -> list[str]:
    written = case.get("flags") or case.get("words") or [case["word"]]
    if "flags" in case:
        written = [" ".join(written)]
    symbol = " (a symbol)" if case.get("symbol") and "symbol" not in case["says"] else ""
    lines = [repr(word) if word != word.strip() else word for word in written]
    lines.append(f"    {case['says']}{symbol}")
    if "graph" in case:
        lines[-1] += f" [{GRAPHS[case['graph']]}]"
    if "message" in case:
        for line in case["message"].splitlines():
            lines += textwrap.wrap(
                line, WIDTH, initial_indent="  ! ", subsequent_indent="    ", break_long_words=False
            )
    elif "reads" in case:
        lines.append(f"  -> {'  '.join(case['reads'])}")
    else:
        lines += [f"  -> {path} = {value}" for path, value in case["result"].items()]
        if not case["result"]:
            lines.append("  -> nothing changes")
    return lines


GRAPHS = {
    "shared": "model.dim is the constant dim, model.layers[0].hidden is dim * 4",
    "template": "extra is a template of a module Net, its block a template of Dense",
    "untyped": "extra is a node of untyped(rate=0.1, size=3, name='a', flag=False)",
    "warm": "extra.start may be a Start: FromFiles, with the word files, or FromRun, with run",
}
