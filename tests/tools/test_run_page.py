"""The program that runs the code of documentation pages: what it accepts, reports and rewrites."""

import signal
import textwrap

import pytest

from tools.docs import run_page

HEAD = "# A page\n\n<!-- run: minutes=0.1 -->\n\n"


@pytest.fixture
def page(tmp_path):
    """Return a function that writes a page and returns its path."""

    def write(text, head=HEAD):
        path = tmp_path / "page.md"
        path.write_text(head + textwrap.dedent(text))
        return path

    return write


def test_blocks_run_in_order_in_one_folder_and_one_namespace(page):
    path = page("""\
        <!-- file: pieces/words.txt -->
        ```text
        one two
        three
        ```

        1. In a list:

           ```console
           $ cd pieces
           $ grep -c o \\
           > words.txt
           1
           ```

        ```python
        count = len(open("words.txt").read().split())
        ```

        ```python
        print("count", count)
        ```

        ```text
        count 3
        ```

        <!-- exit: 1 -->
        ```python
        count.missing
        ```

        ```text
        Traceback (most recent call last):
        ...
        AttributeError: 'int' object has no attribute 'missing'
        ```

        <!-- skip: there is nothing to install -->
        ```console
        $ false
        ```

        ```bash
        false
        ```
        """)
    # `grep -c` counts the lines with an o: only the first has one.
    assert run_page.run(path) == path.read_text()


def test_a_traceback_names_the_line_of_the_page(page):
    path = page("```python\nx = 1\n\nraise ValueError(x)\n```\n")
    with pytest.raises(run_page.PageError, match=r"page\.md\", line 8"):
        run_page.run(path)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("```console\n$ echo a b\na c\n```\n", "page.md:6: other output .*\n.*\n*expected:\na c"),
        ("```console\n$ true\n$ false\n```\n", "page.md:7: exit code 1, not 0"),
        ("<!-- exit: 2 -->\n```console\n$ true\n```\n", "page.md:7: exit code 0, not 2"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "page.md:6: other output"),
        ("<!-- exti: 2 -->\n", "page.md:5: unknown comment 'exti'"),
    ],
)
def test_a_difference_is_reported_with_its_line(page, block, message):
    with pytest.raises(run_page.PageError, match=message):
        run_page.run(page(block))


def test_a_page_without_the_comment_is_not_run(page):
    with pytest.raises(run_page.PageError, match="has no comment <!-- run"):
        run_page.run(page("```console\n$ true\n```\n", head="# A page\n\n"))
    with pytest.raises(run_page.PageError, match=r"write <!-- run: extras=NAMES; minutes=NUMBER"):
        run_page.read(page("", head="<!-- run: minute=3 -->\n"))


def test_an_update_keeps_the_elisions_that_still_match(page):
    path = page("""\
        ```console
        $ printf 'loss 1.234\\nnoise\\nnoise\\nold 1\\nend\\n'
        loss 1...
        ...
        old 2
        end
        $ echo new
        ```

        ```python
        print("a")
        ```

        ```text
        b
        ```
        """)
    with pytest.raises(run_page.PageError):
        run_page.run(path)
    text = run_page.run(path, update=True)
    assert "loss 1...\n...\nend\n$ echo new\nnew\n```" in text
    assert "```text\na\n```" in text
    path.write_text(text)
    assert run_page.run(path) == text


@pytest.mark.parametrize("got", [[], ["x"], ["x", "", "y"]])
def test_a_line_of_dots_stands_for_any_lines_or_none(got):
    assert run_page.matches(["a", "...", "b 1..."], ["a", *got, "b 12"])
    assert run_page.matches(["a", "..."], ["a", *got])
    assert not run_page.matches(["a", "...", "b"], ["a", *got, "c"])


def test_ctrl_c_reaches_the_command_and_its_handler_ends_it(page):
    path = page("""\
        <!-- exit: 130 -->
        <!-- interrupt: step 1 -->
        ```console
        $ trap 'echo saved; exit 130' INT; echo step 1; while true; do sleep 0.01; done
        step 1
        ^C
        saved
        ```
        """)
    # As where a shell has started the tests in the background: what they start ignores Ctrl-C, too.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_page.run(path) == path.read_text()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_quick_run_checks_trainings_only(page):
    path = page("""\
        <!-- dry-run -->
        ```console
        $ luthier train nothing
        step 1
        $ false
        ```
        """)
    with pytest.raises(run_page.PageError, match="train nothing --dry-run"):
        run_page.run(path, quick=True)


def test_commands_do_not_see_the_clone_or_settings_of_the_caller(page, monkeypatch):
    monkeypatch.setenv("LUTHIER_TRUST", "everything")
    path = page("""\
        ```console
        $ echo "[$LUTHIER_TRUST]" $COLUMNS
        [] 100
        $ luthier --version
        luthier ...
        ```

        <!-- exit: 1 -->
        ```python
        import tests
        ```
        """)
    run_page.run(path)
