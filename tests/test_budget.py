"""Both budgets: the cap that always holds and the multiplier that settles."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gspo_core.budget import BudgetSettings, DualBudget, round_caps


def simulate(dual: DualBudget, steps: int, *, noise: float = 0.0, seed: int = 0) -> list[float]:
    """A policy that answers a price slowly: tokens move a tenth of the way to 30 + 90 · exp(−2.5 λ) at each step."""
    draw = random.Random(seed)
    tokens, history = 120.0, []
    for _ in range(steps):
        history.append(max(0.0, tokens * (1 + noise * draw.gauss(0, 1))))
        wanted = 30 + 90 * math.exp(-2.5 * dual.update(history[-1]))
        tokens += 0.1 * (wanted - tokens)
    return history


def swing(history: list[float], budget: float) -> float:
    """How far tokens undershoot the budget, as a share of it."""
    return max(0.0, (budget - min(history)) / budget)


# --- episode budget


@pytest.mark.parametrize("budget", [50.0, 70.0, 100.0])
@pytest.mark.parametrize("proportional", [0.0, 0.5])
def test_tokens_settle_within_a_tenth_of_the_budget(budget: float, proportional: float):
    dual = DualBudget(BudgetSettings(episode_tokens=budget, step_size=0.05, proportional=proportional))
    settled = simulate(dual, 400, noise=0.05)[-100:]
    assert sum(settled) / len(settled) == pytest.approx(budget, rel=0.1)
    assert not dual.at_ceiling


def test_proportional_part_damps_the_swing():
    plain = DualBudget(BudgetSettings(episode_tokens=60.0, step_size=0.1))
    damped = DualBudget(BudgetSettings(episode_tokens=60.0, step_size=0.1, proportional=0.5))
    assert swing(simulate(damped, 300), 60.0) < swing(simulate(plain, 300), 60.0)


def test_lambda_returns_to_its_floor_under_a_budget_far_above_need():
    dual = DualBudget(BudgetSettings(episode_tokens=1000.0, lambda_initial=1.0, lambda_floor=0.05))
    simulate(dual, 200)
    assert dual.value == 0.05
    assert dual.at_floor
    assert dual.metrics()["lambda_at_floor"] == 1.0


def test_lambda_stops_at_its_ceiling_when_the_budget_cannot_be_met_and_says_so():
    dual = DualBudget(BudgetSettings(episode_tokens=10.0, lambda_ceiling=1.5))
    simulate(dual, 200)
    assert dual.value == 1.5
    assert dual.at_ceiling
    assert dual.metrics()["lambda_at_ceiling"] == 1.0


def test_lambda_leaves_its_ceiling_at_once_when_the_budget_is_met():
    dual = DualBudget(BudgetSettings(episode_tokens=10.0, lambda_ceiling=1.0))
    for _ in range(50):
        dual.update(100.0)
    assert dual.update(5.0) < 1.0
    assert not dual.at_ceiling


def test_one_step_is_the_relative_violation_times_the_step_size():
    dual = DualBudget(BudgetSettings(episode_tokens=50.0, lambda_initial=0.3, step_size=0.2))
    assert dual.value == 0.3
    assert dual.update(75.0) == pytest.approx(0.3 + 0.2 * 0.5)
    assert dual.metrics() == pytest.approx(
        {"lambda_token": 0.4, "budget_violation": 0.5, "lambda_at_floor": 0.0, "lambda_at_ceiling": 0.0}
    )


def test_proportional_part_acts_on_the_present_violation_only():
    dual = DualBudget(BudgetSettings(episode_tokens=50.0, step_size=0.1, proportional=0.4))
    assert dual.update(100.0) == pytest.approx(0.1 + 0.4)
    assert dual.update(50.0) == pytest.approx(0.1)


@given(means=st.lists(st.floats(0, 1e9), min_size=1, max_size=30), proportional=st.floats(0, 5))
def test_lambda_never_leaves_its_range(means: list[float], proportional: float):
    dual = DualBudget(
        BudgetSettings(episode_tokens=40.0, lambda_floor=0.01, lambda_initial=0.5, proportional=proportional)
    )
    assert all(0.01 <= dual.update(mean) <= 2.0 for mean in means)


@given(means=st.lists(st.floats(0, 1e4), min_size=2, max_size=10, unique=True))
def test_more_tokens_never_mean_a_lower_lambda(means: list[float]):
    values = [
        DualBudget(BudgetSettings(episode_tokens=40.0, lambda_initial=1.0)).update(mean) for mean in sorted(means)
    ]
    assert all(low <= high for low, high in pairwise(values))


def test_without_an_episode_budget_lambda_stays():
    dual = DualBudget(BudgetSettings(lambda_initial=0.4))
    assert [dual.update(tokens) for tokens in (1.0, 1e6)] == [0.4, 0.4]
    assert not dual.at_floor
    assert not dual.at_ceiling
    assert dual.metrics() == {"lambda_token": 0.4}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_dual_step_refuses_a_mean_that_is_no_number_of_tokens_and_keeps_its_state(bad: float):
    dual = DualBudget(BudgetSettings(episode_tokens=40.0, lambda_initial=0.4))
    with pytest.raises(ValueError, match="mean_episode_tokens is"):
        dual.update(bad)
    assert dual.value == 0.4


def test_resumed_budget_goes_on_bit_for_bit_through_json():
    chosen = BudgetSettings(episode_tokens=37.0, step_size=0.07, proportional=0.3)
    tokens = [90.0, 71.3, 55.1, 41.7, 36.2, 33.9]
    whole, first, second = DualBudget(chosen), DualBudget(chosen), DualBudget(chosen)
    expected = [whole.update(mean) for mean in tokens]
    got = [first.update(mean) for mean in tokens[:3]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.value == first.value
    got += [second.update(mean) for mean in tokens[3:]]
    assert got == expected


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "needs a number 'integral'"),
        ({"integral": 0.1}, "needs a number 'integral' and 'violation'"),
        ({"integral": 9.0, "violation": None}, "lies outside"),
        ({"integral": math.nan, "violation": None}, "lies outside"),
        ({"integral": 0.1, "violation": math.nan}, "saved violation is nan"),
    ],
)
def test_damaged_or_foreign_state_is_refused(state: dict[str, float | None], message: str):
    with pytest.raises(ValueError, match=message):
        DualBudget().load_state_dict(state)


# --- round cap


@given(budget=st.integers(1, 10_000), speakers=st.integers(1, 20))
def test_shares_never_exceed_the_rounds_budget(budget: int, speakers: int):
    if budget < speakers:
        with pytest.raises(ValueError, match="at least its end token"):
            round_caps(budget, 0, speakers)
        return
    share = round_caps(budget, 0, speakers)
    assert share is not None
    assert share >= 1
    assert share * speakers <= budget < (share + 1) * speakers


def test_cap_may_differ_by_round_or_be_absent():
    assert [round_caps((90, 30), index, 3) for index in (0, 1)] == [30, 10]
    assert round_caps(90, 7, 4) == 22
    assert round_caps(None, 0, 3) is None


def test_round_without_a_budget_is_named():
    with pytest.raises(ValueError, match=r"round 2 has no budget.*covers 2 rounds"):
        round_caps((90, 30), 2, 3)


@pytest.mark.parametrize(("round_index", "speakers", "message"), [(-1, 3, "round is -1"), (0, 0, "speakers is 0")])
def test_cap_refuses_rounds_and_speakers_that_do_not_exist(round_index: int, speakers: int, message: str):
    with pytest.raises(ValueError, match=message):
        round_caps(90, round_index, speakers)


# --- settings


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"episode_tokens": 0}, "episode_tokens is 0.*above 0, or None"),
        ({"episode_tokens": -5.0}, "episode_tokens is -5.0"),
        ({"episode_tokens": math.nan}, "episode_tokens is nan"),
        ({"round_tokens": 0}, "round_tokens holds 0"),
        ({"round_tokens": (30, -1)}, "round_tokens holds -1"),
        ({"round_tokens": (30, None)}, "round_tokens holds None"),
        ({"round_tokens": 12.5}, "round_tokens holds 12.5"),
        ({"round_tokens": ()}, r"round_tokens is \(\)"),
        ({"lambda_floor": -0.1}, "lambda_floor is -0.1"),
        ({"step_size": math.nan}, "step_size is nan"),
        ({"proportional": -1.0}, "proportional is -1.0"),
        ({"lambda_initial": 3.0}, "does not hold"),
        ({"lambda_floor": 0.2}, "does not hold"),
        ({"episode_tokens": 40.0, "step_size": 0.0}, "could never move"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(bad: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        BudgetSettings(**bad)  # type: ignore[arg-type]
