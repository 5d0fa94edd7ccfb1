"""What a study of latent communication shows: tables from its records, its part of a run's summary, traces in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from agent_gspo_core.episode import Problem
from agent_gspo_core.kit import records
from agent_gspo_core.kit.latent_settings import SUBJECT
from agent_gspo_core.kit.latent_study import COSTS, Study
from agent_gspo_core.kit.tables import holds_zero, verdict, with_interval, write_csv
from agent_gspo_core.latent.team import LatentTeam
from agent_gspo_core.latent.trace import LatentTrace, inspect_trace

STABILITY = ("perplexity", "token_entropy", "self_consistency")
"""Scores of `latent.stability`."""


def arms_table(study: Study) -> pd.DataFrame:
    """One row per benchmark, arm and seed: the scores of `latent_study.score`; columns as `latent_arms.csv` has them.

    Raises:
        FileNotFoundError: an arm that has not answered yet.
    """
    return pd.DataFrame(
        [
            {
                "benchmark": benchmark,
                "arm": arm,
                "seed": seed,
                **records.read_json(study.arm_place(task, arm, benchmark, seed) / "result.json"),
            }
            for task, benchmark, arm, seed in study.cells
        ]
    )


def items_table(study: Study) -> pd.DataFrame:
    """Every answer of the study, a row each: benchmark, arm, seed and the columns of `latent_study.answers_table`."""
    parts = []
    for task, benchmark, arm, seed in study.cells:
        place = study.arm_place(task, arm, benchmark, seed) / "items.csv"
        words = dict.fromkeys(("item", "family", "needed", "gold", "prediction", "text"), "string")
        part = pd.read_csv(place, dtype=words, keep_default_na=False, na_values={"prediction": [""], "correct": [""]})
        own = pd.DataFrame({"benchmark": benchmark, "arm": arm, "seed": seed}, index=part.index)
        parts.append(pd.concat([own, part], axis=1))
    return pd.concat(parts, ignore_index=True)


def by_seed(table: pd.DataFrame, score: str) -> dict[str, dict[int, float]]:
    """Arm → seed → one score, benchmarks weighing alike; seeds of which a benchmark was not scored are left out."""
    found: dict[str, dict[int, float]] = {}
    for arm, own in table.groupby("arm", sort=False):
        for seed in dict.fromkeys(own["seed"].tolist()):
            values = own.loc[own["seed"] == seed, score]
            if not values.isna().any():
                found.setdefault(str(arm), {})[int(seed)] = float(values.mean())
    return found


def accuracies(table: pd.DataFrame) -> dict[str, records.Interval]:
    """Arm → accuracy, mean over seeds with its 95 % t-interval."""
    return {arm: records.interval(list(values.values())) for arm, values in by_seed(table, "accuracy").items()}


def differences_table(table: pd.DataFrame) -> pd.DataFrame:
    """DiffMAS − every other arm in accuracy, paired by seed, with the t-interval of the differences, and what it shows.

    Each interval stands for itself: of twenty comparisons one misses on average.
    """
    values = by_seed(table, "accuracy")
    own = values.get(SUBJECT, {})
    rows: list[dict[str, Any]] = []
    for arm, theirs in values.items():
        both = [seed for seed in own if seed in theirs]
        if arm == SUBJECT or not both:
            continue
        change = records.interval([own[seed] - theirs[seed] for seed in both])
        rows.append(
            {
                "against": arm,
                "seeds": len(both),
                **change,
                "holds_0": holds_zero(change),
                "shows": verdict("accuracy", change, arm),
            }
        )
    return pd.DataFrame(rows, columns=["against", "seeds", "mean", "low", "high", "holds_0", "shows"])


def summary(table: pd.DataFrame) -> dict[str, Any]:
    """What `summary.json` keeps under `diffmas`: accuracy by arm, its difference to each other arm, chance.

    Where there is more than one benchmark, `benchmarks` holds the accuracies of each.
    """
    differences = differences_table(table)
    found: dict[str, Any] = {
        "accuracy": accuracies(table),
        "minus": {
            str(row["against"]): {part: _number(row[part]) for part in ("mean", "low", "high")}
            for row in differences.to_dict("records")
        },
        "chance": float(table.groupby("benchmark")["chance"].first().mean()),
    }
    if table["benchmark"].nunique() > 1:
        found["benchmarks"] = {str(name): accuracies(rows) for name, rows in table.groupby("benchmark", sort=False)}
    return found


def _number(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def write_tables(study: Study, folder: Path | str) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Write `latent_arms.csv`, `latent_differences.csv` and `latent_items.csv`; returns the three tables.

    Wall times are left out: the same settings and seeds give the same bytes.
    """
    folder = Path(folder)
    table, items = arms_table(study), items_table(study)
    differences = differences_table(table)
    write_csv(folder / "latent_arms.csv", table)
    write_csv(folder / "latent_differences.csv", differences)
    write_csv(folder / "latent_items.csv", items)
    return table, differences, items


# ---------------------------------------------------------------------------------------------------- tables to look at


def accuracy_table(table: pd.DataFrame) -> pd.DataFrame:
    """Per arm: accuracy with its interval, what could not be read, message tokens, latent positions."""
    means = table.groupby("arm", sort=False)[["unparsed", "truncated", "message_tokens", "latent"]].mean()
    shown = {arm: with_interval(figures) for arm, figures in accuracies(table).items()}
    means.insert(0, "accuracy", [shown.get(str(arm), "not scored") for arm in means.index])
    return means


def stability_table(table: pd.DataFrame) -> pd.DataFrame:
    """Per arm: means over seeds of perplexity, token entropy and self-consistency."""
    return table.groupby("arm", sort=False)[list(STABILITY)].mean()


def cost_table(table: pd.DataFrame) -> pd.DataFrame:
    """Per arm: what an answer costs, on average; bytes in KiB, FLOPs in millions."""
    means = table.groupby("arm", sort=False)[list(COSTS)].mean()
    units = {"kv_bytes": ("kv_kib", 1024), "flops": ("mflop", 1e6)}
    return means.assign(**{old: means[old] / unit for old, (_, unit) in units.items()}).rename(
        columns={old: new for old, (new, _) in units.items()}
    )


def family_table(items: pd.DataFrame) -> pd.DataFrame:
    """Share of right answers by arm and family of problems, all seeds together; the first row is chance."""
    chances = items.groupby("family", sort=True)["chance"].mean().rename("chance")
    right = items.assign(correct=items["correct"].astype(float)).pivot_table("correct", "arm", "family", sort=False)
    return pd.concat([chances.to_frame().T, right[list(chances.index)]])


def dropped_table(study: Study, items: pd.DataFrame) -> pd.DataFrame:
    """DiffMAS with all segments and without one agent's: share right where its note is needed, and where it is not.

    Whose segments were dropped stands in the row's name. Empty where the study has no arm "dropped".
    """
    shared = study.settings.shared
    names = [role.name for role in shared.team.writers]
    agent = names.index(shared.dropped) if shared.dropped else 0
    known = items[items["arm"].isin([SUBJECT, "dropped"])]
    if "dropped" not in study.settings.arms:
        return known.iloc[:0][["correct"]]
    words = {True: f"{names[agent]}'s note is needed", False: f"{names[agent]}'s note is not needed"}
    asks = known["needed"].map(lambda needed: words[str(agent) in needed.split()] if needed else "needs are unknown")
    return known.assign(correct=known["correct"].astype(float), problems=asks).pivot_table(
        "correct", "problems", "arm", sort=False
    )


def trace_table(trace: LatentTrace) -> pd.DataFrame:
    """The segments of a trace's first row: who, read or thought, positions, bytes of keys and values."""
    whole = int(trace.kv_bytes[0])
    columns = int(trace.mask[0].sum())
    return pd.DataFrame(
        [
            {
                "agent": segment.agent,
                "kind": "read" if segment.kind == "prompt" else "thought",
                "positions": int(segment.mask[0].sum()),
                "from": int(segment.positions[0].min()),
                "to": int(segment.positions[0].max()),
                "bytes": whole * int(segment.mask[0].sum()) // columns,
            }
            for segment in trace.segments
        ]
    )


def glimpse_table(team: LatentTeam, trace: LatentTrace, *, top: int = 4) -> pd.DataFrame:
    """What each latent position of a trace's first row would say if it had to: likeliest tokens with probabilities."""
    rows = []
    for glimpse in inspect_trace(team.policy, trace, top=top):
        said = ", ".join(f"{token!r} {share:.2f}" for token, share in glimpse.tokens)
        rows.append({"agent": glimpse.agent, "step": glimpse.step, "would say": said})
    return pd.DataFrame(rows, columns=["agent", "step", "would say"])


def said_table(items: pd.DataFrame, problems: Sequence[Problem], arms: Sequence[str]) -> pd.DataFrame:
    """The first answer of each arm to each of these problems, under the first seed, beside what was right."""
    first = items[(items["sample"] == 0) & (items["seed"] == items["seed"].iloc[0])]
    rows = []
    for problem in problems:
        for arm in arms:
            (text,) = first.loc[(first["item"] == problem.id) & (first["arm"] == arm), "text"]
            rows.append({"question": problem.question, "right": problem.answer, "arm": arm, "said": text})
    return pd.DataFrame(rows).set_index(["question", "right", "arm"])
