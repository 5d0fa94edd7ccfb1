"""Methods: what each costs at most, and how a cap is shared out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fixtures import build_policy

from agent_gspo_core.benchmarks import hidden_profile
from agent_gspo_core.evaluation import evaluate_items
from agent_gspo_core.methods import METHODS, Method, build_method
from agent_gspo_core.rollout import TeamSettings

BASE = TeamSettings(agents=3, rounds=1, message_tokens=8, answer_tokens=12)


@pytest.mark.parametrize("name", METHODS)
def test_no_problem_costs_more_than_the_most_that_is_named(name: str) -> None:
    policy = build_policy()
    problems = hidden_profile.load("test", limit=4, count=policy.count)
    method = build_method(name, BASE)
    for record in evaluate_items(policy, method, problems, temperature=1.0):
        assert record.messages == method.messages
        assert record.tokens <= method.most_tokens


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("cap", [23, 30, 57, 10_000])
def test_a_cap_bounds_every_method(name: str, cap: int) -> None:
    method = build_method(name, replace(BASE, rounds=2), cap=cap)
    assert method.most_tokens <= cap
    uncapped = build_method(name, replace(BASE, rounds=2))
    if uncapped.most_tokens <= cap:
        assert method == uncapped


@pytest.mark.parametrize("name", METHODS)
def test_a_capped_method_uses_most_of_its_cap_where_it_could_spend_more(name: str) -> None:
    wide = replace(BASE, message_tokens=500, answer_tokens=500)
    method = build_method(name, wide, cap=100)
    assert method.most_tokens > 100 - method.messages
    capped = build_method(name, wide, cap=400)
    assert capped.most_tokens > 400 - capped.messages


def test_a_cap_below_one_token_a_message_is_refused() -> None:
    with pytest.raises(ValueError, match="sends 4 messages a problem; a cap of 3 tokens"):
        build_method("free_for_all", BASE, cap=3)


def test_an_unknown_method_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown method 'oracle'; known are single, chain_of_thought"):
        build_method("oracle", BASE)


def test_voting_over_greedy_copies_is_refused() -> None:
    with pytest.raises(ValueError, match="5 samples at temperature 0"):
        Method("copies", BASE, samples=5, temperature=0.0)


def test_single_agent_methods_have_one_message_and_differ_in_their_working() -> None:
    single, thinking = build_method("single", BASE), build_method("chain_of_thought", BASE)
    assert single.messages == thinking.messages == 1
    assert (single.team.working, thinking.team.working) == ("none", "steps")
    assert build_method("self_consistency", BASE).messages == 5


def test_debaters_answer_in_every_round_and_hear_the_round_before() -> None:
    method = build_method("debate", BASE)
    assert (method.team.rounds, method.team.decider, method.messages) == (2, "vote", 6)
