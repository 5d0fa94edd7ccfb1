from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_gspo_core.kit import plots


def curve(steps: int, accuracy: float, **gaps: Any) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "accuracy": accuracy,
            "tokens_per_episode": 100.0 - step,
            "lambda_token": 0.01 * step,
            "silence_rate": 0.2,
            "silence_right": 0.5,
            **gaps,
        }
        for step in range(steps)
    ]


def test_training_curves_show_every_seed_their_mean_and_the_budget() -> None:
    figure = plots.training_curves({0: curve(4, 0.6), 7: curve(4, 0.8)}, budget=40, title="Two seeds")
    accuracy, tokens, price, silence = figure.axes
    assert len(accuracy.lines) == 3
    np.testing.assert_allclose(accuracy.lines[-1].get_ydata(), [70.0] * 4)
    assert [text.get_text() for text in accuracy.get_legend().get_texts()] == ["one seed", "mean of 2 seeds"]
    assert [text.get_text() for text in tokens.get_legend().get_texts()] == ["budget, 40 tokens"]
    assert len(silence.lines) == 6
    for axes in (accuracy, tokens, price, silence):
        assert axes.get_ylabel()
        assert axes.get_title(loc="left")
    assert price.get_xlabel() == silence.get_xlabel() == "training step"


def test_the_mean_ends_with_the_shortest_seed_and_gaps_where_one_was_not_measured() -> None:
    long, short = curve(5, 0.6), curve(3, 0.8)
    short[1]["accuracy"] = None
    mean = plots.training_curves({0: long, 1: short}).axes[0].lines[-1]
    assert list(mean.get_xdata()) == [0, 1, 2]
    values = list(mean.get_ydata())
    assert values[0] == pytest.approx(70.0)
    assert math.isnan(values[1])


def test_one_seed_is_drawn_once() -> None:
    accuracy = plots.training_curves({3: curve(3, 0.5)}).axes[0]
    assert [line.get_label() for line in accuracy.lines] == ["one seed"]


def test_before_and_after_show_every_seed_and_the_whole_interval() -> None:
    before = {s: {"accuracy": 0.7 + 0.1 * s, "tokens": 150.0 + s} for s in range(3)}
    after = {s: {"accuracy": 0.8 + 0.1 * s, "tokens": 40.0 + 30 * s} for s in range(3)}
    accuracy, tokens = plots.before_after(before, after).axes
    assert sum(line.get_label() in ("one seed", "_seed") for line in accuracy.lines) == 3
    assert accuracy.get_ylim()[1] > 100 * (0.9 + 4.303 * 0.1 / math.sqrt(3))  # beyond 100 %, and not cut off
    assert tokens.get_ylim()[0] < 70 - 4.303 * 30 / math.sqrt(3)
    assert [label.get_text() for label in tokens.get_xticklabels()] == ["before training", "after training"]


def test_lines_carry_colour_style_and_marker_so_that_none_alone_is_needed() -> None:
    figure = plots.lines([0, 1, 2], {"a": [0, 1, None], "b": [2, 1, 0]}, xlabel="λ", ylabel="A", levels={"zero": 0})
    a, b, level = figure.axes[0].lines
    for get in ("get_color", "get_linestyle", "get_marker"):
        assert getattr(a, get)() != getattr(b, get)()
    assert math.isnan(list(a.get_ydata())[2])
    assert level.get_label() == "zero"
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"a", "b", "zero"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.training_curves({}), "no seeds"),
        (lambda: plots.training_curves({4: []}), "seed 4 has no records"),
        (lambda: plots.before_after({0: {}}, {1: {}}), "same seeds"),
        (
            lambda: plots.before_after({0: {"accuracy": None}}, {0: {"accuracy": 1}}),
            "accuracy of seed 0 was not measured",
        ),
        (lambda: plots.lines([0, 1], {"a": [1]}, xlabel="x", ylabel="y"), "'a' has 1 values for 2"),
        (lambda: plots.lines([0, 1], {}, xlabel="x", ylabel="y"), "no series"),
    ],
)
def test_plots_name_what_is_missing(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_saved_figure_carries_its_alt_text_and_is_not_blank(tmp_path: Path) -> None:
    from PIL import Image

    figure = plots.lines([0, 1], {"λ": [0, 1]}, xlabel="x", ylabel="y")
    path = plots.save_figure(figure, tmp_path / "figures" / "f.png", "λ rises\n  from 0 to 1.")
    assert plots.read_alt(path) == "λ rises from 0 to 1."
    with Image.open(path) as image:
        assert np.asarray(image.convert("L")).std() > 1
    with pytest.raises(ValueError, match="alt text is empty"):
        plots.save_figure(figure, tmp_path / "g.png", "  ")
    with pytest.raises(ValueError, match=r"must end in \.png"):
        plots.save_figure(figure, tmp_path / "g.jpg", "a line")
    assert not (tmp_path / "g.png").exists()


def test_a_displayed_figure_brings_its_alt_text_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", lambda data, **options: shown.append((data, options)))
    figure = plots.lines([0, 1], {"a": [0, 1]}, xlabel="x", ylabel="y")
    plots.display_figure(figure, tmp_path / "f.png", "A line.")
    assert plots.read_alt(tmp_path / "f.png") == "A line."
    [(data, options)] = shown
    assert data["text/plain"] == "A line."
    assert options["metadata"]["image/png"]["alt"] == "A line."
    assert data["image/png"].startswith("iVBORw0KGgo")


def test_figures_leave_pyplot_alone() -> None:
    import sys

    import matplotlib

    before = matplotlib.rcParams["axes.grid"]
    plots.lines([0, 1], {"a": [0, 1]}, xlabel="x", ylabel="y")
    assert matplotlib.rcParams["axes.grid"] == before
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []
