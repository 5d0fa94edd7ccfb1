"""The ledger: a status follows from figures by rules, scales are never mixed, and every setting has its row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_gspo_core.kit import claims, cli, records
from agent_gspo_core.kit.claims import Claim, Evidence
from agent_gspo_core.policy import project_root

RECORDED = project_root() / "data" / "results" / "embedded"
BASE = Claim(
    id="T1",
    paper="this kit",
    claim="x",
    source="notebook 02",
    grade="ours",
    metric="m",
    benchmark="b",
    protocol="p",
    scale="embedded",
    better="higher",
    value=0.5,
    tolerance=0.1,
    evidence=Evidence(summary="headline.x"),
)


def figure(mean: float | None, low: float | None = None, high: float | None = None) -> records.Interval:
    return {"mean": mean, "low": low, "high": high}


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (figure(0.5, 0.3, 0.7), "reproduced"),
        (figure(0.41, 0.2, 0.6), "reproduced"),
        (figure(0.7, 0.65, 0.75), "reproduced_better"),
        (figure(0.7, 0.55, 0.85), "reproduced"),
        (figure(0.3, 0.2, 0.35), "direction_only"),
        (figure(0.3, 0.1, 0.5), "direction_only"),
        (figure(0.1, -0.1, 0.3), "not_reproduced"),
        (figure(-0.3, -0.4, -0.2), "not_reproduced"),
        (figure(0.2, -0.1, 0.5), "inconclusive"),
        (figure(0.5, -0.1, 1.1), "inconclusive"),
        (figure(0.5), "inconclusive"),
        (figure(None), "not_attempted"),
    ],
)
def test_a_status_follows_from_value_tolerance_reference_and_interval(found: records.Interval, status: str) -> None:
    assert claims.judge(BASE, found)[0] == status
    turned = replace(BASE, better="lower", value=-0.5)
    mirrored = {
        "mean": None if found["mean"] is None else -found["mean"],
        "low": None if found["high"] is None else -found["high"],
        "high": None if found["low"] is None else -found["low"],
    }
    assert claims.judge(turned, mirrored)[0] == status


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (figure(0.2, 0.1, 0.3), "direction_only"),
        (figure(0.2, -0.1, 0.5), "inconclusive"),
        (figure(-0.2, -0.3, -0.1), "not_reproduced"),
    ],
)
def test_a_claim_without_a_figure_can_only_have_its_direction(found: records.Interval, status: str) -> None:
    assert claims.judge(replace(BASE, value=None), found)[0] == status


def test_without_a_reference_a_wide_interval_reproduces_nothing() -> None:
    claim = replace(BASE, reference=None)
    assert claims.judge(claim, figure(0.5, 0.45, 0.55))[0] == "reproduced"
    assert claims.judge(claim, figure(0.5, 0.0, 1.0))[0] == "inconclusive"
    assert claims.judge(claim, figure(0.2, 0.1, 0.3))[0] == "not_reproduced"


def run(folder: Path, profile: str = "embedded", **more: Any) -> Path:
    summary = {"profile": profile, "seeds": [0, 1], "overrides": {}, "headline": {"x": figure(0.5, 0.4, 0.6)}}
    records.write_json(folder / "summary.json", summary | more)
    return folder


def test_a_small_run_is_never_set_against_a_paper(tmp_path: Path) -> None:
    paper = replace(BASE, id="P", scale="paper", paper="Agent-GSPO")
    for profile in ("smoke", "embedded", "cpu-llm", "gpu", "mine.yaml"):
        (reading,) = claims.read_claims(run(tmp_path, profile), [paper])
        assert reading.status == "not_comparable"
        assert reading.found is None
    (reading,) = claims.read_claims(run(tmp_path, "smoke"), [BASE])
    assert (reading.status, reading.found) == ("not_comparable", None)
    (reading,) = claims.read_claims(run(tmp_path), [BASE])
    assert reading.status == "reproduced"
    (reading,) = claims.read_claims(run(tmp_path, overrides={"trainer.steps": 3}), [BASE])
    assert reading.status == "not_comparable"
    assert "trainer.steps" in reading.why


def test_a_counterpart_makes_a_paper_claim_not_comparable_and_no_more(tmp_path: Path) -> None:
    paper = replace(BASE, id="P", scale="paper", evidence=None, why="no GPU", counterparts=("T1",))
    status = {one.claim.id: one for one in claims.read_claims(run(tmp_path), [paper, BASE])}
    assert status["P"].status == "not_comparable"
    assert "only T1 at scale embedded" in status["P"].why
    status = {one.claim.id: one for one in claims.read_claims(run(tmp_path, headline={}), [paper, BASE])}
    assert (status["P"].status, status["P"].why) == ("not_attempted", "no GPU")
    assert status["T1"].why == "this run has not measured it (notebook 02 does)"
    assert {one.status for one in claims.read_claims(None, [paper, BASE])} == {"not_attempted"}


def test_figures_come_paired_by_unit_from_tables_anywhere_in_the_run(tmp_path: Path) -> None:
    folder = run(tmp_path)
    table = folder / "deep" / "arms.csv"
    table.parent.mkdir()
    table.write_text("arm,seed,tokens\nfull,0,10\nfull,1,20\nfull,2,\nfree,1,40\nfree,0,40\nfree,3,99\n")
    arms = Evidence(file="arms.csv", column="arm", of="full", against="free", value="tokens")
    claim = replace(BASE, evidence=arms, better="lower", value=None)
    (reading,) = claims.read_claims(folder, [claim])
    assert reading.found is not None
    assert reading.found["mean"] == pytest.approx(-25)
    assert reading.scope == "embedded, 2 seeds"
    (reading,) = claims.read_claims(folder, [replace(claim, evidence=replace(arms, form="ratio"))])
    assert reading.found is not None
    assert reading.found["mean"] == pytest.approx((10 / 40 + 20 / 40) / 2 - 1)
    table.write_text("arm,seed,tokens\nfull,0,ten\nfree,0,1\n")
    with pytest.raises(ValueError, match="'ten' under 'full' is no number"):
        claims.read_claims(folder, [claim])


def test_the_difference_of_two_separate_intervals_is_as_wide_as_both_allow(tmp_path: Path) -> None:
    accuracy = {"a": figure(0.6, 0.5, 0.7), "b": figure(0.3, 0.2, 0.4), "c": figure(0.3)}
    folder = run(tmp_path, diffmas={"accuracy": accuracy})
    evidence = Evidence(summary="diffmas.accuracy.a", minus="diffmas.accuracy.b")
    (reading,) = claims.read_claims(folder, [replace(BASE, value=None, evidence=evidence)])
    assert reading.found == pytest.approx({"mean": 0.3, "low": 0.1, "high": 0.5})
    for other, status in (("c", "inconclusive"), ("d", "not_attempted")):
        changed = replace(evidence, minus=f"diffmas.accuracy.{other}")
        (reading,) = claims.read_claims(folder, [replace(BASE, value=None, evidence=changed)])
        assert reading.status == status


def test_the_ledger_loads_with_distinct_ids_sources_and_grades() -> None:
    found, _ = claims.load_ledger()
    assert {"Agent-GSPO", "DiffMAS", "this kit"} <= {claim.paper for claim in found}
    for claim in found:
        assert claim.source
        assert (claim.grade == "ours") == (claim.paper == "this kit")
        assert (claim.scale == "paper") == (claim.paper != "this kit")
        assert claim.evidence is None or claim.tolerance >= 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grade": "rumour"}, "grade 'rumour'"),
        ({"better": "more"}, "better 'more'"),
        ({"nonsense": 1}, "nonsense"),
        ({"why": ""}, "say why in `why`"),
        ({"tolerance": -0.1}, "is a distance"),
        ({"counterparts": ["Q9"]}, "counterpart Q9"),
    ],
)
def test_a_faulty_ledger_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    entry = {
        **{name: "x" for name in ("id", "paper", "claim", "source", "metric", "benchmark", "protocol", "why")},
        "grade": "paper",
        "scale": "paper",
        "better": "higher",
    }
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({"claims": [entry | change], "settings": {}}))
    with pytest.raises(ValueError, match=message):
        claims.load_ledger(path)


def test_every_setting_has_a_row_with_what_the_papers_say() -> None:
    rows = claims.settings_rows()
    named = {f"{row.kind}.{row.name}": row for row in rows}
    assert len(named) == len(rows)
    assert named["ObjectiveSettings.epsilon_low"].paper.endswith("3e-4")
    assert named["ObjectiveSettings.epsilon_low"].default == "0.0003"
    assert named["ObjectiveSettings.epsilon_low"].embedded
    assert named["RewardSettings.lambda_token"].paper.startswith("unknown")
    assert all(row.paper and row.default for row in rows)


def test_a_setting_without_a_row_and_a_row_without_a_setting_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = claims.load_ledger()
    said["TrainerSettings"]["step_count"] = said["TrainerSettings"].pop("steps")
    monkeypatch.setattr(claims, "load_ledger", lambda: (found, said))
    with pytest.raises(ValueError, match=r"TrainerSettings\.steps has no row .* TrainerSettings\.step_count has no"):
        claims.settings_rows()


def test_the_page_is_what_the_recorded_run_gives() -> None:
    page = project_root() / "data" / "CLAIMS.md"
    remedy = "run `agent-gspo claims data/results/embedded --out data/CLAIMS.md`"
    assert page.read_text(encoding="utf-8") == claims.claims_page(RECORDED), remedy


def test_the_figure_counts_what_the_table_holds() -> None:
    readings = claims.read_claims(RECORDED)
    assert sum(sum(row.values()) for row in claims.status_counts(readings).values()) == len(readings)
    table = claims.claims_table(readings)
    assert list(table.index) == [reading.claim.id for reading in readings]
    _, alt = claims.status_figure(readings)
    assert "DiffMAS: " in alt


def test_the_command_prints_or_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["claims", str(RECORDED)]) == 0
    assert "K1" in capsys.readouterr().out
    assert cli.main(["claims", str(RECORDED), "--out", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text().startswith("# Claims and settings")
    assert cli.main(["claims", str(tmp_path / "absent")]) == 2
