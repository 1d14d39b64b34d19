"""Writes the TeX formulas of docstrings as readable Unicode."""

from __future__ import annotations

import re

_LETTERS = (
    *("alpha α", "beta β", "gamma γ", "delta δ", "epsilon ε", "varepsilon ε", "zeta ζ", "eta η"),
    *("theta θ", "kappa κ", "lambda λ", "mu μ", "nu ν", "xi ξ", "pi π", "rho ρ", "sigma σ"),
    *("tau τ", "phi φ", "varphi φ", "chi χ", "psi ψ", "omega ω", "Gamma Γ", "Delta Δ", "Theta Θ"),
    *("Lambda Λ", "Pi Π", "Sigma Σ", "Phi Φ", "Psi Ψ", "Omega Ω", "ell ℓ", "nabla ∇", "partial ∂"),
)
_SIGNS = (
    *("sum Σ", "prod Π", "int ∫", "infty ∞", "cdot ·", "odot ⊙", "times ×", "otimes ⊗", "oplus ⊕"),
    *("le ≤", "leq ≤", "ge ≥", "geq ≥", "ne ≠", "neq ≠", "ll ≪", "gg ≫", "approx ≈", "equiv ≡"),
    *("sim ~", "propto ∝", "in ∈", "notin ∉", "leftarrow ←", "gets ←", "rightarrow →", "to →"),
    *("mapsto ↦", "lceil ⌈", "rceil ⌉", "lfloor ⌊", "rfloor ⌋", "langle ⟨", "rangle ⟩", "mid |"),
    *(
        "Vert ‖",
        "lVert ‖",
        "rVert ‖",
        "vert |",
        "pm ±",
        "dots …",
        "ldots …",
        "cdots …",
        "top ᵀ",
        "circ ∘",
    ),
    *("forall ∀", "exists ∃", "cup ∪", "cap ∩", "setminus ∖", "quad  ", "qquad  ", "| ‖"),
)
_COMMANDS = {name: sign for name, _, sign in (each.partition(" ") for each in (*_LETTERS, *_SIGNS))}
_ACCENTS = {"hat": "\u0302", "tilde": "\u0303", "bar": "\u0304", "dot": "\u0307"}
_PLAIN = (
    "overline",
    "mathrm",
    "mathbf",
    "mathit",
    "mathcal",
    "mathbb",
    "text",
    "operatorname",
    "boldsymbol",
)
_SUBSCRIPTS = str.maketrans("0123456789+-=()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ")
_SUPERSCRIPTS = str.maketrans(
    "0123456789+-=()abcdefghijklmnoprstuvwxyzT",
    "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᵀ",
)
_GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"  # braces, with one more level inside


def readable(text: str) -> str:
    """Return a text with its formulas, `$...$` and `$$...$$`, in Unicode.

    Args:
      text: A docstring or a part of one; code spans are left as they are.
    """
    # Code may hold dollars, as `$XDG_CACHE_HOME` does.
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [
        re.sub(r"\$\$(.+?)\$\$|\$([^$\n]+(?:\n[^$\n]+)?)\$", _formula, part, flags=re.DOTALL)
        for part in parts[::2]
    ]
    return "".join(parts)


def _formula(found: re.Match[str]) -> str:
    return unicode_of(found[1] if found[1] is not None else found[2])


def unicode_of(formula: str) -> str:
    r"""Return a formula of TeX in Unicode; commands that are not known keep their names.

    Args:
      formula: As `\theta_t = \frac{a}{b}`.
    """
    text = " ".join(formula.split())
    text = re.sub(r"\\begin\{cases\}(.*?)\\end\{cases\}", _cases, text)
    text = re.sub(r"\\(left|right|big|Big|displaystyle)\b", "", text)
    # Arguments without braces, `\frac12` and `\sqrt 2`, get some.
    text = re.sub(r"\\[dt]?frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\sqrt\s*(\w)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\[,;:! ]", " ", text)
    # Letters first, so that braces hold no commands with a backslash that ends in a letter.
    text = re.sub(r"\\([A-Za-z]+|\|)", _command, text)
    for _ in range(4):  # formulas in formulas: the inner braces go first
        before = text
        text = re.sub(rf"\\(?:{'|'.join(_PLAIN)})\s*{_GROUP}", r"\1", text)
        text = re.sub(
            rf"\\({'|'.join(_ACCENTS)})\s*(?:{_GROUP}|(\w))",
            lambda found: (found[2] or found[3]) + _ACCENTS[found[1]],
            text,
        )
        text = re.sub(rf"\\sqrt\s*{_GROUP}", lambda found: f"√{_grouped(found[1])}", text)
        text = re.sub(rf"\\[dt]?frac\s*{_GROUP}\s*{_GROUP}", _fraction, text)
        if text == before:
            break
    text = re.sub(rf"_(?:{_GROUP}|(\w|[^\x00-\x7f]))", _script(_SUBSCRIPTS, "_"), text)
    text = re.sub(rf"\^(?:{_GROUP}|(\w|[^\x00-\x7f]|\*))", _script(_SUPERSCRIPTS, "^"), text)
    text = text.replace("\\{", "{").replace("\\}", "}").replace("\\", "").replace("{}", "")
    return " ".join(text.split())


_STRUCTURES = ("frac", "dfrac", "tfrac", "sqrt", *_ACCENTS, *_PLAIN)


def _command(found: re.Match[str]) -> str:
    name = found[1]
    if name in _STRUCTURES:
        return found[0]
    if name in _COMMANDS or not name.isalpha():
        return _COMMANDS.get(name, name)
    # A function, as `max` in `\\max(a, b)` and `\\max x`.
    return name if found.string[found.end() :][:1] in ("(", "^", "_") else f"{name} "


def _cases(found: re.Match[str]) -> str:
    rows = [row.replace("&", r"\text{ if }") for row in re.split(r"\\\\", found[1])]
    return "; ".join(row.strip() for row in rows)


def _fraction(found: re.Match[str]) -> str:
    text = f"{_grouped(found[1])} / {_grouped(found[2])}"
    # In parentheses where a factor follows: `c / K x` could be read as c / (K x).
    following = found.string[found.end() :].lstrip()[:1]
    return text if following in ("", *"+-=,;.)}]") else f"({text})"


def _grouped(text: str) -> str:
    """Return a numerator, denominator or radicand, in parentheses if it is not one symbol."""
    is_one = re.fullmatch(r"[^\s+\-*/]+|\([^()]*\)", text)
    return text if is_one else f"({text})"


def _script(table: dict[int, int], sign: str):
    def replace(found: re.Match[str]) -> str:
        text = (found[1] if found[1] is not None else found[2]).strip()
        plain = text.replace(" ", "")
        if all(ord(letter) in table for letter in plain):
            return plain.translate(table)
        return f"{sign}{text}" if len(text) == 1 else f"{sign}({text})"

    return replace
