from __future__ import annotations

import pytest

from luthier.view.diff import markdown
from luthier.view.diff.markdown import ConfigReport
from tests.view.diff import comparisons


def _change(path, before):
    return {**comparisons.change("changed", path, before, "2"), "told": f"{before} -> 2"}


def _reports(count, changes=1, effects=None):
    made = [_change(f"a.b{n}", "1") for n in range(changes)]
    comparison = comparisons.comparison(made, [])
    return [ConfigReport(f"configs.c{n}", "changed", comparison, effects) for n in range(count)]


def test_a_config_has_a_row_and_folded_details_with_its_effects():
    effects = comparisons.effects()
    effects["quantities"][0]["group"] = "parameters"
    text = markdown.render("main → HEAD", _reports(1, effects=effects))
    lines = text.splitlines()
    assert lines[:7] == [
        "### Configs: main → HEAD",
        "",
        "1 changed.",
        "",
        "| config |  | parameters | FLOPs per step | checkpoint |",
        "| --- | --- | --- | --- | --- |",
        "| `configs.c0` | 1 change: 1 changed | 4,200,000 → 8,400,000 (x2) |  | not compatible |",
    ]
    assert "<summary><code>configs.c0</code>: 1 change: 1 changed</summary>" in lines
    block = text.split("```")[1]
    assert "~ a.b0: 1 -> 2 (x2)" in block
    assert "learning rate" in block


@pytest.mark.parametrize(("count", "changes"), [(2000, 1), (40, 200), (1, 20_000)])
def test_a_report_fits_into_a_comment_and_names_what_it_leaves_out(count, changes):
    text = markdown.render("main → HEAD", _reports(count, changes))
    assert markdown.LIMIT * 0.5 < len(text) <= markdown.LIMIT
    shown = text.count("<details>")
    assert shown == text.count("</details>") == text.count("\n```\n")
    assert shown >= 1
    if count > 1:
        assert f"The details of {count - shown} configs are left out" in text
    else:
        assert "more lines are left out" in text


def test_values_cannot_end_the_block_or_the_table():
    nasty = "``` </details> | <script> \n# x"
    report = ConfigReport(
        "configs.a|b", "changed", comparisons.comparison([_change("a", nasty)], [], (nasty, nasty))
    )
    broken = ConfigReport("configs.c", "broken", note=nasty)
    lines = markdown.render(nasty, [report, broken]).splitlines()
    assert lines[0] == r"### Configs: \`\`\` \</details\> \| \<script\> \\n\# x"
    (row,) = [line for line in lines if "does not resolve" in line]
    assert row.count("|") - row.count(r"\|") == 3
    fences = [place for place, line in enumerate(lines) if line.startswith("````")]
    assert len(fences) == 2
    assert not any(line.startswith("</details>") for line in lines[fences[0] : fences[1]])
