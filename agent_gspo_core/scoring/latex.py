r"""Read an answer in LaTeX and compare it with the gold answer by value.

What an answer *is* (a number, a text, an interval, a pair, a set, a matrix, an equation) is decided here, from how it
is written: `(1,2)` is never `[1,2]`, `\{1,2\}` never `(1,2)`, and `2516_8` never 2516. Only the expressions inside go
to math-verify, which knows when two of them have one value.

math-verify's own limits are signals, which fail outside the main thread (Math-Verify #55) and cannot stop a tower of
powers (#65). Here it runs in one worker process. The kernel ends that process when a comparison overruns, so the limit
holds in threads, in notebooks and in pool workers, and no process is left behind when its owner is killed. POSIX only.

What units do (ours): as in `numbers`, they are dropped and nothing is converted, but two units that are both known and
differ ("cm" and "m", "cents" and "dollars") make two answers differ.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from agent_gspo_core.scoring.numbers import RELATIVE_TOLERANCE, read_number
from agent_gspo_core.scoring.text import (
    CUE,
    REFUSAL,
    after_last_cue,
    first_marked,
    last_box,
    marked_lines,
    normalise_text,
    own_part,
    settled,
)

_LOG = logging.getLogger(__name__)

_LONGEST = 1500
"""Characters; a longer answer is equal only to itself (ours; the longest gold answer of MATH-500 has 60)."""
_WORKER_BYTES = 2 << 30
"""Address space of the worker (ours): sympy needs a tenth of it."""
_WALL = 10
"""Wall-clock seconds for each second of processor time (ours): when the machine is shared, or the answer waits."""
_START_SECONDS = 180.0
"""Limit on starting the worker (ours): importing sympy on a busy machine can take half a minute."""

# -- reading -----------------------------------------------------------------------------------------------------------

_MATH_SPAN = re.compile(
    r"\$\$((?:[^$\\]|\\.)++)\$\$|(?<!\\)\$((?:[^$\\\n]|\\[^\n])++)\$|\\\[(.*?)\\\]|\\\((.*?)\\\)", re.S
)
_CUE_WINDOW = 600
"""Characters after a cue in which a formula may stand (ours)."""
_SENTENCE = re.compile(r"(?<=[^\s.])\.(?=\s|$)|[!?](?=\s|$)|\s(?:because|since|so|which|where)\b", re.I)
_ONE_BOX = r"\\boxed\{(?:[^{}\n]|\{[^{}\n]{0,80}\}){1,200}+\}"
_BOXES = re.compile(rf"{_ONE_BOX}(?:[$\s]{{0,4}}(?:,|,?\s?and|or)[$\s]{{1,4}}{_ONE_BOX}){{1,8}}+")
_NOT_A_NUMBER = re.compile(r"sqrt|root|pi\b|log|\bsin|\bcos|\btan|[√π^_\\]", re.I)
_EMPTY_ANSWER = re.compile(r"[\W_]*|\\(?:text|mbox|mathrm|,|;|!|quad)\W*")


def read_latex(reply: str, *, strict: bool = False) -> str | None:
    r"""The LaTeX of the answer that the reply gives, tidied; `None` if it gives none.

    Strict reads the line of the first `####` only. Lenient looks there first, then in the last `\boxed{…}`, then after
    the last answer cue, and last at the formula that ends the reply. A place that is there but holds no answer ends the
    search.
    """
    own = own_part(reply)
    if strict:
        line = first_marked(own)
        return None if line is None else _answer(line)
    last_word = settled(own)
    if last_word is None:
        return None
    own = last_word
    lines = [line for line in marked_lines(own) if line]
    if lines:
        return _answer(lines[0])
    boxed = last_box(own)
    if boxed is not None:
        return _answer(_joined_boxes(own) or boxed)
    cued = after_last_cue(own, CUE, _CUE_WINDOW)
    return _cued(cued) if cued is not None else _closing(own)


def _joined_boxes(own: str) -> str | None:
    r"""Several answers in a box each, with "and" or a comma between: `\boxed{1} and \boxed{-2}`."""
    tail = own[-_LONGEST:]
    match = next((match for match in _BOXES.finditer(tail) if r"\boxed" not in tail[match.end() :]), None)
    if match is None:
        return None
    return ", ".join(box[len(r"\boxed{") : -1] for box in re.findall(_ONE_BOX, match.group()))


def _answer(place: str) -> str | None:
    """The answer in a marked place or a box."""
    if len(place) > 2 * _LONGEST:
        return None
    inner = last_box(place)
    tidy = _trim(place if inner is None else inner)
    if inner is None:
        spans = [next(filter(None, span), "") for span in _MATH_SPAN.findall(tidy)]
        around = _MATH_SPAN.sub(" ", tidy).strip(" .:*")
        if len(spans) == 1 and around and re.search(r"[=:]$|\b(?:is|are|be)$", around):
            tidy = spans[0]  # the answer is $…$
    declines = REFUSAL.search(tidy) or re.match(r"\W*(?:not\b|n['’]t\b)", tidy)
    return None if _EMPTY_ANSWER.fullmatch(tidy) or declines else _trim(tidy)


def _cued(window: str) -> str | None:
    """The answer in what follows a cue: the formulas of its first sentence, else the words of it."""
    start = _MATH_SPAN.match(window)
    if start:
        spans, end = [next(filter(None, start.groups()), "")], start.end()
        while (more := re.compile(r"(?:\s*,?\s*(?:and|or)\s+|\s*,\s*)(?=[$\\])").match(window, end)) and (
            following := _MATH_SPAN.match(window, more.end())
        ):
            if re.search(r"\bor\b", more.group()) and "=" not in spans[0]:  # "x = 5 or x = 6" is both, "5 or 6" none
                return None
            spans.append(next(filter(None, following.groups()), ""))
            end = following.end()
        unit = re.match(r"\s(?:square\s|cubic\s)?[A-Za-z]+(?:\^\d)?", window[end:])
        words = unit.group() if unit and len(spans) == 1 and _unit(unit.group()) else ""
        return _answer(", ".join(spans) + (rf" \text{{{words.strip()}}}" if words else ""))
    line = window.partition("\n")[0]
    end_of_sentence = _SENTENCE.search(line)
    return _answer(line[: end_of_sentence.start()] if end_of_sentence else line)


def _closing(own: str) -> str | None:
    """The formula that ends a reply without mark, box and cue; failing that, the number that does."""
    lines = [line for line in own.splitlines() if line.strip(" .$\\[]()")]
    if not lines or REFUSAL.search(own) or len(lines[-1]) > _LONGEST:
        return None
    line = lines[-1]
    spans = list(_MATH_SPAN.finditer(line))
    if spans:
        after = line[spans[-1].end() :].strip(" .!*")
        if after and not _unit(after):
            return None
        sides = next(filter(None, spans[-1].groups()), "").split("=")
        return _answer(sides[-1] if len(sides) > 2 else "=".join(sides))  # a chain ends in the answer
    return None if _NOT_A_NUMBER.search(line) else read_number(line)


def _trim(text: str) -> str:
    """Without blanks, markdown, formula delimiters and the full stop around the answer."""
    before = None
    while text != before:
        before = text
        text = text.strip().strip("*`").strip()
        text = re.sub(r"^(?:the\s)?(?:final\s)?answer(?:\sis)?\s*[:=]?\s+", "", text, flags=re.I)
        for opening, closing in (("$$", "$$"), ("$", "$"), (r"\[", r"\]"), (r"\(", r"\)")):
            inside = text[len(opening) : -len(closing)]
            if len(text) > 2 and text.startswith(opening) and text.endswith(closing) and opening not in inside:
                text = inside
                break
        if len(text) > 1 and text[-1] in ".,;:" and not text.endswith("..."):
            text = text[:-1]
        if text.endswith(r"\$") is False and text.endswith("$") and text.count("$") == 1:
            text = text[:-1]
    return text


# -- one spelling ------------------------------------------------------------------------------------------------------

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("−‐‑‒–—﹣", "-"),
        **dict.fromkeys("\u00a0\u2007\u2009\u200a\u202f\u3000\t\n", " "),
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ",
        "≥": r"\ge ", "∪": r"\cup ", "∈": r"\in ", "±": r"\pm ", "∓": r"\mp ", "°": r"^\circ ", "²": "^{2}",
        "³": "^{3}", "⁴": "^{4}", "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}", "θ": r"\theta ", "，": ",", "（": "(", "）": ")", "≠": r"\ne ", "⟨": r"\langle ",
        "⟩": r"\rangle ", "≈": r"\approx ", "％": r"\%",
    }
)  # fmt: skip
_GROUP = r"\{([^{}]*+)\}"


def _digits_only(match: re.Match[str]) -> str:
    return re.sub(r"[^0-9]", "", match.group())


_SPELLINGS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"√\s*+\(([^()]*+)\)|√\s*+(\w++)"), r"\\sqrt{\1\2}"),
    (re.compile(r"(?<!\\)\\\$"), ""),
    (re.compile(r"[$€£¥₹]"), ""),
    (re.compile(r"(?<!\\)\\[()\[\]](?!\d*pt)"), ""),
    (re.compile(r"\\(?:displaystyle|textstyle|limits|nolimits|bigl?|bigr|Bigl?|Bigr|biggl?|biggr)(?![A-Za-z])"), ""),
    (re.compile(r"\\(?:left|right)(?![A-Za-z])\.?"), ""),
    (re.compile(r"(?<=[0-9])(?:,\s*\\!\s*|\\!\s*,\s*|\{,\})(?=[0-9]{3}(?![0-9]))"), ""),  # 10,\!080
    (re.compile(r"(?<![0-9.,])(?<![0-9] )[0-9]{1,3}(?:(?:\\[,;: ]|~| )[0-9]{3})++(?![0-9])"), _digits_only),  # 10\,080
    (re.compile(r"(?<!\\)\\[!,;:> ]|~|\\q?quad(?![A-Za-z])|\\(?:thin|med|thick)space(?![A-Za-z])"), " "),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:mathbf|mathit|boldsymbol|bm|mathsf|mathnormal|boxed|fbox)\s*+" + _GROUP), r"\1"),
    (re.compile(r"\\(?:mbox|textbf|textit|textrm|textsf|mathrm|operatorname|hbox)\*?\s*+\{"), r"\\text{"),
    (re.compile(r"\\text\s?\{\s?([ei]|[-+0-9./,\\% ]+)\s?\}"), r"\1"),
    (re.compile(r"^\s*+\\text\s?\{[^{}]*\b(?:is|are|equals)[:\s]*\}"), ""),
    (re.compile(r"\\(?:leq|leqslant)(?![A-Za-z])"), r"\\le"),
    (re.compile(r"\\(?:geq|geqslant)(?![A-Za-z])"), r"\\ge"),
    (re.compile(r"\\(?:lbrace|lbrack)(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\^\s*+\{\s*+\\(?:circ|degree)\s*+\}|\^\s*+\\circ(?![A-Za-z])|\\degree(?![A-Za-z])"), r"\\degrees "),
    (re.compile(r"\\frac\s*+([0-9A-Za-z])\s*+([0-9A-Za-z])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*+([0-9A-Za-z])\s*+\{"), r"\\frac{\1}{"),
    (re.compile(r"\\frac\s*+\{([^{}]*+)\}\s*+([0-9A-Za-z])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\sqrt\s*+([0-9A-Za-z])"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\A-Za-z])sqrt\s*+\(([^()]*+)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\A-Za-z])(pi|infty|sin|cos|tan|cot|sec|csc|ln|log)(?![A-Za-z])"), r"\\\1 "),
    (re.compile(r"(?<![\\A-Za-z])(?:infinity|oo|inf)(?![A-Za-z])"), r"\\infty "),
    (re.compile(r"<="), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(r"(?<=[0-9)}A-Za-z])\s*+\*\*\s*+"), "^"),
    (re.compile(r"(?<=[0-9)}A-Za-z])\s*+\*\s*+(?=[0-9({A-Za-z\\])"), r"\\cdot "),
    (re.compile(r"\s++"), " "),
]
_MIXED = re.compile(r"(?<![0-9A-Za-z.^_}/])([0-9]{1,9})\s?\\frac\{([0-9]{1,9})\}\{([0-9]{1,9})\}")
_MIXED_PLAIN = re.compile(r"(?<![0-9A-Za-z.^_}/])([0-9]{1,9})\s([0-9]{1,9})/([0-9]{1,9})(?![0-9])")
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})++(?![0-9]|,[0-9])")


def normalise_latex(latex: str) -> str:
    r"""One spelling of many: no delimiters, sizes and thin blanks, `\dfrac43` as `\frac{4}{3}`, `10,\!080` as 10080.

    The value stays; `same_latex` decides about equality.
    """
    text = _trim(latex).translate(_CHARACTERS)
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    text = text.strip().rstrip(".,;").strip()
    # Outside of brackets "12,102" is one number; in (2,12) ∪ (12,102) it is two.
    if "," in text and not re.search(r"[()\[\]]|\\[{}]", text):
        text = _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)
    mixed = r"(\1+\\frac{\2}{\3})"
    return _MIXED_PLAIN.sub(mixed, _MIXED.sub(mixed, text))


def _key(text: str) -> str:
    """The text without blanks that mean nothing: equal keys are equal answers."""
    return re.sub(
        r"\{([0-9A-Za-z])\}", r"\1", re.sub(r"(\\[A-Za-z]+) (?=[A-Za-z])|(?<![0-9.])\s|\s(?![0-9.])", r"\1", text)
    )


# -- comparing: structure ----------------------------------------------------------------------------------------------

_Same = Callable[[str, str], bool]
"""Whether two bare expressions (prediction, gold) have one value."""

_TEXT = re.compile(r"\\text\s?\{([^{}]*+)\}")
_OR = re.compile(r"\\text\s?\{\s*or\s*\}|\bor\b")
_NAMES = re.compile(
    r"[\s(]*(?:\\(?:vec|mathbf|overrightarrow)\{?)?\\?[A-Za-z]{1,8}[})]*(?:\s?,\s?\\?[A-Za-z]{1,8}){0,4}[)\s]*"
)
_RELATION = re.compile(r"\\(?:le|ge|lt|gt|ne)(?![A-Za-z])|[<>]")
_UNITS = {
    alias: name
    for name, aliases in {
        "cm": "cm centimeter centimetre centimeters centimetres", "mm": "mm millimeter millimeters millimetres",
        "km": "km kilometer kilometers kilometre kilometres", "m": "m meter meters metre metres",
        "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yard yards", "mi": "mi mile miles",
        "degree": "degree degrees deg", "radian": "radian radians rad", "dollar": "dollar dollars usd",
        "cent": "cent cents", "second": "s sec second seconds", "minute": "min minute minutes",
        "hour": "h hr hour hours", "day": "day days", "week": "week weeks", "month": "month months",
        "year": "year years", "g": "g gram grams", "kg": "kg kilogram kilograms", "percent": "percent %",
        "mph": "mph", "l": "l liter liters litre litres", "ml": "ml milliliter milliliters", "": "unit units",
    }.items()
    for alias in aliases.split()
}  # fmt: skip
_UNIT_POWER = re.compile(r"\s*(?:\\text\s?\{[^{}]*+\}\s*)+(?:\^\s?\{?([23])\}?)?\s*$")
_PLAIN_UNIT = re.compile(
    r"(?<=[0-9})a-zA-Z])\s((?:(?:square|cubic|sq\.?|cu\.?)\s)?"
    r"(?:" + "|".join(sorted((u for u in _UNITS if len(u) > 1 and u != "percent"), key=len, reverse=True)) + r"))"
    r"(?:\^\s?\{?[23]\}?)?\s*$",
    re.I,
)
_PLAIN_NOUN = re.compile(r"(?<=[0-9])\s(?!(?:or|and|base|mod|to|by|if|plus|minus|times|over|sqrt)\b)([a-z]{3,20})\s*$")
_BASE = re.compile(
    r"[({ ]*([0-9A-Fa-f ]+?)[)} ]*(?:_\s?\{?\s?(?:\\text\s?\{)?\s?(?:base\s?)?\}?"
    r"([0-9]{1,2}|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|sixteen)\s?\}{0,2}"
    r"|\s?(?:\\text\s?\{\s?)?\(?(?:in\s)?base[\s-](?:\\text\{)?([0-9]{1,2}|two|three|four|five|six|seven|eight|nine"
    r"|ten|eleven|twelve|sixteen)\s?\)?\s?\}?)"
)
_BASES = "two three four five six seven eight nine ten eleven twelve"
_BASE_NAMES = {name: str(base) for base, name in enumerate(_BASES.split(), 2)} | {"sixteen": "16"}
_MATRIX = re.compile(r"\\begin\{(pmatrix|bmatrix|array|vmatrix|Vmatrix|Bmatrix|matrix|smallmatrix)\}(.*)\\end\{\1\}")
_DECIMAL = re.compile(r"[-+]?\s?(?:[0-9]{1,300}(?:\.[0-9]{0,300})?|\.[0-9]{1,300})")
_FRACTION = re.compile(
    r"([-+]?)\s?(?:\\frac\{\s?([-+]?)\s?([0-9.]{1,100})\s?\}\{\s?([-+]?)\s?([0-9.]{1,100})\s?\}"
    r"|([0-9]{1,100})\s?/\s?([0-9]{1,100}))"
)
_SCIENTIFIC = re.compile(
    r"([-+]?\s?[0-9.]{1,100})\s?(?:\\times|\\cdot|x)\s?10\s?\^\s?\{?\s?(-?\s?[0-9]{1,3})\s?\}?"
    r"|([-+]?[0-9.]{1,100})[eE]([-+]?[0-9]{1,3})"
)
_MIXED_SUM = re.compile(r"([-+]?)\s?\(([0-9]+)\+\\frac\{([0-9]+)\}\{([0-9]+)\}\)")


def _same(prediction: str, gold: str, same: _Same) -> bool:
    """Whether two normalised answers are equal; `same` compares the bare expressions in them."""
    if _key(prediction) == _key(gold):
        return True
    words = _TEXT.fullmatch(gold) or re.fullmatch(r"([A-Za-z][A-Za-z' ]{3,})", gold)
    if words:
        return normalise_text(_TEXT.sub(r"\1", prediction)) == normalise_text(words[1])
    base = _BASE.fullmatch(gold)
    if base or _BASE.fullmatch(prediction):
        return base is not None and _digits_and_base(prediction) == _digits_and_base(gold)
    (prediction, said), (gold, meant) = _without_unit(prediction), _without_unit(gold)
    if said and meant and said != meant:
        return False
    if said == "percent" and meant != "percent" and _TEXT.search(prediction) is None:
        value = _number(gold)
        if value is not None and abs(value) < 1:  # 25 % of a gold answer 1/4, but 25 % of a gold answer 25
            prediction = rf"\frac{{{prediction}}}{{100}}"
    return _same_structure(_member(prediction), _member(gold), same)


def _same_structure(prediction: str, gold: str, same: _Same) -> bool:
    if _key(prediction) == _key(gold):
        return True
    names, sign, value = prediction.partition("=")
    if sign and "=" not in value + gold and value.lstrip()[:1] in tuple("([\\") and _NAMES.fullmatch(names):
        prediction = value  # (x,y) = (1,2), v = \begin{pmatrix}…
    intervals, expected = _union(prediction), _union(gold)
    if len(expected) > 1:
        return _matched(intervals, expected, _elements(same))
    if len(intervals) > 1 and r"\cup" in prediction:
        return False
    gold_matrix, matrix = _matrix(gold), _matrix(prediction)
    if gold_matrix is not None or matrix is not None:
        return gold_matrix is not None and matrix is not None and _same_rows(matrix, gold_matrix, same)
    prediction, gold = _interval_of(prediction, gold), _interval_of(gold, prediction)
    theirs, ours = _brackets(prediction), _brackets(gold)
    if ours in ("set", "list"):
        return theirs in ("set", "list", "") and _matched(_items(prediction), _items(gold), _elements(same))
    if ours:
        items = _items(gold)
        unbracketed = theirs == "list" and ours == "()" and len(items) > 2  # two could be an interval
        if theirs != ours and not unbracketed:
            return False
        theirs_items = _items(prediction)
        return len(theirs_items) == len(items) and all(map(_elements(same), theirs_items, items))
    if theirs == "set" and len(_items(prediction)) == 1 and _items(gold) == [gold]:
        return _same_scalar(_items(prediction)[0], gold, same)
    if theirs and theirs != "list" and not (theirs == "set" and r"\pm" in gold):
        return False
    mine, theirs_items = _items(gold), _items(prediction)
    if len(mine) > 1 or len(theirs_items) > 1:
        return _matched(theirs_items, mine, _elements(same))
    return _same_scalar(prediction, gold, same)


def _elements(same: _Same) -> _Same:
    return lambda prediction, gold: _same_structure(prediction, gold, same)


def _same_scalar(prediction: str, gold: str, same: _Same) -> bool:
    """Two answers that are one expression, one equation or one relation each."""
    if _RELATION.search(prediction) or _RELATION.search(gold):
        return _same_relation(prediction, gold, same)
    left, right = _parts(prediction, "="), _parts(gold, "=")
    if len(right) > 1:  # the gold answer is an equation
        name, value = right[0], right[-1]
        if len(left) == 1:
            return _is_name(name) and _same_value(left[0], value, same)
        if _is_name(name) and _is_name(left[0]) and _key(left[0]) == _key(name):
            return _same_value(left[-1], value, same)
        return len(left) == len(right) == 2 and same(f"{left[0]} = {left[1]}", f"{name} = {value}")
    if len(left) > 1:
        if re.fullmatch(r"\s?[-+]?\s?[0-9.]+\s?[A-Za-z]\s?", left[0]):  # 2x = 10 does not say what x is
            return False
        if _is_name(left[-1]) and not _is_name(left[0]):  # 5 = x
            left = left[::-1]
        return _same_value(left[-1], gold, same)
    return _same_value(prediction, gold, same)


def _is_name(text: str) -> bool:
    r"""x, x_1, f(x), \theta, AB, \angle ABC, \text{Area}: what a value may be given to."""
    return bool(
        re.fullmatch(
            r"\s?(?:\\angle\s?|\\text\{[^{}]*\}|m\s?\\angle\s?)?(?:\\?[A-Za-z]{1,12})?(?:_\s?\{?\w{1,4}\}?)?'?"
            r"(?:\(\s?\\?\w{1,6}\s?\))?\s?",
            text,
        )
        and text.strip()
        and not re.fullmatch(r"\s?(?:\\pi|\\infty|e|i)\s?", text)
    )


def _same_value(prediction: str, gold: str, same: _Same) -> bool:
    if not prediction.strip() or not gold.strip():
        return False
    (prediction, _), (gold, _) = _without_unit(prediction), _without_unit(gold)
    if _key(prediction) == _key(gold):
        return True
    read, expected = _number(prediction), _number(gold)
    if read is not None and expected is not None:
        return _close(read, expected, gold)
    if _BASE.fullmatch(prediction) or _BASE.fullmatch(gold):
        return False
    plain = re.sub(r"\\[A-Za-z]+|_\s?\{?\w+\}?", " x ", prediction)
    if _TEXT.search(prediction) or re.search(r"[0-9.]\s+[0-9.]|\?|#|;|:", plain):
        return False
    if re.search(r"[A-Za-z]{4,}", plain) and not re.search(r"[A-Za-z]{4,}", re.sub(r"\\[A-Za-z]+", " ", gold)):
        return False
    return same(prediction, gold)


def _close(read: Fraction, expected: Fraction, gold: str) -> bool:
    if read == expected:
        return True
    if expected.denominator == 1:
        return False
    if abs(read - expected) <= RELATIVE_TOLERANCE * abs(expected):
        return True
    return _terminates(read) is False and _rounds_to(read, gold)


def _rounds_to(value: Fraction, gold: str) -> bool:
    """Whether an endless decimal fraction rounds to a gold answer that is a decimal with three places or more."""
    digits = gold.strip().lstrip("+-").partition(".")[2]
    if not digits.isdigit() or len(digits) < 3 or not _DECIMAL.fullmatch(gold.strip()):
        return False
    return abs(value - Fraction(gold.replace(" ", ""))) * 2 <= Fraction(1, 10 ** len(digits))


def _terminates(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def _number(text: str) -> Fraction | None:
    """The value of a plain number, fraction, mixed number or power of ten; `None` for anything else."""
    text = _unbraced(text.strip())
    try:
        if _DECIMAL.fullmatch(text):
            return Fraction(text.replace(" ", "").rstrip("."))
        if match := _FRACTION.fullmatch(text):
            sign, upper_sign, upper, lower_sign, lower, plain_upper, plain_lower = match.groups()
            value = Fraction(upper or plain_upper) / Fraction(lower or plain_lower)
            return -value if [sign, upper_sign, lower_sign].count("-") % 2 else value
        if match := _MIXED_SUM.fullmatch(text):
            if int(match[3]) >= int(match[4]):
                return None
            value = int(match[2]) + Fraction(int(match[3]), int(match[4]))
            return -value if match[1] == "-" else value
        if match := _SCIENTIFIC.fullmatch(text):
            mantissa, exponent = (match[1], match[2]) if match[1] else (match[3], match[4])
            return Fraction(mantissa.replace(" ", "")) * Fraction(10) ** int(exponent.replace(" ", ""))
    except (ValueError, ZeroDivisionError):  # "1.2.3", "1/0"
        return None
    return None


def _unbraced(text: str) -> str:
    while len(text) > 1 and text[0] == "{" and text[-1] == "}" and _closes(text) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def _without_unit(text: str) -> tuple[str, str]:
    """The text without its unit, and the unit's name with its power ("cm2"); "" if there is none or it is unknown."""
    if text.rstrip().endswith((r"\%", "%")):
        return text.rstrip().removesuffix("%").removesuffix("\\").strip(), "percent"
    if r"\degrees" in text:
        return text.replace(r"\degrees", " ").strip(), "degree"
    match = _UNIT_POWER.search(text) or _PLAIN_UNIT.search(text) or _PLAIN_NOUN.search(text)
    if match is None or not text[: match.start()].strip():
        return text, ""
    words = match.group()
    bare = _TEXT.sub(r" \1 ", words)
    if re.search(r"\b(?:or|and|if|where|for|base|mod|not|to)\b|[0-9]\s*[a-z]+.*[0-9]", re.sub(r"\^\s?\{?\d", "", bare)):
        return text, ""
    rest = text[: match.start()].strip()
    if not re.search(r"[0-9A-Za-z})\]]$", rest):
        return text, ""
    return rest, _unit(bare)


def _unit(words: str) -> str:
    """The name of a known unit, with its power; "" for another word."""
    low = words.lower()
    power = "2" if re.search(r"\bsq|\^\s?\{?2", low) else "3" if re.search(r"\bcub|\bcu\b|\^\s?\{?3", low) else ""
    names = [_UNITS[word] for word in re.findall(r"[a-z%]+", low) if word in _UNITS]
    return f"{names[0]}{power}" if len(names) == 1 and names[0] else ""


def _other_money(prediction: str, gold: str) -> bool:
    """Whether one answer is in cents and the other in dollars."""
    cents, dollars = re.compile(r"\bcents?\b|¢", re.I), re.compile(r"\\\$|\bdollars?\b", re.I)
    return any(cents.search(a) and dollars.search(b) for a, b in ((prediction, gold), (gold, prediction)))


def _digits_and_base(text: str) -> tuple[str, str] | None:
    match = _BASE.fullmatch(text)
    if match is None:
        return None
    base = match[2] or match[3]
    return match[1].replace(" ", "").upper(), _BASE_NAMES.get(base, base)


def _member(text: str) -> str:
    r"""What stands behind `x \in`."""
    match = re.match(r"\s?\\?[A-Za-z](?:_\w)?\s?\\in(?![A-Za-z])\s?", text)
    return text[match.end() :] if match else text


def _union(text: str) -> list[str]:
    r"""The intervals that a union joins: A \cup B, or two inequalities with "or" between."""
    parts = _parts(text, r"\cup")
    if len(parts) == 1 and _RELATION.search(text):
        return _OR.split(text)
    return parts


def _matrix(text: str) -> list[list[str]] | None:
    bare = text.strip()
    if bare[:1] in "([" and bare[-1:] in ")]" and bare[1:].lstrip().startswith(r"\begin{array}"):
        bare = bare[1:-1].strip()
    match = _MATRIX.fullmatch(bare)
    if match is None or match[1] in ("vmatrix", "Vmatrix"):  # a determinant is a number
        return None
    body = re.sub(r"^\{[lcr|]*\}", "", match[2].strip()) if match[1] == "array" else match[2]
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", body) if row.strip()]
    return [[cell.strip() for cell in row.split("&")] for row in rows]


def _same_rows(prediction: list[list[str]], gold: list[list[str]], same: _Same) -> bool:
    return [len(row) for row in prediction] == [len(row) for row in gold] and all(
        _same_value(a, b, same)
        for mine, theirs in zip(prediction, gold, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )


def _closes(text: str) -> int:
    """Index of the bracket that closes the one at the start; -1 if none does. Any opening pairs with any closing."""
    depth, i = 0, 0
    while i < len(text):
        if text[i] == "\\":
            i += 1
            if i < len(text) and text[i] in "{}":
                depth += 1 if text[i] == "{" else -1
        elif text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            depth -= 1
        if depth == 0 and i > 0:
            return i
        i += 1
    return -1


def _brackets(text: str) -> str:
    r"""How the items are held together: "set" \{…\}, "list" (bare), "()", "[]", "(]", "[)"; "" for a single item."""
    bare = text.strip()
    if bare.startswith(r"\{") and bare.endswith(r"\}") and _closes(bare) == len(bare) - 1:
        return "set"
    if bare.startswith(r"\langle") and bare.endswith(r"\rangle"):
        return "<>"
    if bare[:1] and bare[:1] in "([" and bare[-1] in ")]" and _closes(bare) == len(bare) - 1 and len(_items(bare)) > 1:
        return bare[0] + bare[-1]
    return "list" if len(_parts(bare, ",")) > 1 else ""


def _items(text: str) -> list[str]:
    r"""The items of a set, list, tuple or interval, each `\pm` written out as two."""
    bare = text.strip()
    held = True
    if bare.startswith(r"\{") and bare.endswith(r"\}") and _closes(bare) == len(bare) - 1:
        bare = bare[2:-2]
    elif bare.startswith(r"\langle") and bare.endswith(r"\rangle"):
        bare = bare[len(r"\langle") : -len(r"\rangle")]
    elif (
        bare[:1]
        and bare[:1] in "(["
        and bare[-1] in ")]"
        and _closes(bare) == len(bare) - 1
        and len(_parts(bare[1:-1], ",")) > 1
    ):
        bare = bare[1:-1]
    else:
        held = False
    parts = _parts(bare, ",")
    if not held:
        parts = [piece for part in parts for piece in re.split(r"\\text\s?\{\s*(?:and|or)\s*\}|\b(?:and|or)\b", part)]
    parts = [part.strip() for part in parts if part.strip()]
    if len(parts) > 1 and not held:  # x = 1, x = -2 and x = 1, -2; but (x, y) = … keeps its names
        names = {_key(head) for head, sep, _ in (part.partition("=") for part in parts) if sep}
        if len(names) == 1:
            parts = [part.rpartition("=")[2].strip() for part in parts]
    elif not held and parts and r"\pm" in parts[0]:
        head, sep, tail = parts[0].rpartition("=")
        parts = [tail if sep and _is_name(head) else parts[0]]
    return [item for part in parts for item in _plus_and_minus(part)]


def _plus_and_minus(text: str) -> list[str]:
    if not re.search(r"\\[pm]{2}(?![A-Za-z])", text):
        return [text]
    plus = re.sub(r"\\pm(?![A-Za-z])", "+", re.sub(r"\\mp(?![A-Za-z])", "-", text))
    minus = re.sub(r"\\pm(?![A-Za-z])", "-", re.sub(r"\\mp(?![A-Za-z])", "+", text))
    return [plus, minus]


def _parts(text: str, separator: str) -> list[str]:
    """The text split at a separator outside of all brackets."""
    parts, depth, start, i = [], 0, 0, 0
    word = separator.startswith("\\")
    while i < len(text):
        at = text.startswith(separator, i) and depth == 0
        if at and word:
            at = not text[i + len(separator) : i + len(separator) + 1].isalpha()
        if at:
            parts.append(text[start:i])
            i += len(separator)
            start = i
            continue
        if text[i] == "\\" and i + 1 < len(text):
            i += 1
            depth += (text[i] == "{") - (text[i] == "}")
        else:
            depth += (text[i] in "([{") - (text[i] in ")]}")
        i += 1
    return [*parts, text[start:]]


def _matched(predictions: Sequence[str], golds: Sequence[str], same: _Same) -> bool:
    """Whether each item has a partner of its own, in any order."""
    if len(predictions) != len(golds):
        return False
    left = list(predictions)
    for gold in golds:
        partner = next((i for i, item in enumerate(left) if _key(item) == _key(gold)), None)
        if partner is None:
            partner = next((i for i, item in enumerate(left) if same(item, gold)), None)
        if partner is None:
            return False
        del left[partner]
    return True


def _interval_of(text: str, other: str) -> str:
    r"""An inequality in one unknown written as an interval, if the other answer is one: `x > 5` as `(5,\infty)`."""
    if _brackets(other) not in ("()", "[]", "(]", "[)") or not _RELATION.search(text):
        return text
    signs = _RELATION.findall(text)
    sides = [side.strip() for side in _RELATION.split(text)]
    kinds = [("<" if sign in ("<", r"\lt", r"\le") else ">" if sign in (">", r"\gt", r"\ge") else "") for sign in signs]
    closed = [sign in (r"\le", r"\ge") for sign in signs]
    if "" in kinds or len(set(kinds)) > 1:
        return text
    if kinds[0] == ">":
        sides, closed = sides[::-1], closed[::-1]
    if len(sides) == 3 and _is_name(sides[1]):
        return f"{'[' if closed[0] else '('}{sides[0]},{sides[2]}{']' if closed[1] else ')'}"
    if len(sides) == 2 and _is_name(sides[0]):
        return rf"(-\infty,{sides[1]}{']' if closed[0] else ')'}"
    if len(sides) == 2 and _is_name(sides[1]):
        return rf"{'[' if closed[0] else '('}{sides[0]},\infty)"
    return text


def _same_relation(prediction: str, gold: str, same: _Same) -> bool:
    """Two inequalities with the same signs and sides, read from either end."""
    forms = []
    for text in (prediction, gold):
        signs = [{r"\lt": "<", r"\gt": ">"}.get(sign, sign) for sign in _RELATION.findall(text)]
        sides = [side.strip() for side in _RELATION.split(text)]
        if signs and all(sign in (">", r"\ge") for sign in signs):
            signs = [{">": "<", r"\ge": r"\le"}[sign] for sign in reversed(signs)]
            sides.reverse()
        forms.append((signs, sides))
    (signs, sides), (gold_signs, gold_sides) = forms
    return (
        signs == gold_signs
        and bool(signs)
        and all(_same_value(a, b, same) for a, b in zip(sides, gold_sides, strict=True))
    )


# -- comparing: the worker ---------------------------------------------------------------------------------------------


def same_latex(prediction: str, gold: str, *, seconds: float = 5.0) -> bool:
    r"""Whether two answers in LaTeX have one value and one form: `\frac{6}{4}` is `1.5`, `(1,2)` is not `[1,2]`.

    A decimal equals a gold answer that is not whole within `numbers.RELATIVE_TOLERANCE`. A gold decimal of three or
    more places also equals an exact value that rounds to it (1/3 for 0.333); 0.333 never equals a gold 1/3.

    Args:
        prediction: the answer as read.
        gold: the right answer.
        seconds: limit on the processor time of the whole comparison, so that a busy machine changes no verdict; ten
            times as much by the wall clock. Both count from the start of the comparison, the start of a new worker left
            out. A comparison that overruns is logged, counted (`overruns`) and not equal.

    Raises:
        ValueError: if the gold answer is empty, or the limit is not positive.
    """
    if not gold.strip():
        raise ValueError("the gold answer is empty; kind 'latex' needs one, like '\\frac{3}{4}'")
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}; a comparison needs a positive limit")
    if prediction.strip() == gold.strip():
        return True
    if len(prediction) > _LONGEST or len(gold) > _LONGEST or _other_money(prediction, gold):
        return False
    tidy, expected = _exact(normalise_latex(prediction)), normalise_latex(gold)
    if _key(tidy) == _key(expected) and tidy:
        return True
    read, value = _number(tidy), _number(expected)
    if read is not None and value is not None:
        return _close(read, value, expected)
    return bool(tidy) and _WORKER.same(tidy, expected, seconds)


def _exact(text: str) -> str:
    r"""The exact side of `3\sqrt{13} \approx 10.82`; the other side of `x \approx 10.82`."""
    exact, sign, rounded = text.partition(r"\approx")
    return text if not sign else rounded.strip() if not exact.strip() or _is_name(exact) else exact.strip()


def same_latex_batch(pairs: Iterable[tuple[str, str]], *, seconds: float = 5.0) -> list[bool]:
    """`same_latex` of each (prediction, gold); the limit holds for each pair."""
    return [same_latex(prediction, gold, seconds=seconds) for prediction, gold in pairs]


def overruns() -> int:
    """Comparisons of this process that were stopped at their limit; each counted as not equal."""
    return _WORKER.overruns


class _Worker:
    """One process that compares expressions, started when it is first needed and again after it was stopped."""

    def __init__(self) -> None:
        self.overruns = 0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def same(self, prediction: str, gold: str, seconds: float) -> bool:
        """What the worker says; `False` if it overran or died (out of memory, too deep a nesting)."""
        with self._lock:
            process = self._process if self._process and self._process.poll() is None else self._start()
            deadline = time.monotonic() + _WALL * seconds
            try:
                _send(process, {"prediction": prediction, "gold": gold, "seconds": seconds})
                line = _receive(process, deadline)
            except BrokenPipeError:
                line = b""
            if line:
                return bool(json.loads(line)["same"])
            overran = time.monotonic() >= deadline or process.wait() == -signal.SIGPROF
            self.overruns += overran
            why = f"stopped at its limit of {seconds:.3g} s" if overran else "the worker died"
            _LOG.warning("comparison of %.80r with %.80r: %s; counted as not equal", prediction, gold, why)
            self.stop()
            return False

    def _start(self) -> subprocess.Popen[bytes]:
        self.stop()
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from agent_gspo_core.scoring import latex; latex._serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            bufsize=0,
            start_new_session=True,  # an interrupt in a notebook is not the worker's
        )
        if not _receive(self._process, time.monotonic() + _START_SECONDS):
            self.stop()
            raise RuntimeError(
                "the LaTeX worker did not start; try `python -c 'import math_verify'` in this environment to see why"
            )
        return self._process

    def stop(self) -> None:
        """End the worker, if there is one; its pipes are closed."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        self._close(process)

    def forget(self) -> None:
        """In a forked child: the parent's worker is not ours, and its pipes must not be kept open here."""
        self._lock = threading.Lock()
        process, self._process = self._process, None
        if process is not None:
            process.returncode = 0  # nothing to reap here
            self._close(process)

    @staticmethod
    def _close(process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _send(process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")


def _receive(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """One line from the process; empty if it died or the deadline passed."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        ready = select.select([process.stdout], [], [], max(left, 0))[0]
        chunk = os.read(process.stdout.fileno(), 65536) if ready else b""
        if not chunk:
            return b""
        line += chunk
    return line


_WORKER = _Worker()
atexit.register(_WORKER.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WORKER.forget)


def _serve() -> None:
    """The worker: one JSON line in, one out, until the input ends."""
    import resource

    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print is not a reply
    import math_verify  # noqa: F401  (before the limits: an import must not count)

    resource.setrlimit(resource.RLIMIT_AS, (_WORKER_BYTES, _WORKER_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)  # no handler: the kernel itself ends the process
    _same_expression("x+x", "2x")  # the first comparison loads much, which is not the first answer's doing
    replies.write(b"ready\n")
    for line in sys.stdin.buffer:
        job = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, job["seconds"])
        signal.setitimer(signal.ITIMER_REAL, _WALL * job["seconds"] + 0.5)
        try:
            same = _same(job["prediction"], job["gold"], _same_expression)
        except Exception:  # whatever a parser says to hostile input: it is not the gold answer
            same = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(json.dumps({"same": same}).encode() + b"\n")


def _same_expression(prediction: str, gold: str) -> bool:
    """Two bare expressions or equations, by math-verify; numbers to our own tolerance. Runs in the worker only."""
    import sympy  # type: ignore[import-untyped]
    from math_verify import verify

    if "=" in gold:
        left, right = (_parsed_equation(text) for text in (prediction, gold))
        if left is None or right is None:
            return False
        ratio = sympy.simplify(left / right) if right != 0 else sympy.nan
        return bool(ratio.is_number and ratio.is_finite and ratio != 0)
    read, expected = _parsed(prediction), _parsed(gold)
    if read is None or expected is None:
        return False
    if read.has(sympy.nan, sympy.zoo) or expected.has(sympy.nan, sympy.zoo):
        return False
    if read.has(sympy.oo, -sympy.oo) or expected.has(sympy.oo, -sympy.oo):
        return bool(read.doit() == expected.doit())
    if not read.free_symbols and not expected.free_symbols:
        return _same_constant(read, expected, gold)
    if read.free_symbols != expected.free_symbols:
        return bool(sympy.simplify(read.doit() - expected.doit()) == 0)
    return bool(verify(expected, read, timeout_seconds=None))


def _parsed(latex: str) -> Any:
    import sympy
    from latex2sympy2_extended import NormalizationConfig  # type: ignore[import-untyped]
    from math_verify import LatexExtractionConfig, parse

    settings = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
    )
    config = [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=settings)]
    spaced = re.sub(r"(?<![A-Za-z\\])i(?![A-Za-z])", " i ", latex)  # math-verify knows the imaginary unit by its blanks
    found = parse(f"${spaced}$", config, fallback_mode="no_fallback", parsing_timeout=None)
    if len(found) != 1 or not isinstance(found[0], sympy.Expr):
        return None
    return found[0].subs({symbol: sympy.I for symbol in found[0].free_symbols if str(symbol) == "i"})


def _parsed_equation(text: str) -> Any:
    """Left side minus right side."""
    sides = [_parsed(side) for side in _parts(text, "=")]
    if len(sides) != 2 or any(side is None for side in sides):
        return None
    return sides[0] - sides[1]


def _same_constant(read: Any, expected: Any, gold: str) -> bool:
    """Two constants: exactly equal, or a decimal within the tolerance of a gold value that is not whole."""
    import sympy

    read, expected = read.doit(), expected.doit()
    difference = sympy.N(read - expected, 40)
    size = abs(sympy.N(expected, 40))
    if not (difference.is_number and difference.is_finite):
        return False
    if abs(difference) <= sympy.Float("1e-25") * (1 + size):
        return True
    if not expected.is_integer and abs(difference) <= sympy.Rational(1, 10**6) * size and read.has(sympy.Float):
        return True
    if read.is_real and not read.is_rational:
        return _rounds_to(Fraction(str(sympy.N(read, 30))), gold)
    return False
