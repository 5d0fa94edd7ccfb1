r"""Read which option a reply chose.

Only letters that were offered count; anything else is unparsed, never a guess and never A. The article "a" and the
pronoun "I" are not letters. An option may also be named by its whole text ("#### Ben"), never by a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase

from agent_gspo_core.scoring.text import CUE, first_marked, last_box, last_cued, marked_lines, own_part, sentence

CHOICE_CUE = re.compile(
    CUE.pattern + r"|\b(?:option|choice)\s(?:is|=)(?!\w):?"
    r"|\bI(?:'d|’d|\swould|\swill|'ll|’ll)?\s(?:choose|pick|select|vote\sfor|go\swith)(?!\w):?",
    re.I,
)
"""The answer cues, and the words with which one picks from a list."""

_MARKUP = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boxed)(?![a-z])|\\[()\[\]]|[$*`{}]")
_NAME = r"(?:(?:option|choice|letter|answer)\s)?"
_ALONE = re.compile(rf"{_NAME}[(\[\"'“]?([A-Za-z])[)\]\"'”]?[.:,;!]?", re.I)
_WITH_TEXT = re.compile(rf"{_NAME}[(\[]?([A-Za-z])(?:[)\].:,]++|\s?[-–=]|(?=\s))\s*+(\S.*+)", re.I | re.S)
_TEXT_FIRST = re.compile(r"(.*\S)\s\(([A-Z])\)\.?", re.S)
_LEADING = re.compile(rf"{_NAME}([(\[\"'“]?)([A-Za-z])(?![\w'’])([)\]\"'”.:,;]*+)\s*+(.*+)", re.I | re.S)
_GOES_ON = re.compile(r"(?:because|since|as|for|with|by|not|rather|instead|over)\b", re.I)
_CAPITAL = re.compile(r"(?<![\w'’.-])(?:[B-HJ-Z]|[AI](?!\s[a-z]))(?![\w'’-])")  # no article, no pronoun
_REJECTED = re.compile(r"\b(?:not|rather\sthan|instead\sof|over)\s(?:option\s)?\(?[A-Z]\)?(?![\w'’])")
_OR = re.compile(r"\bor\s(?:option\s)?\(?([A-Z])\)?(?![\w'’])")
_NOT_BUT = re.compile(r"(?:not|n['’]t)\s\W{0,2}[A-Za-z]\W{1,3}(?:but|it\sis|it['’]s|instead|rather)\s", re.I)
_LONGEST_LINE = 300
"""Characters; a longer line of an unmarked reply is talk, not a letter or an option."""


def read_choice(reply: str, choices: Sequence[str], *, strict: bool = False) -> str | None:
    r"""The letter of the option that the reply chose; `None` if it chose none, several, or one that was not offered.

    Strict reads the line of the first `####` only. Lenient looks there first, then in the last `\boxed{…}`, then after
    the last answer cue; without any of them a line that holds only a letter or an option counts, if just one does.
    """
    own = own_part(reply)
    if strict:
        line = first_marked(own)
        return None if line is None else _picked(line, choices)
    lines = marked_lines(own)
    for place in (lines[0] if lines else None, last_box(own), last_cued(own, CHOICE_CUE)):
        if place is not None:
            return _picked(place, choices)
    alone = {_named(line, choices) for line in set(own.splitlines()) if len(line) <= _LONGEST_LINE} - {None}
    return alone.pop() if len(alone) == 1 else None


def same_choice(prediction: str, gold: str, choices: Sequence[str]) -> bool:
    """Whether the letters are equal, or the options they name read alike (some data sets offer one option twice).

    Raises `ValueError` if the gold answer is no offered letter.
    """
    if len(gold) != 1 or gold not in offered(choices):
        raise ValueError(f"the gold answer {gold!r} is not among the offered letters {offered(choices)!r}")
    if len(prediction) != 1 or prediction not in offered(choices):
        return False
    return _text_of(prediction, choices).strip() == _text_of(gold, choices).strip()


def offered(choices: Sequence[str]) -> str:
    """The letters of the options, "ABC…". Raises `ValueError` beyond 26 options."""
    if len(choices) > len(ascii_uppercase):
        raise ValueError(f"{len(choices)} choices; letters name at most {len(ascii_uppercase)}")
    return ascii_uppercase[: len(choices)]


def _text_of(letter: str, choices: Sequence[str]) -> str:
    return choices[ascii_uppercase.index(letter)]


def _named(line: str, choices: Sequence[str]) -> str | None:
    """The option that the line names and nothing else: a letter, an option's text, or a letter with its text."""
    plain = _MARKUP.sub("", line).strip()
    alone = _ALONE.fullmatch(plain)
    if alone and alone[1].upper() in offered(choices):
        return alone[1].upper()
    letter_first, text_first = _WITH_TEXT.fullmatch(plain), _TEXT_FIRST.fullmatch(plain)
    if letter_first and _is_option(letter_first[1].upper(), letter_first[2], choices):
        return letter_first[1].upper()
    if text_first and _is_option(text_first[2], text_first[1], choices):
        return text_first[2]
    exact = [i for i, choice in enumerate(choices) if choice.strip() == line.strip()]
    if exact:
        return ascii_uppercase[exact[0]]
    near = [i for i, choice in enumerate(choices) if _alike(plain, choice)]
    if near and len({choices[i].strip() for i in near}) == 1:  # twins are one option
        return ascii_uppercase[near[0]]
    return None


def _picked(line: str, choices: Sequence[str]) -> str | None:
    """The option that a marked line picks: named as in `_named`, or a letter first and words after it."""
    line = line[: 4 * _LONGEST_LINE]
    picked = _named(line, choices) or _named(sentence(line), choices)
    plain = _NOT_BUT.sub("", _MARKUP.sub("", line).strip(), count=1)
    head = sentence(plain)
    if picked is None:
        leading = _LEADING.fullmatch(head)
        if leading is None:
            return None
        bracket, letter, mark, rest = leading.groups()
        word = rest and not (bracket or mark or _GOES_ON.match(rest))
        if letter.upper() not in offered(choices) or (word and letter in "AaIi"):
            return None
        picked = letter.upper()
        others = set(_CAPITAL.findall(_REJECTED.sub("", rest))) & set(offered(choices))
        if others - {picked}:  # two letters are no choice
            return None
    alternative = _OR.search(plain)
    return None if alternative and alternative[1] != picked and alternative[1] in offered(choices) else picked


def _is_option(letter: str, text: str, choices: Sequence[str]) -> bool:
    return letter in offered(choices) and _alike(text, _text_of(letter, choices))


def _alike(text: str, choice: str) -> bool:
    """Equal but for case, blanks, quotes, a leading article and a full stop. Signs and decimals stay."""
    return bool(_normal(choice)) and _normal(text) == _normal(choice)


def _normal(text: str) -> str:
    words = _MARKUP.sub("", text).casefold().strip(" \t\"'“”").rstrip(".,;:!?").strip("\"'“”").split()
    return " ".join(words[1:] if len(words) > 1 and words[0] in ("a", "an", "the") else words)
