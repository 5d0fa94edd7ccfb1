"""Figures of an evaluation run, drawn from `suite_tables.score_table`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from agent_gspo_core.kit.plots import CYCLE, MARKERS, display_figure, new_figure
from agent_gspo_core.statistics import pareto_front

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def arm_names(scores: pd.DataFrame) -> list[str]:
    """Arm of every row, with its cap where it ran under one and "trained" for a policy of its own."""
    names = []
    for arm, cap in zip(scores["arm"], scores["cap"], strict=True):
        method, own, _ = str(arm).partition("@")
        names.append(method + (", trained" if own else "") + ("" if pd.isna(cap) else f" ≤ {cap}"))
    return names


def _style(number: int) -> dict[str, Any]:
    """Colour and marker of an arm; where the colours begin anew the markers are shifted, so that no two arms agree."""
    turn, place = divmod(number, len(CYCLE))
    return {"color": CYCLE[place], "marker": MARKERS[(place + 3 * turn) % len(MARKERS)], "linestyle": "none"}


def accuracy_and_tokens(scores: pd.DataFrame) -> Figure:
    """Two panels side by side: accuracy with its interval, and tokens said, one row per benchmark and arm.

    Raises:
        ValueError: no scores.
    """
    if scores.empty:
        raise ValueError("accuracy and tokens: no scores given")
    scores = scores.assign(name=arm_names(scores))
    benchmarks, names = (list(dict.fromkeys(scores[key])) for key in ("benchmark", "name"))
    height = 1.2 + 0.28 * len(benchmarks) * (len(names) + 1)
    with new_figure(1, 2, width=10.0, height=height) as (figure, (accuracy, tokens)):
        for n, name in enumerate(names):
            rows = scores[scores["name"] == name]
            places = [benchmarks.index(b) * (len(names) + 1) + n for b in rows["benchmark"]]
            style = _style(n)
            mean, low, high = (100 * rows[key].to_numpy(dtype=float) for key in ("accuracy", "low", "high"))
            for place, value, least, most in zip(places, mean, low, high, strict=True):
                if math.isfinite(least):
                    accuracy.plot([least, most], [place, place], color=style["color"], linewidth=1.4)
                if not math.isfinite(value):
                    accuracy.text(1, place, "not scored", va="center", fontsize=9, color="#555555")
            accuracy.plot(mean, places, markersize=6, label=name, **style)
            tokens.plot(rows["tokens"].to_numpy(dtype=float), places, markersize=6, **style)
        for axes in (accuracy, tokens):
            axes.set_yticks(
                [b * (len(names) + 1) + (len(names) - 1) / 2 for b in range(len(benchmarks))], labels=benchmarks
            )
            axes.set_ylim(len(benchmarks) * (len(names) + 1) - 0.5, -1)
            axes.grid(axis="y", visible=False)
        tokens.set_yticklabels([])
        accuracy.set(title="Accuracy", xlabel="right answers (%), 95 % interval", xlim=(-2, 102))
        tokens.set(title="Tokens said", xlabel="completion tokens per problem")
        tokens.set_xlim(left=0)
        figure.legend(*accuracy.get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(names)))
    return figure


def pareto(scores: pd.DataFrame) -> Figure:
    """Accuracy against tokens said, one panel per benchmark; the line joins the arms that no other one beats.

    Raises:
        ValueError: nothing was scored.
    """
    scores = scores[scores["accuracy"].notna()].assign(name=lambda table: arm_names(table))
    if scores.empty:
        raise ValueError("pareto: nothing was scored; run code answers in the sandbox, or choose other benchmarks")
    benchmarks, names = (list(dict.fromkeys(scores[key])) for key in ("benchmark", "name"))
    columns = min(3, len(benchmarks))
    rows = math.ceil(len(benchmarks) / columns)
    with new_figure(rows, columns, width=3.4 * columns + 1.0, height=2.9 * rows + 0.9) as (figure, panels):
        for axes, benchmark in zip(panels, benchmarks, strict=False):
            part = scores[scores["benchmark"] == benchmark].set_index("name")
            points = {name: (row["tokens"], 100 * row["accuracy"]) for name, row in part.iterrows()}
            front = [points[name] for name in pareto_front({str(name): point for name, point in points.items()})]
            axes.plot(*zip(*front, strict=True), color="#555555", linewidth=1.2, drawstyle="steps-post", zorder=1)
            for name, (cost, accuracy) in points.items():
                axes.plot(cost, accuracy, markersize=8, label=name, **_style(names.index(name)))
            axes.set(title=benchmark, xlabel="tokens said per problem", ylabel="right answers (%)")
            axes.set_xlim(left=0)
            axes.set_ylim(-3, 103)
        for axes in panels[len(benchmarks) :]:
            axes.set_visible(False)
        found = {
            label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=min(4, len(found)))
    return figure


def show_accuracy_and_tokens(scores: pd.DataFrame, path: Path) -> None:
    """Write `accuracy_and_tokens` and show it in the notebook, with its numbers as alt text."""
    alt = f"Two panels, a marker per method: accuracy with its interval, and tokens said. {in_words(scores)}"
    display_figure(accuracy_and_tokens(scores), path, alt)


def show_pareto(scores: pd.DataFrame, path: Path) -> None:
    """Write `pareto` and show it in the notebook, with its numbers as alt text."""
    alt = f"Accuracy against tokens said, a panel per benchmark and a marker per method. {in_words(scores)}"
    display_figure(pareto(scores), path, alt)


def in_words(scores: pd.DataFrame) -> str:
    """The figures' numbers as text, for readers who do not see them."""
    said = []
    for name, row in zip(arm_names(scores), scores.to_dict("records"), strict=True):
        right = "not scored" if pd.isna(row["accuracy"]) else f"{100 * row['accuracy']:.0f} % right"
        said.append(f"{row['benchmark']}, {name}: {right} with {row['tokens']:.0f} tokens")
    return "; ".join(said) + "."
