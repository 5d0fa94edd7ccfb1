"""Teams and rollouts: who reads what, what is kept of what was said, who decides."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
import torch

import agent_gspo_core.rollout as rollout
from agent_gspo_core.benchmarks import hidden_profile
from agent_gspo_core.benchmarks.hidden_profile import HiddenProfileSettings
from agent_gspo_core.episode import Episode, Problem, all_rows, group_messages
from agent_gspo_core.generation import Completion
from agent_gspo_core.logprobs import score
from agent_gspo_core.policy import Policy
from agent_gspo_core.rollout import (
    Role,
    SamplingSettings,
    Team,
    TeamSettings,
    derive_seed,
    sample_episodes,
    sample_turn_groups,
)
from agent_gspo_core.scoring import read_answer
from agent_gspo_core.topology import TOPOLOGIES

SHORT = TeamSettings(message_tokens=8, answer_tokens=10)


def problems(count: int = 3, agents: int = 3) -> list[Problem]:
    return hidden_profile.load("train", limit=count, settings=HiddenProfileSettings(agents=agents))


def team(**changes: object) -> Team:
    return Team(replace(SHORT, **changes))


class Script:
    """A policy's mouth: `say(prompt text)` returns a reply's words, put in place of `rollout.sample`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: Policy, say) -> None:
        self.policy, self.say = policy, say
        self.prompts: list[str] = []
        self.calls: list[int] = []
        monkeypatch.setattr(rollout, "sample", self)

    def __call__(self, policy, prompts, *, caps, seeds, temperature, **rest) -> list[Completion]:
        replies = []
        self.calls.append(len(prompts))
        for prompt, cap in zip(prompts, caps, strict=True):
            text = policy.tokenizer.decode(list(prompt))
            self.prompts.append(text)
            said = self.say(text)
            ids = policy.tokenizer((" " + said) if said else "", add_special_tokens=False)["input_ids"]
            ids = [*ids, *policy.end_ids][:cap]
            replies.append(Completion(tuple(ids), (-0.5,) * len(ids), truncated=ids[-1] not in policy.end_ids))
        return replies


def speaker(prompt: str) -> str:
    return re.search(r"<\|system\|>\s*(Agent \d+|Judge)", prompt).group(1)


# --- ids and what they stand for


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("rounds", [1, 2])
def test_every_topology_talks_to_the_end(random_policy, topology, rounds):
    vote = "vote" if topology == "none" else "last"
    us = team(topology=topology, agents=4, rounds=rounds, decider=vote)
    episodes = sample_episodes(random_policy, us, problems(2, 4), members=2)
    assert [(e.problem.id, e.member) for e in episodes] == [(p.id, m) for p in problems(2, 4) for m in (0, 1)]
    for episode in episodes:
        said = Counter((m.agent, m.round) for m in episode.messages)
        wanted = {(a, r) for a in range(4) for r in range(rounds)} | ({(4, rounds)} if vote == "last" else set())
        assert said == dict.fromkeys(wanted, 1)
        for place, message in enumerate(episode.messages):
            assert all(index < place for index in message.heard)
            assert not any(m.silent for m in episode.heard_by(message))
            text = random_policy.tokenizer.decode(list(message.prompt_ids))
            assert sum(line.startswith(("Agent ", "Judge: ")) for line in text.splitlines()) == len(message.heard)


def test_what_is_heard_stands_in_the_prompt_word_for_word_and_nothing_else_does(monkeypatch, random_policy):
    Script(monkeypatch, random_policy, lambda prompt: "I know " + speaker(prompt).split()[-1])
    episode = sample_episodes(random_policy, team(rounds=2), problems(1))[0]
    for message in episode.messages:
        text = random_policy.tokenizer.decode(list(message.prompt_ids))
        lines = [line for line in text.splitlines() if re.match(r"Agent \d: ", line)]
        expected = [f"{m.role}: {m.text}" for m in episode.heard_by(message)]
        assert [line.split("<|assistant|>")[0].strip() for line in lines] == expected
        own_note = episode.problem.notes[message.agent] if message.agent < 3 else None
        shown = [note for note in episode.problem.notes if f"Note: {note}" in text]
        assert shown == ([own_note] if own_note else [])  # a judge holds no note
    judge = episode.messages[-1]
    assert len(judge.heard) == 6
    second = [m for m in episode.messages if m.round == 1]
    assert [m.heard for m in second] == [(0, 1, 2)] * 3  # everybody's first round, one's own included


def test_in_a_chain_each_hears_its_predecessor_in_the_same_round(monkeypatch, random_policy):
    Script(monkeypatch, random_policy, lambda prompt: "from " + speaker(prompt))
    episode = sample_episodes(random_policy, team(topology="chain", rounds=2), problems(1))[0]
    heard = {(m.agent, m.round): [(h.agent, h.round) for h in episode.heard_by(m)] for m in episode.messages}
    assert heard[0, 0] == []
    assert heard[1, 0] == [(0, 0)]
    assert heard[2, 0] == [(1, 0)]
    assert (2, 0) in heard[0, 1]  # the end of the chain reports to its beginning
    assert (0, 1) in heard[1, 1]
    assert all(agent == 2 for agent, _ in heard[3, 2])  # the judge listens to the last


def test_all_agents_of_all_episodes_speak_in_one_batch_per_turn(monkeypatch, random_policy):
    script = Script(monkeypatch, random_policy, lambda prompt: "yes")
    sample_episodes(random_policy, team(rounds=2), problems(4), members=5)
    assert script.calls == [60, 60, 20]


def test_ids_and_logprobs_are_carried_as_sampled_and_never_tokenised_again_trl_5224(monkeypatch, random_policy):
    kept: list[Completion] = []
    real = rollout.sample

    def recording(*args, **kwargs):
        replies = real(*args, **kwargs)
        kept.extend(replies)
        return replies

    monkeypatch.setattr(rollout, "sample", recording)
    episodes = sample_episodes(random_policy, team(rounds=1), problems(2), members=4)
    said = Counter((m.token_ids, m.logprobs, m.truncated) for e in episodes for m in e.messages)
    assert said == Counter((r.token_ids, r.logprobs, r.truncated) for r in kept)
    # The random policy says ids that its own words would not give back: tokenising again would be noticed.
    changed = 0
    for message in (m for e in episodes for m in e.messages):
        again = random_policy.tokenizer(" " + message.text, add_special_tokens=False)["input_ids"]
        changed += tuple(again) != message.token_ids[: len(again)]
    assert changed > 0


def test_a_row_is_what_its_own_speaker_sampled_unsloth_5673(random_policy):
    """A message's ids scored after its own prompt give the sampler's log-probabilities: nobody else's words are in."""
    episodes = sample_episodes(random_policy, team(rounds=2, topology="chain"), problems(2), members=3)
    messages = [m for e in episodes for m in e.messages]
    with torch.no_grad():
        logprobs, mask = score(random_policy, [m.prompt_ids for m in messages], [m.token_ids for m in messages])
    for row, message in enumerate(messages):
        assert int(mask[row].sum()) == message.tokens
        assert torch.allclose(logprobs[row, : message.tokens], torch.tensor(message.logprobs), atol=1e-5)
    rows = all_rows(group_messages(episodes))
    assert len(rows) == len(set(rows)) == len(messages)


# --- silence


@pytest.mark.parametrize("word", ["", "  ", "[pass]", "[PASS]", " [Pass]. ", "[pass]!", "."])
def test_empty_replies_and_the_pass_word_are_silence(word):
    assert team().is_silent(word)


@pytest.mark.parametrize("word", ["pass", "[pass] Ben 3", "I pass", "[pass] [pass]", "0", "no"])
def test_other_replies_are_speech(word):
    assert not team().is_silent(word)


def test_the_pass_word_is_a_setting():
    assert team(pass_word="Nothing to add.").is_silent("nothing to add")
    assert not team(pass_word="Nothing to add.").is_silent("[pass]")


def test_silence_is_relayed_to_nobody_and_charged_at_least_its_end_token(monkeypatch, random_policy):
    silent = {"Agent 1": "", "Agent 2": "[pass]", "Agent 3": "Ida has 3 pens."}
    script = Script(monkeypatch, random_policy, lambda prompt: silent.get(speaker(prompt), "#### 3"))
    episode = sample_episodes(random_policy, team(rounds=2, message_tokens=30), problems(1))[0]
    first, second, third = episode.messages[:3]
    assert (first.silent, second.silent, third.silent) == (True, True, False)
    assert first.tokens == 1
    assert first.token_ids[0] in random_policy.end_ids
    assert second.tokens > 1
    assert episode.tokens == sum(m.tokens for m in episode.messages)
    assert episode.turns == 3  # Agent 3 twice, and the judge
    assert all(set(m.heard) <= {2, 5} for m in episode.messages)
    assert not any("Agent 1:" in text or "Agent 2:" in text or "[pass]" in text for text in script.prompts)


# --- caps


@pytest.mark.parametrize("budget", [3, 7, 11])
def test_the_round_cap_holds_for_certain_and_marks_what_it_cut(random_policy, budget):
    settings = SamplingSettings(round_tokens=budget)
    episodes = sample_episodes(random_policy, team(rounds=2), problems(4), members=4, settings=settings)
    cut = 0
    for episode in episodes:
        for r in range(2):
            assert sum(m.tokens for m in episode.messages if m.round == r) <= budget
        for message in episode.messages[:-1]:
            ended = message.token_ids[-1] in random_policy.end_ids
            assert message.truncated is not ended
            cut += message.truncated
    assert cut > 0
    assert max(e.messages[-1].tokens for e in episodes) > budget // 3  # the judge is outside the rounds


def test_one_cap_for_each_round(random_policy):
    settings = SamplingSettings(round_tokens=(21, 6))
    episodes = sample_episodes(random_policy, team(rounds=2), problems(4), members=2, settings=settings)
    longest = [max(m.tokens for e in episodes for m in e.messages if m.round == r) for r in range(2)]
    assert longest[0] == 7
    assert longest[1] == 2


def test_a_cap_never_lengthens_a_message(random_policy):
    loose = SamplingSettings(round_tokens=900)
    assert sample_episodes(random_policy, team(), problems(2), settings=loose) == sample_episodes(
        random_policy, team(), problems(2)
    )


def test_a_round_without_a_token_for_everybody_is_refused(random_policy):
    with pytest.raises(ValueError, match="a budget of 2 tokens for 3 speakers in round 0 leaves 0 tokens each"):
        sample_episodes(random_policy, team(), problems(1), settings=SamplingSettings(round_tokens=2))


# --- who decides


def votes(monkeypatch: pytest.MonkeyPatch, policy: Policy, said: dict[str, str], rounds: int = 1) -> Episode:
    Script(monkeypatch, policy, lambda prompt: said[speaker(prompt)])
    us = team(decider="vote", topology="none", rounds=rounds, answer_tokens=30, message_tokens=30, agents=len(said))
    problem = Problem("p", "How many pens does Ben have?", "3")
    return sample_episodes(policy, us, [problem])[0]


def test_the_most_frequent_answer_wins_the_vote(monkeypatch, random_policy):
    episode = votes(monkeypatch, random_policy, {"Agent 1": "#### 4", "Agent 2": "#### 3", "Agent 3": "#### 3.0"})
    assert episode.prediction == "3"
    assert episode.correct is True
    assert len(episode.messages) == 3  # no judge


def test_the_earliest_wins_a_tie(monkeypatch, random_policy):
    episode = votes(monkeypatch, random_policy, {"Agent 1": "#### 4", "Agent 2": "#### 3"})
    assert episode.prediction == "4"
    assert episode.correct is False


def test_who_cannot_be_read_has_no_vote(monkeypatch, random_policy):
    episode = votes(monkeypatch, random_policy, {"Agent 1": "no idea", "Agent 2": "", "Agent 3": "#### 3"})
    assert episode.prediction == "3"
    nobody = votes(monkeypatch, random_policy, {"Agent 1": "no idea", "Agent 2": ""})
    assert nobody.prediction is None
    assert nobody.correct is False


def test_only_last_messages_are_votes(monkeypatch, random_policy):
    seen: Counter[str] = Counter()

    def say(prompt: str) -> str:
        seen[speaker(prompt)] += 1
        return "#### 4" if seen[speaker(prompt)] == 1 else "#### 3"

    Script(monkeypatch, random_policy, say)
    us = team(decider="vote", rounds=2, answer_tokens=30, message_tokens=30)
    episode = sample_episodes(random_policy, us, [Problem("p", "How many?", "3")])[0]
    assert episode.prediction == "3"
    assert [m.text for m in episode.messages] == ["#### 4"] * 3 + ["#### 3"] * 3


def test_a_judge_answers_alone_without_rounds(monkeypatch, random_policy):
    Script(monkeypatch, random_policy, lambda prompt: "The answer is #### 3")
    episode = sample_episodes(random_policy, team(rounds=0, answer_tokens=40), [Problem("p", "How many?", "3")])[0]
    assert [m.role for m in episode.messages] == ["Judge"]
    assert episode.prediction == "3"
    assert episode.correct is True


def test_only_the_answering_turn_has_the_answers_cap(monkeypatch, random_policy):
    caps: list[set[int]] = []
    real = rollout.sample

    def watching(*args, **kwargs):
        caps.append(set(kwargs["caps"]))
        return real(*args, **kwargs)

    monkeypatch.setattr(rollout, "sample", watching)
    sample_episodes(random_policy, team(rounds=2), problems(1))
    assert caps == [{8}, {8}, {10}]
    caps.clear()
    sample_episodes(random_policy, team(rounds=2, decider="vote"), problems(1))
    assert caps == [{8}, {10}]


def test_a_reader_of_ones_own_reads_the_answer(random_policy):
    seen: list[str] = []

    def read(text: str, problem: Problem) -> str:
        seen.append(text)
        return problem.answer

    episodes = sample_episodes(random_policy, team(), problems(2), read=read)
    assert all(e.correct for e in episodes)
    assert seen == [e.messages[-1].text for e in episodes]


def test_roles_name_the_speakers(random_policy):
    roles = (Role("Solver", "You solve."), Role("Critic"), Role("Scribe"))
    us = team(roles=roles, prompt_style="instruct", decider_role=Role("Chair", "You close."))
    episode = sample_episodes(random_policy, us, problems(1))[0]
    assert [m.role for m in episode.messages] == ["Solver", "Critic", "Scribe", "Chair"]
    texts = [random_policy.tokenizer.decode(list(m.prompt_ids)) for m in episode.messages]
    assert "You are Solver. You solve." in texts[0]
    assert "[pass]" in texts[0]
    assert "You are Chair. You close." in texts[3]
    assert "####" in texts[3]


# --- seeds


def test_seeds_differ_by_run_step_problem_member_agent_and_round():
    base = (0, 1, "p", 2, "", 3, 4)
    seeds = {derive_seed(*base)}
    for place in range(len(base)):
        seeds.add(derive_seed(*base[:place], "other" if isinstance(base[place], str) else 9, *base[place + 1 :]))
    assert len(seeds) == len(base) + 1
    assert derive_seed(*base) == 12028403611586063446


def test_every_row_of_a_rollout_has_a_seed_of_its_own(monkeypatch, random_policy):
    seeds: list[int] = []
    real = rollout.sample

    def watching(*args, **kwargs):
        seeds.extend(kwargs["seeds"])
        return real(*args, **kwargs)

    monkeypatch.setattr(rollout, "sample", watching)
    for step in (0, 1):
        sample_episodes(
            random_policy, team(rounds=2), problems(2), members=3, settings=SamplingSettings(seed=4, step=step)
        )
    sample_turn_groups(random_policy, team(), problems(2), members=3, settings=SamplingSettings(seed=4, step=2))
    assert len(seeds) == len(set(seeds))


def test_same_settings_same_episodes_and_any_other_seed_or_step_others(random_policy):
    def said(**settings: int) -> list[tuple[int, ...]]:
        episodes = sample_episodes(random_policy, team(), problems(2), members=2, settings=SamplingSettings(**settings))
        return [m.token_ids for e in episodes for m in e.messages]

    assert said(seed=1, step=1) == said(seed=1, step=1)
    assert said(seed=1, step=1) != said(seed=1, step=2)
    assert said(seed=1, step=1) != said(seed=2, step=1)


def test_an_episode_does_not_depend_on_the_other_problems(random_policy):
    some = sample_episodes(random_policy, team(), problems(3), members=2)
    alone = sample_episodes(random_policy, team(), problems(3)[1:2], members=2)
    assert [[m.token_ids for m in e.messages] for e in alone] == [[m.token_ids for m in e.messages] for e in some[2:4]]


def test_slices_of_the_batch_change_nothing(random_policy):
    def said(rows: int) -> list[tuple[int, ...]]:
        settings = SamplingSettings(batch_rows=rows)
        episodes = sample_episodes(random_policy, team(rounds=2), problems(3), members=2, settings=settings)
        return [m.token_ids for e in episodes for m in e.messages]

    assert said(256) == said(5) == said(1)


def test_greedy_members_are_all_alike(random_policy):
    episodes = sample_episodes(
        random_policy, team(), problems(2), members=3, settings=SamplingSettings(temperature=0.0)
    )
    for first in (0, 3):
        assert len({tuple(m.token_ids for m in e.messages) for e in episodes[first : first + 3]}) == 1


def test_flops_are_two_per_weight_and_token(random_policy):
    episode = sample_episodes(random_policy, team(), problems(1))[0]
    assert episode.forward_flops == 2 * random_policy.parameters * (episode.prompt_tokens + episode.tokens)


# --- turn-wise groups


@pytest.mark.parametrize("changes", [{}, {"rounds": 2}, {"topology": "chain"}, {"decider": "vote", "rounds": 2}])
def test_turn_groups_share_their_prompt_to_the_token_and_differ_only_in_the_candidate(random_policy, changes):
    us = team(**changes)
    asked = problems(2)
    episodes, groups = sample_turn_groups(random_policy, us, asked, members=4)
    turns = [(turn.round, agent) for turn in us.turns for agent in turn.agents]
    assert Counter(g.key for g in groups) == Counter((p.id, a, r) for p in asked for r, a in turns)
    assert len(episodes) == len(groups) * 4
    rows = all_rows(groups)
    assert len(rows) == len(set(rows)) == len(episodes)
    assert {row.episode for row in rows} == set(range(len(episodes)))  # each candidate is played to the end once
    for group in groups:
        assert len(group.rows) == 4
        candidates = [episodes[row.episode].messages[row.message] for row in group.rows]
        assert len({c.prompt_ids for c in candidates}) == 1
        assert {(c.agent, c.round) for c in candidates} == {group.key[1:]}
        assert len({c.token_ids for c in candidates}) > 1
        for row in group.rows:
            before = episodes[group.rows[0].episode].messages[: row.message]
            assert episodes[row.episode].messages[: row.message] == before
            assert len(episodes[row.episode].messages) == len(turns)
            assert episodes[row.episode].problem.id == group.key[0]


def test_the_first_candidate_goes_on_in_a_turn_group(random_policy):
    us = team(rounds=2)
    episodes, groups = sample_turn_groups(random_policy, us, problems(1), members=3)
    by_turn = {g.key[1:]: g for g in groups}
    first = [episodes[by_turn[a, 0].rows[0].episode].messages[by_turn[a, 0].rows[0].message] for a in range(3)]
    later = episodes[by_turn[1, 1].rows[2].episode]
    assert list(later.messages[:3]) == first
    # A candidate's own episode holds the first candidates of its turn-mates.
    other = episodes[by_turn[1, 0].rows[2].episode]
    assert other.messages[0] == first[0]
    assert other.messages[1] != first[1]
    assert other.messages[2] == first[2]


def test_what_follows_a_candidate_is_drawn_anew_for_each(monkeypatch, random_policy):
    seeds: list[int] = []
    real = rollout.sample

    def watching(*args, **kwargs):
        seeds.extend(kwargs["seeds"])
        return real(*args, **kwargs)

    monkeypatch.setattr(rollout, "sample", watching)
    sample_turn_groups(random_policy, team(), problems(1), members=4)
    assert len(set(seeds)) == len(seeds) == 3 * 4 + 3 * 4 + 4  # candidates, their judges, the judge's candidates


# --- bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"roles": (Role("Solver"),)}, "1 roles for 3 agents"),
        ({"decider": "king"}, "unknown decider 'king'"),
        ({"decider": "vote", "rounds": 0}, "a vote needs at least one round"),
        ({"pass_word": " "}, "the pass word is blank"),
        ({"message_tokens": 0}, "message_tokens is 0"),
        ({"answer_tokens": 0}, "answer_tokens is 0"),
        ({"topology": "none"}, "the decider hears nobody"),
        ({"topology": "ring"}, "unknown topology 'ring'"),
        ({"topology": "ring", "decider": "vote"}, "unknown topology 'ring'"),
        ({"agents": 0}, "agents is 0"),
        ({"agents": 0, "decider": "vote"}, "agents is 0"),
        ({"rounds": -1}, "rounds is -1"),
        ({"prompt_style": "poem"}, "unknown prompt_style 'poem'"),
    ],
)
def test_a_team_that_cannot_be_is_refused_when_it_is_built(changes, message):
    with pytest.raises(ValueError, match=message):
        team(**changes)


def test_a_team_whose_decider_hears_nobody_says_what_to_do():
    with pytest.raises(ValueError, match=r"decider hears nobody; let the agents vote, choose a topology"):
        team(topology="none", rounds=1)
    assert team(topology="none", rounds=0).decider == 3  # no talk, nobody to hear


@pytest.mark.parametrize("call", [sample_episodes, sample_turn_groups])
def test_bad_requests_are_refused_by_name(random_policy, call):
    with pytest.raises(ValueError, match="no problems given"):
        call(random_policy, team(), [], members=2)
    with pytest.raises(ValueError, match="members is 0"):
        call(random_policy, team(), problems(1), members=0)
    with pytest.raises(ValueError, match=r"has 4 private notes but the team has 3 discussion agents"):
        call(random_policy, team(), problems(1, 4), members=2)
    with pytest.raises(ValueError, match=r"problem id 'hidden_profile/train/0/0' is given more than once"):
        call(random_policy, team(), problems(1) * 2, members=2)


def test_a_prompt_longer_than_the_context_names_who_reads_it(random_policy):
    long = Problem("long", "How many? " * 300, "7")
    with pytest.raises(ValueError, match=r"Agent 1 of problem 'long' would read \d+ tokens and may say 8.*512"):
        sample_episodes(random_policy, team(), [long])
    *talk, judgement = sample_episodes(random_policy, team(), problems(1))[0].messages
    enough_for_talk = max(len(m.prompt_ids) for m in talk) + 8
    assert len(judgement.prompt_ids) + 10 > enough_for_talk
    small = replace(random_policy, context=enough_for_talk)
    with pytest.raises(ValueError, match=rf"Judge of problem .* context is {enough_for_talk}; lower the round cap"):
        sample_episodes(small, team(), problems(1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_rows": 0}, "batch_rows must be at least 1"),
        ({"temperature": -1.0}, "temperature must be 0"),
        ({"temperature": float("nan")}, "temperature must be 0"),
    ],
)
def test_sampling_settings_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        SamplingSettings(**changes)


def test_the_default_reader_is_lenient():
    assert read_answer("so it is 7.", Problem("p", "How many?", "7")) == "7"
