"""The report: one page that needs nothing else, the same bytes for the same records, and nothing missing in silence."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from agent_gspo_core.kit import cli, plots, records, report
from agent_gspo_core.policy import project_root

RECORDED = project_root() / "data" / "results" / "embedded"


class Page(HTMLParser):
    """Collects what a page asks for and whether its tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.alts: list[str | None] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "img":
            self.alts.append(given.get("alt"))
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def interval(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with every part, hostile words in it and one notebook that failed."""
    place = tmp_path / "run"
    headline = {f"accuracy_{when}": interval(0.5) for when in ("before", "after")}
    summary: dict[str, Any] = {
        "profile": "embedded",
        "seeds": [0, 1],
        "overrides": {},
        "notebooks": {"01_a": "ok", "02_b": "cell_error"},
        "headline": headline,
        "evaluation": {"gsm8k": {"<b>single|x": {"accuracy": interval(0.3), "tokens": 12.5, "items": 100}}},
        "ablation": {"arms": {"full": {"accuracy": interval(0.6), "tokens": interval(20)}}},
        "diffmas": {"accuracy": {"diffmas": interval(0.7), "zeroed": interval(0.1)}},
    }
    records.write_json(place / "summary.json", summary)
    records.write_json(
        place / "notebooks" / "02_b.json", {"seconds": 3.4, "message": "in [2]: <script>alert(1)</script>"}
    )
    records.write_json(place / "provenance.json", records.provenance(seeds=[0, 1], inputs={"data/x": "ab" * 32}))
    plots.save_figure(
        plots.lines([0, 1], {"a": [0, 1]}, xlabel="x", ylabel="y"), place / "figures" / "01.png", 'A "line".'
    )
    return place


def test_the_page_needs_nothing_else_and_is_well_formed(folder: Path) -> None:
    text = report.write_report(folder)[0].read_text()
    page = Page(text)
    assert page.open == []
    assert all(source.startswith(("data:", "#")) for source in page.sources)
    assert {source[1:] for source in page.sources if source.startswith("#")} <= set(page.ids)
    assert page.alts == ['A "line".']
    assert not re.search(r"<script|@import|url\(|https?://[^ ]*\.(?:js|css)", text)
    assert "<script>alert(1)</script>" in page.text
    for part in ("Evaluation", "Ablation", "DiffMAS", "Claims", "What was not attempted", "Run card"):
        assert part in page.text
    assert "50.0 [40.0, 60.0]" in page.text
    assert "not well: 02_b (cell_error)" in page.text


def test_the_same_records_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    first = [path.read_bytes() for path in report.write_report(folder, tmp_path / "one")]
    report.write_report(folder)  # its own page must not change the next one
    second = [path.read_bytes() for path in report.write_report(folder, tmp_path / "two")]
    assert first == second


def test_markdown_tables_hold_together_and_pictures_are_linked(folder: Path, tmp_path: Path) -> None:
    text = report.write_report(folder, tmp_path / "elsewhere")[1].read_text()
    (picture,) = re.findall(r"!\[[^\n]*\]\(<([^>]+)>\)", text)
    assert (tmp_path / "elsewhere" / picture).is_file()
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block
    assert "&lt;b>single\\|x" in text


@pytest.mark.parametrize("summary", [{}, {"profile": "smoke", "seeds": [0]}, {"headline": {}, "diffmas": {}}])
def test_a_run_with_little_in_it_says_what_is_missing(summary: dict[str, Any], tmp_path: Path) -> None:
    records.write_json(tmp_path / "summary.json", summary)
    text = report.write_report(tmp_path)[1].read_text()
    assert "No headline" in text
    assert text.count("Not part of this run.") == 3
    assert "holds no figures" in text
    assert "holds no provenance" in text
    assert "Nothing in this run is set against a claim." in text


def test_the_recorded_run_makes_a_report(tmp_path: Path) -> None:
    page, text = report.write_report(RECORDED, tmp_path)
    assert Page(page.read_text()).open == []
    assert "K1" in text.read_text()


def test_a_folder_without_a_summary_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "holds no summary.json" in capsys.readouterr().err
    records.write_json(tmp_path / "summary.json", {})
    assert cli.main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").is_file()


def test_every_link_of_the_reproducibility_page_resolves() -> None:
    root = project_root()
    text = (root / "REPRODUCIBILITY.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert len(links) > 20
    assert [link for link in links if not (root / link).exists()] == []
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| item")]
    assert all("](" in line or "–" in line for line in rows if not line.startswith(("| badge", "|---")))
