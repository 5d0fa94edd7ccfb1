"""Hidden profiles: each agent holds a private note, the question needs some of them, a decider answers.

The classic task of group decision research (Stasser & Titus 1985; for language models HiddenBench, arXiv 2505.11556),
made so small that a policy of a million parameters can play it. Two things are known for every problem that no real
benchmark knows: which notes are needed, so silence can be called right or wrong, and the least number of tokens with
which the team can still answer, so communication efficiency is an absolute measure.

Families (ours)
    sum         "How many pens do Ben and Ida have together?"      a number
    comparison  "Who has more pens, Ben or Ida?"                   a name
    choice      the question of `sum` with four lettered options   a letter
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from typing import Literal

from agent_gspo_core.episode import Problem

NAMES = (
    "Ada", "Ben", "Cat", "Dan", "Eli", "Fay", "Gus", "Hal", "Ida", "Jon", "Kim", "Leo",
    "Mia", "Ned", "Ola", "Pam", "Ron", "Sue", "Tom", "Una", "Vic", "Wes", "Yan", "Zoe",
)  # fmt: skip
ITEMS = ("pens", "books", "coins", "cups", "keys", "shells", "stamps", "stones")
FAMILIES = ("sum", "comparison", "choice")
LETTERS = "ABCD"
SMALLEST_VALUE, LARGEST_VALUE = 2, 9

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class HiddenProfileSettings:
    """What is generated. Every default is ours."""

    agents: int = 3
    """Discussion agents, each with one private note (the decider holds none)."""
    families: tuple[str, ...] = FAMILIES
    """Families drawn from with equal chance."""
    most_needed: int = 3
    """Largest number of notes that a sum asks for; capped by `agents`."""
    ask_fewer: float = 0.0
    """Share of comparisons that ask who has fewer. A harder family: the policy that ships has not mastered it."""

    def __post_init__(self) -> None:
        if not 2 <= self.agents <= len(NAMES):
            raise ValueError(f"hidden profile: agents must be between 2 and {len(NAMES)}, got {self.agents}")
        unknown = [family for family in self.families if family not in FAMILIES]
        if unknown or not self.families:
            raise ValueError(f"hidden profile: unknown families {unknown}; choose from {', '.join(FAMILIES)}")
        if not 0 <= self.ask_fewer <= 1:
            raise ValueError(f"hidden profile: ask_fewer is a share between 0 and 1, got {self.ask_fewer}")
        if self.most_needed < 1:
            raise ValueError(f"hidden profile: most_needed must be at least 1, got {self.most_needed}")


@dataclass(frozen=True)
class Facts:
    """What a problem is made of, before it is put into words (the warm start writes its transcripts from this)."""

    family: str
    item: str
    names: tuple[str, ...]
    """Who is noted by agent 0, 1, …"""
    values: tuple[int, ...]
    asked: tuple[int, ...]
    """Agents whose notes are needed, in the order in which the question names them."""
    fewer: bool = False
    """Comparison only: ask for the smaller count."""
    options: tuple[int, ...] = ()
    """Choice only: the four numbers offered."""

    def answer(self, known: frozenset[int] | None = None) -> str | None:
        """The answer of a literal reader who knows the notes `known` (all of them if `None`).

        With some asked notes missing this is what can be said from the rest (a partial sum, the one name that was
        heard of); `None` when nothing can be said.
        """
        heard = [agent for agent in self.asked if known is None or agent in known]
        if not heard:
            return None
        if self.family == "comparison":
            best = min if self.fewer else max
            return self.names[best(heard, key=lambda agent: self.values[agent])]
        total = sum(self.values[agent] for agent in heard)
        if self.family == "sum":
            return str(total)
        return LETTERS[self.options.index(total)] if total in self.options else None


def draw_facts(rng: random.Random, settings: HiddenProfileSettings) -> Facts:
    """Draw one problem's facts."""
    family = rng.choice(settings.families)
    names = tuple(rng.sample(NAMES, settings.agents))
    item = rng.choice(ITEMS)
    values = _draw_values(rng, len(names))
    if family == "comparison":
        first = rng.randrange(settings.agents)
        # A tie has no answer, so a second count that equals the first is moved by one.
        others = [agent for agent in range(settings.agents) if agent != first]
        second = rng.choice(others)
        if values[second] == values[first]:
            moved = values[second] + 1 if values[second] < LARGEST_VALUE else SMALLEST_VALUE
            values = tuple(moved if agent == second else value for agent, value in enumerate(values))
        return Facts(family, item, names, values, (first, second), fewer=rng.random() < settings.ask_fewer)
    most = min(settings.most_needed, settings.agents, 3 if family == "sum" else 2)
    asked = tuple(rng.sample(range(settings.agents), rng.randint(1, most)))
    if family == "sum":
        return Facts(family, item, names, values, asked)
    # Four draws of one kind, of which one is true: who knows no note is right in one of four, whatever it picks by.
    # A draw with equal numbers is made anew as a whole, or common numbers would be true more often than others.
    while True:
        values = _draw_values(rng, settings.agents)
        wrong = [sum(_draw_values(rng, len(asked))) for _ in LETTERS[1:]]
        offered = [sum(values[agent] for agent in asked), *wrong]
        if len(set(offered)) == len(offered):
            break
    rng.shuffle(offered)
    return Facts(family, item, names, values, asked, options=tuple(offered))


def _draw_values(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randint(SMALLEST_VALUE, LARGEST_VALUE) for _ in range(count))


def _listed(names: Sequence[str], last: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


def question_text(facts: Facts) -> str:
    """The question in words, without the options."""
    asked = [facts.names[agent] for agent in facts.asked]
    if facts.family == "comparison":
        return f"Who has {'fewer' if facts.fewer else 'more'} {facts.item}, {_listed(asked, 'or')}?"
    if len(asked) == 1:
        return f"How many {facts.item} does {asked[0]} have?"
    return f"How many {facts.item} do {_listed(asked, 'and')} have together?"


def note_text(facts: Facts, agent: int) -> str:
    """The private note of one agent."""
    return f"{facts.names[agent]} has {facts.values[agent]} {facts.item}."


def least_message(facts: Facts, agent: int) -> str:
    """The shortest message that still tells a literal reader what the note says: whose, and how many."""
    return f"{facts.names[agent]} {facts.values[agent]}"


def least_tokens(facts: Facts, count: Callable[[str], int]) -> int:
    """Least completion tokens of a whole episode, end tokens included.

    Needed agents name owner and count, the others send only their end token, and the decider gives only the marked
    answer. "Least" is meant for a literal reader, who must be told whose count a number is (ours). A team that agrees
    on a private code can go below it; the efficiency then exceeds 1.

    Args:
        facts: the problem.
        count: number of tokens of a text, without an end token.
    """
    said = sum(count(least_message(facts, agent)) + 1 for agent in facts.asked)
    silent = len(facts.names) - len(facts.asked)
    return said + silent + count(f"#### {facts.answer()}") + 1


def to_problem(facts: Facts, problem_id: str, count: Callable[[str], int] | None = None) -> Problem:
    """Put facts into words. `count` (see `least_tokens`) is one tokenizer's; without it the optimum is unknown."""
    answer = facts.answer()
    assert answer is not None
    return Problem(
        id=problem_id,
        question=question_text(facts),
        answer=answer,
        kind={"sum": "number", "comparison": "text", "choice": "choice"}[facts.family],  # type: ignore[arg-type]
        choices=tuple(str(option) for option in facts.options),
        notes=tuple(note_text(facts, agent) for agent in range(len(facts.names))),
        family=facts.family,
        needed=frozenset(facts.asked),
        least_tokens=None if count is None else least_tokens(facts, count),
    )


def best_guess(problem: Problem) -> float:
    """Chance of being right for one who knows the question and how problems are drawn, but no note: the floor (ours).

    A sum's likeliest total; any of the options; of two names the second, whose count is moved up when both are equal.

    Raises:
        ValueError: a problem that is no hidden profile.
    """
    if problem.needed is None or problem.family not in FAMILIES:
        raise ValueError(f"hidden profile: {problem.id!r} was not made here, so what a guess is worth is unknown")
    if problem.family == "choice":
        return 1 / len(problem.choices)
    counts = range(SMALLEST_VALUE, LARGEST_VALUE + 1)
    if problem.family == "comparison":
        moved_up = (len(counts) - 1) / len(counts) ** 2
        return (1 - 1 / len(counts)) / 2 + moved_up
    ways = Counter(sum(drawn) for drawn in product(counts, repeat=len(problem.needed)))
    return max(ways.values()) / ways.total()


def draw_split(split: Split, index: int, seed: int, settings: HiddenProfileSettings) -> Facts:
    """Problem number `index` of a split.

    Splits are disjoint by construction, not by chance: the facts' own digest says which split they belong to, and
    draws that belong elsewhere are skipped.
    """
    if split not in ("train", "validation", "test"):
        raise ValueError(f"hidden profile: unknown split {split!r}; choose train, validation or test")
    key = f"hidden-profile/{split}/{seed}/{index}"
    rng = random.Random(int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big"))
    while True:
        facts = draw_facts(rng, settings)
        if _home(facts) == split:
            return facts


def _home(facts: Facts) -> Split:
    """The split that these facts belong to: 8 in 10 train, 1 validation, 1 test."""
    shelf = int.from_bytes(blake2b(repr(facts).encode(), digest_size=8).digest(), "big") % 10
    return "test" if shelf == 9 else "validation" if shelf == 8 else "train"


def load(
    split: Split,
    *,
    limit: int,
    seed: int = 0,
    settings: HiddenProfileSettings | None = None,
    count: Callable[[str], int] | None = None,
) -> list[Problem]:
    """Generate `limit` problems of a split; the same arguments always give the same problems."""
    if limit < 1:
        raise ValueError(f"hidden profile: limit must be at least 1, got {limit}")
    settings = settings or HiddenProfileSettings()
    return [
        to_problem(draw_split(split, index, seed, settings), f"hidden_profile/{split}/{seed}/{index}", count)
        for index in range(limit)
    ]
