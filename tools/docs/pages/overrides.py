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

Use overrides to change values in the config of an experiment (a Fiddle graph) without editing its
file. Pass them after the name of the experiment to `show`, `train`, `plan`, `diff` or `sweep`. In
Python, pass them to `luthier.graph.apply`. luthier parses all overrides first, and then applies
them in order. If any of them is wrong, luthier reports all errors together, suggests the nearest
valid names, and starts nothing.

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
operator  = "="       set a value; a plain value cannot replace a node
          | ":="      replace the current value at this path only, or add a key to a dict
          | "+="      add to a number; append to text, a list or a tuple; add keys to a dict
          | "-="      subtract from a number
          | "*="      multiply a number
path      = place                        one path from the root: model.layers[0].dim
          | "any:" place                 every path with this end
          | "class:" NAME "." place      a path below every node of a class or its subclasses
          | "tag:" NAME                  every argument with a tag or a derived tag
place     = part { "." part | "[" INDEX "]" | "[" "'" KEY "'" "]" }
part      = NAME | "*"                   "*" matches one name or index, "**" any number
value     = "ref:" arithmetic            a value that follows others: ref:model.dim*4
          | "alias:" place               the object at another path, shared by both paths
          | "run:" ID "." place          a node or value of a recorded run; ID as in `luthier runs`
          | "config:" node               a node; the name needs no parentheses
          | "partial:" node              a template, which its parent calls
          | NAME ":" TEXT                if a class defines this prefix: restore=safetensors:DIR
          | node | literal | TEXT        TEXT if the annotation is text or a path
node      = DOTTED_NAME [ "(" [ argument { "," argument } ] ")" ]
argument  = [ NAME "=" ] ( node | literal )
literal   = number | "True" | "False" | "None" | "null" | STRING | MEMBER of an enum | DTYPE
          | literal "," literal | "(" ... ")" | "[" ... "]" | "{" KEY ":" literal "}"
number    = arithmetic of numbers with + - * / // % ** and parentheses
call      = DOTTED_NAME [ "(" [ argument { "," argument } ] ")" ]
```

A few symbols are short for these forms. Use them in files, because shells would interpret them:

| symbol | form |
|---|---|
| `**.x` | `any:x` |
| `@Name.x` | `class:Name.x` |
| `#Name` | `tag:Name` |
| `path~` | `reset:path` |
| `$path` | `ref:path` |
| `&path` | `alias:path` |
| `@run:` | `run:` |

### Values

- luthier parses a value according to the annotation of its argument. If there is no annotation, it
  uses the type of the default value.
- You can write an int as `1e3`. A bool is always `true` or `false`, in upper or lower case.
- You can specify a number of steps in epochs, as in `training.steps=Epochs(3)`. Schedules that
  share the number of steps change with it.
- luthier looks up a bare name in the module of the current value first, then in luthier, and then
  as a full name. You can only use names from luthier, jax, flax, optax, grain, orbax, optuna and
  numpy, from the packages of the nodes in the config, and from the packages that you list as
  `packages = [...]` under `[tool.luthier]` in pyproject.toml. No value is evaluated as Python code.
- A call makes a node. If the argument takes a template, the call makes a template instead. For
  example, `model.block.dropout=Dropout(0.1)` makes a template, because a layer builds its own parts
  (`luthier.layers.Template`).
- Several paths can share a value, through `value` in luthier.graph or through `ref:`. In this case,
  `=` changes the value for all of them.

### Fiddlers and files

- A fiddler is a function that edits the config. It is applied at its position among the overrides.
  Fiddlers of `luthier.recipes`, and those in the modules that you list as `fiddlers = [...]` under
  `[tool.luthier]`, need no module before their name.
- An override file contains one override per line. A `#` at the beginning of a line starts a comment
  unless a letter follows it: `# Rate` is a comment, but `#Rate=1` sets a tag. After an override, a
  `#` between spaces starts a comment.
- The path of an override file is relative to the working directory. If the file includes another
  file, that path is relative to the folder of the first file.
- Flags of Fiddle and Pax are translated to overrides, as shown
  [at the end of this page](#flags-of-fiddle-and-pax). `--fdl_help` shows the settings of the
  experiment, or this page if no experiment is given.

## Quotes

Put an override in single quotes if it contains a space or any of
`( ) * [ ] { } $ & ; | < > # ~ ? '` and `"`. This table shows how each shell passes on an override
that you type without quotes:

SHELLS

"arrives" means that luthier receives the override unchanged. "fails" means that the shell itself
reports an error. Fish runs text in parentheses as a command. If the shell changes an override,
luthier rejects it and suggests quotes, unless the changed text is a valid override, too. luthier
cannot detect an override that the shell removes (**vanishes**). To be safe, write `ref:`, `tag:`
and `config:f` instead of symbols and empty calls, or put the overrides in a file.

## Cases

The following cases show every form of an override, and the tests of luthier run all of them. A
line with `->` shows a change that the override makes. A line with `!` shows the error that luthier
prints instead. Most cases use this config:
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
    lines = [repr(word) if word != word.strip() else word for word in written]
    captions = [case["says"], *([GRAPHS[case["graph"]]] if "graph" in case else [])]
    lines += [f"    {caption}" for caption in captions]
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
    "shared": "(model.dim is the constant dim, and model.layers[0].hidden is dim * 4.)",
    "template": "(extra is a template of a module Net, and its block is a template of Dense.)",
    "untyped": "(extra is untyped(rate=0.1, size=3, name='a', flag=False).)",
    "warm": "(extra.start takes FromFiles with the prefix files:, or FromRun with run:.)",
}
