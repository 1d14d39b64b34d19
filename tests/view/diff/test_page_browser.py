"""The page of a diff in a real browser: it is clicked, typed into, and read."""

import pytest

import luthier
from luthier import graph as graphs
from luthier.view.diff import page as diff_page
from tests.browsing import check_accessible, check_fits, clipboard, wait_until
from tests.view.diff import comparisons


@pytest.fixture
def page(open_page):
    return open_page(diff_page.render(comparisons.small(), comparisons.effects()))


def _names(page):
    found = page.locator(".rows .row .name").all_inner_texts()
    return [text.replace("▾", "").replace("▸", "").replace("⋯", "").strip() for text in found]


def _active(page):
    return page.locator(".inspector .path").inner_text()


def test_the_unchanged_is_closed_until_it_is_asked_for(page):
    assert (
        page.locator("h1").inner_text()
        == "7 changes, 1 of them without effect on the built objects"
    )
    names = _names(page)
    assert "5 unchanged" in names
    assert "b1" not in names
    page.get_by_text("5 unchanged").click()
    assert _names(page)[_names(page).index("optimizer") + 1 :][:5] == ["b0", "b1", "b2", "b3", "b4"]
    page.get_by_role("button", name="Show everything").click()
    assert "seed" in _names(page)
    assert not page.get_by_text(" unchanged").count()
    page.get_by_role("button", name="Show everything").click()
    assert "5 unchanged" in _names(page)


def test_a_short_stretch_is_not_hidden(page):
    names = _names(page)
    assert (
        names[names.index("model") + 1] == "dim"
    )  # alone: a line that says "1 unchanged" is as long


def test_search_finds_names_and_values(page):
    page.keyboard.press("/")
    page.keyboard.type("rmsnorm")
    assert _names(page) == ["(all)", "model", "norm"]
    assert page.locator("#count").inner_text() == "1 setting found, 1 of 7 changes"
    assert page.locator("mark").all_inner_texts() == ["RMSNorm"]
    page.locator("#search").fill("no such thing")
    assert page.locator("#count").inner_text() == "Nothing found"
    page.keyboard.press("Escape")
    assert page.locator("#count").inner_text() == "7 changes in 22 settings"
    assert "5 unchanged" in _names(page)


def test_the_unchanged_is_found_as_well(page):
    page.locator("#search").fill("quickstart")
    assert _names(page) == ["(all)", "name"]
    assert page.locator("#count").inner_text() == "1 setting found, 0 of 7 changes"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("optimizer.learning_rate", ["learning_rate", "peak", "warmup_steps"]),
        ("**.peak", ["peak"]),
        ("model.*", ["dim", "head", "norm", "num_layers"]),
        ("model.norm.*", ["bias", "dim"]),
        ("data.sources[0]", ["source"]),
        ("(", []),
    ],
)
def test_paths_are_filtered(page, pattern, found):
    page.locator("#path").fill(pattern)
    parents = {"(all)", "model", "optimizer", "data"} | ({"norm"} if "norm." in pattern else set())
    parents |= {"learning_rate"} if pattern == "**.peak" else set()
    assert sorted(set(_names(page)) - parents) == found


def test_kinds_are_filtered_and_counted(page):
    kinds = page.locator("button.kind").all_text_contents()
    assert kinds == ["changed 2", "added 1", "removed 1", "set 1", "class 1", "moved 1"]
    page.locator("button.kind", has_text="class").click()
    assert _names(page) == ["(all)", "model", "norm"]
    page.locator("button.kind", has_text="removed").click()
    assert _names(page) == ["(all)", "model", "norm", "bias"]
    assert page.locator("#count").inner_text() == "2 settings found, 2 of 7 changes"


@pytest.mark.full
def test_the_keys_go_from_change_to_change(page):
    paths = []
    for _ in range(6):
        paths.append(_active(page))
        page.keyboard.press("j")
    assert paths == [
        *("model.num_layers", "model.norm", "model.norm.bias", "model.head"),
        *("optimizer.learning_rate.warmup_steps", "optimizer.learning_rate.peak"),
    ]
    assert _active(page) == "data.source"
    page.keyboard.press("j")
    assert page.locator(".toast").inner_text() == "That was the last change"
    page.keyboard.press("k")
    assert _active(page) == "optimizer.learning_rate.peak"


def test_the_tree_is_walked_opened_and_closed_by_keys(page):
    page.locator("#changes").focus()
    page.keyboard.press("Home")
    assert _active(page) == "(all)"
    page.keyboard.press("ArrowRight")  # the stretch of unchanged settings below opens
    assert "seed" in _names(page)
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert _active(page) == "model"
    page.keyboard.press("ArrowLeft")
    assert "num_layers" not in _names(page)
    folded = page.locator("[aria-selected=true]")
    assert folded.get_attribute("aria-expanded") == "false"
    assert folded.inner_text().split("\n")[1:3] == ["model", "4 changes"]
    assert page.locator("#changes").get_attribute("aria-activedescendant") == folded.get_attribute(
        "id"
    )
    page.keyboard.press("ArrowRight")
    assert "num_layers" in _names(page)
    page.keyboard.press("End")
    assert _active(page) == "data.source"
    page.keyboard.press("ArrowLeft")
    assert _active(page) == "data"


def test_a_part_is_closed_by_its_mark(page):
    page.locator(".row", has_text="Decoder").locator(".twisty").click()
    assert "num_layers" not in _names(page)
    page.keyboard.press("j")  # a change in a closed part is passed over
    assert _active(page) == "optimizer.learning_rate.warmup_steps"


def test_the_views_are_switched(page):
    def is_on(name):
        return page.get_by_role("button", name=name).get_attribute("aria-pressed") == "true"

    heads = page.locator("[role=columnheader]").all_inner_texts()
    assert heads == ["Setting", "A configs.lm.quickstart", "B runs/quickstart/0123", "Change"]
    row = page.locator(".row", has_text="num_layers")
    assert not row.locator(".arrow").is_visible()
    page.keyboard.press("u")
    assert row.locator(".arrow").is_visible()
    assert (is_on("Side by side"), is_on("Unified")) == (False, True)
    for text, seen in (("Decoder", "Decoder"), ("TextFiles", "TextFiles"), ("head", "LinearHead")):
        line = page.locator(".row", has=page.get_by_text(text, exact=True)).first
        values = line.locator(".value:visible").all_inner_texts()
        assert values == [seen]  # once, whether it is the same or new
    page.keyboard.press("s")
    assert not row.locator(".arrow").is_visible()
    page.get_by_role("button", name="Unified").click()
    assert row.locator(".arrow").is_visible()


def test_one_change_is_reported_in_full(page):
    page.locator(".row", has_text="RMSNorm").locator(".label").click()
    lines = page.locator(".inspector").inner_text().split("\n")
    assert "A from configs/lm/quickstart.py:41" in lines
    assert "B from argument 1" in lines
    assert lines[lines.index("carried over") + 1] == "dim"
    assert lines[lines.index("dropped") + 1] == "bias"
    page.locator(".row", has_text="warmup_steps").locator(".label").click()
    assert "The built objects stay the same." in page.locator(".inspector").inner_text()
    page.locator(".row", has_text="num_layers").locator(".label").click()
    assert page.locator(".inspector .size").inner_text().split() == ["×2", "+4"]
    page.get_by_role("button", name="Close").click()
    assert "Select a setting" in page.locator(".inspector").inner_text()


def test_classes_are_reported_without_their_module_where_that_is_enough(open_page):
    pairs = [
        ("partial my.layers.Norm", "my.layers.Norm"),
        ("partial a.b.Norm", "partial a.c.Other"),
        ("0.0001", "1.5"),
        ("'a.b'", "jax.nn.silu"),
    ]
    rows = [comparisons.row(0, f"p{i}", *pair, i) for i, pair in enumerate(pairs)]
    changes = [comparisons.change("changed", f"p{i}", *pair) for i, pair in enumerate(pairs)]
    page = open_page(diff_page.render(comparisons.comparison(changes, rows)))
    shown = [page.locator(f".rows .{side}").all_inner_texts() for side in ("before", "after")]
    assert list(zip(*shown, strict=True)) == [
        ("partial my.layers.Norm", "my.layers.Norm"),
        ("Norm", "Other"),
        ("0.0001", "1.5"),
        ("'a.b'", "silu"),
    ]


def test_changes_are_copied(page):
    page.get_by_role("button", name="Copy override c").click()
    assert clipboard(page) == "model.num_layers=8"
    assert page.locator(".toast").inner_text() == "Override copied"
    page.get_by_role("button", name="Copy overrides 5").click()
    assert clipboard(page) == (
        "model.num_layers=8 model.norm=RMSNorm 'model.head:=LinearHead(dim=8)' "
        "optimizer.learning_rate.warmup_steps=100 optimizer.learning_rate.peak=0.0003"
    )
    page.get_by_role("button", name="Copy fiddler").click()
    assert clipboard(page).startswith("def change(graph):\n    graph.model")
    for _ in range(5):
        page.keyboard.press("j")
    page.keyboard.press("c")
    assert clipboard(page) == "optimizer.learning_rate.peak=0.0003"
    page.keyboard.press("j")
    page.keyboard.press("c")
    assert page.locator(".toast").inner_text() == "No override makes this change"
    assert "No override makes this change: an element that moves has none. The fiddler does." in (
        page.locator(".inspector").inner_text()
    )
    page.get_by_text("2 changes without an override").click()
    assert page.locator(".without-override li").all_inner_texts() == [
        "model.norm.bias an element that moves has none",
        "data.source an element that moves has none",
    ]


@pytest.mark.full
def test_a_link_leads_to_its_path(page, open_page):
    text = diff_page.render(comparisons.small())
    other = open_page(text, name="other.html", link="#optimizer.b3")
    assert _active(other) == "optimizer.b3"
    assert "b3" in _names(other)  # what was closed is open
    other.get_by_role("button", name="Copy link").click()
    assert clipboard(other).endswith("/other.html#optimizer.b3")
    other.evaluate("location.hash = '#data.sources%5B0%5D'")  # where it was before
    wait_until(other, "document.querySelector('.path').textContent === 'data.source'")
    other.evaluate("location.hash = '#nowhere'")
    wait_until(other, "document.querySelector('.toast').textContent !== ''")
    assert other.locator(".toast").inner_text() == "There is no setting nowhere"
    page.locator(".row", has_text="peak").locator(".label").click()
    assert page.url.endswith("/page.html#optimizer.learning_rate.peak")


def test_a_link_is_followed_in_spite_of_a_filter(page):
    page.locator("#search").fill("peak")
    page.evaluate("location.hash = '#seed'")
    wait_until(page, "document.querySelector('.path').textContent === 'seed'")
    assert page.locator("#search").input_value() == ""
    assert "seed" in _names(page)


def test_the_theme_is_the_readers_and_is_remembered(open_page):
    text = diff_page.render(comparisons.small())
    dark = open_page(text, color_scheme="dark")
    theme = "document.documentElement.dataset.theme"
    assert dark.evaluate(theme) == "dark"
    dark.get_by_role("button", name="Switch to the light theme").click()
    assert dark.evaluate(theme) == "light"
    dark.reload()
    assert dark.evaluate(theme) == "light"
    dark.keyboard.press("t")
    assert dark.evaluate(theme) == "dark"
    ground = dark.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert ground == "rgb(19, 21, 24)"


def test_the_help_lists_the_keys(page):
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard")
    assert "next and previous change" in dialog.inner_text()
    before = _active(page)
    page.keyboard.press("j")
    assert _active(page) == before  # the page behind does not hear
    dialog.get_by_role("button", name="Close").click()
    assert not dialog.is_visible()


def test_keys_with_modifiers_and_in_fields_stay_the_browsers(page):
    before = _active(page)
    page.keyboard.press("Control+j")
    page.locator("#path").press("k")
    assert (_active(page), page.locator("#path").input_value()) == (before, "k")


def test_what_follows_is_reported(page):
    rows = page.locator(".quantities tbody tr").all_inner_texts()
    cells = [row.split("\t") for row in rows]
    assert ["optimizer", "32.04 MiB", "64.09 MiB", "×2", ""] in cells
    assert ["tokens per step", "8192 tokens", "8192 tokens", "same", ""] in cells
    assert ["dtype", "float32", "bfloat16", "", ""] in cells
    assert page.locator(".verdict.warn").inner_text().split("\n") == [
        "!",
        "checkpoint",
        "not compatible: 4 layers, 8 now",
    ]
    chart = page.get_by_role("img", name="learning rate. A learning rate: 101 points")
    assert chart.locator("path.line").count() == 2
    chart.hover()
    assert page.locator(".readout").inner_text().startswith("step ")
    page.get_by_role("button", name="Effects").click()
    assert page.evaluate("document.getElementById('effects').getBoundingClientRect().top < 850")


def test_long_lists_of_effects_are_closed(open_page):
    effects = comparisons.effects()
    one = effects["quantities"][0]
    effects["quantities"] = [{**one, "name": f"array {i}"} for i in range(20)]
    text = "no: it does not fit:\n- a: float32[2]\n- b: float32[3]"
    effects["verdicts"] = [{"name": "checkpoint", "text": text, "severity": "warn"}]
    page = open_page(diff_page.render(comparisons.small(), effects))
    assert page.locator(".quantities tbody tr").count() == 11
    page.get_by_role("button", name="11 more").click()
    assert page.locator(".quantities tbody tr").count() == 21
    verdict = page.locator(".verdict")
    assert verdict.inner_text().split("\n") == ["!", "checkpoint", "no: it does not fit"]
    verdict.locator("summary").click()
    assert verdict.locator("li").all_inner_texts() == ["a: float32[2]", "b: float32[3]"]


def test_the_page_is_accessible(page):
    check_accessible(page)
    page.keyboard.press("u")
    page.get_by_role("button", name="Show everything").click()
    check_accessible(page)


def test_everything_is_reached_by_the_tab_key(page):
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("(({ id, textContent }) => id || textContent)(document.activeElement)")
        )
    assert {"search", "path", "everything", "copy-overrides", "copy-fiddler", "changes"} <= reached
    assert {"Side by side", "Unified", "changed 2", "Copy link", "☾"} <= reached


def test_names_and_values_run_nothing(open_page):
    script = "<script>document.title = 'hacked'</script>"
    image = '"><img src="x" onerror="document.title = \'hacked\'">'
    nasty = [script, image, f"</script>{script}", "javascript:alert(1)", "${document.title}"]
    changes, rows = [], [comparisons.row(0, "", nasty[0], nasty[1], opens=True)]
    for number, text in enumerate(nasty):
        texts = {"same_as": text, "carried": [text], "origin_after": text, "path_before": text}
        changes.append(comparisons.change("changed", text, text, f"{text} b", **texts))
        rows.append(comparisons.row(1, text, text, f"{text} b", number, name=text))
    made = comparisons.comparison(changes, rows, titles=(script, image))
    made["sides"][0]["detail"] = image
    effects = comparisons.effects()
    effects["charts"][0]["title"] = effects["verdicts"][0]["text"] = script
    effects["quantities"][0]["name"] = effects["quantities"][0]["after"] = image
    page = open_page(diff_page.render(made, effects))
    for _ in nasty:
        page.keyboard.press("j")
    page.locator("#search").fill("img")
    page.keyboard.press("Escape")
    page.evaluate("location.hash = '#<img src=x onerror=alert(1)>'")
    page.wait_for_timeout(50)
    assert page.title() == f"{script} → {image}"
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator(".rows .label").all_inner_texts()[1] == script


def test_the_policy_stops_what_would_be_put_into_the_page(page):
    page.evaluate(
        """() => {
          const node = document.createElement("script");
          node.textContent = "document.title = 'hacked'";
          document.body.append(node);
        }"""
    )
    assert page.title() == "configs.lm.quickstart → runs/quickstart/0123"
    page.wait_for_timeout(50)
    (complaint,) = page.complaints
    assert "Content Security Policy" in complaint
    page.complaints.clear()


@pytest.mark.full
def test_no_difference_and_no_settings(open_page):
    rows = [comparisons.row(0, "", "Experiment", "Experiment"), comparisons.row(1, "a", "1", "1")]
    same = open_page(diff_page.render(comparisons.comparison([], rows)))
    assert same.locator("h1").inner_text() == "Nothing differs"
    assert same.locator("#count").inner_text() == "No difference in 2 settings"
    assert same.get_by_role("button", name="Copy overrides").is_disabled()
    check_accessible(same)
    empty = open_page(diff_page.render(comparisons.comparison([], [])), name="empty.html")
    assert empty.locator("#count").inner_text() == "No settings"


def test_a_change_without_a_row_is_shown_all_the_same(open_page):
    tags = comparisons.change("tags", "model", "", "frozen", override=None)
    lost = comparisons.change("added", "elsewhere", None, "1")
    made = comparisons.small()
    made["changes"] += [tags, lost]
    page = open_page(diff_page.render(made))
    assert page.locator(".row", has_text="Decoder").locator(".badge").inner_text() == "tags"
    assert "elsewhere" in _names(page)


def test_few_of_many_rows_are_in_the_document(open_page):
    page = open_page(diff_page.render(comparisons.large(nodes=1000)))
    page.keyboard.press("e")
    assert page.locator("#changes").get_attribute("aria-rowcount") == "4002"
    assert page.locator(".rows .row").count() < 150
    page.evaluate("window.scrollTo(0, 60000)")
    wait_until(page, "document.querySelector('.rows .row').dataset.position > 1500")
    seen = "[...document.querySelectorAll('.rows .row')].some((row) => {"
    seen += " const at = row.getBoundingClientRect(); return at.top < 400 && at.bottom > 400; })"
    assert page.evaluate(seen)
    page.evaluate("location.hash = '#model.layers[999].argument_2'")
    wait_until(page, "document.querySelector('[aria-selected=true] .label')")
    top = page.locator("[aria-selected=true]").bounding_box()["y"]
    assert 100 < top < 850


def test_all_rows_are_printed(open_page):
    page = open_page(diff_page.render(comparisons.large(nodes=300)))
    page.keyboard.press("e")
    counted = page.evaluate(
        """() => {
          window.dispatchEvent(new Event("beforeprint"));
          const count = document.querySelectorAll(".rows .row").length;
          window.dispatchEvent(new Event("afterprint"));
          return [count, document.querySelectorAll(".rows .row").length];
        }"""
    )
    assert counted[0] == 1201
    assert counted[1] < 150
    page.emulate_media(media="print")
    assert not page.locator(".toolbar").is_visible()
    assert not page.locator(".inspector").is_visible()


def test_a_narrow_window_keeps_it_readable(open_page):
    text = diff_page.render(comparisons.small(), comparisons.effects())
    page = open_page(text, viewport={"width": 420, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    assert not page.locator(".inspector").is_visible()
    page.keyboard.press("j")
    assert _active(page) == "model.num_layers"
    page.get_by_role("button", name="Close").click()
    assert not page.locator(".inspector").is_visible()


WIDTHS = (1280, 768, 390)
LONG = "parameters/blocks/attention/query_projection/kernel/with_a_rather_long_name"


def _long_effects():
    effects = comparisons.effects()
    one = {**effects["quantities"][0], "unit": "FLOPs", "before": 1.611e13, "after": 1.148e10}
    array = {**one, "group": "arrays", "unit": "", "before": "float32[4, 128, 128] (None, 'mlp')"}
    effects["quantities"] += [{**one, "name": LONG}, {**array, "name": LONG, "after": None}]
    return effects


def _quickstart_and_gemma():
    gemma = graphs.resolve("configs.lm.families:gemma")
    found = luthier.diff(graphs.resolve("configs.lm.quickstart"), gemma).as_json()
    found["sides"][1]["title"] = f"configs.lm.families:gemma {' '.join(found['overrides'])}"
    return found


@pytest.mark.full
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", [comparisons.small, _quickstart_and_gemma])
def test_nothing_is_cut_off(open_page, make, width):
    text = diff_page.render(make(), _long_effects())
    page = open_page(text, viewport={"width": width, "height": 900})
    for view in ("s", "u"):
        page.keyboard.press(view)
        for theme in ("light", "dark"):
            page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            check_fits(page)
    # The effects have all of their columns beside each other, without scrolling.
    assert page.evaluate(
        "(() => { const t = document.querySelector('.quantities-panel');"
        " return t.scrollWidth <= t.clientWidth + 1; })()"
    )
    page.keyboard.press("e")
    page.evaluate("window.scrollTo(0, document.body.scrollHeight / 2)")
    page.wait_for_timeout(100)
    check_fits(page)


def test_a_long_value_is_shown_in_whole_and_the_rows_below_it_are_where_they_should_be(open_page):
    value = "[" + ", ".join(f"luthier.layers.Block{n}" for n in range(12)) + "]"
    changes = [comparisons.change("changed", f"a{n}", value, "None") for n in range(3)]
    rows = [comparisons.row(0, f"a{n}", value, "None", n) for n in range(3)]
    page = open_page(diff_page.render(comparisons.comparison(changes, rows)))
    boxes = [page.locator(".rows .row").nth(n).bounding_box() for n in range(3)]
    assert boxes[0]["height"] > 60
    assert boxes[1]["y"] == boxes[0]["y"] + boxes[0]["height"]
    cell = page.locator(".rows .before").first
    assert cell.evaluate("cell => cell.scrollHeight <= cell.clientHeight")
    before = boxes[0]["height"]
    page.set_viewport_size({"width": 480, "height": 850})
    page.wait_for_timeout(50)
    assert page.locator(".rows .row").first.bounding_box()["height"] > before


def test_arrow_keys_walk_the_tree_before_it_has_the_focus_and_after_the_help(page):
    assert page.evaluate("document.activeElement === document.body")
    first = _active(page)
    page.keyboard.press("ArrowDown")
    assert _active(page) != first
    assert page.evaluate("document.activeElement.id") == "changes"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    page.keyboard.press("Escape")
    page.wait_for_timeout(50)  # the dialog closes first
    assert page.evaluate("document.activeElement.id") == "changes"
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "changes"
