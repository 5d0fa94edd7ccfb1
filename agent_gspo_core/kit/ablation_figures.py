"""Figures of the ablation, drawn from the tables of `ablation`. Each returns a figure in the house style (`plots`).

What a colour says a marker, a hatch or a line style says too, so that a figure can be read in print. `in_words` gives
the numbers of a table as a sentence for the alt text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from agent_gspo_core.kit.ablation import FULL, summary_of
from agent_gspo_core.kit.plots import BLUE, CYCLE, GREEN, MARKERS, ORANGE, SKY, STYLES, VERMILION, new_figure, whisker
from agent_gspo_core.kit.records import interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GREY = "#777777"
_STATES = {"before": ("o", SKY), "after": ("D", BLUE)}


def arm_bars(table: pd.DataFrame) -> Figure:
    """Accuracy and tokens by arm: bars for the mean over seeds, its 95 % interval, a point per seed.

    Raises:
        ValueError: an empty table.
    """
    names = _names(table)
    with new_figure(1, 2, width=9.5, height=1.4 + 0.38 * len(names)) as (figure, panels):
        for axes, key, scale in zip(panels, ("accuracy", "tokens"), (100.0, 1.0), strict=True):
            for place, name in enumerate(names):
                values = [scale * float(v) for v in table[table["arm"] == name][key].dropna()]
                if not values:
                    axes.text(0, place, " not measured", va="center", fontsize=9, color=_GREY)
                    continue
                mean = interval(values)
                colour, hatch = (BLUE, "") if name == FULL else (SKY, "//")
                axes.barh(place, mean["mean"] or 0.0, height=0.62, color=colour, hatch=hatch, edgecolor="white")
                whisker(axes, place, mean)
                axes.plot(values, [place] * len(values), "o", color=ORANGE, markersize=4, markeredgecolor="black")
            axes.set_yticks(range(len(names)), names)
            axes.set_ylim(len(names) - 0.4, -0.6)
            axes.grid(axis="y", visible=False)
        panels[1].set_yticklabels([])
        panels[0].set(title="Accuracy", xlabel="right answers (%)")
        panels[0].set_xlim(0, max(103.0, panels[0].get_xlim()[1]))
        panels[1].set(title="Length of an episode", xlabel="tokens per episode")
        panels[1].set_xlim(left=0)
    return figure


def difference_dots(differences: pd.DataFrame) -> Figure:
    """Arm − full with 95 % intervals over seeds; filled where the interval leaves out 0, open where it holds it.

    Raises:
        ValueError: no differences.
    """
    names = _names(differences)
    with new_figure(1, 2, width=9.5, height=1.4 + 0.34 * len(names)) as (figure, panels):
        for axes, key, scale in zip(panels, ("accuracy", "tokens"), (100.0, 1.0), strict=True):
            axes.axvline(0.0, color=_GREY, linewidth=1.0)
            for place, row in enumerate(differences.to_dict("records")):
                change = {part: _scaled(row[f"{key}_{part}"], scale) for part in ("mean", "low", "high")}
                if change["mean"] is None:
                    continue
                told = row[f"{key}_holds_0"] is False
                whisker(axes, place, change, colour=VERMILION if told else BLUE)
                axes.plot(
                    change["mean"],
                    place,
                    "D" if told else "o",
                    color=VERMILION if told else BLUE,
                    markerfacecolor=VERMILION if told else "white",
                    markersize=7,
                )
            axes.set_yticks(range(len(names)), names)
            axes.set_ylim(len(names) - 0.4, -0.6)
        panels[1].set_yticklabels([])
        panels[0].set(title="Accuracy, arm − full", xlabel="points")
        panels[1].set(title="Tokens, arm − full", xlabel="tokens per episode")
    return figure


def learning_curves(metrics: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], key: str) -> Figure:
    """One panel per trained arm: the mean over its seeds (solid) over that of "full" (dashed).

    Args:
        metrics: by arm, "full" among them, the step records of each seed.
        key: "accuracy" (drawn in per cent) or another quantity of the records.

    Raises:
        ValueError: no "full", or no records at all.
    """
    curves = {name: _mean_curve(seeds, key) for name, seeds in metrics.items() if any(seeds)}
    if FULL not in curves:
        raise ValueError(f"learning curves: no records of arm {FULL!r}; has it been trained?")
    from matplotlib.ticker import MaxNLocator

    others = [name for name in curves if name != FULL] or [FULL]
    columns = min(4, len(others))
    rows = math.ceil(len(others) / columns)
    scale = 100.0 if key == "accuracy" else 1.0
    with new_figure(rows, columns, width=2.5 * columns + 0.8, height=2.1 * rows + 0.7) as (figure, panels):
        top = max(scale * v for curve in curves.values() for v in curve.values() if math.isfinite(v))
        for axes, name in zip(panels, others, strict=False):
            for curve, colour, style, label in (
                (curves[FULL], _GREY, "--", FULL),
                (curves[name], BLUE, "-", "this arm"),
            ):
                axes.plot(list(curve), [scale * v for v in curve.values()], style, color=colour, label=label)
            axes.set(title=name, ylim=(0, 1.05 * max(top, 1e-9)))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in panels[len(others) :]:
            axes.set_visible(False)
        for axes in panels[::columns]:
            axes.set_ylabel("right answers (%)" if key == "accuracy" else "tokens per episode")
        for axes in panels[len(others) - columns if rows > 1 else 0 : len(others)]:
            axes.set_xlabel("training step")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def frontier(table: pd.DataFrame) -> Figure:
    """Accuracy against tokens: sweeps of fixed prices and of budgets as lines, "full" as a star, with intervals.

    Raises:
        ValueError: no "full" in the table.
    """
    points = summary_of(table)
    if FULL not in points or set(points[FULL]) != {"accuracy", "tokens"}:
        raise ValueError(f"frontier: arm {FULL!r} was not measured")
    sweeps = {
        "fixed price λ": ("lambda=", "λ "),
        "budget": ("budget=", "B "),
        "plain form": ("plain_lambda=", "λ "),
    }
    with new_figure(width=8.5, height=4.6) as (figure, (axes,)):
        for index, (label, (prefix, short)) in enumerate(sweeps.items()):
            names = [name for name in points if name.startswith(prefix) and len(points[name]) == 2]
            if not names:
                continue
            places = [_point(points[name]) for name in names]
            axes.plot(
                *zip(*places, strict=True),
                color=CYCLE[index],
                linestyle=STYLES[index % len(STYLES)],
                marker=MARKERS[index],
                label=label,
            )
            for name, place in zip(names, places, strict=True):
                axes.annotate(
                    short + name.removeprefix(prefix), place, xytext=(5, 5), textcoords="offset points", fontsize=9
                )
        x, y = _point(points[FULL])
        accuracy, tokens = points[FULL]["accuracy"], points[FULL]["tokens"]
        if accuracy["low"] is not None and accuracy["high"] is not None:
            axes.plot([x, x], [100 * accuracy["low"], 100 * accuracy["high"]], color=ORANGE, linewidth=1.4)
        if tokens["low"] is not None and tokens["high"] is not None:
            axes.plot([tokens["low"], tokens["high"]], [y, y], color=ORANGE, linewidth=1.4)
        axes.plot(x, y, "*", color=ORANGE, markeredgecolor="black", markersize=16, label="full")
        for name, marker in (("untrained", "X"), ("no_token_penalty", "P")):
            if len(points.get(name, {})) == 2:
                axes.plot(*_point(points[name]), marker, color=_GREY, markersize=9, linestyle="none", label=name)
        axes.set(xlabel="tokens per episode", ylabel="right answers (%)", title="What accuracy costs")
        axes.set_xlim(0, 1.12 * max(axes.get_xlim()[1], 1.0))  # room for the labels at the right end
        axes.set_ylim(-3, 103)
        figure.legend(loc="outside right center")
    return figure


def silence_bars(silent: pd.DataFrame) -> Figure:
    """Silence before and after training: by need and by outcome, mean over seeds with a point per seed.

    Raises:
        ValueError: an empty table.
    """
    shown = {
        "needed_silent": "needed",
        "not_needed_silent": "not needed",
        "rate_outcome_correct": "answer right",
        "rate_outcome_wrong": "answer wrong",
        "rate": "everybody",
    }
    keys = [key for key in shown if key in silent and silent[key].notna().any()]
    if not keys:
        raise ValueError("silence: the table is empty; measure some episodes first")
    with new_figure(width=8.5, height=1.6 + 0.55 * len(keys)) as (figure, (axes,)):
        for offset, (state, hatch) in zip((-0.19, 0.19), (("before", "//"), ("after", "")), strict=True):
            for place, key in enumerate(keys):
                values = [100 * float(v) for v in silent[silent["state"] == state][key].dropna()]
                if not values:
                    continue
                axes.barh(
                    place + offset,
                    sum(values) / len(values),
                    height=0.34,
                    color=_STATES[state][1],
                    hatch=hatch,
                    edgecolor="white",
                    label="_" if place else f"{state} training",
                )
                axes.plot(
                    values, [place + offset] * len(values), "o", color=ORANGE, markersize=4, markeredgecolor="black"
                )
        axes.set_yticks(range(len(keys)), [shown[key] for key in keys])
        axes.set_ylim(len(keys) - 0.4, -0.6)
        axes.set(xlabel="share that was silent (%)", xlim=(0, 103), title="Who keeps silent")
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside right center")
    return figure


def replay_dots(told: pd.DataFrame) -> Figure:
    """Change in accuracy and tokens of the changed episodes: mean over seeds with its interval, a point per seed.

    Raises:
        ValueError: an empty table.
    """
    names = list(dict.fromkeys(told["change"])) if len(told) else []
    if not names:
        raise ValueError("replay: the table is empty; replay some episodes first")
    with new_figure(1, 2, width=9.0, height=1.5 + 0.5 * len(names)) as (figure, panels):
        for axes, key, scale in zip(panels, ("accuracy", "tokens"), (100.0, 1.0), strict=True):
            axes.axvline(0.0, color=_GREY, linewidth=1.0)
            for place, name in enumerate(names):
                values = [scale * float(v) for v in told[told["change"] == name][f"{key}_mean"].dropna()]
                if not values:
                    axes.text(0, place, " nothing to change", va="center", fontsize=9, color=_GREY)
                    continue
                whisker(axes, place, interval(values), colour=BLUE)
                axes.plot(values, [place] * len(values), "o", color=ORANGE, markersize=4, markeredgecolor="black")
                axes.plot(sum(values) / len(values), place, "D", color=BLUE, markersize=7)
            axes.set_yticks(range(len(names)), names)
            axes.set_ylim(len(names) - 0.4, -0.6)
        panels[1].set_yticklabels([])
        panels[0].set(title="Accuracy, told − recorded", xlabel="points")
        panels[1].set(title="Tokens, told − recorded", xlabel="tokens per episode")
    return figure


def robustness_dots(table: pd.DataFrame, key: str = "accuracy") -> Figure:
    """One panel per topology: the honest team and each insider, before and after training; mean, interval over seeds.

    Raises:
        ValueError: an empty table.
    """
    topologies = list(dict.fromkeys(table["topology"])) if len(table) else []
    if not topologies:
        raise ValueError("robustness: the table is empty")
    kinds = list(dict.fromkeys(table["insider"]))
    scale = 100.0 if key == "accuracy" else 1.0
    columns = min(4, len(topologies))
    rows = math.ceil(len(topologies) / columns)
    with new_figure(rows, columns, width=2.5 * columns + 1.5, height=2.5 * rows + 0.7) as (figure, panels):
        for axes, topology in zip(panels, topologies, strict=False):
            for offset, state in ((-0.12, "before"), (0.12, "after")):
                part = table[(table["topology"] == topology) & (table["state"] == state)]
                marker, colour = _STATES[state]
                for place, kind in enumerate(kinds):
                    values = [scale * float(v) for v in part[part["insider"] == kind][key].dropna()]
                    if not values:
                        continue
                    mean = interval(values)
                    whisker(axes, place + offset, mean, colour=colour, upright=True)
                    label = "_" if place else f"{state} training"
                    axes.plot(
                        place + offset, mean["mean"] or 0.0, marker, color=colour, markeredgecolor="black", label=label
                    )
            axes.set_xticks(range(len(kinds)), kinds, rotation=30, ha="right", fontsize=9)
            axes.set_title(topology)
            axes.set_xlim(-0.5, len(kinds) - 0.5)
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        for axes in panels[len(topologies) :]:
            axes.set_visible(False)
        for axes in panels[::columns]:
            axes.set_ylabel("right answers (%)" if key == "accuracy" else "tokens per episode")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def scaling_lines(table: pd.DataFrame) -> Figure:
    """Accuracy and tokens over the number of agents, before and after training; the least number of tokens beside them.

    Raises:
        ValueError: an empty table.
    """
    if table.empty:
        raise ValueError("scaling: the table is empty")
    sizes = sorted(set(table["agents"]))
    with new_figure(1, 2, width=9.5, height=3.8) as (figure, panels):
        for axes, key, scale in zip(panels, ("accuracy", "tokens"), (100.0, 1.0), strict=True):
            for (state, (marker, colour)), style in zip(_STATES.items(), ("--", "-"), strict=True):
                part = table[table["state"] == state]
                known = {size: [scale * float(v) for v in part[part["agents"] == size][key].dropna()] for size in sizes}
                found = {size: interval(values) for size, values in known.items() if values}
                for size, mean in found.items():
                    whisker(axes, size, mean, colour=colour, upright=True)
                means = [mean["mean"] or 0.0 for mean in found.values()]
                axes.plot(list(found), means, style, marker=marker, color=colour, label=f"{state} training")
            axes.set(xlabel="discussion agents", xticks=sizes)
            axes.set_ylim(bottom=0)
        least = table.groupby("agents")["least"].mean().dropna()
        if len(least):
            panels[1].plot(
                least.index, least.to_numpy(dtype=float), ":", color=GREEN, marker="^", label="least that suffices"
            )
        panels[0].set(title="Accuracy", ylabel="right answers (%)")
        panels[1].set(title="Length of an episode", ylabel="tokens per episode")
        panels[1].legend()
    return figure


def in_words(table: pd.DataFrame) -> str:
    """Accuracy and tokens of every arm, for readers who do not see a figure."""
    said = []
    for name, figures in summary_of(table).items():
        parts = [
            f"{100 * (figures['accuracy']['mean'] or 0):.0f} % right" if "accuracy" in figures else "not scored",
            f"{figures['tokens']['mean']:.0f} tokens",
        ]
        said.append(f"{name}: {', '.join(parts)}")
    return "; ".join(said) + "."


def _names(table: pd.DataFrame) -> list[str]:
    names = [str(name) for name in dict.fromkeys(table["arm"])] if len(table) else []
    if not names:
        raise ValueError("ablation figure: the table holds no arm; run some first")
    return names


def _scaled(value: Any, scale: float) -> float | None:
    return None if value is None or pd.isna(value) else scale * float(value)


def _point(figures: Mapping[str, Mapping[str, float | None]]) -> tuple[float, float]:
    tokens, accuracy = figures["tokens"]["mean"], figures["accuracy"]["mean"]
    assert tokens is not None
    assert accuracy is not None
    return tokens, 100 * accuracy


def _mean_curve(seeds: Sequence[Sequence[Mapping[str, Any]]], key: str) -> dict[int, float]:
    """Mean over the seeds at every step that all of them have; NaN where one has no value."""
    curves = [
        {int(line["step"]): math.nan if line.get(key) is None else float(line[key]) for line in lines}
        for lines in seeds
    ]
    steps = sorted(set.intersection(*map(set, curves)))
    return {step: sum(curve[step] for curve in curves) / len(curves) for step in steps}
