"""What the multiple-choice sets share: one way to make a problem, one reader for the forms their records come in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase

from agent_gspo_core.benchmarks.source import Record, text_value, value
from agent_gspo_core.episode import Problem

_ADAPTERS = re.compile(
    r"Please choose the correct answer to the question: (?P<question>.*?)\s*\n\n(?P<answers>Answer1: .*?)\s*\n\n"
    r"Answer format: (?P<format>answer1(?:/answer[0-9])+)\s*",
    re.S,
)


def choice_problem(id: str, question: str, choices: Sequence[object], letter: str, *, family: str) -> Problem:
    """A problem of kind "choice" from its option texts in letter order and the letter of the right one.

    Raises `ValueError` naming the problem for an option that is no text or blank, and for a letter that is not
    offered. Equal options are let through: some sets offer one option twice, and `scoring.choices.same_choice` compares
    what the letters name.
    """
    texts = tuple(choice.strip() if isinstance(choice, str) else "" for choice in choices)
    if len(texts) < 2 or not all(texts):
        raise ValueError(f"{id}: expected at least two options, each with text, found {len(texts)}, one or more blank")
    if len(texts) > len(ascii_uppercase):
        raise ValueError(f"{id}: {len(texts)} options; letters name at most {len(ascii_uppercase)}")
    if len(letter) != 1 or letter not in ascii_uppercase[: len(texts)]:
        raise ValueError(f"{id}: the key is {letter!r}; expected one of {', '.join(ascii_uppercase[: len(texts)])}")
    return Problem(id=id, question=question.strip(), answer=letter, kind="choice", choices=texts, family=family)


def science_problem(record: Record, id: str, *, family: str) -> Problem:
    """A record of ARC, OpenBookQA or CommonsenseQA as a problem.

    Three forms are known: the text of a prompt with "Answer1: …" (`instruction`, `answer`; LLM-Adapters), question and
    choices side by side (the hub), and the choices inside `question` (the CommonsenseQA release). Keys "1" to "5"
    become letters. Raises `ValueError` naming the problem and what is missing.
    """
    if "instruction" in record:
        return _prompt_problem(record, id, family)
    question = value(record, id, "question", "question_stem")
    inner: Record = question if isinstance(question, dict) else record
    stem = text_value(inner, id, "stem") if isinstance(question, dict) else question
    choices = value(inner, id, "choices")
    if isinstance(choices, dict):  # the hub keeps a column of labels and a column of texts
        labels, texts = list(value(choices, id, "label")), list(value(choices, id, "text"))
    else:
        labels = [value(choice, id, "label") for choice in choices]
        texts = [value(choice, id, "text") for choice in choices]
    key = text_value(record, id, "answerKey")
    if len(labels) != len(texts) or len(set(labels)) != len(labels) or key not in labels:
        raise ValueError(f"{id}: the key {key!r} is not one of the labels {labels!r} of {len(texts)} options")
    return choice_problem(id, str(stem), texts, ascii_uppercase[labels.index(key)], family=family)


def _prompt_problem(record: Record, id: str, family: str) -> Problem:
    match = _ADAPTERS.fullmatch(text_value(record, id, "instruction"))
    if match is None:
        raise ValueError(f"{id}: 'instruction' should hold a question, 'Answer1: …' and an 'Answer format: …' line")
    count = match["format"].count("/") + 1
    # Built for the announced number of options, so that "Answer2:" inside a text does not count as one.
    options = re.compile(" ".join(rf"Answer{number}: (.*?)" for number in range(1, count + 1)), re.S)
    found = options.fullmatch(match["answers"])
    if found is None:
        raise ValueError(f"{id}: the format line announces {count} options, the text does not hold them in order")
    key = text_value(record, id, "answer")
    number = key.removeprefix("answer")
    if not (number.isascii() and number.isdigit() and 1 <= int(number) <= count):
        raise ValueError(f"{id}: the key is {key!r}; expected answer1 to answer{count}")
    return choice_problem(id, match["question"], found.groups(), ascii_uppercase[int(number) - 1], family=family)
