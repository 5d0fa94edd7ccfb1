"""The material of the notebook on reward design: hand-made talk, sweeps, the simulated dual loop."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from agent_gspo_core.budget import BudgetSettings
from agent_gspo_core.kit import reward_figures as figures
from agent_gspo_core.kit.reward_study import (
    WatchedRun,
    advantages_over_lambda,
    assumed_response,
    clip_share_by_length,
    gradient_shares,
    hand_made_episode,
    hand_made_group,
    ratios_under_drift,
    run_until_alarm,
    simulate_dual,
    terms_table,
    word_ids,
)
from agent_gspo_core.objective import ObjectiveSettings
from agent_gspo_core.reward import CommunicationReward, RewardSettings
from agent_gspo_core.silence import CollapseError

TOKENS_ONLY = RewardSettings(lambda_turn=0.0, lambda_repetition=0.0)


def test_words_and_marks_are_one_token_each_and_the_end_token_follows() -> None:
    assert len(word_ids("Ben has 3 pens.")) == 6
    assert len(word_ids("[pass]")) == 2
    assert word_ids("") == (0,)
    assert word_ids("Ben Ben")[0] == word_ids("Ben Ben")[1]


def test_hand_made_messages_are_silent_exactly_where_they_say_nothing_or_pass() -> None:
    silent = {message.role for message in hand_made_episode().messages if message.silent}
    assert silent == {"pass word", "silence"}


def test_only_the_parrot_repeats_and_the_table_adds_up() -> None:
    episode = hand_made_episode()
    table = terms_table([episode], CommunicationReward()([episode])).set_index("message")
    assert table.loc["parrot", "repetition"] > 0.8
    assert (table.drop(index="parrot")["repetition"] == 0).all()
    costs = table["cost_tokens"] + table["cost_turns"] + table["cost_repetition"]
    assert table["reward"].to_list() == pytest.approx((table["task"] - costs).to_list())


def test_std_scaling_cancels_lambda_in_a_tied_group_and_mean_only_keeps_it() -> None:
    group = hand_made_group([40, 20, 10], [False] * 3)
    std = advantages_over_lambda(group, [0.0, 0.2, 1.0], reward=TOKENS_ONLY)
    assert std.shape == (3, 3)
    assert std[0].tolist() == [0.0] * 3
    assert std[1].tolist() == pytest.approx(std[2].tolist(), rel=0.01)
    plain = advantages_over_lambda(
        group, [0.2, 1.0], reward=TOKENS_ONLY, objective=ObjectiveSettings(advantage_scale="none")
    )
    assert (plain[0] * 5).tolist() == pytest.approx(plain[1].tolist())


def test_unreadable_group_has_no_prediction() -> None:
    assert [episode.prediction for episode in hand_made_group([3, 2], [False, False], readable=False)] == [None, None]


def test_gradient_shares_are_those_of_a_mean_over_sequences_trl_3823() -> None:
    lengths, advantages = [2, 4, 8, 12], [-1.0, 1.0, -0.5, 0.5]
    assert gradient_shares(lengths, advantages) == pytest.approx([-0.25, 0.25, -0.125, 0.125])
    by_length = gradient_shares(lengths, advantages, "length")
    assert by_length == pytest.approx([-2 / 26, 4 / 26, -4 / 26, 6 / 26])


def test_mean_ratio_does_not_depend_on_length_and_the_summed_one_does() -> None:
    mean, summed = ratios_under_drift([1, 10, 100], 0.05)
    assert mean == pytest.approx([math.exp(0.05)] * 3)
    assert summed == pytest.approx([math.exp(0.05), math.exp(0.5), math.exp(5.0)])


def test_short_messages_are_clipped_more_often() -> None:
    short, long = clip_share_by_length([1, 64], spread=0.1, epsilon=(0.05, 0.05), rows=1000)
    assert short > 0.2
    assert long < 0.01


def test_simulated_tokens_settle_at_a_budget_that_binds() -> None:
    run = simulate_dual(BudgetSettings(episode_tokens=40.0), updates=120)
    assert run.tokens[-1] == pytest.approx(40.0, rel=0.1)
    assert run.prices[0] == 0.0
    assert not run.at_floor
    assert len(run.tokens) == len(run.prices) == 120


def test_simulated_lambda_falls_to_its_floor_or_rises_to_its_ceiling_where_the_budget_never_binds_or_cannot() -> None:
    free = simulate_dual(BudgetSettings(episode_tokens=200.0, lambda_initial=0.5), updates=60)
    assert free.at_floor
    assert free.prices[-1] == 0.0
    hopeless = simulate_dual(BudgetSettings(episode_tokens=10.0), updates=60)
    assert hopeless.at_ceiling


def test_assumed_response_falls_with_the_price_towards_its_least() -> None:
    assert assumed_response(0.0) == 100.0
    assert assumed_response(0.1) > assumed_response(0.2) > 15.0


class FakeTrainer:
    """As much of a trainer as `run_until_alarm` touches."""

    def __init__(self, folder: Path, alarm: CollapseError | None) -> None:
        self.folder, self.done, self.alarm = folder, 0, alarm

    def run(self, *, progress: bool) -> list[dict[str, Any]]:
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": 0}) + "\n")
        if self.alarm:
            raise self.alarm
        return []


@pytest.mark.parametrize("alarm", [None, CollapseError("collapse", step=0, last_good=None)])
def test_a_watched_run_keeps_its_last_step_and_drops_an_earlier_runs(
    tmp_path: Path, alarm: CollapseError | None
) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 99}\n')
    run = run_until_alarm(FakeTrainer(tmp_path, alarm), progress=False)  # type: ignore[arg-type]
    assert run == WatchedRun(({"step": 0},), alarm)


def test_every_figure_draws_from_plain_numbers() -> None:
    episode = hand_made_episode()
    run = simulate_dual(BudgetSettings(episode_tokens=40.0), updates=5)
    records = [
        {"step": 0, "tokens_per_episode": 90.0, "accuracy": None, "silence_rate": 0.1},
        {"step": 1, "tokens_per_episode": 9.0, "accuracy": 0.2, "silence_rate": 0.9},
    ]
    drawn = [
        figures.cost_bars(terms_table([episode], CommunicationReward()([episode]))),
        figures.advantage_panels([0.0, 1.0], {("std", "tied"): {"a": [0.0, 1.0]}, ("mean", "tied"): {"a": [0.0, 0.2]}}),
        figures.ratio_lines([1, 2], {"mean": [1.0, 1.0]}, {"wide": [0.1, 0.0]}),
        figures.share_bars([1, 2], {"mean": [0.5, -0.5]}),
        figures.dual_curves({"binds": (run, 40.0)}),
        figures.collapse_curves(records, alarm_at=1),
    ]
    for figure in drawn:
        assert all(axes.get_xlabel() or axes.get_ylabel() for axes in figure.axes)
