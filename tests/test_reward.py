"""The reward: four terms, kept apart, with the right signs and a floor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_gspo_core.episode import Episode, Message, Problem
from agent_gspo_core.reward import (
    CommunicationReward,
    RewardSettings,
    RewardTerms,
    ngrams,
    pass_rates,
    repetition,
    reward_summary,
    spoken_ids,
)

END = 0
PLAIN = RewardSettings(lambda_turn=0.0, lambda_repetition=0.0, cost_limit=None)


def say(
    length: int,
    *,
    agent: int = 0,
    start: int = 1,
    silent: bool = False,
    truncated: bool = False,
    heard: tuple[int, ...] = (),
    ids: Sequence[int] | None = None,
) -> Message:
    """A message of `length` tokens, all different, end token included."""
    tokens = tuple(ids) if ids is not None else (*range(start, start + length - 1), END)
    return Message(agent, "peer", 0, (9,), tokens, (-1.0,) * len(tokens), "", silent, truncated, heard)


def talk(
    *messages: Message, correct: bool | None = True, prediction: str | None = "7", problem: str = "p", member: int = 0
) -> Episode:
    return Episode(Problem(problem, "How many?", "7"), member, messages, prediction, correct)


def one(reward: CommunicationReward, episode: Episode, **kwargs: float) -> RewardTerms:
    return reward([episode], **kwargs)[0][0]


# --- the formula


def test_reward_is_task_less_the_three_priced_terms():
    chosen = RewardSettings(
        lambda_token=0.4, lambda_turn=0.1, lambda_repetition=0.2, reference_tokens=10.0, ngram=2, cost_limit=None
    )
    message = say(0, ids=[1, 2, 1, 2, END])  # bigrams 12, 21, 12: one of three repeats
    terms = one(CommunicationReward(chosen), talk(message))
    assert (terms.task, terms.tokens, terms.turns) == (1.0, 0.5, 1.0)
    assert terms.repetition == pytest.approx(1 / 3)
    assert terms.cost_tokens == pytest.approx(0.4 * 0.5)
    assert terms.cost_turns == pytest.approx(0.1)
    assert terms.cost_repetition == pytest.approx(0.2 / 3)
    assert terms.total == pytest.approx(1.0 - 0.2 - 0.1 - 0.2 / 3)
    assert terms.valid


def test_terms_come_back_by_episode_and_message():
    episodes = [talk(say(3), say(5, agent=1)), talk(), talk(say(2), member=2)]
    assert [len(row) for row in CommunicationReward()(episodes)] == [2, 0, 1]


def test_task_reward_is_the_whole_teams():
    rows = CommunicationReward(PLAIN)([talk(say(3), say(3, agent=1)), talk(say(3), correct=False, member=1)])
    assert [[terms.task for terms in row] for row in rows] == [[1.0, 1.0], [0.0]]


def test_live_multiplier_replaces_the_fixed_one():
    reward, episode = CommunicationReward(PLAIN), talk(say(40))
    assert one(reward, episode).cost_tokens == pytest.approx(PLAIN.lambda_token)
    assert one(reward, episode, lambda_token=0.125).cost_tokens == pytest.approx(0.125)
    assert one(reward, episode, lambda_token=0.0).total == 1.0


@pytest.mark.parametrize("changed", ["lambda_token", "lambda_turn", "lambda_repetition"])
def test_each_term_lowers_the_reward_and_only_its_own_cost(changed: str):
    message = say(0, ids=[1, 1, 1, 1, 1, END])
    free = RewardSettings(lambda_token=0.0, lambda_turn=0.0, lambda_repetition=0.0)
    before = one(CommunicationReward(free), talk(message))
    after = one(CommunicationReward(replace(free, **{changed: 0.3})), talk(message))
    assert after.total < before.total
    priced = {"lambda_token": "cost_tokens", "lambda_turn": "cost_turns", "lambda_repetition": "cost_repetition"}
    for name, cost in priced.items():
        assert (getattr(after, cost) > 0) == (name == changed)


# --- length


@given(
    shorter=st.integers(1, 120),
    extra=st.integers(0, 120),
    correct=st.booleans(),
    lambda_token=st.floats(0, 5),
    limit=st.none() | st.floats(0.01, 5),
    scaled=st.booleans(),
    needs_answer=st.booleans(),
    readable=st.booleans(),
    charge=st.sampled_from(["message", "team"]),
)
def test_longer_never_scores_more_at_equal_correctness_trl_2771(
    shorter, extra, correct, lambda_token, limit, scaled, needs_answer, readable, charge
):
    chosen = RewardSettings(
        charge=charge, scale_by_pass_rate=scaled, cost_limit=limit, brevity_needs_answer=needs_answer
    )
    prediction = "7" if correct or readable else None
    pair = [
        talk(say(length), say(5, agent=1, start=500), correct=correct, prediction=prediction, member=member)
        for member, length in enumerate((shorter, shorter + extra))
    ]
    rows = CommunicationReward(chosen)(pair, lambda_token=lambda_token)
    for brief, long in zip(*rows, strict=True):
        assert long.total <= brief.total


@given(shorter=st.integers(1, 50), extra=st.integers(1, 50), correct=st.booleans())
def test_longer_scores_less_where_tokens_cost_and_no_limit_is_reached(shorter: int, extra: int, correct: bool):
    brief, long = CommunicationReward(PLAIN)(
        [talk(say(shorter), correct=correct), talk(say(shorter + extra), correct=correct, member=1)]
    )
    assert long[0].total < brief[0].total


def test_messages_beyond_the_limit_tie_exactly():
    """A difference of one rounding step would become a full advantage when it is divided by its own deviation."""
    reward = CommunicationReward(RewardSettings(lambda_repetition=0.07, lambda_turn=0.013, cost_limit=0.3))
    totals = {one(reward, talk(say(length), correct=False)).total for length in range(60, 400)}
    assert totals == {-0.3}


@settings(max_examples=60)
@given(
    ids=st.lists(st.integers(1, 4), min_size=1, max_size=200),
    correct=st.booleans(),
    limit=st.floats(0.01, 3),
    lambda_token=st.floats(0, 100),
    charge=st.sampled_from(["message", "team"]),
)
def test_reward_is_bounded_and_its_terms_add_up(ids, correct, limit, lambda_token, charge):
    reward = CommunicationReward(RewardSettings(cost_limit=limit, charge=charge))
    episode = talk(say(0, ids=[*ids, END]), say(0, agent=1, ids=[*ids, END], heard=(0,)), correct=correct)
    for terms in reward([episode], lambda_token=lambda_token)[0]:
        assert -limit <= terms.total <= 1.0
        assert min(terms.cost_tokens, terms.cost_turns, terms.cost_repetition) >= 0
        assert 0.0 <= terms.repetition <= 1.0
        costs = terms.cost_tokens + terms.cost_turns + terms.cost_repetition
        assert terms.total == pytest.approx(terms.task - costs, abs=1e-12)


def test_limit_shrinks_the_costs_in_proportion():
    free = one(CommunicationReward(RewardSettings(cost_limit=None)), talk(say(400)))
    held = one(CommunicationReward(RewardSettings(cost_limit=1.0)), talk(say(400)))
    assert free.total < 0
    assert held.total == 0.0
    assert held.cost_turns / held.cost_tokens == pytest.approx(free.cost_turns / free.cost_tokens)


# --- silence


def test_silent_message_pays_its_own_tokens_and_nothing_else():
    terms = one(CommunicationReward(RewardSettings(reference_tokens=10.0)), talk(say(1, silent=True)))
    assert (terms.tokens, terms.turns, terms.repetition) == (0.1, 0.0, 0.0)
    assert terms.cost_tokens > 0
    assert terms.cost_turns == terms.cost_repetition == 0.0


def test_passing_in_the_same_words_is_no_repetition():
    word = [7, 8, 9, 10, END]
    episode = talk(say(0, ids=word, silent=True), say(0, ids=word, agent=1, silent=True, heard=(0,)))
    assert [terms.repetition for terms in CommunicationReward()([episode])[0]] == [0.0, 0.0]


def test_silent_message_leaves_other_rewards_alone_verl_6310():
    loud = say(12, agent=1)
    alone = CommunicationReward()([talk(loud)])[0][0]
    beside = CommunicationReward()([talk(say(1, silent=True), loud)])[0][1]
    assert beside == alone


# --- who is charged


def test_team_charge_lets_every_message_pay_for_the_whole_episode():
    chosen = replace(PLAIN, charge="team", lambda_turn=0.1)
    brief, long = CommunicationReward(chosen)([talk(say(10), say(30, agent=1, start=100))])[0]
    assert brief.cost_tokens == long.cost_tokens == pytest.approx(PLAIN.lambda_token)
    assert brief.cost_turns == pytest.approx(0.2)
    assert (brief.tokens, long.tokens) == (0.25, 0.75)  # what was measured stays the message's own


def test_message_charge_lets_each_pay_for_itself():
    brief, long = CommunicationReward(PLAIN)([talk(say(10), say(30, agent=1, start=100))])[0]
    assert long.cost_tokens == pytest.approx(3 * brief.cost_tokens)


# --- groups


def test_pass_rate_scales_costs_per_problem_so_that_unsolved_ones_teach_no_silence():
    chosen = replace(PLAIN, scale_by_pass_rate=True)
    episodes = [
        talk(say(40), problem="half"),
        talk(say(40), problem="half", correct=False, member=1),
        talk(say(40), problem="hopeless", correct=False),
        talk(say(4), problem="hopeless", correct=False, member=1),
    ]
    rows = CommunicationReward(chosen)(episodes)
    assert rows[0][0].cost_tokens == pytest.approx(0.5 * PLAIN.lambda_token)
    assert rows[2][0].total == rows[3][0].total == 0.0


def test_pass_rate_leaves_unscorable_episodes_out():
    episodes = [talk(correct=True), talk(correct=None), talk(correct=None, problem="q")]
    assert pass_rates(episodes) == {"p": 1.0, "q": 0.0}


def test_unreadable_answers_are_not_ranked_by_brevity_verl_4531():
    episodes = [
        talk(say(2), correct=False, prediction=None),
        talk(say(30), correct=False, prediction=None, member=1),
        talk(say(20), correct=False, prediction="8", member=2),
        talk(say(3), correct=False, prediction=None, problem="other"),
    ]
    plain = [row[0].total for row in CommunicationReward(PLAIN)(episodes)]
    guarded = [row[0].total for row in CommunicationReward(replace(PLAIN, brevity_needs_answer=True))(episodes)]
    assert plain[0] > plain[2]
    assert guarded[0] == guarded[1] < guarded[2] == plain[2]
    assert guarded[3] == plain[3]  # another problem is another group


@given(lengths=st.lists(st.integers(1, 100), min_size=2, max_size=8), readable=st.lists(st.booleans(), min_size=8))
def test_an_unreadable_answer_never_beats_a_readable_one_when_brevity_needs_an_answer(lengths, readable):
    episodes = [
        talk(say(length), correct=False, prediction="8" if readable[member] else None, member=member)
        for member, length in enumerate(lengths)
    ]
    totals = [row[0].total for row in CommunicationReward(replace(PLAIN, brevity_needs_answer=True))(episodes)]
    read = [total for total, episode in zip(totals, episodes, strict=True) if episode.prediction is not None]
    unread = [total for total, episode in zip(totals, episodes, strict=True) if episode.prediction is None]
    assert len(set(unread)) <= 1
    if read and unread:
        assert max(unread) <= min(read)


def test_unscorable_episode_is_marked_and_its_reward_is_not_a_number():
    terms = one(CommunicationReward(), talk(say(5), correct=None))
    assert not terms.valid
    assert math.isnan(terms.task)
    assert math.isnan(terms.total)
    assert terms.cost_tokens > 0


# --- repetition


def test_repetition_counts_ngrams_said_before_or_heard():
    assert repetition([1, 2, 3, 4], [], 2) == 0.0
    assert repetition([1, 2, 1, 2], [], 2) == pytest.approx(1 / 3)
    assert repetition([1, 2, 3], [[8, 1, 2, 3, 9]], 2) == 1.0
    assert repetition([1, 2, 3], [[1, 2], [3, 4]], 2) == 0.5
    assert repetition([2, 3], [[1, 2], [3, 4]], 2) == 0.0  # not across two heard messages


def test_repetition_of_a_message_shorter_than_an_ngram_is_zero():
    assert repetition([1, 2], [[1, 2, 3]], 3) == 0.0
    assert repetition([], [], 1) == 0.0


@given(
    ids=st.lists(st.integers(0, 5), max_size=60),
    heard=st.lists(st.lists(st.integers(0, 5), max_size=60), max_size=3),
    n=st.integers(1, 5),
)
def test_repetition_is_a_share_and_hearing_more_never_lowers_it(ids, heard, n):
    share = repetition(ids, heard, n)
    assert 0.0 <= share <= 1.0
    assert repetition(ids, [*heard, ids], n) >= share
    brute = [
        any(gram in ngrams(other, n) for other in heard) or gram in ngrams(ids, n)[:place]
        for place, gram in enumerate(ngrams(ids, n))
    ]
    assert share == (sum(brute) / len(brute) if brute else 0.0)


def test_end_token_is_no_repetition_and_a_truncated_message_has_none():
    assert spoken_ids(say(0, ids=[1, 2, END])) == (1, 2)
    assert spoken_ids(say(0, ids=[1, 2, 3], truncated=True)) == (1, 2, 3)
    chosen = RewardSettings(ngram=1)
    episode = talk(say(0, ids=[1, END]), say(0, ids=[2, END], agent=1, heard=(0,)))
    assert [terms.repetition for terms in CommunicationReward(chosen)([episode])[0]] == [0.0, 0.0]


def test_only_what_was_heard_counts_as_repeated():
    first, echo = say(9), say(9, agent=1)
    deaf = CommunicationReward()([talk(first, echo)])[0][1]
    hearing = CommunicationReward()([talk(first, replace(echo, heard=(0,)))])[0][1]
    assert (deaf.repetition, hearing.repetition) == (0.0, 1.0)


# --- summary


def test_summary_means_and_counts():
    episodes = [
        talk(say(10), say(1, agent=1, silent=True)),
        talk(say(20), correct=False, prediction=None, member=1),
        talk(say(30, truncated=True), correct=None, member=2),
    ]
    summary = reward_summary(episodes, CommunicationReward(PLAIN)(episodes))
    assert summary["accuracy"] == 0.5
    assert summary["tokens_per_episode"] == pytest.approx(61 / 3)
    assert summary["turns_per_episode"] == 1.0
    assert summary["prompt_tokens_per_episode"] == pytest.approx(4 / 3)
    assert summary["unparsed_share"] == pytest.approx(1 / 3)
    assert summary["truncated_share"] == 0.25
    assert summary["unscorable"] == 1.0
    assert summary["reward_cost_tokens"] == pytest.approx(PLAIN.lambda_token * 31 / 40 / 3)  # scorable messages only
    assert summary["reward"] == pytest.approx(2 / 3 - PLAIN.lambda_token * 31 / 40 / 3)


def test_summary_of_unscorable_episodes_has_none_and_no_nan():
    episodes = [talk(say(4), correct=None)]
    summary = reward_summary(episodes, CommunicationReward()(episodes))
    assert summary["accuracy"] is None
    assert summary["reward"] is None
    assert not any(isinstance(value, float) and math.isnan(value) for value in summary.values())


def test_summary_refuses_terms_of_other_episodes_and_no_episodes():
    with pytest.raises(ValueError, match="differ in shape"):
        reward_summary([talk(say(4))], [])
    with pytest.raises(ValueError, match="no episodes"):
        reward_summary([], [])


# --- bad input


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"lambda_token": -0.1}, "lambda_token is -0.1"),
        ({"lambda_turn": math.nan}, "lambda_turn is nan"),
        ({"lambda_repetition": math.inf}, "lambda_repetition is inf"),
        ({"reference_tokens": 0}, "reference_tokens is 0"),
        ({"ngram": 0}, "ngram is 0"),
        ({"charge": "agent"}, "charge is 'agent'"),
        ({"cost_limit": 0.0}, "cost_limit is 0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(bad: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        RewardSettings(**bad)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_live_multiplier_must_be_a_price(bad: float):
    with pytest.raises(ValueError, match="lambda_token is"):
        CommunicationReward()([talk(say(3))], lambda_token=bad)


def test_ngram_of_length_zero_is_refused():
    with pytest.raises(ValueError, match="n is 0"):
        repetition([1], [], 0)
