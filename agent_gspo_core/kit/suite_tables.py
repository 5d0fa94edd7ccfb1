"""What an evaluation run came to: scores, comparisons with one method, accuracy at equal cost.

Everything is computed from the records of single problems. Accuracy counts unparsed answers as wrong; problems that
were not scored at all (code that nobody asked to run) are in no share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from agent_gspo_core import statistics
from agent_gspo_core.kit.records import write_text
from agent_gspo_core.kit.suite import KEYS

CLUSTERED = ("mmlu", "mmlu_153")
"""Benchmarks whose problems belong together (57 subjects): intervals resample subjects, not problems."""

_CELL = [key for key in KEYS if key != "seed"]


def score_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per benchmark, arm and cap: accuracy with its 95 % interval, how it was read, and what it cost.

    Columns: `benchmark`, `arm`, `cap`; `items`, `answers` (items × seeds × members); `accuracy`, `low`, `high` (read
    leniently; Wilson for one answer per item, else items or, for `CLUSTERED`, subjects are resampled); `macro` (mean
    over subjects, `CLUSTERED` only); `strict` (the agreed form only); `unparsed`, `truncated`, `unscored`, `silent`
    (shares); `tokens` (said), `prompt_tokens` (read), `gflops` (forward), each per answer.
    """
    rows = []
    for cell, part in _cells(frame):
        scored = part[part["correct"].notna()]
        low = high = macro = accuracy = strict = None
        if len(scored):
            interval = _accuracy(str(cell["benchmark"]), scored)
            accuracy, low, high = interval.mean, interval.low, interval.high
            strict = float(scored["strict_correct"].fillna(False).mean())
            if cell["benchmark"] in CLUSTERED:
                macro = float(_by_item(scored).groupby(_families(scored)).mean().mean())
        rows.append(
            {
                **cell,
                "items": part["item"].nunique(),
                "answers": len(part),
                "accuracy": accuracy,
                "low": low,
                "high": high,
                "macro": macro,
                "strict": strict,
                "unparsed": float(part["prediction"].isna().mean()),
                "truncated": float(part["truncated"].mean()),
                "unscored": float(part["correct"].isna().mean()),
                "silent": float(part["silent"].sum() / part["messages"].sum()),
                "tokens": float(part["tokens"].mean()),
                "prompt_tokens": float(part["prompt_tokens"].mean()),
                "gflops": float(part["forward_flops"].mean()) / 1e9,
            }
        )
    table = pd.DataFrame(rows)
    numbers = ("accuracy", "low", "high", "macro", "strict")
    return table.astype(dict.fromkeys(numbers, "float64") | {"cap": "Int64"})


def comparison_table(frame: pd.DataFrame, reference: str | None = None) -> pd.DataFrame:
    """Every arm against `reference` (the first arm if `None`) on the same problems, under the same cap.

    Columns: `benchmark`, `arm`, `cap`, `reference`; `items`; `difference`, `low`, `high` (accuracy, arm − reference,
    paired); `only_arm`, `only_reference` (problems that only one has right) and `p` (exact McNemar; one answer per item
    only); `p_holm` (adjusted over the benchmarks of one arm and cap); `tokens_ratio` (arm ÷ reference); `detectable`
    (least difference that this many problems can show; see `statistics.minimum_detectable_difference`).

    Raises:
        ValueError: no such reference.
    """
    arms = list(dict.fromkeys(frame["arm"]))
    chosen = arms[0] if reference is None else reference
    if chosen not in arms:
        raise ValueError(f"comparison: no arm {chosen!r} in these records; they hold {', '.join(arms)}")
    cells = {tuple(cell.values()): part for cell, part in _cells(frame)}
    rows = []
    for (benchmark, arm, cap), part in cells.items():
        if arm == chosen:
            continue
        rows.append(
            {"benchmark": benchmark, "arm": arm, "cap": cap, "reference": chosen}
            | _compare(str(benchmark), part, cells[benchmark, chosen, cap])
        )
    columns = ["benchmark", "arm", "cap", "reference", "items", "difference", "low", "high", "only_arm"]
    columns += ["only_reference", "p", "p_holm", "tokens_ratio", "detectable"]
    table = pd.DataFrame(rows, columns=columns)
    for _, group in table.groupby(["arm", "cap"], dropna=False, sort=False):
        known = group["p"].dropna()
        if len(known):
            adjusted = statistics.holm({str(index): float(p) for index, p in known.items()})
            table.loc[known.index, "p_holm"] = [adjusted[str(index)] for index in known.index]
    numbers = ("difference", "low", "high", "p", "p_holm", "tokens_ratio", "detectable")
    whole = ("cap", "only_arm", "only_reference")
    return table.astype(dict.fromkeys(numbers, "float64") | dict.fromkeys(whole, "Int64"))


def equal_cost_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by arm (rows) and token cap (columns, cheapest first), mean over the benchmarks that were scored.

    No problem cost more than the cap, whatever the method. An empty table says that no cap was set.
    """
    capped = score_table(frame[frame["cap"].notna()]) if frame["cap"].notna().any() else pd.DataFrame()
    if capped.empty:
        return capped
    return capped.pivot_table(index="arm", columns="cap", values="accuracy", aggfunc="mean", sort=False).sort_index(
        axis=1
    )


def write_tables(frame: pd.DataFrame, folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores and comparisons, also written as `scores.csv` and `comparisons.csv`: the same records, the same bytes."""
    scores, comparisons = score_table(frame), comparison_table(frame)
    for name, table in (("scores", scores), ("comparisons", comparisons)):
        write_text(folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))
    return scores, comparisons


def unparsed_replies(frame: pd.DataFrame, limit: int = 10) -> pd.DataFrame:
    """The first `limit` answers in which nothing could be read, with the reply as it was."""
    found = frame[frame["prediction"].isna()]
    return found[["benchmark", "arm", "item", "gold", "truncated", "reply"]].head(limit).reset_index(drop=True)


def said_table(frame: pd.DataFrame) -> pd.DataFrame:
    """What was said about the first problem of each benchmark by the first and by the last arm, message by message."""
    arms = list(dict.fromkeys(frame["arm"]))
    rows = []
    for benchmark, part in frame.groupby("benchmark", sort=False):
        for arm in dict.fromkeys((arms[0], arms[-1])):
            answer = part[part["arm"] == arm].iloc[0]
            sample = json.loads(answer["transcript"])[0]
            rows += [
                {
                    "benchmark": benchmark,
                    "arm": arm.partition("@")[0] + (", trained" if "@" in arm else ""),
                    "who": message["role"],
                    "tokens": message["tokens"],
                    "said": message["text"].strip() or "(silent)",
                    "gold": answer["gold"],
                }
                for message in sample
            ]
    return pd.DataFrame(rows)


def summary(scores: pd.DataFrame) -> dict[str, dict[str, dict[str, object]]]:
    """Benchmark → arm → accuracy `{mean, low, high}` and mean tokens, of the arms without a cap; None where unknown."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for row in scores[scores["cap"].isna()].to_dict("records"):
        mean, low, high = (None if pd.isna(row[key]) else float(row[key]) for key in ("accuracy", "low", "high"))
        found.setdefault(str(row["benchmark"]), {})[str(row["arm"])] = {
            "accuracy": {"mean": mean, "low": low, "high": high},
            "tokens": float(row["tokens"]),
            "items": int(row["items"]),
        }
    return found


def detectability_note(frame: pd.DataFrame) -> str:
    """What so many problems can and cannot show: one sentence for each number of problems, to stand by a table."""
    sizes = frame.groupby("benchmark", sort=False)["item"].nunique()
    notes = []
    for size in sorted(set(sizes)):
        names = ", ".join(sizes.index[sizes == size])
        notes.append(f"{names}: {statistics.detectability(int(size))}")
    return "\n".join(notes)


def _cells(frame: pd.DataFrame) -> Iterator[tuple[dict[str, object], pd.DataFrame]]:
    for names, part in frame.groupby(_CELL, dropna=False, sort=False):
        cell: dict[str, Any] = dict(zip(_CELL, names, strict=True))
        yield cell | {"cap": None if pd.isna(cell["cap"]) else int(cell["cap"])}, part


def _by_item(scored: pd.DataFrame) -> pd.Series[float]:
    """Mean over the answers to each problem: they are not independent, so the problem is the unit."""
    return scored["correct"].astype(float).groupby(scored["item"], sort=False).mean()


def _families(scored: pd.DataFrame) -> pd.Series[str]:
    return scored.groupby("item", sort=False)["family"].first()


def _outcomes(scored: pd.DataFrame) -> dict[str, float]:
    return {str(item): float(value) for item, value in _by_item(scored).items()}


def _accuracy(benchmark: str, scored: pd.DataFrame) -> statistics.Interval:
    outcomes = _outcomes(scored)
    clusters = {str(item): str(family) for item, family in _families(scored).items()}
    clustered = benchmark in CLUSTERED and len(set(clusters.values())) > 1
    if not clustered:
        clusters = {item: item for item in outcomes}
        if len(outcomes) == len(scored):
            return statistics.wilson(int(scored["correct"].sum()), len(scored))
    units = len(set(clusters.values()))
    if units < 2:
        return statistics.Interval(next(iter(outcomes.values())), None, None, 1)
    if set(outcomes.values()) in ({0.0}, {1.0}):
        # Drawn anew, answers that are all wrong stay all wrong: a bootstrap has no interval for them.
        return statistics.wilson(units * int(min(outcomes.values())), units)
    return statistics.clustered_mean(outcomes, clusters)


def _compare(benchmark: str, arm: pd.DataFrame, reference: pd.DataFrame) -> dict[str, object]:
    row: dict[str, object] = {
        "items": arm["item"].nunique(),
        "tokens_ratio": float(arm["tokens"].mean() / reference["tokens"].mean()),
        "detectable": statistics.minimum_detectable_difference(arm["item"].nunique()),
    }
    scored, against = arm[arm["correct"].notna()], reference[reference["correct"].notna()]
    a, b = (_outcomes(part) if len(part) else {} for part in (scored, against))
    if not a or a.keys() != b.keys():
        return row  # nothing scored, or not the same problems on both sides
    families = {str(item): str(family) for item, family in _families(scored).items()}
    if benchmark in CLUSTERED and len(set(families.values())) > 1:
        difference = statistics.clustered_difference(a, b, families)
    elif len(a) > 1:
        difference = statistics.paired_difference(a, b)
    else:
        difference = statistics.Interval(next(iter(a.values())) - next(iter(b.values())), None, None, 1)
    row |= {"difference": difference.mean, "low": difference.low, "high": difference.high}
    if len(a) == len(scored) and len(b) == len(against):
        counts = statistics.paired_counts(a, b)
        row |= {
            "only_arm": counts.only_a,
            "only_reference": counts.only_b,
            "p": statistics.mcnemar_exact(counts.only_a, counts.only_b),
        }
    return row
