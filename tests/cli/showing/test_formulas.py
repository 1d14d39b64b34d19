from __future__ import annotations

import pytest

from luthier.cli.showing import readable, unicode_of


@pytest.mark.parametrize(
    ("tex", "text"),
    [
        (r"\theta_t = \theta_{t-1} - \eta_t", "θₜ = θₜ₋₁ - ηₜ"),
        (r"\frac{m_t}{\sqrt{v_t} + \epsilon}", "mₜ / (√vₜ + ε)"),
        (r"\frac{c}{K} x", "(c / K) x"),
        (r"\tfrac12 (1 + \cos \pi x)", "(1 / 2) (1 + cos π x)"),
        (r"\max(1, \mathrm{rms}(u) / d)", "max(1, rms(u) / d)"),
        (r"\hat\beta_t", "β̂ₜ"),
        (r"\bar{B} = \Lambda^{-1} B", "B̄ = Λ⁻¹ B"),
        (r"\sum_{e \in E} f_e", "Σ_(e ∈ E) fₑ"),
        (r"\|g\|_2", "‖g‖₂"),
        (r"\begin{cases} a & t < W \\ b & t \ge W \end{cases}", "a if t < W; b if t ≥ W"),
        (r"\lceil \mathrm{factor}\, L / E \rceil", "⌈ factor L / E ⌉"),
    ],
)
def test_tex_is_written_as_unicode(tex, text):
    assert unicode_of(tex) == text


def test_formulas_in_a_text_are_replaced_and_code_is_not():
    text = "The rate, $\\eta$, in `$HOME` and\n$$ a_1 $$\nfor $5."
    assert readable(text) == "The rate, η, in `$HOME` and\na₁\nfor $5."


def test_formulas_of_the_docstrings_leave_no_commands_behind():
    import inspect

    from luthier import layers, losses, metrics, models, optim, parallel, tasks

    formulas = 0
    for package in (layers, losses, metrics, models, optim, parallel, tasks):
        for name in package.__all__:
            text = inspect.getdoc(getattr(package, name)) or ""
            formulas += text.count("$$")
            lines = [line for line in text.splitlines() if "`" not in line]
            assert "\\" not in readable("\n".join(lines)), f"{package.__name__}.{name}"
    assert formulas > 30
