"""Silence: judged against need, measured against the least, watched for collapse."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gspo_core.episode import Episode, Message, Problem
from agent_gspo_core.silence import (
    CollapseAlarm,
    CollapseError,
    CollapseSettings,
    communication_efficiency,
    effective_efficiency,
    silence_report,
)

DECIDER = 3


def say(agent: int, tokens: int = 4, *, silent: bool = False, round: int = 0, role: str = "holder") -> Message:
    length = 1 if silent else tokens
    return Message(agent, role, round, (), (5,) * length, (-1.0,) * length, "", silent)


def talk(
    *messages: Message, needed: set[int] | None = None, least: int | None = None, correct: bool | None = True
) -> Episode:
    problem = Problem("p", "How many?", "7", needed=None if needed is None else frozenset(needed), least_tokens=least)
    return Episode(problem, 0, messages, "7", correct)


# --- report


def test_silence_is_judged_against_need():
    # agent 0 needed and speaks (right), 1 needed and silent (wrong), 2 not needed and silent (right)
    first = talk(say(0), say(1, silent=True), say(2, silent=True), say(DECIDER), needed={0, 1})
    # agent 0 needed and speaks (right), 1 and 2 not needed: one speaks (wrong), one is silent (right)
    second = talk(say(0), say(1), say(2, silent=True), say(DECIDER), needed={0})
    report = silence_report([first, second], decider=DECIDER)
    assert report.judged == 6
    assert report.rate == 0.5
    assert report.needed_silent == pytest.approx(1 / 3)
    assert report.not_needed_silent == report.recall == pytest.approx(2 / 3)
    assert report.precision == pytest.approx(2 / 3)
    assert report.silence_right == pytest.approx(4 / 6)


def test_decider_is_counted_apart():
    episodes = [talk(say(0), say(DECIDER, silent=True, role="judge"), needed={0})]
    report = silence_report(episodes, decider=DECIDER)
    assert (report.rate, report.rate_decider, report.judged) == (0.0, 1.0, 1)
    assert set(report.rate_by_role) == {"holder"}
    voting = silence_report(episodes, decider=None)
    assert (voting.rate, voting.rate_decider) == (0.5, None)


def test_over_several_rounds_one_message_makes_an_agent_a_speaker():
    episode = talk(say(0), say(1, silent=True), say(0, silent=True, round=1), say(1, silent=True, round=1), needed={0})
    report = silence_report([episode], decider=None)
    assert report.silence_right == 1.0
    assert report.rate == 0.75
    assert report.rate_by_round == {0: 0.5, 1: 1.0}


def test_silence_is_split_by_outcome_role_and_round():
    episodes = [
        talk(say(0, role="a"), say(1, silent=True, role="b")),
        talk(say(0, silent=True, role="a"), say(1, silent=True, role="b"), correct=False),
        talk(say(0, role="a"), correct=None),
    ]
    report = silence_report(episodes, decider=None)
    assert report.rate_by_correctness == {"correct": 0.5, "unscorable": 0.0, "wrong": 1.0}
    assert report.rate_by_role == {"a": pytest.approx(1 / 3), "b": 1.0}


def test_without_knowledge_of_need_nothing_is_judged():
    report = silence_report([talk(say(0), say(1, silent=True))], decider=None)
    assert report.rate == 0.5
    assert report.judged == 0
    assert report.silence_right is report.precision is report.recall is report.needed_silent is None


@pytest.mark.parametrize("episodes", [[], [talk()], [talk(say(DECIDER), needed={0})]])
def test_nothing_to_count_gives_none_never_nan(episodes: list[Episode]):
    report = silence_report(episodes, decider=DECIDER)
    assert report.rate is None
    assert report.silence_right is None
    assert "NaN" not in json.dumps(dataclasses.asdict(report))


def test_precision_is_none_when_nobody_is_silent_and_recall_when_all_are_needed():
    report = silence_report([talk(say(0), say(1), needed={0, 1})], decider=None)
    assert report.precision is None
    assert report.recall is None
    assert report.silence_right == 1.0


@given(
    st.lists(
        st.tuples(st.lists(st.booleans(), min_size=3, max_size=3), st.sets(st.integers(0, 2))), min_size=1, max_size=20
    )
)
def test_right_silence_is_what_need_says_and_all_shares_are_shares(cases):
    episodes = [
        talk(*(say(agent, silent=quiet) for agent, quiet in enumerate(silent)), needed=needed)
        for silent, needed in cases
    ]
    report = silence_report(episodes, decider=None)
    right = [quiet == (agent not in needed) for silent, needed in cases for agent, quiet in enumerate(silent)]
    assert report.silence_right == pytest.approx(sum(right) / len(right))
    shares = [report.rate, report.needed_silent, report.not_needed_silent, report.precision, report.silence_right]
    assert all(share is None or 0 <= share <= 1 for share in shares)


# --- efficiency


def test_efficiency_is_a_ratio_of_sums():
    episodes = [talk(say(0, 10), least=5), talk(say(0, 90), least=45), talk(say(0, 1000))]
    assert communication_efficiency(episodes) == 0.5


def test_wrong_brevity_raises_the_ratio_but_not_effective_efficiency():
    honest = talk(say(0, 10), least=8)
    mute = talk(say(0, silent=True), least=8, correct=False)
    assert communication_efficiency([mute]) == 8.0
    assert effective_efficiency([honest]) == 0.8
    assert effective_efficiency([honest, mute]) == 0.4


def test_effective_efficiency_is_at_most_one_and_leaves_unscorable_episodes_out():
    lucky = talk(say(0, 2), least=8)
    assert effective_efficiency([lucky, talk(say(0, 2), least=8, correct=None)]) == 1.0


@pytest.mark.parametrize("episodes", [[], [talk(say(0))], [talk(least=5)]])
def test_efficiency_without_anything_to_measure_is_none(episodes: list[Episode]):
    assert communication_efficiency(episodes) is None
    assert effective_efficiency(episodes) is None


# --- alarm


def run(alarm: CollapseAlarm, silences: list[float], accuracies: list[float], *, start: int = 0) -> None:
    for step, (silence, accuracy) in enumerate(zip(silences, accuracies, strict=True), start):
        alarm.observe(step, silence, accuracy)


def test_collapse_into_silence_stops_the_run_with_figures_and_the_way_back():
    silences = [0.05] * 10 + [0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.0, 1.0]
    accuracies = [0.7] * 10 + [0.7, 0.66, 0.5, 0.3, 0.1, 0.0, 0.0, 0.0, 0.0]
    alarm = CollapseAlarm()
    with pytest.raises(CollapseError, match="collapse into silence at step") as caught:
        run(alarm, silences, accuracies)
    assert caught.value.step <= 15
    assert caught.value.last_good == alarm.last_good == 11
    for part in ("70.0% in the best window", "last good step is 11", "scale_by_pass_rate"):
        assert part in str(caught.value)


def test_a_collapse_within_ten_steps_of_the_start_is_still_seen():
    silences = [min(1.0, 0.1 * step) for step in range(20)]
    accuracies = [max(0.0, 0.33 - 0.04 * step) for step in range(20)]
    with pytest.raises(CollapseError) as caught:
        run(CollapseAlarm(), silences, accuracies)
    assert caught.value.step < 10


@given(silences=st.lists(st.floats(0, 1), min_size=1, max_size=60), accuracy=st.floats(0, 1))
def test_silence_alone_never_fires_while_accuracy_holds(silences: list[float], accuracy: float):
    run(CollapseAlarm(), silences, [accuracy] * len(silences))


@given(accuracies=st.lists(st.floats(0, 1), min_size=1, max_size=60), silence=st.floats(0, 1))
def test_falling_accuracy_alone_never_fires_while_silence_stays(accuracies: list[float], silence: float):
    run(CollapseAlarm(), [silence] * len(accuracies), accuracies)


def test_strategic_silence_with_rising_accuracy_becomes_the_reference():
    alarm = CollapseAlarm()
    run(alarm, [0.01 * step for step in range(60)], [0.6 + 0.005 * step for step in range(60)])
    # Accuracy then falls for another reason: silence is what it was in the best window.
    run(alarm, [0.6] * 20, [0.4] * 20, start=60)
    with pytest.raises(CollapseError):
        run(alarm, [0.95] * 20, [0.2] * 20, start=80)


def test_silence_that_spread_at_steady_accuracy_becomes_the_reference_too():
    alarm = CollapseAlarm()
    run(alarm, [0.1] * 5 + [0.6] * 10, [0.8] * 15)
    run(alarm, [0.6] * 10, [0.4] * 10, start=15)  # accuracy falls, silence does not move


def test_spreading_silence_does_not_fire_while_accuracy_only_wavers():
    wavering = [0.8, 0.74, 0.78, 0.7, 0.75, 0.72] * 5
    run(CollapseAlarm(), [min(1.0, 0.04 * step) for step in range(30)], wavering)


def test_a_team_that_was_never_right_cannot_lose_accuracy():
    run(CollapseAlarm(), [0.0] * 5 + [1.0] * 20, [0.0] * 25)


def test_one_bad_step_does_not_fire():
    run(CollapseAlarm(), [0.1] * 10 + [1.0] + [0.1] * 10, [0.7] * 10 + [0.0] + [0.7] * 10)


def test_weak_teams_are_watched_by_the_share_they_lose():
    with pytest.raises(CollapseError):
        run(CollapseAlarm(), [0.0] * 5 + [0.6] * 10, [0.12] * 5 + [0.02] * 10)


def test_nothing_fires_and_no_step_is_good_before_the_window_is_full():
    alarm = CollapseAlarm(CollapseSettings(window=5))
    run(alarm, [0.0, 0.9, 0.9, 0.9], [0.9, 0.0, 0.0, 0.0])
    assert alarm.last_good is None


def test_thresholds_are_met_by_reaching_them():
    alarm = CollapseAlarm(CollapseSettings(window=1, silence_rise=0.2, accuracy_drop=0.25))
    alarm.observe(0, 0.1, 0.8)
    with pytest.raises(CollapseError):
        alarm.observe(1, 0.3, 0.6)


def test_last_good_step_is_not_one_whose_own_accuracy_broke():
    alarm = CollapseAlarm(CollapseSettings(window=5))
    run(alarm, [0.1] * 6, [0.8] * 6)
    alarm.observe(6, 0.1, 0.5)  # the window still holds 0.74, the step itself lost more than a quarter
    assert alarm.last_good == 5
    alarm.observe(7, 0.1, 0.8)
    assert alarm.last_good == 7


def test_resumed_alarm_fires_at_the_same_step_through_json():
    silences = [0.05] * 8 + [0.3, 0.6, 0.8, 1.0, 1.0, 1.0]
    accuracies = [0.7] * 8 + [0.6, 0.4, 0.2, 0.0, 0.0, 0.0]
    whole = CollapseAlarm()
    with pytest.raises(CollapseError) as expected:
        run(whole, silences, accuracies)
    first, second = CollapseAlarm(), CollapseAlarm()
    run(first, silences[:9], accuracies[:9])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second == first
    with pytest.raises(CollapseError) as got:
        run(second, silences[9:], accuracies[9:], start=9)
    assert str(got.value) == str(expected.value)


def test_more_silence_at_a_lower_accuracy_never_fires_later():
    def fires_at(rise: float) -> int:
        with pytest.raises(CollapseError) as caught:
            run(CollapseAlarm(), [0.0] * 6 + [rise] * 12, [0.8] * 6 + [0.1] * 12)
        return caught.value.step

    assert all(later <= sooner for sooner, later in pairwise([fires_at(rise) for rise in (0.25, 0.5, 1.0)]))


@pytest.mark.parametrize(
    ("silence", "accuracy", "message"),
    [
        (math.nan, 0.5, "silence_rate at step 4 is nan"),
        (0.5, math.nan, "accuracy at step 4 is nan"),
        (0.5, 57.0, "accuracy at step 4 is 57.0; it must be a share"),
        (-0.1, 0.5, "silence_rate at step 4 is -0.1"),
    ],
)
def test_alarm_refuses_what_is_no_share(silence: float, accuracy: float, message: str):
    with pytest.raises(ValueError, match=message):
        CollapseAlarm().observe(4, silence, accuracy)


def test_alarm_refuses_steps_that_go_back():
    alarm = CollapseAlarm()
    alarm.observe(3, 0.1, 0.5)
    with pytest.raises(ValueError, match="step 3 follows step 3"):
        alarm.observe(3, 0.1, 0.5)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"window": 0}, "window is 0"),
        ({"silence_rise": 0.0}, "silence_rise is 0.0"),
        ({"accuracy_drop": 1.5}, "accuracy_drop is 1.5"),
        ({"accuracy_drop": math.nan}, "accuracy_drop is nan"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(bad: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        CollapseSettings(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"recent": []}, r"state lacks \['best', 'last_good'\]"),
        ({"recent": [[step, 0.0, 0.0] for step in range(9)], "best": None, "last_good": None}, "holds 9 steps"),
    ],
)
def test_foreign_alarm_state_is_refused(state, message):
    with pytest.raises(ValueError, match=message):
        CollapseAlarm().load_state_dict(state)


def test_a_collapse_comes_back_whole_from_a_worker_process():
    import pickle

    error = pickle.loads(pickle.dumps(CollapseError("silent", step=7, last_good=3)))
    assert (str(error), error.step, error.last_good) == ("silent", 7, 3)
