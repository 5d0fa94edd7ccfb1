"""The nouns: what they refuse, what they count, and what belongs together."""

from __future__ import annotations

import dataclasses

import pytest

from agent_gspo_core.episode import Episode, Group, Message, Problem, Row, all_rows, group_messages


def say(agent: int, round: int = 0, *, tokens: int = 3, silent: bool = False, heard: tuple[int, ...] = ()) -> Message:
    ids = tuple(range(10, 10 + tokens))
    return Message(agent, f"Agent {agent + 1}", round, (1, 2), ids, (-0.5,) * tokens, "hi", silent, heard=heard)


def talk(problem: str, member: int, *messages: Message) -> Episode:
    return Episode(Problem(problem, "How many?", "7"), member, messages, None, False)


def test_a_message_without_tokens_is_refused_even_silence_is_an_end_token_verl_6310():
    with pytest.raises(ValueError, match=r"agent 1 in round 2 has no token.*one end token"):
        Message(1, "Agent 2", 2, (1,), (), (), "", silent=True)


def test_every_token_needs_its_logprob():
    with pytest.raises(ValueError, match="2 ids but 1 log-probabilities"):
        Message(0, "Agent 1", 0, (1,), (5, 6), (-0.1,), "x")


@pytest.mark.parametrize("question", ["", "  \n"])
def test_a_problem_needs_a_question(question):
    with pytest.raises(ValueError, match=r"problem 'p': the question is empty"):
        Problem("p", question, "7")


def test_a_choice_needs_options():
    with pytest.raises(ValueError, match=r"problem 'p': kind 'choice' needs at least two choices"):
        Problem("p", "Which?", "A", kind="choice", choices=("7",))


def test_nouns_are_frozen():
    message = say(0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.text = "other"  # type: ignore[misc]


def test_an_episode_counts_what_is_said_read_and_turned():
    episode = talk("p", 0, say(0, tokens=3), say(1, tokens=1, silent=True), say(2, tokens=4, heard=(0,)))
    assert episode.tokens == 8  # silence is charged
    assert episode.prompt_tokens == 6
    assert episode.turns == 2
    assert episode.heard_by(episode.messages[2]) == (episode.messages[0],)


def test_unknown_optimum_is_none_and_not_zero():
    problem = Problem("p", "How many?", "7")
    assert problem.needed is None
    assert problem.least_tokens is None


def test_groups_hold_every_action_once_by_problem_agent_and_round():
    episodes = [talk(p, m, say(0), say(1), say(0, 1), say(2, 2)) for p in ("a", "b") for m in range(3)]
    groups = group_messages(episodes)
    assert len(groups) == 2 * 4
    rows = all_rows(groups)
    assert sorted((r.episode, r.message) for r in rows) == [(e, m) for e in range(6) for m in range(4)]
    for group in groups:
        assert len(group.rows) == 3
        for row in group.rows:
            message = episodes[row.episode].messages[row.message]
            assert group.key == (episodes[row.episode].problem.id, message.agent, message.round)
    assert all_rows([Group(("x",)), Group(("y",), (Row(1, 2),))]) == [Row(1, 2)]
