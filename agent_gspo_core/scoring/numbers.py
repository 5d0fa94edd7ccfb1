r"""Read a number from a reply and compare it exactly.

Numbers are fractions, never floats: "18.0" is 18, "1/2" is 0.5, "1,234" is not 234. What is written is read whole or
not at all: a numeral that cannot be read ("3,75", "3:45", "5^2", "5x") makes the answer unparsed; a part of it is
never taken.

What units do (ours): currency and units are dropped and nothing is converted, so "18 cents" is 18. So is the percent
sign: "5%" is 5 and not 0.05, because data sets of word problems write the answer to "how many percent" as 5.
Scale words count: "1.5 million" is 1500000, "18k" is 18000. A number in words ("eighteen") is read leniently where an
answer is announced, if nothing else stands there.
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
    second_thought,
    sentence,
    settled,
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
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\x00", ""),
        "⁄": "/", "∕": "/", "，": ",", "．": ".", "％": "%", "’": "'", "＝": "=", "≈": "=", "≃": "=", "：": ":",
    }
)  # fmt: skip
# NFKC would do some of this, but it also turns "5²" into "52" and "1½" into "11⁄2".

_RAISED = re.compile(r"(?<=10)[⁻]?[⁰¹²³⁴-⁹]++")
_RAISED_DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_TAG = re.compile(r"</?[A-Za-z]{1,12}>")

_LATEX: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"\\(?:begin|end)\{[a-z]{1,12}\*?\}|\\\\(?![A-Za-z])|&"), " "),
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
_CURRENCY = re.compile(r"(-)?(?:\bUS)?[$€£¥₹](-)?|\bRs\.?[ ]?(?=[0-9])")
_MINUS_WORD = re.compile(r"\b(?:minus|negative)\s(?=[0-9.$])", re.I)
_MINUS_BRACKET = re.compile(r"(?<![0-9)A-Za-z])-[ ]?\([ ]?([0-9.,]{1,100})[ ]?\)")
_CALCULATOR = re.compile(r"<<[^<>\n]{0,200}>>")  # GSM8K's annotations, learnt by models trained on it
_DIGIT = re.compile(r"[0-9０-９¼-¾⅓-⅞]")
_NUMBER_WORD_FIRST = re.compile(
    r"[^0-9]*?\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen"
    r"|sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand)\b",
    re.I,
)
_LIST_ITEM = re.compile(r"(?m)^[ \t]*+(?:[0-9]{1,3}[.)]|[-*•+])[ \t]++(?=\S)")
_SPACED_THOUSANDS = re.compile(r"(?<![0-9.,/:])(?<![0-9] )[0-9]{1,3}(?: [0-9]{3})++(?![0-9/:])")
_TWO_UNKNOWNS = re.compile(r"(?:,|;|\b(?:and|or)\b)\s?[A-Za-z]\w{0,20}+\s?=")

_UNSOLVED = re.compile(r"[0-9)][A-Za-z](?![A-Za-z])|(?<![A-Za-z])[A-Za-z]\s?[-+*/×^]|[-+*/×]\s?[A-Za-z](?![A-Za-z])")
_BOUND = re.compile(
    r"[<>≤≥≠]|\\(?:[lg]e(?:q|qslant)?|[lg]t|neq?)(?![A-Za-z])|\b(?:more|greater|less|fewer|larger|smaller|higher|lower)\sthan\s-?[0-9.]"
)
_CONTRAST = re.compile(r"(?<=[0-9A-Za-z%]),?\s(?:not|rather\sthan|instead\sof)\s.*+|,\s[0-9]++\sof(?:\s|$).*+")
_DASH_REMARK = re.compile(r"\s(?:—|--?|–)\s(?=[A-Za-z]).*+|\s?—.*+")
_OR_ELSE = re.compile(r"[^0-9(]*+[0-9][0-9.,]*+[^(]{0,20}\(or\b", re.I)
_NEGATED = re.compile(r"(?:\bnot|n['’]t|\bcannot|\bnever|\brather\sthan|\binstead\sof)\b[^.\n0-9]{0,20}$", re.I)
_BESIDE = re.compile(
    r"(?:\b(?:option|choice|step|question|equation|part|case|section|page|example|figure)|\b(?:more|greater|less|fewer)\sthan)\s$",
    re.I,
)
_DENIED = re.compile(r"\s(?:isn['’]t|is\snot|are\snot|aren['’]t|was\snot|wasn['’]t|is\swrong|is\sincorrect)\b", re.I)
_REMARK = re.compile(r"([0-9][0-9.,]{0,30}%?(?:\s[A-Za-z]{1,20}){0,3})\s\([^()\n]{1,80}\)")
_OFFERED = re.compile(r"[^.\n]{0,30}\bor\b[^.\n]{0,30}", re.I)

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
    r"[²³¹⁰-⁹₀-₉√π]|\+(?![0-9 ])|[ ]?pi\b|e(?![A-Za-z])|\.\.|[万亿億兆千百]|[ ]?\^|[ ]?\\[A-Za-z]|\s?/\s?[-(0-9.]"
    r"|[:_'][0-9]|\.[0-9]|[xyz](?![A-Za-z])|[A-Za-z]{1,10}[0-9]"
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

    "x = 5", "5 = x" and "16 - 3 = 13" give the value. "18, not 16" is 18. "x > 5" and "x + 3 = 8" give none.
    """
    plain = _plain(text)
    line = sentence(plain)
    if not line or REFUSAL.search(line) or re.match(r"not\b|n't\b", line, re.I) or _TWO_UNKNOWNS.search(line):
        return None
    if _BOUND.search(line):
        return None
    if _OR_ELSE.match(plain):  # "5 (or 6)" is none, "2 1/2 (or 2.5)" is one
        first, _, other = plain.partition("(or")
        value = _one(first.strip())
        return value if value == _one(sentence(other.partition(")")[0])) else None
    for remark in (_CONTRAST, _DASH_REMARK):
        shorter = remark.sub("", line, count=1)
        line = shorter if _DIGIT.search(shorter) else line
    if "=" in line:
        left, _, right = line.rpartition("=")
        step = left.rpartition("=")[2]
        if _DIGIT.search(step) and _UNSOLVED.search(step):  # "m + n = 25" may be what was asked for, "x + 3 = 8" is not
            return None
        worked_out = _one(right.strip())
        return worked_out if worked_out is not None or _CHAIN.fullmatch(right) is None else _one(left.strip())
    return _one(line.strip())


_CHAIN = re.compile(r"\s?[A-Za-z]\w{0,20}+\s?|[-+*/×÷0-9.,() ]++")
"""What may follow the value: "5 = x", "18 = 9 * 2"."""


def _one(line: str) -> Fraction | None:
    if _NUMBER_WORD_FIRST.match(line):  # "eighteen, 9 twice": the answer is the word
        return None
    if "\\" in line or "√" in line or "π" in line or "|" in line:  # mathematics beyond a plain number
        return None
    numerals = list(islice(_numerals(line), 3))
    if not numerals or any(numeral.operand for numeral in numerals):
        return None
    values = {numeral.value() for numeral in numerals}
    if len(numerals) == 2:  # "1/2 or 0.5" is one answer
        between = line[numerals[0].match.end() : numerals[1].match.start()]
        return values.pop() if len(values) == 1 and re.fullmatch(r"\s?,?\sor\s", between) else None
    return values.pop() if len(numerals) == 1 else None


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
    last_word = settled(own)
    if last_word is None:
        return None
    announced = _announced(last_word)
    after = second_thought(last_word) if announced is not _NOWHERE else None
    if after is None or announced is None:
        return _last_number(last_word) if announced is _NOWHERE else announced
    later = deque(_numerals(_plain(after)), maxlen=1)
    return announced if not later or later[0].value() == announced else None  # "Wait, 9 * 2 = 18": which of the two?


_NOWHERE = Fraction(-1, _LARGEST)
"""No place announces an answer (which is not the same as an announced answer that cannot be read)."""


def _announced(last_word: str) -> Fraction | None:
    lines = marked_lines(last_word)
    if lines:
        decisive = (
            line for line in lines if REFUSAL.search(line) or _DIGIT.search(line) or _in_words(line) is not None
        )
        return _placed(next(decisive, ""))
    box = last_box(last_word)
    if box is not None:
        return None if re.search(r"[0-9)]!$", box) else _placed(box)  # 5! in a box is a factorial
    cued = last_cued(last_word, CUE)
    return _NOWHERE if cued is None else _placed(cued)


def _placed(place: str) -> Fraction | None:
    """The number where an answer is announced, in digits or in words."""
    return parse_number(place) if _DIGIT.search(place) and not _in_brackets(place) else _in_words(place)


def _in_brackets(place: str) -> bool:
    """Whether the digits only repeat a number in words: "eighteen (18)"."""
    head = place.partition(" (")[0]
    return not _DIGIT.search(head) and _in_words(head) is not None


_ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_ONES += " seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORD_VALUES = {word: value for value, word in enumerate(_ONES.split())} | {
    word: 10 * value for value, word in enumerate(_TENS.split(), 2)
}
_POWER_WORDS = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_NOT_A_UNIT = re.compile(
    r"(?:of|or|and|to|that|which|more|less|half|halves|thirds?|quarters?|\w+ths?|point|times|plus|minus)$"
)


def _in_words(place: str) -> Fraction | None:
    """A number in words that stands alone or with one unit: "eighteen", "one hundred and five dollars"."""
    line = sentence(_plain(place[:_LONGEST_NUMERAL])).lower().strip(" .\"'()*")
    negative = line.startswith(("minus ", "negative "))
    words = [word for word in re.split(r"[\s-]+", line.removeprefix("minus ").removeprefix("negative ")) if word]
    total = current = 0
    seen = 0
    for seen, word in enumerate(words):
        if word in _WORD_VALUES:
            value = _WORD_VALUES[word]
            if current % 100 and not (current % 100 >= 20 and current % 10 == 0 and 0 < value < 10):
                return None  # "two three"
            current += value
        elif word in _POWER_WORDS and (seen or word == "hundred"):
            scale = _POWER_WORDS[word]
            if scale == 100:
                current = (current or 1) * 100
            else:
                total, current = total + (current or 1) * scale, 0
        elif not (word == "and" and seen and words[seen - 1] in _POWER_WORDS):
            break
    else:
        seen = len(words)
    rest = words[seen:]
    if not words or seen == 0 or len(rest) > 1 or (rest and (_NOT_A_UNIT.match(rest[0]) or not rest[0].isalpha())):
        return None
    return Fraction(-(total + current) if negative else total + current)


def _last_number(own: str) -> Fraction | None:
    """The last number of a reply that marks none.

    Not an operand ("9 * 2", "9 *"), not one that is denied ("not 17"), not one of two on offer ("5 or 6"), and not in a
    reply that declines.
    """
    if REFUSAL.search(own):
        return None
    text = _REMARK.sub(r"\1", _plain(_LIST_ITEM.sub("", own), keep_lines=True))
    last = deque(_numerals(text), maxlen=2)
    if not last or last[-1].operand:
        return None
    end = last[-1].match
    text = end.string
    before, behind = text[max(0, end.start() - 40) : end.start()], text[end.end() : end.end() + 40]
    if re.match(r"\s?[*×÷+=]|\s?[-/]\s*+$", behind) or _DENIED.match(behind) or _BESIDE.search(before):
        return None
    if len(last) == 2:
        between = text[last[0].match.end() : end.start()]
        if len(between) < 60 and (
            (_OFFERED.fullmatch(between) and last[0].value() != last[1].value())
            or re.fullmatch(r",\s|[^.\n=]*\band\s[^.\n=]*", between)
        ):
            return None
        if re.fullmatch(r"[^.\n,]{0,30},\s(?:and\s)?(?:not|rather\sthan|instead\sof)\s[^.\n]{0,10}", between):
            return None if last[0].operand else last[0].value()
    return None if _NEGATED.search(before) else last[-1].value()


def _plain(text: str, *, keep_lines: bool = False) -> str:
    """The text with one spelling for signs, digits and blanks, and without markup, currency and known LaTeX."""
    text = _TAG.sub(" ", _CALCULATOR.sub("", text))
    text = _RAISED.sub(lambda match: "^" + match.group().translate(_RAISED_DIGITS), text)
    text = re.sub(r"(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))", ",", text)  # a thin blank groups thousands
    text = re.sub(r"(?<=[0-9])(?=[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])", " ", text).translate(_CHARACTERS)
    if "\\" in text:
        for pattern, replacement in _LATEX:
            text = pattern.sub(replacement, text)
    text = _MARKDOWN.sub("", _POWER.sub("^", text)).replace("{", "").replace("}", "")
    text = _CURRENCY.sub(lambda match: " -" if match.group(1) or match.group(2) else " ", text)
    text = _MINUS_BRACKET.sub(r"-\1", _MINUS_WORD.sub("-", text))
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
    if left and bare[:-1] == left and left[-1] in "+-":  # "--3", "+-3"
        return 1, True
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
