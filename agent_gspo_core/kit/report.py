"""One page from a run folder: an offline HTML file with its pictures inside, and the same as Markdown.

The page holds no clock of its own: the same records give the same bytes. What a run folder does not hold is said, not
left out.
"""

from __future__ import annotations

import csv
import html
import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_gspo_core.kit import records
from agent_gspo_core.kit.claims import Reading, figure_text, read_claims

# --------------------------------------------------------------------------------------------------------------- blocks


@dataclass(frozen=True)
class Heading:
    """A heading; `level` 1 is the page's title."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Grid:
    """A table: the first column names the row, columns in `right` hold numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    right: Sequence[str] = ()


@dataclass(frozen=True)
class Picture:
    """A figure of the run folder."""

    path: Path
    """Below the run folder."""
    alt: str


Block = Heading | Text | Grid | Picture


def write_report(run_folder: Path, out: Path | None = None) -> tuple[Path, Path]:
    """Write `report.html` and `report.md` from the records of a run folder; returns both paths.

    Args:
        run_folder: what `agent-gspo reproduce` left, or recorded evidence of the same form.
        out: where to write; the run folder itself by default.

    Raises:
        FileNotFoundError: no such folder, or no summary.json in it.
        ValueError: a record that cannot be read.
    """
    if not (run_folder / records.SUMMARY).is_file():
        raise FileNotFoundError(
            f"report: {run_folder} holds no {records.SUMMARY}; name a run folder, e.g. runs/latest after a reproduction"
        )
    run_folder = run_folder.resolve()  # runs/latest is a link
    out = run_folder if out is None else out
    blocks = report_blocks(run_folder)
    page = records.write_text(out / "report.html", to_html(blocks, run_folder))
    here = Path(os.path.relpath(run_folder, out.resolve()))  # a page elsewhere links its pictures by the way from there
    return page, records.write_text(out / "report.md", to_markdown(blocks, here))


def report_blocks(folder: Path) -> list[Block]:
    """What the page says, in order."""
    summary = records.read_summary(folder)
    readings = read_claims(folder)
    profile = summary.get("profile", "not said")
    blocks: list[Block] = [
        Heading(f"Reproduction report: profile {profile}", 1),
        Text(_verdict(summary)),
        Text(
            "Every figure is this kit's own, at the scale that the profile says. Figures of a smoke or embedded run "
            "are never set against those of a paper."
        ),
        Heading("Headline"),
        *_headline(summary),
    ]
    for title, part in (
        ("Evaluation", _evaluation(summary.get("evaluation"))),
        ("Ablation", _ablation(summary.get("ablation"), folder)),
        ("DiffMAS", _diffmas(summary.get("diffmas"))),
    ):
        blocks += [Heading(title), *(part or [Text("Not part of this run.")])]
    blocks += [Heading("Figures"), *_pictures(folder)]
    blocks += [Heading("Claims"), *_claims(readings)]
    blocks += [Heading("What was not attempted"), *_not_attempted(readings)]
    blocks += [Heading("Notebooks"), *_notebooks(summary, folder)]
    blocks += [Heading("Run card"), *_card(summary, folder)]
    return blocks


def _verdict(summary: Mapping[str, Any]) -> str:
    ends = summary.get("notebooks", {})
    bad = [f"{name} ({end})" for name, end in ends.items() if end != "ok"]
    seeds = summary.get("seeds", [])
    over = f"{len(seeds)} seeds" if len(seeds) != 1 else "one seed"
    if not ends:
        return f"No notebook is recorded; {over}."
    told = "all ended well" if not bad else f"not well: {', '.join(bad)}"
    return f"{len(ends)} notebooks, {told}; {over}."


# ------------------------------------------------------------------------------------------------------------ the parts


def _value(value: object, scale: float = 1.0, digits: int = 1) -> str:
    """`12.3 [11.0, 13.6]` from an interval or a number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value * scale:.{digits}f}"
    mean, low, high = (value.get(key) if isinstance(value, Mapping) else None for key in ("mean", "low", "high"))
    if mean is None:
        return "not measured"
    text = f"{mean * scale:.{digits}f}"
    return text if low is None or high is None else f"{text} [{low * scale:.{digits}f}, {high * scale:.{digits}f}]"


_UNITS = {
    "accuracy": ("accuracy, %", 100.0, 1),
    "tokens": ("tokens per episode", 1.0, 1),
    "communication_efficiency": ("communication efficiency", 1.0, 2),
    "silence_right": ("silence right, %", 100.0, 1),
}


def _headline(summary: Mapping[str, Any]) -> list[Block]:
    headline = summary.get("headline") or {}
    names = dict.fromkeys(key.rsplit("_", 1)[0] for key in headline if key.endswith(("_before", "_after")))
    if not names:
        return [Text("No headline: the notebook that trains (02) has recorded none in this run.")]
    rows = []
    for name in names:
        title, scale, digits = _UNITS.get(name, (name.replace("_", " "), 1.0, 3))
        rows.append([title, *(_value(headline.get(f"{name}_{when}"), scale, digits) for when in ("before", "after"))])
    seeds = summary.get("seeds", [])
    unit = (
        f"mean over {len(seeds)} seeds [95 % interval of Student's t]" if len(seeds) != 1 else "one seed: no interval"
    )
    return [Grid(("quantity", "before training", "after training"), rows, unit, ("before training", "after training"))]


def _evaluation(part: object) -> list[Block]:
    if not isinstance(part, Mapping):
        return []
    rows = [
        [
            str(benchmark),
            str(arm),
            _value(scores.get("accuracy"), 100),
            _value(scores.get("tokens")),
            str(scores.get("items", "")),
        ]
        for benchmark, arms in part.items()
        if isinstance(arms, Mapping)
        for arm, scores in arms.items()
        if isinstance(scores, Mapping)
    ]
    columns = ("benchmark", "method", "accuracy, %", "tokens", "items")
    return [Grid(columns, rows, "accuracy [95 % interval] and mean completion tokens of an answer", columns[2:])]


def _ablation(part: object, folder: Path) -> list[Block]:
    arms = part.get("arms") if isinstance(part, Mapping) else None
    if not isinstance(arms, Mapping):
        return []
    rows = [
        [str(name), _value(scores.get("accuracy"), 100), _value(scores.get("tokens"))]
        for name, scores in arms.items()
        if isinstance(scores, Mapping)
    ]
    columns = ("arm", "accuracy, %", "tokens per episode")
    blocks: list[Block] = [Grid(columns, rows, "mean over seeds [95 % interval]", columns[1:])]
    table = next(iter(sorted(folder.rglob("differences.csv"))), None)
    if table is not None:
        with table.open(encoding="utf-8", newline="") as file:
            told = [[row.get("arm", ""), row.get("asks", ""), row.get("shows", "")] for row in csv.DictReader(file)]
        blocks.append(Grid(("arm", "what it asks", "what it shows"), told, "against the full arm, paired by seed"))
    return blocks


def _diffmas(part: object) -> list[Block]:
    accuracy = part.get("accuracy") if isinstance(part, Mapping) else None
    if not isinstance(accuracy, Mapping):
        return []
    rows = [[str(name), _value(value, 100)] for name, value in accuracy.items()]
    columns = ("arm", "accuracy, %")
    return [Grid(columns, rows, "mean over seeds [95 % interval]", columns[1:])]


def _pictures(folder: Path) -> list[Block]:
    from agent_gspo_core.kit.plots import read_alt

    # A page never shows another page's pictures: only those that the run's own notebooks drew.
    found = sorted(path for path in folder.rglob("*.png") if "notebooks" not in path.relative_to(folder).parts)
    if not found:
        return [Text("This run folder holds no figures.")]
    return [Picture(path.relative_to(folder), read_alt(path) or f"Figure {path.stem}; no alt text") for path in found]


def _claims(readings: Sequence[Reading]) -> list[Block]:
    rows = [
        [
            one.claim.id,
            one.claim.paper,
            one.claim.claim,
            "direction" if one.claim.value is None else f"{one.claim.value:g} ± {one.claim.tolerance:g}",
            figure_text(one.found),
            one.status.replace("_", " "),
            one.why,
        ]
        for one in readings
        if one.status != "not_attempted"
    ]
    if not rows:
        return [Text("Nothing in this run is set against a claim.")]
    columns = ("id", "paper", "claim", "claimed", "this run", "status", "why")
    return [Grid(columns, rows, "status computed by fixed rules; tolerances were declared before the run")]


def _not_attempted(readings: Sequence[Reading]) -> list[Block]:
    rows = [
        [one.claim.id, one.claim.paper, one.claim.claim, one.claim.benchmark, one.why]
        for one in readings
        if one.status == "not_attempted"
    ]
    if not rows:
        return [Text("Every claim of the ledger was attempted.")]
    return [Grid(("id", "paper", "claim", "benchmark", "why"), rows)]


def _notebooks(summary: Mapping[str, Any], folder: Path) -> list[Block]:
    rows = []
    for name, end in sorted(summary.get("notebooks", {}).items()):
        path = folder / "notebooks" / f"{name}.json"
        record = records.read_json(path) if path.is_file() else {}
        seconds = record.get("seconds")
        rows.append(
            [
                name,
                str(end).replace("_", " "),
                "" if seconds is None else f"{seconds:.0f}",
                str(record.get("message", "")),
                str(record.get("html") or record.get("log") or ""),
            ]
        )
    if not rows:
        return [Text("No notebook is recorded.")]
    columns = ("notebook", "outcome", "seconds", "message", "executed copy")
    return [Grid(columns, rows, right=("seconds",))]


def _card(summary: Mapping[str, Any], folder: Path) -> list[Block]:
    place = folder / "provenance.json"
    if not place.is_file():
        return [Text("This run folder holds no provenance.")]
    card = records.read_json(place)
    git = card.get("git") or {}
    commit = f"{git.get('commit')}" + (" with changes" if git.get("dirty") else "") if git else "not a checkout"
    packages = ", ".join(f"{name} {version}" for name, version in (card.get("packages") or {}).items())
    threads = ", ".join(f"{name} {number}" for name, number in (card.get("threads") or {}).items())
    overrides = ", ".join(f"{name} = {value}" for name, value in (summary.get("overrides") or {}).items())
    rows = [
        ["profile", str(summary.get("profile", ""))],
        ["seeds", ", ".join(map(str, summary.get("seeds", [])))],
        ["changed settings", overrides or "none"],
        ["settings (SHA-256)", str(card.get("settings_sha256", "not recorded"))],
        ["commit", commit],
        ["started", str(card.get("started", ""))],
        ["ended", str(card.get("ended", "not recorded"))],
        ["taken up again", f"{len(card['earlier'])} times" if card.get("earlier") else "no"],
        ["python", str(card.get("python", ""))],
        ["packages", packages],
        ["platform", f"{card.get('platform', '')}, {card.get('machine', '')}"],
        ["processor", f"{card.get('cpu', 'not recorded')}, {card.get('cpu_count', '?')} cores used"],
        ["memory, GiB", str(card.get("memory_gib", "not recorded"))],
        ["accelerator", str(card.get("accelerator") or "none")],
        ["threads", threads or "not set"],
    ]
    blocks: list[Block] = [Grid(("what", "value"), rows)]
    for title, key in (("inputs", "inputs"), ("outputs", "outputs")):
        files = card.get(key) or {}
        if files:
            blocks.append(Grid((f"{title[:-1]} file", "SHA-256"), [[name, sha] for name, sha in sorted(files.items())]))
    return blocks


# ------------------------------------------------------------------------------------------------------------ two forms

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 68rem; margin: 0 auto;
  padding: 1.5rem; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin-top: 2.2rem;
  border-bottom: 1px solid #ccc; }
nav ul { padding: 0; display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; list-style: none; }
a { color: #0057a3; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0 1rem; font-size: .92rem; }
caption { text-align: left; color: #555; padding-bottom: .3rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #e0e0e0; text-align: left; vertical-align: top;
  overflow-wrap: break-word; }
thead th { border-bottom: 2px solid #888; white-space: nowrap; } tbody th { font-weight: 600; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0 1.6rem; } img { max-width: 100%; height: auto; } figcaption { color: #555; font-size: .92rem; }
@media print { body { padding: 0; max-width: none; } h2 { break-after: avoid; } figure, tr { break-inside: avoid; }
  nav { display: none; } }
"""


def to_html(blocks: Sequence[Block], folder: Path) -> str:
    """The page as one file that needs nothing else: style and pictures are inside."""
    title = next(block.text for block in blocks if isinstance(block, Heading) and block.level == 1)
    sections = [block.text for block in blocks if isinstance(block, Heading) and block.level == 2]
    links = "".join(f'<li><a href="#{_anchor(text)}">{html.escape(text)}</a></li>' for text in sections)
    body: list[str] = []
    for block in blocks:
        body.append(_html_block(block, folder))
        if isinstance(block, Heading) and block.level == 1:
            body.append(f'<nav aria-label="Sections"><ul>{links}</ul></nav>')
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _anchor(text: str) -> str:
    return text.lower().replace(" ", "-")


def _html_block(block: Block, folder: Path) -> str:
    if isinstance(block, Heading):
        anchor = "" if block.level == 1 else f' id="{_anchor(block.text)}"'
        return f"<h{block.level}{anchor}>{html.escape(block.text)}</h{block.level}>"
    if isinstance(block, Text):
        return f"<p>{html.escape(block.text)}</p>"
    if isinstance(block, Picture):
        png = b64encode((folder / block.path).read_bytes()).decode("ascii")
        alt = html.escape(block.alt, quote=True)
        return (
            f'<figure><img src="data:image/png;base64,{png}" alt="{alt}">'
            f"<figcaption>{html.escape(block.path.name)}: {html.escape(block.alt)}</figcaption></figure>"
        )
    kind = {name: ' class="number"' for name in block.right}
    head = "".join(f'<th scope="col"{kind.get(name, "")}>{html.escape(name)}</th>' for name in block.columns)
    lines = []
    for row in block.rows:
        first, *rest = row
        cells = f'<th scope="row">{html.escape(first)}</th>'
        cells += "".join(
            f"<td{kind.get(name, '')}>{html.escape(cell)}</td>"
            for name, cell in zip(block.columns[1:], rest, strict=True)
        )
        lines.append(f"<tr>{cells}</tr>")
    caption = f"<caption>{html.escape(block.caption)}</caption>" if block.caption else ""
    return (
        f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )


def to_markdown(blocks: Sequence[Block], pictures: Path) -> str:
    """The same as Markdown; pictures are linked below `pictures`."""
    parts = []
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"{'#' * block.level} {_plain(block.text)}")
        elif isinstance(block, Text):
            parts.append(_plain(block.text))
        elif isinstance(block, Picture):
            alt = _plain(block.alt).replace("[", "\\[").replace("]", "\\]")
            parts.append(f"![{alt}](<{(pictures / block.path).as_posix()}>)")
        else:
            rule = "|" + "".join("---:|" if name in block.right else "---|" for name in block.columns)
            lines = [
                "| " + " | ".join(map(_plain, block.columns)) + " |",
                rule,
                *("| " + " | ".join(map(_plain, row)) + " |" for row in block.rows),
            ]
            parts.append((f"{_plain(block.caption)}:\n\n" if block.caption else "") + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
