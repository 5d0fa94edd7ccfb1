"""Silence forbidden, and episodes told again with silence taken away or talk taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fixtures import build_policy

from agent_gspo_core.benchmarks import hidden_profile
from agent_gspo_core.episode import group_messages
from agent_gspo_core.generation import sample
from agent_gspo_core.logprobs import score
from agent_gspo_core.policy import Policy
from agent_gspo_core.replay import of_anybody, of_needed, of_not_needed, replay
from agent_gspo_core.rollout import SamplingSettings, Team, TeamSettings, resample_episodes, sample_episodes
from agent_gspo_core.trainer import Trainer, TrainerSettings

PROBLEMS = hidden_profile.load("test", limit=6)
SAMPLING = SamplingSettings(seed=3)


@pytest.fixture(scope="module")
def mute_policy() -> Policy:
    """Ends some of its messages at once, the rest after some words."""
    policy = build_policy()
    bias = torch.zeros(policy.model.lm_head.out_features)
    bias[policy.tokenizer.eos_token_id] = 7.0
    policy.model.lm_head.bias = torch.nn.Parameter(bias)
    return policy


def team(**settings) -> Team:
    return Team(TeamSettings(message_tokens=6, answer_tokens=6, **settings))


@pytest.fixture(scope="module")
def two_rounds(mute_policy):
    talk = team(rounds=2)
    return talk, sample_episodes(mute_policy, talk, PROBLEMS, members=2, settings=SAMPLING)


def tell(policy, talk, episodes, change):
    return resample_episodes(policy, talk, episodes, change, settings=SAMPLING)


# --- rows that must speak


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_rows_that_must_speak_do_not_end_at_once_and_the_others_say_what_they_would(mute_policy, temperature):
    prompt = mute_policy.encode_chat([{"role": "user", "content": "Ben has 3 pens."}])
    rows = {"caps": [6] * 40, "seeds": list(range(40)), "temperature": temperature}
    free = sample(mute_policy, [prompt] * 40, **rows)
    forced = sample(mute_policy, [prompt] * 40, must_speak=[i % 2 == 0 for i in range(40)], **rows)
    assert all(reply.token_ids[0] not in mute_policy.end_ids for reply in forced[::2])
    for reply, said_freely in zip(forced[1::2], free[1::2], strict=True):
        assert reply.token_ids == said_freely.token_ids
        assert reply.logprobs == pytest.approx(said_freely.logprobs, abs=1e-5)  # fewer rows beside it: other rounding
    if temperature:
        assert any(reply.token_ids[0] in mute_policy.end_ids for reply in free[::2])


def test_a_forced_row_keeps_the_log_probabilities_of_the_policy_without_the_mask(mute_policy):
    prompt = mute_policy.encode_chat([{"role": "user", "content": "Ben has 3 pens."}])
    replies = sample(mute_policy, [prompt] * 12, caps=[6] * 12, seeds=list(range(12)), must_speak=[True] * 12)
    with torch.no_grad():
        logprobs, mask = score(mute_policy, [prompt] * 12, [r.token_ids for r in replies])
    kept = torch.tensor([value for r in replies for value in r.logprobs])
    assert (logprobs[mask] - kept).abs().max() < 1e-5


def test_a_policy_that_is_sure_to_end_still_speaks_when_it_must():
    policy = build_policy()
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[policy.tokenizer.eos_token_id].mul_(200.0)
    prompt = policy.encode_chat([{"role": "user", "content": "Ben has 3 pens."}])
    replies = sample(policy, [prompt] * 20, caps=[4] * 20, seeds=list(range(20)), must_speak=[True] * 20)
    assert all(reply.token_ids[0] not in policy.end_ids for reply in replies)


def test_must_speak_needs_an_entry_a_row(mute_policy):
    with pytest.raises(ValueError, match="2 prompts but must_speak has 1"):
        sample(mute_policy, [(5,), (6,)], caps=[2, 2], seeds=[0, 1], must_speak=[True])


# --- a team that may not be silent


def test_with_silence_forbidden_all_agents_speak_and_the_decider_is_not_concerned(mute_policy):
    allowed = sample_episodes(mute_policy, team(), PROBLEMS, members=4, settings=SAMPLING)
    forbidden = sample_episodes(mute_policy, team(allow_silence=False), PROBLEMS, members=4, settings=SAMPLING)
    assert any(m.silent for e in allowed for m in e.messages[:3])
    assert not any(m.silent for e in forbidden for m in e.messages[:3])
    assert any(m.silent for e in forbidden for m in e.messages[3:])


def test_with_silence_forbidden_the_pass_word_is_heard_and_offered_to_nobody(mute_policy, monkeypatch):
    import agent_gspo_core.rollout as rollout

    real = rollout.sample

    def says_pass(policy, prompts, **rows):
        replies = real(policy, prompts, **rows)
        ids = (*policy.tokenizer("[pass]", add_special_tokens=False)["input_ids"], min(policy.end_ids))
        return [replace(reply, token_ids=ids, logprobs=(0.0,) * len(ids)) for reply in replies]

    monkeypatch.setattr(rollout, "sample", says_pass)
    talk = team(allow_silence=False, prompt_style="instruct")
    episode = sample_episodes(mute_policy, talk, PROBLEMS[:1], settings=SAMPLING)[0]
    assert [m.silent for m in episode.messages[:3]] == [False] * 3
    assert episode.messages[3].heard == (0, 1, 2)
    assert "[pass]" not in mute_policy.tokenizer.decode(episode.messages[0].prompt_ids)


def test_ratio_is_1_at_the_first_pass_with_silence_forbidden(tmp_path):
    trainer = Trainer(
        build_policy(),
        team(allow_silence=False),
        PROBLEMS,
        tmp_path,
        settings=TrainerSettings(steps=1, problems_per_step=2, members=4, learning_rate=1e-3),
    )
    record = trainer.step()
    assert record["silence_rate"] == 0
    assert 0 <= record["noise_floor_max"] < 1e-5


# --- told again


def test_an_episode_in_which_nothing_is_changed_is_the_same(mute_policy, two_rounds):
    talk, episodes = two_rounds
    assert tell(mute_policy, talk, episodes, lambda *_: None) == episodes


def test_muting_takes_a_message_back_and_only_those_who_heard_it_speak_anew(mute_policy, two_rounds):
    talk, episodes = two_rounds
    told = tell(mute_policy, talk, episodes, lambda _, m: "mute" if (m.round, m.agent) == (0, 1) else None)
    changed = 0
    for old, new in zip(episodes, told, strict=True):
        muted = new.messages[1]
        assert muted.silent
        assert muted.tokens == 1
        assert muted.text == ""
        assert not any(1 in m.heard for m in new.messages)
        assert (new.messages[0], new.messages[2]) == (old.messages[0], old.messages[2])  # they spoke at the same time
        if old.messages[1].silent:
            assert new == old
            continue
        changed += 1
        assert not muted.sampled
        for before, after in zip(old.messages[3:], new.messages[3:], strict=True):
            assert after.sampled
            if (before.prompt_ids, before.heard) == (after.prompt_ids, after.heard):
                assert after == before
    assert changed


def test_restoring_makes_silent_agents_speak_and_leaves_the_rest(mute_policy, two_rounds):
    talk, episodes = two_rounds
    outcome = replay(mute_policy, talk, episodes, restore=of_anybody, settings=SAMPLING)
    assert outcome.recorded == tuple(episodes)
    assert outcome.meant == sum(m.silent for e in episodes for m in e.messages if m.round < 2)
    assert outcome.changed == outcome.meant > 0
    for old, new in zip(episodes, outcome.told, strict=True):
        for before, after in zip(old.messages[:3], new.messages[:3], strict=True):
            assert not after.silent
            assert before.silent or before == after
            assert after.sampled


def test_a_restored_agent_that_passes_every_time_stays_silent_and_is_counted(mute_policy, two_rounds, monkeypatch):
    import agent_gspo_core.rollout as rollout

    talk, episodes = two_rounds
    asked = []
    real = rollout.sample

    def only_passes(policy, prompts, **rows):
        asked.append(len(prompts))
        ids = (*policy.tokenizer("[pass]", add_special_tokens=False)["input_ids"], min(policy.end_ids))
        return [replace(r, token_ids=ids, logprobs=(0.0,) * len(ids)) for r in real(policy, prompts, **rows)]

    monkeypatch.setattr(rollout, "sample", only_passes)
    first = [replace(e, messages=e.messages) for e in episodes]
    outcome = replay(mute_policy, talk, first, restore=lambda _, m: m.round == 0, settings=SAMPLING)
    assert outcome.meant > outcome.changed == 0
    assert outcome.accuracy is None
    assert outcome.problems == 0
    assert len(asked) >= 8


def test_the_needed_and_the_others_are_told_apart(mute_policy, two_rounds):
    talk, episodes = two_rounds
    parts = [
        replay(mute_policy, talk, episodes, mute=choice, settings=SAMPLING)
        for choice in (of_needed, of_not_needed, of_anybody)
    ]
    assert parts[0].meant + parts[1].meant == parts[2].meant
    for old, new in zip(episodes, parts[0].told, strict=True):
        assert all(m.silent for m in new.messages[:3] if m.agent in old.problem.needed)


def test_the_value_of_silence_is_a_mean_over_problems_with_an_interval(mute_policy, two_rounds):
    talk, episodes = two_rounds
    outcome = replay(mute_policy, talk, episodes, mute=of_anybody, settings=SAMPLING)
    changed = {}
    for old, new in zip(outcome.recorded, outcome.told, strict=True):
        if any(not m.silent for m in old.messages if m.round < 2):
            changed.setdefault(old.problem.id, []).append(new.tokens - old.tokens)
    means = [sum(values) / len(values) for values in changed.values()]
    assert outcome.problems == outcome.tokens.n == len(means)
    assert outcome.tokens.mean == pytest.approx(sum(means) / len(means))
    assert outcome.tokens.low < outcome.tokens.mean < 0


def test_replay_refuses_what_makes_no_sense(mute_policy, two_rounds):
    talk, episodes = two_rounds
    with pytest.raises(ValueError, match="give either restore="):
        replay(mute_policy, talk, episodes)
    with pytest.raises(ValueError, match="give either restore="):
        replay(mute_policy, talk, episodes, restore=of_anybody, mute=of_anybody)
    with pytest.raises(ValueError, match="no episodes"):
        replay(mute_policy, talk, [], mute=of_anybody)
    with pytest.raises(ValueError, match="do not follow this team's turns"):
        replay(mute_policy, team(), episodes, mute=of_anybody)
    unknown = [replace(e, problem=replace(e.problem, needed=None)) for e in episodes]
    with pytest.raises(ValueError, match="does not know whose notes it needs"):
        replay(mute_policy, talk, unknown, mute=of_needed)


def test_answers_are_never_muted(mute_policy):
    talk = team(decider="vote")
    episodes = sample_episodes(mute_policy, talk, PROBLEMS[:2], settings=SAMPLING)
    outcome = replay(mute_policy, talk, episodes, mute=of_anybody, settings=SAMPLING)
    assert outcome.meant == 0
    assert list(outcome.told) == episodes


def test_what_was_not_sampled_is_in_no_group(mute_policy, two_rounds):
    talk, episodes = two_rounds
    told = tell(mute_policy, talk, episodes, lambda _, m: "mute" if m.agent == 0 else None)
    rows = [row for group in group_messages(told) for row in group.rows]
    assert all(told[row.episode].messages[row.message].sampled for row in rows)
    assert len(rows) == sum(m.sampled for e in told for m in e.messages) < sum(len(e.messages) for e in told)
