"""The claims ledger: what the papers say, what this kit ran against it, and a status that is computed, never written.

The data are in claims.yaml: a claim with its source, grade and protocol, and the figure of a run that is set against
it. Rules of the status, for a figure with its 95 % interval, turned so that more is better. All rules are ours:

- not_attempted: nothing was measured; the reason is said.
- not_comparable: what was measured has another scale than the claim, was run with changed settings, or only
  counterparts at another scale were measured.
- inconclusive: one unit, so no interval; or the interval is too wide to tell.
- reproduced: the mean reaches the claimed value less the tolerance, and the interval excludes the reference (no
  effect); without a reference, the interval is narrow or lies within the tolerance.
- reproduced_better: the whole interval lies above the claimed value plus the tolerance.
- direction_only: the interval excludes the reference on the claimed side, but the value is not reached or none is
  claimed.
- not_reproduced: the interval excludes the claimed value and does not exclude the reference, or lies on its other side.

A smoke or embedded figure is never set against a paper-scale one: the scales must be equal.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import yaml

from agent_gspo_core.kit import records
from agent_gspo_core.kit.records import Interval

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Status = Literal[
    "reproduced",
    "reproduced_better",
    "direction_only",
    "not_reproduced",
    "inconclusive",
    "not_comparable",
    "not_attempted",
]

LEDGER = Path(__file__).with_name("claims.yaml")

SCALES = {"smoke": "smoke", "embedded": "embedded", "cpu-llm": "small", "gpu": "gpu"}
"""Scale of each profile's figures; a profile of one's own has the scale "custom". None is "paper": no profile has the
model, data and protocol of a paper."""

GRADES = ("paper", "review", "note", "gspo", "sibling", "ours")


@dataclass(frozen=True)
class Evidence:
    """Which figure of a run is set against a claim: `summary` (minus `minus`), or a table's rows paired by unit."""

    summary: str = ""
    """Dotted path of an interval in summary.json."""
    minus: str = ""
    """Dotted path of another, taken off; their difference then has the widest interval that both allow."""
    file: str = ""
    """Name of a CSV table anywhere in the run folder."""
    where: Mapping[str, str] | None = None
    """Rows of it that count."""
    unit: str = "seed"
    """Column that names the independent units."""
    column: str = ""
    """Column whose values `of` and `against` are; empty: `of` and `against` are themselves columns."""
    of: str = ""
    against: str = ""
    value: str = ""
    """With `column`: the column that is compared."""
    form: Literal["difference", "ratio"] = "difference"
    """of − against, or of ÷ against − 1, for each unit; in the ledger: `as`."""


@dataclass(frozen=True)
class Claim:
    """A row of the ledger."""

    id: str
    paper: str
    claim: str
    source: str
    grade: str
    metric: str
    benchmark: str
    protocol: str
    scale: str
    better: Literal["higher", "lower"]
    n: int | None = None
    """Items; None: unknown."""
    value: float | None = None
    """The claimed figure; None: none is claimed, only a direction."""
    tolerance: float = 0.0
    """Declared before the run, in units of the value."""
    reference: float | None = 0.0
    """The figure of no effect; None: there is none."""
    evidence: Evidence | None = None
    counterparts: tuple[str, ...] = ()
    """Claims of this kit that ask the same at another scale."""
    why: str = ""
    """Why nothing was run against it."""


@dataclass(frozen=True)
class Reading:
    """What a run says to a claim."""

    claim: Claim
    status: Status
    why: str
    """The reason, in words."""
    found: Interval | None = None
    """The kit's figure with its interval, where one was measured at the claim's scale."""
    scope: str = ""
    """At which scale, over how many units."""
    evidence: str = ""
    """Where in the run folder the figure lies."""


def load_ledger(path: Path = LEDGER) -> tuple[list[Claim], dict[str, dict[str, str]]]:
    """Claims, and what the papers say to each setting (class → field → text).

    Raises:
        ValueError: an unknown key or grade, an id that stands twice, a counterpart that is none.
    """
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    claims = [_claim(entry) for entry in data["claims"]]
    ids = [claim.id for claim in claims]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise ValueError(f"claims: {twice[0]} stands twice; ids are distinct")
    for claim in claims:
        lost = [one for one in claim.counterparts if one not in ids]
        if lost:
            raise ValueError(f"claims: {claim.id} names the counterpart {lost[0]}, which is no claim")
    return claims, data["settings"]


def _claim(entry: Mapping[str, Any]) -> Claim:
    values = dict(entry)
    evidence = values.pop("evidence", None)
    try:
        if evidence is not None:
            renamed = {("form" if key == "as" else key): value for key, value in evidence.items()}
            values["evidence"] = Evidence(**renamed)
        values["counterparts"] = tuple(values.get("counterparts", ()))
        claim = Claim(**values)
    except TypeError as error:
        raise ValueError(f"claims: {entry.get('id', entry)!r}: {error}") from error
    if claim.grade not in GRADES or claim.better not in ("higher", "lower"):
        raise ValueError(
            f"claims: {claim.id} has grade {claim.grade!r} and better {claim.better!r}; expected one of "
            f"{', '.join(GRADES)}, and higher or lower"
        )
    if claim.evidence is None and not claim.why:
        raise ValueError(f"claims: {claim.id} has no evidence; say why in `why`")
    if claim.tolerance < 0:
        raise ValueError(f"claims: {claim.id} has tolerance {claim.tolerance}; it is a distance, 0 or more")
    return claim


# --------------------------------------------------------------------------------------------------------------- status


def judge(claim: Claim, found: Mapping[str, float | None]) -> tuple[Status, str]:
    """Status of a claim at its own scale from a figure {"mean", "low", "high"}; see the module for the rules."""
    mean, low, high = found["mean"], found["low"], found["high"]
    if mean is None:
        return "not_attempted", "nothing was measured"
    if low is None or high is None:
        return "inconclusive", "one unit, so there is no interval"
    value, reference = claim.value, claim.reference
    if claim.better == "lower":
        mean, low, high = -mean, -high, -low
        value, reference = (None if one is None else -one for one in (value, reference))
    shown = reference is None or low > reference
    against = reference is not None and high < reference
    if value is None:
        if reference is None:
            return "inconclusive", "neither a value nor a reference is claimed"
        if shown:
            return "direction_only", "the interval lies on the claimed side; no value is claimed"
        return (
            ("not_reproduced", "the interval lies on the other side")
            if against
            else ("inconclusive", "the interval holds no effect")
        )
    least = value - claim.tolerance
    if low > value + claim.tolerance:
        return "reproduced_better", "the whole interval lies beyond the claimed value and its tolerance"
    if mean >= least:
        if shown and (reference is not None or low >= least or high - low <= 4 * claim.tolerance):
            return "reproduced", "the mean reaches the claimed value within the tolerance"
        return "inconclusive", "the mean reaches the claimed value, but the interval is too wide"
    if shown and reference is not None:
        return "direction_only", "the interval lies on the claimed side, but the mean misses the value"
    if high < least or against:
        return "not_reproduced", "the interval excludes the claimed value"
    return "inconclusive", "the interval holds both the claimed value and none of it"


def read_claims(run_folder: Path | None, claims: Sequence[Claim] | None = None) -> list[Reading]:
    """What a run folder says to every claim; None stands for no run.

    Raises:
        ValueError: a table or record of the run folder that cannot be read.
    """
    claims = load_ledger()[0] if claims is None else claims
    first = {claim.id: _read(claim, run_folder) for claim in claims}
    readings = []
    for claim in claims:
        reading = first[claim.id]
        measured = [one for one in claim.counterparts if first[one].found is not None]
        if reading.status == "not_attempted" and measured:
            scales = ", ".join(dict.fromkeys(first[one].claim.scale for one in measured))
            why = f"only {', '.join(measured)} at scale {scales}: {claim.why}"
            reading = Reading(claim, "not_comparable", why)
        readings.append(reading)
    return readings


def scale_of(summary: Mapping[str, Any]) -> str:
    """Scale of a run's figures."""
    return SCALES.get(str(summary.get("profile", "")), "custom")


def _read(claim: Claim, folder: Path | None) -> Reading:
    if claim.evidence is None:
        return Reading(claim, "not_attempted", claim.why)
    if folder is None:
        return Reading(claim, "not_attempted", "no run was given")
    summary = records.read_summary(folder)
    figure = _figure(claim.evidence, folder, summary)
    if figure is None:
        return Reading(claim, "not_attempted", f"this run has not measured it ({claim.source} does)")
    found, units, place = figure
    scale = scale_of(summary)
    if scale != claim.scale:
        return Reading(
            claim, "not_comparable", f"measured at scale {scale}, claimed at scale {claim.scale}", evidence=place
        )
    if summary.get("overrides"):
        changed = ", ".join(summary["overrides"])
        return Reading(claim, "not_comparable", f"run with changed settings: {changed}", evidence=place)
    status, why = judge(claim, found)
    return Reading(claim, status, why, found, f"{scale}, {units}", place)


def _figure(evidence: Evidence, folder: Path, summary: Mapping[str, Any]) -> tuple[Interval, str, str] | None:
    """(figure, units, place), or None where the run has none."""
    if evidence.summary:
        one = _at(summary, evidence.summary)
        nothing: Interval = {"mean": 0.0, "low": 0.0, "high": 0.0}
        two = _at(summary, evidence.minus) if evidence.minus else nothing
        if one is None or two is None:
            return None
        units = f"{len(summary.get('seeds', []))} seeds" if "seeds" in summary else "units not said"
        place = f"summary.json: {evidence.summary}" + (f" − {evidence.minus}" if evidence.minus else "")
        return _minus(one, two), units, place
    table = next(iter(sorted(folder.rglob(evidence.file))), None)
    if table is None:
        return None
    values = _by_unit(evidence, table)
    if not values:
        return None
    units = f"{len(values)} {evidence.unit}s"
    return records.interval(values), units, table.relative_to(folder).as_posix()


def _at(summary: Mapping[str, Any], path: str) -> Interval | None:
    found: Any = summary
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping) or found.get("mean") is None:
        return None
    return {key: None if found.get(key) is None else float(found[key]) for key in ("mean", "low", "high")}


def _minus(one: Interval, two: Interval) -> Interval:
    ends = (one["low"], one["high"], two["low"], two["high"])
    mean = (one["mean"] or 0.0) - (two["mean"] or 0.0)
    low, high, other_low, other_high = ends
    if low is None or high is None or other_low is None or other_high is None:
        return {"mean": mean, "low": None, "high": None}
    return {"mean": mean, "low": low - other_high, "high": high - other_low}


def _by_unit(evidence: Evidence, table: Path) -> list[float]:
    """Of against `against` for every unit that has both."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if all(row.get(name) == str(value) for name, value in (evidence.where or {}).items())
        ]
    pairs: dict[str, list[float | None]] = {}
    for row in rows:
        pair = pairs.setdefault(row.get(evidence.unit, ""), [None, None])
        for side, name in enumerate((evidence.of, evidence.against)):
            if evidence.column and row.get(evidence.column) != name:
                continue
            text = row.get(evidence.value if evidence.column else name)
            if text not in (None, ""):
                try:
                    pair[side] = float(text)
                except ValueError as error:
                    raise ValueError(f"{table.name}: {text!r} under {name!r} is no number") from error
    values = []
    for one, two in pairs.values():
        if one is None or two is None or (evidence.form == "ratio" and two == 0):
            continue
        values.append(one / two - 1 if evidence.form == "ratio" else one - two)
    return values


# ------------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Setting:
    """A row of the second table."""

    kind: str
    """The settings class."""
    name: str
    paper: str
    """What the papers say; "unknown" and "none" as in the ledger."""
    default: str
    embedded: str
    """What the embedded profile sets in its place; empty where it leaves the default."""
    why: str
    """The field's own documentation: what it is, its unit, its source."""


def settings_rows() -> list[Setting]:
    """Every field of every settings class of the package, read from the source, so that none can be left out.

    Raises:
        ValueError: a field without a row in the ledger, or a row without a field.
    """
    said = load_ledger()[1]
    classes = dict(_settings_classes())
    embedded = _profile_values("embedded", classes)
    rows, missing = [], []
    for kind, fields in classes.items():
        known = said.get(kind, {})
        for name, (default, doc) in fields.items():
            paper = known.get(name, known.get("*"))
            if paper is None:
                missing.append(f"{kind}.{name}")
                continue
            rows.append(Setting(kind, name, str(paper), default, embedded.get((kind, name), ""), doc))
    idle = [
        f"{kind}.{name}" for kind, names in said.items() for name in names if name not in {*classes.get(kind, {}), "*"}
    ]
    idle += [kind for kind in said if kind not in classes]
    if missing or idle:
        raise ValueError(
            f"claims.yaml: {', '.join(missing) or 'no field'} has no row under `settings`, and "
            f"{', '.join(idle) or 'no row'} has no field; say there what the papers say, unknown, or none"
        )
    return rows


def _settings_classes() -> Iterator[tuple[str, dict[str, tuple[str, str]]]]:
    """(class, field → (default, documentation)) of every dataclass named …Settings, and of a profile's own."""
    package = Path(__file__).resolve().parents[1]
    for path in sorted(package.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef) or not (node.name.endswith("Settings") or node.name in _OTHERS):
                continue
            fields = dict(_fields(node)) if any("dataclass" in ast.unparse(one) for one in node.decorator_list) else {}
            if fields:
                yield node.name, fields


_OTHERS = ("Profile", "AblationForm")


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, tuple[str, str]]]:
    for position, one in enumerate(node.body):
        if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
            continue
        kind = ast.unparse(one.annotation)
        if kind.endswith("Settings") or kind in _OTHERS:  # it has rows of its own
            continue
        after = node.body[position + 1] if position + 1 < len(node.body) else None
        doc = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            doc = " ".join(after.value.value.split())
        default = "must be given" if one.value is None else ast.unparse(one.value)
        if default.startswith("field(default_factory="):
            default = default.removeprefix("field(default_factory=").removesuffix(")") + "()"
        yield one.target.id, (default, doc)


def _profile_values(profile: str, classes: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """(class, field) → value, for what a shipped profile sets; concerns are told by the names of their fields."""
    path = Path(__file__).with_name("profiles") / f"{profile}.yaml"
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = {("Profile", name): str(value) for name, value in values.items() if name in classes["Profile"]}
    kinds = {
        "policy": "PolicySettings",
        "team": "TeamSettings",
        "data": "DataSettings",
        "trainer": "TrainerSettings",
        "objective": "ObjectiveSettings",
        "reward": "RewardSettings",
        "budget": "BudgetSettings",
        "collapse": "CollapseSettings",
        "evaluation": "EvaluationSettings",
    }
    for concern, kind in kinds.items():
        for name, value in (values.get("settings", {}).get(concern) or {}).items():
            if name in classes[kind]:
                found[kind, name] = str(value)
    latent = values.get("latent") or {}
    shared = latent.get("shared") or {}
    others = {
        "SuiteSettings": values.get("suite") or {},
        "LatentStudySettings": latent,
        "LatentTaskSettings": next(iter(latent.get("tasks") or ()), {}),
        "ArmSettings": shared,
        "LatentTeamSettings": shared.get("team") or {},
        "DiffMASSettings": shared.get("training") or {},
    }
    for kind, given in others.items():
        found |= {(kind, name): str(value) for name, value in given.items() if name in classes[kind]}
    return found


# ------------------------------------------------------------------------------------------------------ tables and page


def figure_text(found: Mapping[str, float | None] | None) -> str:
    """`0.91 [0.88, 0.94]`, three digits; empty where there is none."""
    if not found or found.get("mean") is None:
        return ""
    mean, low, high = found["mean"], found["low"], found["high"]
    return f"{mean:.3g}" if low is None or high is None else f"{mean:.3g} [{low:.3g}, {high:.3g}]"


def claims_table(readings: Sequence[Reading]) -> pd.DataFrame:
    """A row per claim: what is claimed, by whom, what this kit found, and the status."""
    import pandas as pd

    return pd.DataFrame([_row(reading) for reading in readings]).set_index("id")


def _row(reading: Reading) -> dict[str, str]:
    claim = reading.claim
    return {
        "id": claim.id,
        "paper": claim.paper,
        "claim": claim.claim,
        "source": claim.source,
        "grade": claim.grade,
        "metric": claim.metric,
        "benchmark": claim.benchmark,
        "n": "unknown" if claim.n is None else str(claim.n),
        "protocol": claim.protocol,
        "claimed": "direction" if claim.value is None else f"{claim.value:g}",
        "tolerance": "" if claim.value is None else f"{claim.tolerance:g}",
        "this kit": figure_text(reading.found),
        "status": reading.status,
        "why": reading.why,
        "scope": reading.scope,
        "evidence": reading.evidence,
    }


def settings_frame() -> pd.DataFrame:
    """`settings_rows` as a table."""
    import pandas as pd

    rows = [
        {"setting": f"{one.kind}.{one.name}", "paper": one.paper, "this kit": _ours(one), "why": one.why}
        for one in settings_rows()
    ]
    return pd.DataFrame(rows).set_index("setting")


def _ours(setting: Setting) -> str:
    return setting.default + (f"; embedded: {setting.embedded}" if setting.embedded else "")


def status_counts(readings: Sequence[Reading]) -> dict[str, dict[Status, int]]:
    """How many claims of each paper have which status."""
    counts: dict[str, dict[Status, int]] = {}
    for reading in readings:
        row = counts.setdefault(reading.claim.paper, dict.fromkeys(get_args(Status), 0))
        row[reading.status] += 1
    return counts


def status_figure(readings: Sequence[Reading]) -> tuple[Figure, str]:
    """Bars of claims by paper and status, with an alt text that holds the same numbers."""
    from agent_gspo_core.kit import plots

    counts = status_counts(readings)
    colours = dict(
        zip(
            get_args(Status),
            (plots.BLUE, plots.SKY, plots.GREEN, plots.VERMILION, plots.ORANGE, plots.PURPLE, "#bbbbbb"),
            strict=True,
        )
    )
    with plots.new_figure(height=1.2 + 0.5 * len(counts)) as (figure, (axes,)):
        papers = list(counts)[::-1]
        left = [0] * len(papers)
        for status, colour in colours.items():
            widths = [counts[paper][status] for paper in papers]
            if not any(widths):
                continue
            bars = axes.barh(papers, widths, left=left, color=colour, edgecolor="white", label=status.replace("_", " "))
            axes.bar_label(bars, labels=[str(width) if width else "" for width in widths], label_type="center")
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set(xlabel="claims")
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside upper left", ncols=4)
    told = "; ".join(
        f"{paper}: " + ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in row.items() if n)
        for paper, row in counts.items()
    )
    return figure, f"Claims by paper and status. {told}."


def claims_page(run_folder: Path | None) -> str:
    """Both tables as Markdown, for data/CLAIMS.md."""
    readings = read_claims(run_folder)
    name = records.relative_to_project(run_folder) if run_folder else "none"
    summary = records.read_summary(run_folder) if run_folder else {}
    lines = [
        "# Claims and settings: the papers and this kit",
        "",
        f"Made by `agent-gspo claims {name} --out data/CLAIMS.md` from the ledger "
        "([claims.yaml](../agent_gspo_core/kit/claims.yaml)) and the records of that run "
        f"(profile `{summary.get('profile', 'none')}`). No status is written by hand; the rules stand in "
        "[claims.py](../agent_gspo_core/kit/claims.py). A figure of a small run is never set against one of a paper.",
        "",
        "Grades: **paper** its own abstract or introduction, **review** a third party's review, **note** independent "
        "notes on it, **gspo** the GSPO paper, **ours** this kit.",
    ]
    columns = ("id", "claim", "source", "grade", "benchmark", "n", "claimed", "tolerance", "this kit", "status", "why")
    for paper in dict.fromkeys(reading.claim.paper for reading in readings):
        rows = [_row(reading) for reading in readings if reading.claim.paper == paper]
        title = "This kit, at its own scale" if paper == "this kit" else paper
        lines += ["", f"## {title}", "", *_markdown(columns, [[row[name] for name in columns] for row in rows])]
    lines += [
        "",
        "## Settings",
        "",
        '"unknown": the paper must have had one, and it is not known. "none": it has no counterpart there.',
    ]
    rows_of: dict[str, list[Setting]] = {}
    for setting in settings_rows():
        rows_of.setdefault(setting.kind, []).append(setting)
    for kind, settings in rows_of.items():
        cells = [[one.name, one.paper, _ours(one), one.why] for one in settings]
        lines += ["", f"### {kind}", "", *_markdown(("setting", "paper", "this kit", "why"), cells)]
    return "\n".join(lines) + "\n"


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def cell(text: str) -> str:
        return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")

    return [
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(map(cell, row)) + " |" for row in rows),
    ]


def print_claims(run_folder: Path | None) -> None:
    """The readings as a table on the screen."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if run_folder is not None and not run_folder.is_dir():
        raise FileNotFoundError(f"run folder {str(run_folder)!r} is not there")
    table = Table(title_justify="left")
    for name in ("id", "claim", "this kit", "status", "why"):
        table.add_column(name)
    for reading in read_claims(run_folder):
        row = _row(reading)
        table.add_row(*(Text(row[name]) for name in ("id", "claim", "this kit", "status", "why")))
    Console(highlight=False).print(table)
