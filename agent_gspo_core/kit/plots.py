"""Figures for notebooks and run folders: plain functions from records to a matplotlib Figure.

Figures are made without pyplot, so nothing is shown behind the caller's back and no backend matters. Colours are those
of Okabe and Ito (2008), which colour-blind readers can tell apart; where a colour carries meaning, line style or marker
carries it too.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_gspo_core.kit.records import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, BLACK = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
    "#000000",
)
"""The Okabe-Ito palette."""

CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
"""Order in which lines take their colours; yellow is too faint for a line on white."""

STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

STYLE = {
    "font.size": 11.0,
    "axes.titlesize": 12.0,
    "axes.titlelocation": "left",
    "axes.labelsize": 11.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 10.0,
    "lines.linewidth": 1.8,
}

Records = Sequence[Mapping[str, Any]]


@contextmanager
def new_figure(
    rows: int = 1, columns: int = 1, *, width: float = 9.0, height: float = 3.4
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure in the house style with `rows` × `columns` panels, row by row; width and height in inches.

    Draw inside the `with` block; the style ends with it.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.08)  # type: ignore[union-attr, call-arg]
        axes = figure.subplots(rows, columns, squeeze=False)
        yield figure, list(axes.flat)


# -------------------------------------------------------------------------------------------------------------- figures


def training_curves(
    metrics_by_seed: Mapping[int, Records], *, budget: float | None = None, title: str | None = None
) -> Figure:
    """Accuracy, tokens per episode, λ and silence over training: a thin line per seed, a thick one for their mean.

    Args:
        metrics_by_seed: the trainer's records of each seed (`accuracy`, `tokens_per_episode`, `lambda_token`,
            `silence_rate`, `silence_right` by `step`); None leaves a gap.
        budget: B_episode in tokens, drawn as a line.
        title: of the whole figure.

    Raises:
        ValueError: no seed, or a seed without records.
    """
    if not metrics_by_seed:
        raise ValueError("training_curves: no seeds given")
    for seed, records in metrics_by_seed.items():
        if not records:
            raise ValueError(f"training_curves: seed {seed} has no records; has it been trained?")
    with new_figure(2, 2, height=6.2) as (figure, (accuracy, tokens, price, silence)):
        _seed_lines(accuracy, metrics_by_seed, "accuracy", BLUE, scale=100)
        accuracy.set(title="Accuracy", ylabel="right answers (%)", ylim=(0, 103))

        _seed_lines(tokens, metrics_by_seed, "tokens_per_episode", BLUE)
        tokens.set(title="Length of an episode", ylabel="tokens per episode")
        if budget is not None:
            line = tokens.axhline(budget, color=VERMILION, linestyle="--", label=f"budget, {budget:g} tokens")
            tokens.legend(handles=[line])
        tokens.set_ylim(bottom=0)

        _seed_lines(price, metrics_by_seed, "lambda_token", BLUE)
        price.set(title="Price of a token", ylabel="λ (reward per reference length)", xlabel="training step")
        price.set_ylim(bottom=0)

        _seed_lines(silence, metrics_by_seed, "silence_rate", BLUE, scale=100, label="silent messages")
        _seed_lines(
            silence,
            metrics_by_seed,
            "silence_right",
            VERMILION,
            scale=100,
            style="--",
            label="spoke or kept silent rightly",
        )
        silence.set(title="Silence", ylabel="share (%)", xlabel="training step", ylim=(0, 103))
        silence.legend()
        accuracy.legend()
        if title:
            figure.suptitle(title, x=0.01, ha="left")
    return figure


def _seed_lines(
    axes: Axes,
    metrics_by_seed: Mapping[int, Records],
    key: str,
    colour: str,
    *,
    scale: float = 1.0,
    style: str = "-",
    label: str | None = None,
) -> None:
    """Draw one quantity: thin lines of the seeds and the mean over the seeds at every step that all of them have."""
    curves = {
        seed: {int(record["step"]): _number(record.get(key)) * scale for record in records}
        for seed, records in metrics_by_seed.items()
    }
    alone = len(curves) == 1
    for index, curve in enumerate(curves.values()):
        # Alone, a seed is its own mean. "_" keeps a line out of the legend.
        named = "one seed" if index == 0 and not alone and label is None else "_seed"
        if not alone:
            axes.plot(
                list(curve), list(curve.values()), color=colour, linewidth=0.8, alpha=0.45, linestyle=style, label=named
            )
    shared = sorted(set.intersection(*(set(curve) for curve in curves.values())))
    # A step that one seed could not measure is a gap: a mean over the others would jump.
    means = [math.fsum(curve[step] for curve in curves.values()) / len(curves) for step in shared]
    mean_label = label or ("one seed" if alone else f"mean of {len(curves)} seeds")
    axes.plot(shared, means, color=colour, linestyle=style, label=mean_label)


def _number(value: object) -> float:
    """A recorded number; NaN, which matplotlib leaves out, where nothing was measured."""
    return float(value) if isinstance(value, int | float) else math.nan


def before_after(
    before: Mapping[int, Mapping[str, Any]], after: Mapping[int, Mapping[str, Any]], *, title: str | None = None
) -> Figure:
    """Accuracy and tokens per episode before and after training: a point per seed, the mean with its 95 % interval.

    Args:
        before: by seed, a team's score (`accuracy` and `tokens`, see `evaluation.TeamScore.as_dict`).
        after: the same seeds after training.
        title: of the whole figure.

    Raises:
        ValueError: no seeds, other seeds before than after, or a value that was not measured.
    """
    if not before or before.keys() != after.keys():
        raise ValueError(
            f"before_after: seeds {sorted(before)} before and {sorted(after)} after; give the same seeds twice"
        )
    with new_figure(1, 2, width=8.0, height=3.8) as (figure, (accuracy, tokens)):
        _pairs(accuracy, before, after, "accuracy", scale=100)
        accuracy.set(title="Accuracy", ylabel="right answers (%)")
        _show_whole(accuracy, 0, 103)
        _pairs(tokens, before, after, "tokens")
        tokens.set(title="Length of an episode", ylabel="tokens per episode")
        _show_whole(tokens, 0)
        accuracy.legend()
        if title:
            figure.suptitle(title, x=0.01, ha="left")
    return figure


def _show_whole(axes: Axes, low: float, high: float | None = None) -> None:
    """Let the y axis span low … high, and further where an interval reaches beyond."""
    drawn = axes.dataLim
    beyond = 0.04 * (drawn.y1 - drawn.y0)
    bottom = low if drawn.y0 >= low else drawn.y0 - beyond
    top = drawn.y1 + beyond if high is None or drawn.y1 > high else high
    axes.set_ylim(bottom, max(top, bottom + 1e-9))


def _pairs(
    axes: Axes,
    before: Mapping[int, Mapping[str, Any]],
    after: Mapping[int, Mapping[str, Any]],
    key: str,
    *,
    scale: float = 1.0,
) -> None:
    pairs = []
    for seed in before:
        measured = [side[seed].get(key) for side in (before, after)]
        if any(value is None for value in measured):
            raise ValueError(f"before_after: {key} of seed {seed} was not measured, got {measured}")
        pairs.append([scale * float(value) for value in measured if value is not None])
    for index, pair in enumerate(pairs):
        axes.plot(
            [0, 1],
            pair,
            color="#777777",
            linewidth=0.8,
            marker="o",
            markersize=4,
            label="_seed" if index else "one seed",
        )
    for side in (0, 1):
        mean = interval([pair[side] for pair in pairs])
        centre, low, high = mean["mean"], mean["low"], mean["high"]
        assert centre is not None
        # Beside the points, so that neither covers the other.
        x = -0.16 if side == 0 else 1.16
        if low is None or high is None:
            continue
        axes.errorbar(
            x,
            centre,
            yerr=[[centre - low], [high - centre]],
            color=BLUE,
            marker="D",
            markersize=6,
            capsize=5,
            linestyle="none",
            label="_mean" if side else f"mean of {len(pairs)} seeds, 95 % interval",
        )
    axes.set_xticks([0, 1], ["before training", "after training"])
    axes.set_xlim(-0.5, 1.5)
    axes.grid(axis="x", visible=False)


def lines(
    x: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    *,
    xlabel: str,
    ylabel: str,
    title: str | None = None,
    levels: Mapping[str, float] | None = None,
    log_x: bool = False,
) -> Figure:
    """One panel of named lines over a shared x, e.g. advantages of a group's members over λ.

    Args:
        x: [N] shared by all lines.
        series: by name, [N] values; None leaves a gap.
        xlabel: with its unit.
        ylabel: with its unit.
        title: of the panel.
        levels: by name, horizontal lines (a budget, a floor).
        log_x: logarithmic x.

    Raises:
        ValueError: no series, or one whose length differs from x's.
    """
    if not series:
        raise ValueError("lines: no series given")
    for name, values in series.items():
        if len(values) != len(x):
            raise ValueError(f"lines: {name!r} has {len(values)} values for {len(x)} places on x")
    with new_figure(width=9.0, height=4.0) as (figure, (axes,)):
        for index, (name, values) in enumerate(series.items()):
            axes.plot(
                x,
                [_number(value) for value in values],
                color=CYCLE[index % len(CYCLE)],
                linestyle=STYLES[index % len(STYLES)],
                marker=MARKERS[index % len(MARKERS)],
                markersize=4,
                markevery=max(1, len(x) // 12),
                label=name,
            )
        for index, (name, level) in enumerate((levels or {}).items()):
            axes.axhline(level, color="#555555", linewidth=1.2, linestyle=STYLES[(index + 1) % len(STYLES)], label=name)
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title or "")
        if log_x:
            axes.set_xscale("log")
        if len(series) + len(levels or {}) > 1:
            figure.legend(loc="outside right center")  # beside the panel: nothing lies under it
    return figure


def whisker(
    axes: Axes,
    place: float,
    mean: Mapping[str, float | None],
    *,
    colour: str = "black",
    upright: bool = False,
) -> None:
    """A line from the low to the high end of an interval at `place`; nothing where there is no interval."""
    low, high = mean["low"], mean["high"]
    if low is None or high is None:
        return
    ends, at = [low, high], [place, place]
    axes.plot(at if upright else ends, ends if upright else at, color=colour, linewidth=1.4)


# ------------------------------------------------------------------------------------------------- saving and showing


def figure_png(figure: Figure, alt: str) -> bytes:
    """PNG of a figure with `alt` as its Description. ValueError without an alt text."""
    if not alt.strip():
        raise ValueError("figure: the alt text is empty; say in a sentence or two what the figure shows")
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=144, metadata={"Description": " ".join(alt.split())})
    return buffer.getvalue()


def save_figure(figure: Figure, path: Path | str, alt: str) -> Path:
    """Write a figure as PNG that carries its alt text (metadata key Description)."""
    path = Path(path)
    if path.suffix != ".png":
        raise ValueError(f"figure: {str(path)!r} must end in .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(figure_png(figure, alt))
    return path


def read_alt(path: Path | str) -> str | None:
    """The alt text that a PNG carries, if any."""
    from PIL import Image

    with Image.open(path) as image:
        found = image.info.get("Description")
    return str(found) if found is not None else None


def display_figure(figure: Figure, path: Path | str, alt: str) -> None:
    """Write a figure (see `save_figure`) and show it in the notebook with its alt text.

    The text goes along twice: as metadata of the image, which the HTML export reads, and as the plain form, which a
    terminal, a diff or a log shows.
    """
    from IPython.display import display

    path = save_figure(figure, path, alt)
    text = " ".join(alt.split())
    png = path.read_bytes()
    # Pixels are twice as dense as a page's, so the width in page pixels is said.
    width = int(figure.get_figwidth() * 72)
    display(  # type: ignore[no-untyped-call]
        {"image/png": b64encode(png).decode("ascii"), "text/plain": text},
        metadata={"image/png": {"alt": text, "width": width}},
        raw=True,
    )
