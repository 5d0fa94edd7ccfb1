"""The command `agent-gspo evaluate`: run a profile's evaluation, with changes, and print what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_gspo_core.kit import records, suite_tables
from agent_gspo_core.kit.settings import load_profile, override
from agent_gspo_core.kit.suite import run_suite


def evaluate(profile: str, changes: Mapping[str, object], run_folder: Path | None = None) -> Path:
    """Run the evaluation of a profile with some settings changed by dotted name; returns the folder of its records.

    A folder that was begun with the same settings is taken up. Errors as in `suite.run_suite` and `settings.override`.
    """
    settings = override(load_profile(profile).suite, dict(changes), where="evaluation")
    folder = records.open_run_folder(run_folder, profile) / "evaluation"
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140  # a log has no width of its own; tables cut at 80 columns would be unreadable
    console.print(f"Records go to {records.relative_to_project(folder)}", markup=False)
    frame = run_suite(settings, folder, report=lambda line: console.print(line, markup=False))
    scores, comparisons = suite_tables.write_tables(frame, folder)
    _print(console, "Scores", scores, "accuracy", ("strict", "unparsed", "truncated"), ("items", "tokens"))
    if len(comparisons):
        title = f"Difference to {comparisons['reference'].iloc[0]}"
        _print(console, title, comparisons, "difference", (), ("items", "p", "p_holm", "tokens_ratio"))
    console.print(suite_tables.detectability_note(frame), markup=False)
    return folder


def _print(
    console: Console, title: str, table: pd.DataFrame, main: str, shares: Sequence[str], others: Sequence[str]
) -> None:
    """Print a table's main figure with its interval and shares in per cent, other columns as they are."""
    shown = Table(title=f"{title} (%, 95 % interval)", title_justify="left")
    keys = [key for key in ("benchmark", "arm", "cap") if table[key].notna().any()]
    for name in (*keys, main, *shares, *others):
        shown.add_column(name, justify="left" if name in ("benchmark", "arm") else "right", no_wrap=True)
    for row in table.to_dict("records"):
        cells = [_text(row[key]) for key in keys]
        cells.append(
            _percent(row[main]) + ("" if pd.isna(row["low"]) else f" [{_percent(row['low'])}, {_percent(row['high'])}]")
        )
        cells += [_percent(row[name]) for name in shares]
        cells += [_text(row[name]) for name in others]
        shown.add_row(*map(Text, cells))
    console.print(shown)


def _percent(value: float) -> str:
    return "–" if pd.isna(value) else f"{100 * value:.1f}"


def _text(value: Any) -> str:
    if not isinstance(value, str) and pd.isna(value):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
