"""Figures of the notebook on reward design. Each takes numbers and returns a figure in the house style (`plots`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_gspo_core.kit.plots import BLUE, CYCLE, GREEN, ORANGE, PURPLE, STYLES, VERMILION, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from agent_gspo_core.kit.reward_study import DualRun

Curves = Mapping[str, Sequence[float]]
"""Values by name of the line."""

_GREY = "#555555"


def _draw(axes: Axes, x: Sequence[float], curves: Curves) -> None:
    for index, (name, values) in enumerate(curves.items()):
        axes.plot(x, values, label=name, color=CYCLE[index % len(CYCLE)], linestyle=STYLES[index % len(STYLES)])


def cost_bars(table: pd.DataFrame) -> Figure:
    """Stacked bars of the three costs, one bar a message; `table` as `reward_study.terms_table` gives it."""
    parts = (("cost_tokens", "tokens", BLUE), ("cost_turns", "turn", ORANGE), ("cost_repetition", "repetition", PURPLE))
    with new_figure(width=7.5, height=3.2) as (figure, (axes,)):
        left = [0.0] * len(table)
        for column, name, colour in parts:
            widths = [float(value) for value in table[column]]
            axes.barh(list(table["message"]), widths, left=left, label=name, color=colour)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="taken off the reward (a right answer is worth 1)")
        axes.legend(title="cost of")
    return figure


def advantage_panels(lambdas: Sequence[float], panels: Mapping[tuple[str, str], Curves]) -> Figure:
    """Advantages against λ_tok: panels by (row title, column title), in each a line a message.

    Panels of a row share their scale, so that they can be compared.
    """
    rows = list(dict.fromkeys(row for row, _ in panels))
    columns = list(dict.fromkeys(column for _, column in panels))
    with new_figure(len(rows), len(columns), width=9.5, height=2.9 * len(rows)) as (figure, axes):
        for i, row in enumerate(rows):
            reach = 1.1 * max(abs(v) for column in columns for values in panels[row, column].values() for v in values)
            for j, column in enumerate(columns):
                panel = axes[i * len(columns) + j]
                panel.axhline(0.0, color=_GREY, linewidth=0.8)
                _draw(panel, lambdas, panels[row, column])
                panel.set(title=f"{column}, {row}", ylim=(-reach, reach))
                if i == len(rows) - 1:
                    panel.set_xlabel("λ_tok")
                if j == 0:
                    panel.set_ylabel("advantage")
                if i == 0:
                    panel.legend(ncols=2, fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 1.12), borderaxespad=0.0)
    return figure


def ratio_lines(lengths: Sequence[int], ratios: Curves, clip_shares: Curves) -> Figure:
    """Left: the ratio under a small drift, by length. Right: the share of messages clipped, by length."""
    with new_figure(1, 2, width=9.5, height=3.4) as (figure, (left, right)):
        for panel, curves in ((left, ratios), (right, clip_shares)):
            _draw(panel, lengths, curves)
            panel.set_xscale("log", base=2)
            panel.set_xticks(list(lengths), [str(length) for length in lengths])
            panel.set_xlabel("tokens in the message, |y|")
            panel.legend(fontsize=9)
        left.set(title="All tokens drift the same way", ylabel="ratio s (log scale)", yscale="log")
        left.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
        left.minorticks_off()
        right.set(title="Tokens drift at random", ylabel="share of messages clipped", ylim=(0, None))
    return figure


def share_bars(lengths: Sequence[int], shares: Curves) -> Figure:
    """Signed pull of the objective on each message, a bar a weighting."""
    with new_figure(width=7.5, height=3.2) as (figure, (axes,)):
        height = 0.8 / len(shares)
        for index, (name, values) in enumerate(shares.items()):
            places = [row + height * (index - (len(shares) - 1) / 2) for row in range(len(lengths))]
            axes.barh(places, values, height=0.92 * height, label=name, color=CYCLE[index])
        axes.axvline(0.0, color=_GREY, linewidth=0.8)
        axes.set_yticks(range(len(lengths)), [f"{length} tokens" for length in lengths])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="pull on the message, ∂J/∂(log s)")
        axes.legend()
    return figure


def dual_curves(runs: Mapping[str, tuple[DualRun, float]]) -> Figure:
    """Tokens (above) and λ (below) by dual update, one column a run; each run comes with its budget (dashed)."""
    most = 1.15 * max(max(*run.tokens, budget) for run, budget in runs.values())
    dearest = 1.1 * max(max(run.prices) for run, _ in runs.values())
    with new_figure(2, len(runs), width=3.2 * len(runs), height=4.6) as (figure, axes):
        for column, (title, (run, budget)) in enumerate(runs.items()):
            above, below = axes[column], axes[len(runs) + column]
            above.plot(run.tokens, color=BLUE)
            above.axhline(budget, color=VERMILION, linestyle="--", linewidth=1.2, label="budget")
            above.set(title=f"{title}: {budget:g} tokens", ylim=(0, most))
            below.plot(run.prices, color=GREEN)
            below.set(xlabel="dual update", ylim=(-0.05, dearest))
        axes[0].legend()
        axes[0].set_ylabel("tokens per episode")
        axes[len(runs)].set_ylabel("λ_tok")
    return figure


def collapse_curves(records: Sequence[Mapping[str, Any]], *, alarm_at: int | None) -> Figure:
    """Tokens per episode, accuracy and silence by step; a dotted line where the alarm rang."""
    from matplotlib.ticker import MaxNLocator

    steps = [record["step"] for record in records]
    shares = {
        name: [math.nan if record[key] is None else record[key] for record in records]
        for name, key in (("accuracy", "accuracy"), ("silent messages", "silence_rate"))
    }
    with new_figure(1, 2, width=9.5, height=3.4) as (figure, (left, right)):
        left.plot(steps, [record["tokens_per_episode"] for record in records], color=BLUE)
        _draw(right, steps, shares)
        left.set(xlabel="training step", ylabel="tokens per episode", ylim=(0, None))
        right.set(xlabel="training step", ylabel="share", ylim=(-0.02, 1.02))
        if alarm_at is not None:
            for panel in (left, right):
                panel.axvline(alarm_at, color=_GREY, linestyle=":", label="alarm")
        right.legend()
        for panel in (left, right):
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
