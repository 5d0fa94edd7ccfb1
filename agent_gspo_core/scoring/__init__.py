"""Read the answer from a reply and compare it with the gold answer.

Strict reading (`strict=True`) takes the agreed form only, a line `#### answer`. The default is lenient: the marker
first, then other customary forms. Report both accuracies (`score_both` gives both readings of one reply), and the share
of unparsed replies (`prediction is None`) as a figure of its own. A kind of answer is one entry of `_KINDS`.

Code is read here and run elsewhere: running it needs a sandbox that the caller names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent_gspo_core.episode import AnswerKind, Problem
from agent_gspo_core.scoring.choices import read_choice, same_choice
from agent_gspo_core.scoring.latex import read_latex, same_latex
from agent_gspo_core.scoring.numbers import read_number, same_number
from agent_gspo_core.scoring.text import normalise_text, read_text

__all__ = ["BothScored", "Scored", "is_correct", "read_answer", "score", "score_both"]


@dataclass(frozen=True)
class Scored:
    """What was read from a reply and whether it is right."""

    prediction: str | None
    """The normalised answer; `None` if nothing could be read (unparsed)."""
    correct: bool | None
    """Unparsed is never correct; `None` means not scored: code that nobody has run."""


@dataclass(frozen=True)
class BothScored:
    """One reply read both ways."""

    lenient: Scored
    """The marker first, then a box, an answer cue, and so on."""
    strict: Scored
    """The agreed form only. For code there is one form, so both are the same."""


@dataclass(frozen=True)
class _Kind:
    """How one kind of answer is read (reply, problem, strict) and compared (prediction, problem)."""

    read: Callable[[str, Problem, bool], str | None]
    same: Callable[[str, Problem], bool | None]


def _same_text(prediction: str, problem: Problem) -> bool:
    gold = normalise_text(problem.answer)
    if not gold:
        raise ValueError(f"the gold answer {problem.answer!r} has no word or number to compare with")
    return normalise_text(prediction) == gold


def _read_code(reply: str, problem: Problem, strict: bool) -> str | None:
    from agent_gspo_core.scoring.code import extract_code

    return extract_code(reply, problem)


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
    "latex": _Kind(
        lambda reply, problem, strict: read_latex(reply, strict=strict),
        lambda prediction, problem: same_latex(prediction, problem.answer),
    ),
    "code": _Kind(_read_code, lambda prediction, problem: None),
}


def read_answer(text: str, problem: Problem, *, strict: bool = False) -> str | None:
    """The answer that the reply `text` gives, normalised (number "18", letter "B", words); `None` means unparsed."""
    return _KINDS[problem.kind].read(text, problem, strict)


def is_correct(prediction: str | None, problem: Problem) -> bool | None:
    """Whether an answer as read is the problem's; no answer never is. `None`: not scored, as code is not run here.

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


def score_both(text: str, problem: Problem) -> BothScored:
    """Read a reply leniently and strictly; what both read is compared once."""
    lenient = score(text, problem)
    strict = read_answer(text, problem, strict=True)
    return BothScored(lenient, lenient if strict == lenient.prediction else Scored(strict, is_correct(strict, problem)))
