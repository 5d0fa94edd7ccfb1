"""Results as pandas tables, for notebooks and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_gspo_core.kit import records

if TYPE_CHECKING:
    import pandas as pd


def settings_table(settings: Any) -> pd.DataFrame:
    """Every setting as a row: concern, name, value."""
    import pandas as pd

    rows = []
    for concern in fields(settings):
        values = getattr(settings, concern.name)
        inner = {f.name: getattr(values, f.name) for f in fields(values)} if is_dataclass(values) else {"": values}
        rows += [{"concern": concern.name, "setting": name, "value": str(value)} for name, value in inner.items()]
    return pd.DataFrame(rows)


def holds_zero(change: Mapping[str, float | None]) -> bool | None:
    """Whether an interval holds 0; `None` where there is no interval."""
    low, high = change["low"], change["high"]
    return None if low is None or high is None else low <= 0 <= high


def verdict(metric: str, change: Mapping[str, float | None], than: str) -> str:
    """What a difference to the arm `than` says, in words."""
    mean, low, high = change["mean"], change["low"], change["high"]
    if mean is None:
        return f"{metric}: not measured"
    scale, unit = (100, " points") if metric == "accuracy" else (1, "")
    said = f"{metric} {scale * mean:+.1f}{unit}"
    if low is None or high is None:
        return f"{said}, one seed: cannot be told"
    if mean == low == high == 0:
        return f"{metric}: the same in every seed"
    said += f" [{scale * low:+.1f}, {scale * high:+.1f}]"
    if low <= 0 <= high:
        return f"{said}: the interval holds 0, cannot be told"
    return f"{said}: {'more' if low > 0 else 'less'} than {than}"


def write_csv(path: Path, table: pd.DataFrame) -> Path:
    """Write a table, whole or not at all."""
    return records.write_text(path, table.to_csv(index=False, lineterminator="\n"))


def headline_table(headline: Mapping[str, Mapping[str, float | None]]) -> pd.DataFrame:
    """One row per quantity with its mean and 95 % interval before and after training."""
    import pandas as pd

    names = dict.fromkeys(key.rsplit("_", 1)[0] for key in headline)
    rows = []
    for name in names:
        row: dict[str, Any] = {"quantity": name.replace("_", " ")}
        for when in ("before", "after"):
            figures = headline.get(f"{name}_{when}")
            row[when] = None if figures is None else with_interval(figures)
        rows.append(row)
    return pd.DataFrame(rows).set_index("quantity")


def with_interval(figures: Mapping[str, float | None]) -> str:
    """`0.912 [0.885, 0.939]`, or the mean alone where one seed has no interval."""
    mean, low, high = figures["mean"], figures["low"], figures["high"]
    return f"{mean:.3f}" if low is None else f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def by_seed_table(results: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per seed, sampled and greedy: what the intervals are made of."""
    import pandas as pd

    rows = []
    for result in results:
        for kind in ("sampled", "greedy"):
            row: dict[str, Any] = {"seed": result["seed"], "decoding": kind}
            for name in ("accuracy", "tokens", "communication_efficiency", "silence_right", "unparsed"):
                for when in ("before", "after"):
                    row[f"{name} {when}"] = result[when][kind][name]
            rows.append(row)
    return pd.DataFrame(rows).set_index(["seed", "decoding"])


def transcripts_table(result: Mapping[str, Any], *, limit: int = 3) -> pd.DataFrame:
    """The same problems before and after training, side by side, a row per message."""
    import pandas as pd

    rows = []
    for before, after in list(zip(result["before"]["transcripts"], result["after"]["transcripts"], strict=True))[
        :limit
    ]:
        right = before["answer"]
        for old, new in zip(before["messages"], after["messages"], strict=True):
            rows.append(
                {
                    "problem": f"{before['question']} ({right})",
                    "role": old["role"],
                    "before": _spoken(old),
                    "after": _spoken(new),
                }
            )
        rows.append(
            {
                "problem": f"{before['question']} ({right})",
                "role": "read as",
                "before": f"{before['prediction']} ({before['tokens']} tokens)",
                "after": f"{after['prediction']} ({after['tokens']} tokens)",
            }
        )
    return pd.DataFrame(rows).set_index(["problem", "role"])


def _spoken(message: Mapping[str, Any]) -> str:
    return "(silent)" if message["silent"] else str(message["text"]) + (" …" if message["cut"] else "")
