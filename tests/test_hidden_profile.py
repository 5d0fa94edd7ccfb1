"""Hidden profiles: answers worked out again from the words alone, disjoint splits, the optimum."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from scipy.stats import binomtest, chisquare

from agent_gspo_core.benchmarks.hidden_profile import (
    FAMILIES,
    HiddenProfileSettings,
    best_guess,
    draw_split,
    least_message,
    least_tokens,
    load,
    to_problem,
)
from agent_gspo_core.episode import Problem
from agent_gspo_core.scoring import is_correct, read_answer


def words(text: str) -> int:
    return len(text.split())


def solve(problem: Problem) -> tuple[str, set[int]]:
    """Answer and needed agents, from question, notes and options as a person would read them."""
    counts, holders, items = {}, {}, set()
    for agent, note in enumerate(problem.notes):
        name, count, item = re.fullmatch(r"(\w+) has (\d+) (\w+)\.", note).groups()
        counts[name], holders[name] = int(count), agent
        items.add(item)
    asked = [name for name in re.findall(r"[A-Z][a-z]+", problem.question) if name in counts]
    needed = {holders[name] for name in asked}
    assert len(asked) == len(needed) == len(set(asked))
    assert len(items) == 1
    assert f" {items.pop()}" in problem.question
    if problem.question.startswith("Who has"):
        best = max if "more" in problem.question else min
        values = [counts[name] for name in asked]
        assert values.count(best(values)) == 1  # a tie has no answer
        return best(asked, key=counts.__getitem__), needed
    assert problem.question.startswith("How many")
    total = sum(counts[name] for name in asked)
    if not problem.choices:
        return str(total), needed
    assert problem.choices.count(str(total)) == 1
    return "ABCD"[problem.choices.index(str(total))], needed


@pytest.mark.parametrize("agents", [2, 3, 5])
def test_answers_and_need_follow_from_the_words(agents):
    problems = load("train", limit=300, seed=3, settings=HiddenProfileSettings(agents=agents, ask_fewer=0.5))
    for problem in problems:
        answer, needed = solve(problem)
        assert problem.answer == answer
        assert problem.needed == needed
        assert len(problem.notes) == agents
        assert is_correct(read_answer(f"Well. #### {answer}", problem), problem)
    assert {p.family for p in problems} == set(FAMILIES)
    assert {p.kind for p in problems} == {"number", "text", "choice"}
    assert {len(p.needed) for p in problems} == set(range(1, min(agents, 3) + 1))
    assert sum("fewer" in p.question for p in problems) > 20
    assert sum("more" in p.question for p in problems) > 20


def test_by_default_comparisons_ask_who_has_more():
    assert not any("fewer" in p.question for p in load("train", limit=300))
    with pytest.raises(ValueError, match="ask_fewer"):
        HiddenProfileSettings(ask_fewer=1.5)


def test_not_everybody_is_needed_so_silence_can_be_right():
    problems = load("train", limit=300)
    spare = sum(len(p.notes) - len(p.needed) for p in problems) / sum(len(p.notes) for p in problems)
    assert 0.2 < spare < 0.6


def test_wrong_letters_are_wrong():
    problem = next(p for p in load("test", limit=40) if p.kind == "choice")
    assert len(set(problem.choices)) == 4
    assert [is_correct(letter, problem) for letter in "ABCD"].count(True) == 1


def test_splits_are_disjoint_whatever_the_seed():
    def said(split: str, seed: int) -> set[tuple[object, ...]]:
        return {(p.question, p.choices, p.notes) for p in load(split, limit=400, seed=seed)}

    seen = {split: said(split, 0) | said(split, 1) for split in ("train", "validation", "test")}
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    assert not seen["validation"] & seen["test"]
    assert all(len(problems) > 780 for problems in seen.values())


def test_ids_are_distinct_over_splits_and_seeds():
    problems = [p for split in ("train", "test") for seed in (0, 1) for p in load(split, limit=20, seed=seed)]
    assert len({p.id for p in problems}) == len(problems)


def test_the_same_arguments_give_the_same_problems_and_another_seed_others():
    first = load("train", limit=30, seed=5, count=words)
    assert load("train", limit=30, seed=5, count=words) == first
    assert load("train", limit=60, seed=5, count=words)[:30] == first  # a larger draw begins alike
    other = load("train", limit=30, seed=6)
    assert len({p.question for p in first} & {p.question for p in other}) < 10


def test_the_draw_is_the_same_in_every_version_of_this_project():
    """Recorded runs name their problems by split, seed and index alone."""
    problem = load("test", limit=1)[0]
    assert problem.id == "hidden_profile/test/0/0"
    assert problem.question == "Who has more stamps, Wes or Kim?"
    assert problem.notes == ("Wes has 6 stamps.", "Vic has 2 stamps.", "Kim has 2 stamps.")
    assert problem.answer == "Wes"


def test_least_tokens_counts_short_notes_end_tokens_and_the_bare_answer():
    for index in range(60):
        facts = draw_split("train", index, 0, HiddenProfileSettings(agents=4))
        calls: list[str] = []

        def count(text: str, calls: list[str] = calls) -> int:
            calls.append(text)
            return 10 * len(text.split())

        problem = to_problem(facts, "p", count)
        needed = len(problem.needed)
        # Needed: two words and an end; not needed: an end; the judge: the marker, the answer, an end.
        assert problem.least_tokens == needed * (20 + 1) + (4 - needed) * 1 + 20 + 1
        assert calls[-1] == f"#### {problem.answer}"
        assert sorted(calls[:-1]) == sorted(
            f"{note.split()[0]} {note.split()[2]}" for a, note in enumerate(problem.notes) if a in problem.needed
        )


def test_the_least_talk_suffices_for_a_literal_reader():
    """From the shortest messages of the needed agents alone the answer follows."""
    for index in range(100):
        facts = draw_split("validation", index, 0, HiddenProfileSettings())
        told = [least_message(facts, agent).split() for agent in facts.asked]
        notes = tuple(f"{name} has {count} {facts.item}." for name, count in told)
        problem = to_problem(facts, "p")
        heard = Problem("p", problem.question, problem.answer, problem.kind, problem.choices, notes)
        assert solve(heard)[0] == problem.answer


def test_without_a_tokenizer_the_optimum_is_unknown():
    assert load("train", limit=1)[0].least_tokens is None


def test_least_tokens_of_the_policys_own_tokenizer(random_policy):
    facts = draw_split("train", 0, 0, HiddenProfileSettings())
    texts = [least_message(facts, a) for a in facts.asked] + [f"#### {facts.answer()}"]
    assert least_tokens(facts, random_policy.count) == sum(map(random_policy.count, texts)) + 4


def test_what_can_be_said_from_some_of_the_notes():
    facts = next(
        f for f in (draw_split("train", i, 0, HiddenProfileSettings()) for i in range(200))
        if f.family == "sum" and len(f.asked) == 2
    )  # fmt: skip
    one = facts.asked[0]
    assert facts.answer(frozenset({one})) == str(facts.values[one])
    assert facts.answer(frozenset()) is None
    spare = next(a for a in range(3) if a not in facts.asked)
    assert facts.answer(frozenset({spare})) is None


def test_families_can_be_chosen():
    problems = load("train", limit=30, settings=HiddenProfileSettings(families=("comparison",)))
    assert {p.family for p in problems} == {"comparison"}


def test_most_needed_limits_a_sum():
    settings = HiddenProfileSettings(agents=5, families=("sum",), most_needed=1)
    assert {len(p.needed) for p in load("train", limit=30, settings=settings)} == {1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agents": 1}, "agents must be between 2 and 24, got 1"),
        ({"agents": 25}, "agents must be between 2 and 24, got 25"),
        ({"families": ("sum", "poem")}, r"unknown families \['poem'\]"),
        ({"families": ()}, "families"),
        ({"most_needed": 0}, "most_needed must be at least 1"),
    ],
)
def test_settings_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        HiddenProfileSettings(**change)


def test_unknown_split_and_empty_draw_are_refused():
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        load("dev", limit=1)
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        load("train", limit=0)


@pytest.mark.parametrize("needed", [1, 2])
def test_options_tell_nothing_without_a_note(needed: int) -> None:
    facts = [draw_split("train", index, 7, HiddenProfileSettings(families=("choice",))) for index in range(6000)]
    facts = [f for f in facts if len(f.asked) == needed]
    true = [sum(f.values[agent] for agent in f.asked) for f in facts]
    ranks = Counter(sorted(f.options).index(t) for f, t in zip(facts, true, strict=True))
    places = Counter(f.options.index(t) for f, t in zip(facts, true, strict=True))
    offered = Counter(number for f in facts for number in f.options)
    common = [number for number, times in offered.items() if times > 400]
    for counts in (ranks, places):
        assert chisquare([counts[i] for i in range(4)]).pvalue > 1e-4
    # Whatever number is picked by its looks, it is true in one of four cases.
    right = Counter(true)
    assert common
    for number in common:
        assert binomtest(right[number], offered[number], 1 / 4).pvalue > 1e-4, number


@pytest.mark.parametrize("family", FAMILIES)
def test_best_guess_is_what_the_best_fixed_rule_gets_right(family: str) -> None:
    settings = HiddenProfileSettings(families=(family,))
    problems = load("train", limit=4000, settings=settings)
    # Where the question says how many notes it needs, the likeliest total is 9 of one count, 11 of two, 16 of three.
    likeliest = {1: 9, 2: 11, 3: 16}

    def guess(problem: Problem) -> str:
        needed = len(problem.needed or ())
        if family == "comparison":
            return problem.question.rstrip("?").split(" or ")[1]
        if family == "sum":
            return str(likeliest[needed])
        return "B"  # any rule is as good as another

    right = sum(is_correct(guess(problem), problem) is True for problem in problems) / len(problems)
    expected = sum(map(best_guess, problems)) / len(problems)
    assert right == pytest.approx(expected, abs=0.025)


def test_a_guess_at_a_problem_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="was not made here"):
        best_guess(Problem("p", "How many?", "3"))
