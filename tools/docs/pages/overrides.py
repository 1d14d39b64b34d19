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

Words that change the graph of an experiment. `show` and `train` take them behind the experiment,
and so does `luthier.graph.apply` in Python. All words are read first and then applied in order;
whatever is wrong is told at once, with the nearest names, and then nothing is started.

```bash
luthier show configs.lm.quickstart optimizer.learning_rate.peak=3e-4 training.steps=200
luthier show configs.lm.quickstart any:dropout=0.1 class:Mlp.hidden_dim=128
luthier show configs.lm.quickstart optimizer.b2=0.95 --why optimizer.b2
luthier show configs.lm.quickstart 'optimizer.learning_rate=Constant(3e-4)'
luthier train configs.lm.quickstart --overrides FILE --fiddler NAME
```

## Grammar

```text
word      = path operator value | "reset:" path | "fiddler:" call | "file:" FILE
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
          | "alias:" place               the very thing that is there, in two places
          | "run:" ID "." place          a node or value of a recorded run; ID as in `luthier runs`
          | "config:" node               a node, also of a bare name
          | "partial:" node              a template, which its parent calls
          | NAME ":" TEXT                where a class has this word: restore=safetensors:DIR
          | node | literal | TEXT        TEXT where the annotation wants text or a path
node      = DOTTED_NAME [ "(" [ argument { "," argument } ] ")" ]
argument  = [ NAME "=" ] ( node | literal )
literal   = number | "True" | "False" | "None" | "null" | STRING | MEMBER of an enum | DTYPE
          | literal "," literal | "(" ... ")" | "[" ... "]" | "{" KEY ":" literal "}"
number    = arithmetic of numbers with + - * / // % ** and brackets
call      = DOTTED_NAME [ "(" [ argument { "," argument } ] ")" ]
```

Symbols for files, which shells eat: `**.x` for `any:x`, `@Name.x` for `class:Name.x`, `#Name` for
`tag:Name`, `path~` for `reset:path`, `$path` for `ref:path`, `&path` for `alias:path`, `@run:` for
`run:`.

- The annotation of the argument says how a value is read; without one, its default does. An int
  may be written `1e3`, a `bool` only `true` or `false`, in any case.
- A bare name is looked for beside what is there now, then in luthier, then by its full name. Only
  luthier, jax, flax, optax, grain, orbax, optuna, numpy, the packages of the nodes at hand, and
  `packages = [...]` under `[tool.luthier]` in pyproject.toml may be named. Nothing is evaluated as
  Python.
- Where many places share a value (`value` in luthier.graph, `ref:`), `=` changes it for all.
- A fiddler is a function from graph to graph, applied at its place among the words. Those of
  `luthier.recipes`, and of `fiddlers = [...]` under `[tool.luthier]`, need no module before their
  name.
- A file has one word a line. `#` begins a comment at the beginning of a line unless a letter
  follows it (`#Rate=1` is a tag, `# Rate` a comment), and between spaces behind a word. Files are
  found from the working directory, and files in files from the file's folder.
- Fiddle's and Pax's flags stand for words, at their place: see the end of this page. `--fdl_help`
  shows the settings of the experiment, or this page.

## Quotes

Put a word in single quotes when it has any of `( ) * [ ] { } $ & ; | < > # ~ ? '`, `"` or a space.
Without them, this is what comes of a word:

SHELLS

"fails" is the shell's own error. Fish runs what stands in round brackets as a command. What arrives
damaged is refused by luthier with a hint about quotes, unless it happens to mean something. What
vanishes cannot be told: write `ref:`, `tag:` and `config:f` instead, or use a file.

## Cases

All of these are run by the tests. What a word changes stands behind `->`, what luthier says instead
behind `!`. Most are about this graph:
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
