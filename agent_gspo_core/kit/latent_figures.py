"""Figures of the study of latent communication, in the house style (`plots`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from agent_gspo_core.kit.latent_settings import SUBJECT
from agent_gspo_core.kit.latent_tables import accuracies, by_seed
from agent_gspo_core.kit.plots import BLUE, ORANGE, SKY, VERMILION, new_figure, whisker

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def accuracy_bars(table: pd.DataFrame) -> Figure:
    """Accuracy by arm: bars for the mean over seeds, its 95 % interval, a point per seed; a line at chance.

    Raises:
        ValueError: no arm was scored.
    """
    values = by_seed(table, "accuracy")
    if not values:
        raise ValueError("latent figure: no arm was scored; run the study, with run_code for problems of kind code")
    floor = 100 * float(table.groupby("benchmark")["chance"].first().mean())
    with new_figure(width=9.0, height=1.4 + 0.36 * len(values)) as (figure, (axes,)):
        for place, (arm, mean) in enumerate(accuracies(table).items()):
            scaled = {part: None if end is None else 100 * end for part, end in mean.items()}
            colour, hatch = (BLUE, "") if arm == SUBJECT else (SKY, "//")
            axes.barh(place, scaled["mean"] or 0.0, height=0.62, color=colour, hatch=hatch, edgecolor="white")
            whisker(axes, place, scaled)
            points = [100 * value for value in values[arm].values()]
            axes.plot(points, [place] * len(points), "o", color=ORANGE, markersize=4, markeredgecolor="black")
        axes.axvline(floor, color=VERMILION, linestyle="--", linewidth=1.4, label="best guess from the question alone")
        axes.set_yticks(range(len(values)), list(values))
        axes.set_ylim(len(values) - 0.4, -0.6)
        axes.set(xlabel="right answers (%)", xlim=(0, max(103.0, axes.get_xlim()[1])))
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center")
    return figure


def in_words(table: pd.DataFrame) -> str:
    """Accuracy of every arm, for readers who do not see a figure."""
    said = [f"{arm} {100 * (mean['mean'] or 0):.0f} %" for arm, mean in accuracies(table).items()]
    return ", ".join(said) + f"; chance {100 * float(table['chance'].mean()):.0f} %."
