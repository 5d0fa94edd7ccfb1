r"""Read which option a reply chose.

Only letters that were offered count; anything else is unparsed, never a guess and never A. The article "a" and the
pronoun "I" are not letters. An option may also be named by its whole text ("#### Ben"), never by a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase

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

CHOICE_CUE = re.compile(
    CUE.pattern + r"|\b(?:option|choice)\s(?:is|=)(?!\w):?|\b(?:correct|right|best|final)\s(?:option|choice)\s?:"
    r"|\bI(?:'d|’d|\swould|\swill|'ll|’ll)?\s(?:choose|pick|select|vote\sfor|go\swith)(?!\w):?",
    re.I,
)
"""The answer cues, and the words with which one picks from a list."""

_MARKUP = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boxed)(?![a-z])|\\[()\[\]]|\\(?=[$%])|</?answer>|[$*`{}]")
_NAME = r"(?:(?:option|choice|letter|answer)(?:\s|:\s?))?"
_ALONE = re.compile(rf"{_NAME}[(\[\"'“]?([A-Za-z])[)\]\"'”]?[.:,;!]?", re.I)
_WITH_TEXT = re.compile(rf"{_NAME}[(\[]?([A-Za-z])(?:[)\].:,]++|\s?[-–=]|(?=\s))\s*+(\S.*+)", re.I | re.S)
_TEXT_FIRST = re.compile(r"(.*\S)\s\(([A-Z])\)\.?", re.S)
_LEADING = re.compile(rf"{_NAME}([(\[\"'“]?)([A-Za-z])(?![\w'’])([)\]\"'”.:,;]*+)\s*+(.*+)", re.I | re.S)
_GOES_ON = re.compile(r"(?:because|since|as|for|with|by|not|rather|instead|over)\b", re.I)
_CAPITAL = re.compile(r"(?<![\w'’.-])(?:[B-HJ-Z]|[AI](?!\s[a-z]))(?![\w'’-])")  # no article, no pronoun
_REJECTED = re.compile(r"\b(?:not|rather\sthan|instead\sof|over)\s(?:option\s)?\(?[A-Z]\)?(?![\w'’])")
_OR = re.compile(r"\bor\s(?:option\s)?\(?([A-Z])\)?(?![\w'’])")
_NOT_BUT = re.compile(r"(?:not|n['’]t)\s\W{0,2}[A-Za-z]\W{1,3}(?:but|it\sis|it['’]s|instead|rather)\s", re.I)
_OTHER_SCRIPT = re.compile(r"(?<![A-Za-z])([A-Z])[\u3000-\u30ff\u4e00-\u9fff\uac00-\ud7af].*+", re.S)  # "Bです"
_WIDE = {0xFF21 + i: letter for i, letter in enumerate(ascii_uppercase)}
_JUDGED = re.compile(
    r"(?=(?<![\w'’.-])\(?(?P<letter>[A-Z])\)?(?![\w'’])"
    r"(?:[.):]?\s(?P<text>[^\n?]{1,80}?))??[*\s]{1,3}(?:is|must\sbe|would\sbe)\s(?:(?:the|clearly|indeed|therefore|thus)\s){0,2}"
    r"(?:(?:most\s)?(?:correct|right|best)(?:\s(?:answer|choice|option|one))?|answer)(?!\w|\s(?:if|only|unless|when)\b|\s?\?))"
)
_ADVERB = re.compile(
    r"(?:(?:most|very)\s)?(?:probably|likely|clearly|therefore|thus|hence|definitely|certainly|simply|indeed|obviously|then)[,:]?\s",
    re.I,
)
_UNSURE = re.compile(
    r"\b(?:if|whether|assum\w{1,4}|suppose|unless|why|not|neither|nor|or|and|say)\s(?:(?:option|choice|answer)\s)?[(*]{0,3}$",
    re.I,
)
_HENCE = r"(?:so|therefore|thus|hence|consequently)\b,?\s"
_IT_IS = (
    r"(?:I\s(?:think|believe|guess|say)\s)?(?:it\s(?:must\sbe|is|has\sto\sbe)|it['’]s|we\shave"
    r"|(?:I['’]m\s|I\sam\s)?going\swith|my\spick(?:\sis|:))\s"
)
_CONCLUDES = re.compile(
    rf"(?i:(?:^|[.!?,]\s)(?:{_HENCE}(?:{_IT_IS})?|{_IT_IS})(?:option\s|choice\s)?)"
    r"\(?([A-Z])\)?(?:[.:,)]?\s([^\n]{1,80}))?[.!]?$"
)
_OPENS = re.compile(r"[ \t*(]{0,3}([A-Z])(?:[).:]|\*\*)[).:* \t]{1,4}(\S.*)")
_LONGEST_LINE = 300
"""Characters; a longer line of an unmarked reply is talk, not a letter or an option."""


def read_choice(reply: str, choices: Sequence[str], *, strict: bool = False) -> str | None:
    r"""The letter of the option that the reply chose; `None` if it chose none, several, or one that was not offered.

    Strict reads the line of the first `####` only. Lenient looks there first, then in the last `\boxed{…}`, then after
    the last answer cue; without any of them a line that holds only a letter or an option counts, if just one does.
    """
    own = own_part(reply).translate(_WIDE)
    if strict:
        line = first_marked(own)
        return None if line is None else _picked(line, choices)
    last_word = settled(own, CHOICE_CUE)
    if last_word is None:
        return None
    after = second_thought(own) if last_word is own else None
    changed = None if after is None else _unannounced(after, choices)  # "Wait, B is correct."
    if changed is not None:
        return changed
    lines = marked_lines(last_word)
    if lines:
        cued = last_cued(lines[0], CHOICE_CUE)
        return _picked(lines[0] if cued is None else cued, choices)
    for place in (last_box(last_word), last_cued(last_word, CHOICE_CUE)):
        if place is not None:
            return _picked(place, choices)
    return None if REFUSAL.search(own) else _unannounced(last_word, choices)


def _unannounced(own: str, choices: Sequence[str]) -> str | None:
    """The choice of a reply without mark, box and cue; `None` unless just one option is given.

    Looked at in this order: "B is correct" and the like; a conclusion ("Therefore, B."); lines that hold a letter or an
    option and nothing else; a reply that opens with an option ("B. Rome is the capital").
    """
    judged = {match["letter"] for match in _JUDGED.finditer(own) if _judgement(own, match, choices)}
    lines = [_MARKUP.sub("", line).strip() for line in own.splitlines() if line.strip()]
    if not lines or len(judged) > 1:
        return None
    if judged:
        return judged.pop()
    concludes = _CONCLUDES.search(lines[-1][-_LONGEST_LINE:])
    if (
        concludes
        and concludes[1] in offered(choices)
        and (not concludes[2] or _is_option(concludes[1], concludes[2], choices))
    ):
        return concludes[1]
    alone = {_named(line, choices) for line in set(own.splitlines()) if len(line) <= _LONGEST_LINE} - {None}
    if alone:
        return alone.pop() if len(alone) == 1 else None
    opening = [match for line in lines if (match := _OPENS.match(line[:_LONGEST_LINE]))]
    if len(opening) != 1 or not _OPENS.match(lines[0]) or opening[0][1] not in offered(choices):
        return None
    letter, text = opening[0].groups()
    reason = re.match(r"(?:because|since|as)\b", text, re.I)
    return letter if reason or _begins_with(text, _text_of(letter, choices)) else None


def _judgement(own: str, match: re.Match[str], choices: Sequence[str]) -> bool:
    letter, text, start = match["letter"], match["text"], match.start("letter")
    if letter not in offered(choices) or _UNSURE.search(own[max(0, start - 24) : start]):
        return False
    return text is None or _alike(text, _text_of(letter, choices))


def _begins_with(text: str, option: str) -> bool:
    start = _MARKUP.sub("", text).lstrip().casefold()
    wanted = _MARKUP.sub("", option).strip().casefold()
    return bool(wanted) and start.startswith(wanted) and not re.match(r"\w|[.,]\d", start[len(wanted) :])


def _contradicts(letter: str, text: str, choices: Sequence[str]) -> bool:
    """Whether the text beside the letter is another option's."""
    others = [choice for choice in choices if choice.strip() != _text_of(letter, choices).strip()]
    return not _begins_with(text, _text_of(letter, choices)) and any(_begins_with(text, other) for other in others)


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
    plain = re.sub(r"^[->•]\s+", "", _MARKUP.sub("", line).strip())
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
    line = _ADVERB.sub("", _OTHER_SCRIPT.sub(r"\1", line[: 4 * _LONGEST_LINE]), count=1)
    both = _WITH_TEXT.fullmatch(_MARKUP.sub("", line).strip())
    if both and both[1].upper() in offered(choices) and _contradicts(both[1].upper(), both[2], choices):
        return None
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
