"""One agent that lies, babbles or repeats: what changes, and what must not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent_gspo_core.benchmarks import hidden_profile
from agent_gspo_core.episode import Problem, group_messages
from agent_gspo_core.insider import (
    BABBLE,
    INSTRUCTIONS,
    Insider,
    instructed,
    sample_with_insider,
    script_of,
    tokens_of_others,
    with_lie,
)
from agent_gspo_core.rollout import Role, SamplingSettings, Team, TeamSettings, sample_episodes

PROBLEMS = hidden_profile.load("test", limit=8)
SAMPLING = SamplingSettings(seed=1)
TEAM = Team(TeamSettings(message_tokens=60, answer_tokens=6, rounds=2))


def test_a_lie_changes_one_count_and_nothing_else():
    for seed in range(20):
        for problem in PROBLEMS:
            told = with_lie(problem, Insider("lies", agent=1, seed=seed))
            assert told.notes[1] != problem.notes[1]
            assert told.notes[1].split()[0] == problem.notes[1].split()[0]
            assert 2 <= int(told.notes[1].split()[2]) <= 9
            assert replace(told, notes=problem.notes) == problem


def test_a_lie_is_the_same_every_time_and_another_under_another_seed():
    lies = [[with_lie(p, Insider("lies", seed=seed)).notes[0] for p in PROBLEMS] for seed in (0, 0, 1)]
    assert lies[0] == lies[1] != lies[2]


def test_large_counts_get_other_large_counts():
    problem = Problem("p", "How many?", "125", notes=("Ada has 125 pens.",))
    lie = with_lie(problem, Insider("lies")).notes[0]
    assert lie != problem.notes[0]
    assert lie.startswith("Ada has 1")


def test_episodes_of_a_liar_carry_the_true_problem(random_policy):
    episodes = sample_with_insider(random_policy, TEAM, PROBLEMS, Insider("lies", agent=2), settings=SAMPLING)
    assert [e.problem for e in episodes] == PROBLEMS
    lie = with_lie(PROBLEMS[0], Insider("lies", agent=2)).notes[2]
    assert lie in random_policy.tokenizer.decode(episodes[0].messages[2].prompt_ids)
    assert all(m.sampled for m in episodes[0].messages)


@pytest.mark.parametrize("kind", ["babbles", "repeats"])
def test_scripted_words_are_marked_heard_paid_and_never_trained_on(random_policy, kind):
    insider = Insider(kind, agent=1)
    honest = sample_episodes(random_policy, TEAM, PROBLEMS, settings=SAMPLING)
    episodes = sample_with_insider(random_policy, TEAM, PROBLEMS, insider, settings=SAMPLING)
    for before, episode in zip(honest, episodes, strict=True):
        for message in episode.messages:
            assert message.sampled == (message.agent != 1)
        said = episode.messages[1]
        assert said.logprobs == (0.0,) * said.tokens
        assert not said.silent
        assert 1 in episode.messages[6].heard
        assert episode.messages[0].token_ids == before.messages[0].token_ids  # it heard nothing of it
        assert tokens_of_others(episode, insider) == episode.tokens - said.tokens - episode.messages[4].tokens
    assert not any(group.key[1] == 1 for group in group_messages(episodes))


def test_who_babbles_says_nothing_that_could_be_a_fact_and_who_repeats_says_what_it_heard():
    assert script_of(Insider("babbles"))(PROBLEMS[0], 0, 0, ["Ben 3"]) == " ".join(BABBLE)
    assert not any(char.isdigit() for char in " ".join(BABBLE))
    assert not any(name in " ".join(BABBLE) for name in hidden_profile.NAMES)
    repeats = script_of(Insider("repeats"))
    assert repeats(PROBLEMS[0], 0, 1, ["Ben 3", "Ida 4"]) == "Ida 4 Ida 4 Ida 4"
    assert repeats(PROBLEMS[0], 0, 0, []).startswith(PROBLEMS[0].question)
    assert repeats(PROBLEMS[0], 1, 0, []) is None


def test_scripted_words_are_cut_at_the_cap(random_policy):
    short = Team(TeamSettings(message_tokens=5, answer_tokens=6))
    episode = sample_with_insider(random_policy, short, PROBLEMS[:1], Insider("babbles"), settings=SAMPLING)[0]
    assert episode.messages[0].tokens == 5
    assert episode.messages[0].truncated
    assert BABBLE[0].startswith(episode.messages[0].text[:3])


def test_an_instruct_model_is_told_and_keeps_its_name(random_policy):
    settings = TeamSettings(prompt_style="instruct", message_tokens=4, answer_tokens=4)
    told = instructed(settings, Insider("lies", agent=1))
    assert told.roles == (Role("Agent 1"), Role("Agent 2", INSTRUCTIONS["lies"]), Role("Agent 3"))
    episodes = sample_with_insider(random_policy, Team(settings), PROBLEMS[:1], Insider("babbles", agent=1))
    prompts = [random_policy.tokenizer.decode(m.prompt_ids) for m in episodes[0].messages]
    assert [INSTRUCTIONS["babbles"] in prompt for prompt in prompts] == [False, True, False, False]
    assert all(m.sampled for m in episodes[0].messages)


def test_an_impossible_insider_is_refused(random_policy):
    with pytest.raises(ValueError, match="unknown kind 'sulks'"):
        Insider("sulks")
    with pytest.raises(ValueError, match="agent is -1"):
        Insider("lies", agent=-1)
    with pytest.raises(ValueError, match="agent 3 is not in this team of 3"):
        sample_with_insider(random_policy, TEAM, PROBLEMS, Insider("lies", agent=3))
    with pytest.raises(ValueError, match="nothing to lie about"):
        with_lie(Problem("p", "How many?", "3"), Insider("lies"))
    with pytest.raises(ValueError, match="holds no number"):
        with_lie(Problem("p", "Who?", "Ada", kind="text", notes=("Ada is here.",)), Insider("lies"))
    with pytest.raises(ValueError, match="no script"):
        script_of(Insider("lies"))
