"""Measuring a team: means over episodes, and None where nothing can be measured."""

from __future__ import annotations

import json

import pytest

from agent_gspo_core.benchmarks import hidden_profile
from agent_gspo_core.episode import Episode, Message, Problem
from agent_gspo_core.evaluation import evaluate_team, score_episodes
from agent_gspo_core.rollout import SamplingSettings, Team, TeamSettings

TEAM = Team(TeamSettings(message_tokens=6, answer_tokens=6))


def say(agent: int, tokens: int, *, silent: bool = False, truncated: bool = False) -> Message:
    ids = tuple(range(tokens))
    return Message(agent, f"Agent {agent + 1}", 0, (1,) * 5, ids, (-0.5,) * tokens, "x", silent, truncated)


def talk(*messages: Message, correct: bool | None, prediction: str | None = "7", least: int | None = 6) -> Episode:
    problem = Problem("p", "How many?", "7", needed=frozenset({0}), least_tokens=least)
    return Episode(problem, 0, messages, prediction, correct, forward_flops=100.0)


def test_a_score_is_the_mean_over_episodes():
    episodes = [
        talk(say(0, 5), say(1, 1, silent=True), say(2, 4), correct=True),  # 10 tokens
        talk(say(0, 1, silent=True), say(1, 15, truncated=True), say(2, 4), correct=False, prediction=None),  # 20
    ]
    score = score_episodes(episodes, decider=2, seconds=1.5)
    assert score.episodes == 2
    assert score.accuracy == 0.5
    assert score.tokens == 15
    assert score.prompt_tokens == 15
    assert score.forward_flops == 100
    assert score.turns == 2
    assert score.unparsed == 0.5
    assert score.truncated == pytest.approx(1 / 6)
    assert score.silence_rate == 0.5  # the decider is no discussion agent
    assert score.silence_right == 0.5
    assert score.communication_efficiency == pytest.approx(12 / 30)
    assert score.effective_efficiency == pytest.approx((0.6 + 0) / 2)
    assert score.seconds == 1.5
    assert json.loads(json.dumps(score.as_dict(), allow_nan=False))["accuracy"] == 0.5


def test_episodes_that_cannot_be_scored_are_not_in_the_accuracy():
    episodes = [talk(say(0, 5), correct=None), talk(say(0, 5), correct=True)]
    assert score_episodes(episodes, decider=None).accuracy == 1.0
    assert score_episodes(episodes[:1], decider=None).accuracy is None


def test_without_a_known_optimum_there_is_no_efficiency():
    score = score_episodes([talk(say(0, 5), correct=True, least=None)], decider=None)
    assert score.communication_efficiency is None
    assert score.effective_efficiency is None


def test_no_episodes_no_score():
    with pytest.raises(ValueError, match="no episodes to score"):
        score_episodes([], decider=None)


def test_evaluation_scores_the_episodes_that_it_returns(random_policy):
    problems = hidden_profile.load("test", limit=3, count=random_policy.count)
    score, episodes = evaluate_team(random_policy, TEAM, problems, members=2)
    assert len(episodes) == score.episodes == 6
    assert score.seconds > 0
    assert score_episodes(episodes, decider=3, seconds=score.seconds) == score
    again, _ = evaluate_team(random_policy, TEAM, problems, members=2)
    assert again.tokens == score.tokens
    other, _ = evaluate_team(random_policy, TEAM, problems, members=2, sampling=SamplingSettings(seed=1))
    assert other.tokens != score.tokens


def test_answers_are_read_by_the_given_reader(random_policy):
    problems = hidden_profile.load("test", limit=3)
    right, _ = evaluate_team(random_policy, TEAM, problems, read=lambda text, problem: problem.answer)
    assert right.accuracy == 1.0
    assert right.unparsed == 0.0
    none, _ = evaluate_team(random_policy, TEAM, problems, read=lambda text, problem: None)
    assert none.accuracy == 0.0
    assert none.unparsed == 1.0


def test_missing_data_is_a_clear_error(random_policy):
    with pytest.raises(ValueError, match="no problems given; load some"):
        evaluate_team(random_policy, TEAM, [])
