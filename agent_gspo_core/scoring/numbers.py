r"""Read a number from a reply and compare it exactly.

Numbers are fractions, never floats: "18.0" is 18, "1/2" is 0.5, "1,234" is not 234. What is written is read whole or
not at all: a numeral that cannot be read ("3,75", "3:45", "5^2", "5x") makes the answer unparsed; a part of it is
never taken.

What units do (ours): currency and units are dropped and nothing is converted, so "18 cents" is 18. So is the percent
sign: "5%" is 5 and not 0.05, because data sets of word problems write the answer to "how many percent" as 5.
Scale words count: "1.5 million" is 1500000, "18k" is 18000. Numbers in words ("eighteen") are not read.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from agent_gspo_core.scoring.text import (
    CUE,
    REFUSAL,
    first_marked,
    last_box,
    last_cued,
    marked_lines,
    own_part,
    sentence,
)

RELATIVE_TOLERANCE = Fraction(1, 10**6)
"""Allowed |read − gold| / |gold| where the gold answer is not whole; whole numbers must match exactly (ours)."""

_LONGEST_NUMERAL = 300
"""Characters; longer runs of digits are not read (and `int` itself refuses 4,300 digits)."""
_LARGEST = 10**200

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("−‐‑‒–－﹣", "-"),
        **dict.fromkeys("\u00a0\u2007\u2009\u200a\u202f\u3000", " "),
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5", "⅘": "4/5",
        "⅙": "1/6", "⅚": "5/6", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8",
        "⁄": "/", "∕": "/", "，": ",", "．": ".", "％": "%", "’": "'", "＝": "=", "≈": "=", "≃": "=", "：": ":",
    }
)  # fmt: skip
# NFKC would do some of this, but it also turns "5²" into "52" and "1½" into "11⁄2".

_LATEX: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"(?<=[0-9])(?=\\[dt]?frac(?![a-z]))"), " "),  # 1\frac{1}{2}: a mixed number
    (re.compile(r"\\[dt]?frac\s*+\{([^{}]*+)\}\s*+\{([^{}]*+)\}"), r"\1/\2"),
    (re.compile(r"\\[dt]?frac\s*+([0-9])\s*+([0-9])"), r"\1/\2"),
    (re.compile(r"\{,\}|,\\!"), ","),
    (re.compile(r"(?<=[0-9])\\,(?=[0-9]{3})"), ","),
    (re.compile(r"\^\s?(?:\{\\circ\}|\\circ)|°"), " "),
    (re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|left|right|quad|displaystyle|boxed)(?![a-z])"), " "),
    (re.compile(r"\\(?:times|cdot)(?![a-z])"), "×"),
    (re.compile(r"\\(?:approx|simeq)(?![a-z])"), "="),
    (re.compile(r"\\([%$])"), r"\1"),
    (re.compile(r"\\[,;!:()\[\] ]"), " "),
]
_POWER = re.compile(r"(?<=[0-9)])[ ]?\*\*[ ]?(?=[0-9(])")  # Python's 2**3, not bold type
_MARKDOWN = re.compile(r"\*\*++|__++|`")
_CURRENCY = re.compile(r"(-)?[$€£¥₹](-)?")
_MINUS_WORD = re.compile(r"\b(?:minus|negative)\s(?=[0-9.$])", re.I)
_CALCULATOR = re.compile(r"<<[^<>\n]{0,200}>>")  # GSM8K's annotations, learnt by models trained on it
_DIGIT = re.compile(r"[0-9０-９¼-¾⅓-⅞]")
_NUMBER_WORD_FIRST = re.compile(
    r"[^0-9]*?\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen"
    r"|sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand)\b",
    re.I,
)
_LIST_ITEM = re.compile(r"(?m)^[ \t]*+(?:[0-9]{1,3}[.)]|[-*•+])[ \t]++(?=\S)")
_SPACED_THOUSANDS = re.compile(r"(?<![0-9.,/:])(?<![0-9] )[0-9]{1,3}(?: [0-9]{3})++(?![0-9/:])")
_TWO_UNKNOWNS = re.compile(r"(?:,|;|\band\b)\s?[A-Za-z]\w{0,20}+\s?=")

_CORE = r"(?:[0-9]++(?:[.,][0-9]++)*+|\.[0-9]++)"
_NUMBER = re.compile(
    rf"(?<![A-Za-z_^0-9±./√])(?<![0-9][,:'])(?P<core>{_CORE})"
    rf"(?:[ ](?:and[ ])?(?P<numerator>[0-9]++)/(?P<denominator>[0-9]++)"
    rf"|[ ]?/[ ]?(?P<divisor>{_CORE})"
    r"|[eE](?P<exponent>[-+]?[0-9]{1,3})(?![0-9A-Za-z])"
    r"|[ ]?[x×*][ ]?10\^\{?(?P<power>-?[0-9]{1,3})(?![0-9])\}?)?+"
)
_WELL_FORMED = re.compile(r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})++|[0-9]++)(?:\.[0-9]++)?|\.[0-9]++")
_SPOILT = re.compile(
    r"[²³¹⁰-⁹₀-₉√π]|[ ]?\^|[ ]?\\[A-Za-z]|\s?/\s?[-(0-9.]|[:_'][0-9]|\.[0-9]|[xyz](?![A-Za-z])|[A-Za-z]{1,10}[0-9]"
    r"|\s(?:and\s)(?:a|one|three)[\s-](?:half|third|quarter|fourth)",
    re.I,
)
_SCALE = re.compile(r"[kKMB](?![A-Za-z0-9])|[ -]?(?i:hundred|thousand|million|billion|trillion)\b")
_SCALES = {"k": 10**3, "m": 10**6, "b": 10**9, "hundred": 100, "thousand": 10**3, "million": 10**6,
           "billion": 10**9, "trillion": 10**12}  # fmt: skip


@dataclass(frozen=True)
class _Numeral:
    """One number as written, not yet worked out."""

    sign: int
    operand: bool
    """Whether an operator stands before it."""
    match: re.Match[str]

    def value(self) -> Fraction | None:
        """The number; `None` if it is malformed."""
        value = _value(self.match, self.match.string[self.match.end() : self.match.end() + 24])
        return None if value is None else self.sign * value


def read_number(reply: str, *, strict: bool = False) -> str | None:
    r"""The number that the reply gives, as `canonical` writes it; `None` if it gives none or more than one.

    Strict reads the line of the first `####` only, and it must begin with the number. Lenient looks there first, then
    in the last `\boxed{…}`, then after the last answer cue, then takes the last number. A place that is there but
    cannot be read ends the search: nobody is credited for a number that stands beside a refusal.
    """
    own = own_part(reply)
    value = _strict(own) if strict else _lenient(own)
    return None if value is None else canonical(value)


def same_number(prediction: str, gold: str) -> bool:
    """Whether two numbers as written are equal; `RELATIVE_TOLERANCE` applies where the gold is not a whole number.

    Raises `ValueError` if the gold answer is no number: that is a fault of the data, not of the reply.
    """
    expected = parse_number(gold)
    if expected is None:
        raise ValueError(f"the gold answer {gold!r} is not a number; kind 'number' needs one, like '-1,234.5'")
    value = parse_number(prediction)
    if value is None:
        return False
    if expected.denominator == 1:
        return value == expected
    return abs(value - expected) <= RELATIVE_TOLERANCE * abs(expected)


def parse_number(text: str) -> Fraction | None:
    """The one number in a short text, with or without unit; `None` if there is none, several, or one that is malformed.

    "x = 5" and "16 - 3 = 13" give what stands after the last equals sign.
    """
    line = sentence(_plain(text))
    if not line or REFUSAL.search(line) or re.match(r"not\b|n't\b", line, re.I) or _TWO_UNKNOWNS.search(line):
        return None
    line = line.rpartition("=")[2].strip()
    if _NUMBER_WORD_FIRST.match(line):  # "eighteen, 9 twice": the answer is the word, which is not read
        return None
    if "\\" in line or "√" in line or "π" in line:  # mathematics beyond a plain number
        return None
    numerals = list(islice(_numerals(line), 2))
    return numerals[0].value() if len(numerals) == 1 and not numerals[0].operand else None


def canonical(value: Fraction) -> str:
    """One spelling for each value, so that equal answers get equal votes: "18", "-0.5", "1/3"."""
    if value.denominator == 1:
        return str(value.numerator)
    places, rest = 0, value.denominator
    while places < 20 and rest > 1:  # a finite decimal has only twos and fives below the line
        places += 1
        rest //= _gcd10(rest)
    if rest > 1:
        return f"{value.numerator}/{value.denominator}"
    digits = str(abs(value.numerator) * 10**places // value.denominator).zfill(places + 1)
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def _gcd10(number: int) -> int:
    return (2 if number % 2 == 0 else 1) * (5 if number % 5 == 0 else 1)


def _strict(own: str) -> Fraction | None:
    line = first_marked(own)
    if line is None:
        return None
    before = _plain(line).rpartition("=")[2].lstrip(" (-+.")
    return parse_number(line) if before[:1].isdigit() else None


def _lenient(own: str) -> Fraction | None:
    lines = marked_lines(own)
    if lines:
        decisive = (line for line in lines if REFUSAL.search(line) or _DIGIT.search(line))
        return parse_number(next(decisive, ""))
    for place in (last_box(own), last_cued(own, CUE)):
        if place is not None:
            return parse_number(place) if _DIGIT.search(place) else None
    return _last_number(own)


def _last_number(own: str) -> Fraction | None:
    """The last number of a reply that marks none; not an operand ("9 * 2"), not in a reply that declines."""
    if REFUSAL.search(own):
        return None
    last = deque(_numerals(_plain(_LIST_ITEM.sub("", own), keep_lines=True)), maxlen=1)
    return last[0].value() if last and not last[0].operand else None


def _plain(text: str, *, keep_lines: bool = False) -> str:
    """The text with one spelling for signs, digits and blanks, and without markup, currency and known LaTeX."""
    text = _CALCULATOR.sub("", text)
    text = re.sub(r"(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))", ",", text)  # a thin blank groups thousands
    text = re.sub(r"(?<=[0-9])(?=[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])", " ", text).translate(_CHARACTERS)
    if "\\" in text:
        for pattern, replacement in _LATEX:
            text = pattern.sub(replacement, text)
    text = _MARKDOWN.sub("", _POWER.sub("^", text)).replace("{", "").replace("}", "")
    text = _CURRENCY.sub(lambda match: " -" if match.group(1) or match.group(2) else " ", text)
    text = _MINUS_WORD.sub("-", text)
    return text if keep_lines else " ".join(text.split()).strip("*_ ")


def _numerals(text: str) -> Iterator[_Numeral]:
    """Every number in plain text, in order, malformed ones too."""
    text = _SPACED_THOUSANDS.sub(lambda match: match.group().replace(" ", ""), text)
    for match in _NUMBER.finditer(text):
        sign, operand = _sign(text, match.start())
        if sign is not None:
            yield _Numeral(sign, operand, match)


def _sign(text: str, start: int) -> tuple[int | None, bool]:
    """The sign before a number, and whether an operator stands there; sign `None`: the number is part of a word.

    "-5" is negative; "9-5" and "9 * 5" have an operator; "word - 5" has a dash; "COVID-19" is a word.
    """
    before = text[max(0, start - 6) : start]
    bare = before.rstrip(" ")
    if not bare or bare[-1] not in "+-*×÷/":
        return 1, False
    left = bare[:-1].rstrip(" ")
    if left and (left[-1].isdigit() or left[-1] in ")]%"):
        return 1, True
    if bare[-1] not in "+-":
        return 1, bool(left)
    if bare == before:  # the sign touches the number
        if bare[:-1] == left and left and left[-1].isalpha():
            return None, False
        return (-1 if bare[-1] == "-" else 1), False
    return (-1 if bare[-1] == "-" and (not left or left[-1] in "=(:") else 1), False


def _value(match: re.Match[str], after: str) -> Fraction | None:
    if len(match.group()) > _LONGEST_NUMERAL or _SPOILT.match(after):
        return None
    value = _decimal(match["core"])
    if value is None:
        return None
    if match["numerator"]:
        part, whole = int(match["numerator"]), int(match["denominator"])
        if not part < whole:  # "2 3/2" is no mixed number; 1/0 is none either
            return None
        value += Fraction(part, whole)
    elif match["divisor"]:
        divisor = _decimal(match["divisor"])
        if not divisor:
            return None
        value /= divisor
    elif match["exponent"] or match["power"]:
        value *= Fraction(10) ** int(match["exponent"] or match["power"])
    scale = _SCALE.match(after)
    if scale:
        value *= _SCALES[scale.group().strip(" -").lower()]
    return value if abs(value.numerator) < _LARGEST and value.denominator < _LARGEST else None


def _decimal(core: str) -> Fraction | None:
    return Fraction(core.replace(",", "")) if _WELL_FORMED.fullmatch(core) else None
