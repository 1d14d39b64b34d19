import base64
import hashlib
import json
import re

import pytest

from luthier.view.page import document
from luthier.view.page.shell import encode

NASTY = [
    "<script>document.title = 'hacked'</script>",
    "</script><script>document.title = 'hacked'</script>",
    '"><img src=x onerror="document.title = \'hacked\'">',
    "<!-- <script>",
    "&lt;b&gt; \u2028 \u2029 \\u003c",
    "half of a pair \ud800",
]


def test_data_can_neither_end_its_element_nor_open_one():
    text = encode(dict.fromkeys(NASTY, NASTY))
    assert not re.search("[<>&\u2028\u2029\ud800]", text)
    assert json.loads(text) == dict.fromkeys(NASTY, NASTY)


def test_numbers_that_are_none_are_words():
    numbers = {"a": [float("nan"), float("inf")], "b": (-float("inf"), 1.5)}
    assert json.loads(encode(numbers)) == {"a": ["nan", "inf"], "b": ["-inf", 1.5]}


@pytest.mark.parametrize("kind", ["script", "style"])
def test_the_policy_allows_what_the_page_holds_and_nothing_else(kind):
    text = document("title", {}, ("diff.css", "matrix.js"), "no script")
    (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; ")
    assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_a_page_is_one_file_that_loads_nothing():
    text = document("title", {}, ("diff.css", "report.css", "matrix.css"), "no script")
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of SVG, which nobody asks for
    assert not re.search(r"@import|url\(|src=|<link", text)


def test_the_title_is_text():
    text = document(NASTY[0] + NASTY[-1], {}, (), "a < b")
    title = "&lt;script&gt;document.title = &#x27;hacked&#x27;&lt;/script&gt;half of a pair ?"
    assert f"<title>{title}</title>" in text
    assert "<noscript>a &lt; b</noscript>" in text
    text.encode()


def test_an_unknown_file_is_an_error():
    with pytest.raises(FileNotFoundError):
        document("title", {}, ("missing.js",), "")
