"""Read the answer from a reply and compare it with the gold answer.

Strict reading (`strict=True`) takes the agreed form only, a line `#### answer`. The default is lenient: the marker
first, then other customary forms. Report both accuracies, and the share of unparsed replies (`prediction is None`) as
a figure of its own. A kind of answer is one entry of `_KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent_gspo_core.episode import AnswerKind, Problem
from agent_gspo_core.scoring.choices import read_choice, same_choice
from agent_gspo_core.scoring.numbers import read_number, same_number
from agent_gspo_core.scoring.text import normalise_text, read_text

__all__ = ["Scored", "is_correct", "read_answer", "score"]


@dataclass(frozen=True)
class Scored:
    """What was read from a reply and whether it is right."""

    prediction: str | None
    """The normalised answer; `None` if nothing could be read (unparsed)."""
    correct: bool
    """Unparsed is never correct."""


@dataclass(frozen=True)
class _Kind:
    """How one kind of answer is read (reply, problem, strict) and compared (prediction, problem)."""

    read: Callable[[str, Problem, bool], str | None]
    same: Callable[[str, Problem], bool]


def _same_text(prediction: str, problem: Problem) -> bool:
    gold = normalise_text(problem.answer)
    if not gold:
        raise ValueError(f"the gold answer {problem.answer!r} has no word or number to compare with")
    return normalise_text(prediction) == gold


_KINDS: dict[AnswerKind, _Kind] = {
    "number": _Kind(
        lambda reply, problem, strict: read_number(reply, strict=strict),
        lambda prediction, problem: same_number(prediction, problem.answer),
    ),
    "choice": _Kind(
        lambda reply, problem, strict: read_choice(reply, problem.choices, strict=strict),
        lambda prediction, problem: same_choice(prediction, problem.answer, problem.choices),
    ),
    "text": _Kind(lambda reply, problem, strict: read_text(reply), _same_text),
}


def read_answer(text: str, problem: Problem, *, strict: bool = False) -> str | None:
    """The answer that the reply `text` gives, normalised (number "18", letter "B", words); `None` means unparsed."""
    return _KINDS[problem.kind].read(text, problem, strict)


def is_correct(prediction: str | None, problem: Problem) -> bool:
    """Whether an answer as read is the problem's; `None` never is.

    Raises `ValueError` naming the problem if its gold answer does not fit its kind.
    """
    if prediction is None:
        return False
    try:
        return _KINDS[problem.kind].same(prediction, problem)
    except ValueError as error:
        raise ValueError(f"problem {problem.id!r}: {error}") from error


def score(text: str, problem: Problem, *, strict: bool = False) -> Scored:
    """Read and compare in one call."""
    prediction = read_answer(text, problem, strict=strict)
    return Scored(prediction, is_correct(prediction, problem))
