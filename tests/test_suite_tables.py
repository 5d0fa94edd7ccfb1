"""Tables and figures of an evaluation run, on records made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from agent_gspo_core import statistics
from agent_gspo_core.evaluation import ItemRecord
from agent_gspo_core.kit import suite_figures, suite_tables
from agent_gspo_core.kit.plots import read_alt, save_figure
from agent_gspo_core.kit.suite import to_frame

BLANK = ItemRecord(
    item="",
    family="",
    member=0,
    gold="1",
    prediction="1",
    correct=True,
    strict_prediction=None,
    strict_correct=False,
    truncated=False,
    tokens=10,
    prompt_tokens=30,
    forward_flops=2e9,
    messages=4,
    silent=1,
    reply="#### 1",
    transcript='[[{"role": "Judge", "round": 0, "tokens": 10, "text": "#### 1"}]]',
)


def cell(arm: str, outcomes: list[bool | None], *, benchmark: str = "gsm8k", cap: int | None = None, seed: int = 0,
         tokens: int = 10, families: list[str] | None = None) -> pd.DataFrame:  # fmt: skip
    items = [
        replace(
            BLANK,
            item=f"{benchmark}/{n}",
            correct=right,
            prediction="1" if right is not False else None,
            strict_correct=right,
            tokens=tokens,
            family=families[n] if families else "",
        )
        for n, right in enumerate(outcomes)
    ]
    return to_frame((benchmark, arm, cap, seed), items)


def together(*cells: pd.DataFrame) -> pd.DataFrame:
    return pd.concat(cells, ignore_index=True)


def test_one_answer_per_item_has_wilsons_interval() -> None:
    row = suite_tables.score_table(cell("single", [True] * 8 + [False] * 2)).iloc[0]
    assert (row["accuracy"], row["low"], row["high"]) == pytest.approx((0.8, 0.49016, 0.94332), abs=1e-5)
    assert (row["items"], row["answers"], row["unparsed"], row["silent"], row["gflops"]) == (10, 10, 0.2, 0.25, 2.0)


def test_an_item_answered_twice_is_one_unit() -> None:
    frame = together(cell("a", [True, False] * 6), cell("a", [True, True] * 6, seed=1))
    row = suite_tables.score_table(frame).iloc[0]
    assert (row["items"], row["answers"], row["accuracy"]) == (12, 24, 0.75)
    assert row["low"] < 0.75 < row["high"]
    alone = suite_tables.score_table(together(cell("a", [True, False] * 6), cell("a", [True, False] * 6, seed=1)))
    assert alone.iloc[0]["high"] - alone.iloc[0]["low"] > row["high"] - row["low"]


def test_mmlu_resamples_subjects_and_names_both_averages() -> None:
    families = ["law"] * 12 + ["art"] * 4 + ["physics"] * 4
    outcomes: list[bool | None] = [True] * 12 + [False] * 8
    row = suite_tables.score_table(cell("a", outcomes, benchmark="mmlu", families=families)).iloc[0]
    assert (row["accuracy"], row["macro"]) == pytest.approx((0.6, 1 / 3))
    plain = statistics.wilson(12, 20)
    assert plain.low is not None
    assert plain.high is not None
    assert row["high"] - row["low"] > plain.high - plain.low  # subjects differ, so there are far fewer units
    other = suite_tables.score_table(cell("a", outcomes, families=families)).iloc[0]
    assert np.isnan(other["macro"])


@pytest.mark.parametrize("right", [True, False])
def test_answers_that_are_all_alike_are_still_uncertain(right: bool) -> None:
    families = ["law", "law", "art", "art", "physics", "physics"]
    subjects = suite_tables.score_table(cell("a", [right] * 6, benchmark="mmlu", families=families)).iloc[0]
    three = statistics.wilson(3 * right, 3)
    assert (subjects["accuracy"], subjects["low"], subjects["high"]) == (float(right), three.low, three.high)
    twice = together(cell("a", [right] * 6), cell("a", [right] * 6, seed=1))
    six = statistics.wilson(6 * right, 6)
    repeated = suite_tables.score_table(twice).iloc[0]
    assert (repeated["accuracy"], repeated["low"], repeated["high"]) == (float(right), six.low, six.high)


def test_what_was_not_scored_is_in_no_share() -> None:
    table = suite_tables.score_table(together(cell("a", [None, None, None]), cell("b", [True, None, False])))
    assert np.isnan(table.iloc[0]["accuracy"])
    assert table.iloc[0]["unscored"] == 1
    assert table.iloc[1]["accuracy"] == 0.5


def test_comparisons_are_paired_and_adjusted_over_benchmarks() -> None:
    right: list[bool | None] = [True] * 5 + [False] + [True] * 4
    wrong: list[bool | None] = [False] * 5 + [True] + [True] * 4
    same: list[bool | None] = [True, False] * 5
    frame = together(
        cell("base", wrong), cell("team", right, tokens=30), cell("base", same, benchmark="svamp"),
        cell("team", same, benchmark="svamp"),
    )  # fmt: skip
    table = suite_tables.comparison_table(frame).set_index("benchmark")
    first, second = table.loc["gsm8k"], table.loc["svamp"]
    assert (first["only_arm"], first["only_reference"]) == (5, 1)
    assert first["p"] == pytest.approx(0.21875)
    assert first["difference"] == pytest.approx(0.4)
    assert first["low"] < 0.4 < first["high"]
    assert first["p_holm"] == pytest.approx(2 * 0.21875)
    assert second["p"] == second["p_holm"] == 1
    assert (first["tokens_ratio"], second["tokens_ratio"]) == (3, 1)


def test_a_cap_is_compared_with_the_same_cap() -> None:
    frame = together(
        cell("base", [True, False]), cell("team", [True, True]),
        cell("base", [False, False], cap=40), cell("team", [False, True], cap=40),
    )  # fmt: skip
    table = suite_tables.comparison_table(frame)
    assert list(table["difference"]) == [0.5, 0.5]
    equal = suite_tables.equal_cost_table(frame)
    assert equal.to_dict() == {40: {"base": 0.0, "team": 0.5}}
    assert suite_tables.equal_cost_table(frame[frame["cap"].isna()]).empty


def test_another_reference_turns_the_difference_round() -> None:
    frame = together(cell("a", [True, False, False, False]), cell("b", [True, True, True, False]))
    forth = suite_tables.comparison_table(frame).iloc[0]
    back = suite_tables.comparison_table(frame, "b").iloc[0]
    assert forth["difference"] == -back["difference"] == 0.5
    with pytest.raises(ValueError, match="no arm 'c' in these records; they hold a, b"):
        suite_tables.comparison_table(frame, "c")


def test_arms_without_common_scores_get_no_difference() -> None:
    row = suite_tables.comparison_table(together(cell("a", [None, None]), cell("b", [True, False]))).iloc[0]
    assert np.isnan(row["difference"])
    assert pd.isna(row["p"])


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    frame = together(cell("a", [True, False, True]), cell("b", [True, True, None]))
    for name in ("x", "y"):
        suite_tables.write_tables(frame, tmp_path / name)
    for table in ("scores.csv", "comparisons.csv"):
        assert (tmp_path / "x" / table).read_bytes() == (tmp_path / "y" / table).read_bytes()


def test_unparsed_replies_show_what_was_said() -> None:
    table = suite_tables.unparsed_replies(cell("a", [True, False, False]), limit=1)
    assert list(table["item"]) == ["gsm8k/1"]
    assert table["reply"].iloc[0] == "#### 1"


def test_the_summary_holds_what_is_known_and_none_for_the_rest() -> None:
    frame = together(cell("a", [None, None]), cell("b", [True, True], cap=9), cell("b", [True, False]))
    summary = suite_tables.summary(suite_tables.score_table(frame))
    assert summary["gsm8k"]["a"]["accuracy"] == {"mean": None, "low": None, "high": None}
    assert summary["gsm8k"]["b"]["accuracy"]["mean"] == 0.5  # type: ignore[index]


def test_figures_show_every_arm_and_survive_what_was_not_scored(tmp_path: Path) -> None:
    frame = together(
        cell("single", [True, False]), cell("team@runs/x/policy", [True, True], tokens=40),
        cell("single", [None, None], benchmark="humaneval"),
        cell("team@runs/x/policy", [None, None], benchmark="humaneval"),
    )  # fmt: skip
    scores = suite_tables.score_table(frame)
    assert suite_figures.arm_names(scores) == ["single", "team, trained"] * 2
    words = suite_figures.in_words(scores)
    assert "gsm8k, single: 50 % right with 10 tokens" in words
    assert "humaneval, team, trained: not scored with 10 tokens" in words
    for figure in (suite_figures.accuracy_and_tokens(scores), suite_figures.pareto(scores)):
        labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        assert labels == ["single", "team, trained"]
    assert read_alt(save_figure(suite_figures.pareto(scores), tmp_path / "p.png", words)) == words


def test_a_figure_of_nothing_is_refused() -> None:
    scores = suite_tables.score_table(cell("a", [None]))
    with pytest.raises(ValueError, match="nothing was scored"):
        suite_figures.pareto(scores)
    with pytest.raises(ValueError, match="no scores given"):
        suite_figures.accuracy_and_tokens(scores.iloc[:0])


def test_no_two_arms_look_alike() -> None:
    styles = [tuple(sorted(suite_figures._style(number).items())) for number in range(20)]
    assert len(set(styles)) == len(styles)
