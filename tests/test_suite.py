"""Evaluation runs: what is recorded, what a stop costs, what a second start may change."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fixtures import build_policy

from agent_gspo_core.episode import CodeTests, Problem
from agent_gspo_core.evaluation import evaluate_items
from agent_gspo_core.kit import suite
from agent_gspo_core.kit.suite import SuiteSettings, run_suite
from agent_gspo_core.methods import build_method
from agent_gspo_core.policy import Policy, PolicySettings
from agent_gspo_core.rollout import TeamSettings

TEAM = TeamSettings(agents=3, rounds=1, message_tokens=6, answer_tokens=8)
SMALL = SuiteSettings(
    benchmarks=("hidden_profile/sum", "hidden_profile/choice"),
    methods=("single", "free_for_all"),
    team=TEAM,
    limit=5,
    seeds=(0, 1),
    temperature=1.0,
    batch_problems=2,
)


def load(settings: PolicySettings) -> Policy:
    return build_policy()


def run(settings: SuiteSettings, folder: Path) -> pd.DataFrame:
    return run_suite(settings, folder, report=None, load=load)


def test_every_problem_is_answered_once_by_every_arm_under_every_seed(tmp_path: Path) -> None:
    frame = run(SMALL, tmp_path)
    assert len(frame) == 2 * 2 * 2 * 5
    assert not frame.duplicated(["benchmark", "arm", "seed", "item", "member"]).any()
    assert (frame.groupby(["benchmark", "arm", "seed"])["item"].nunique() == 5).all()
    pd.testing.assert_frame_equal(frame, pd.read_parquet(tmp_path / "items.parquet"))


def test_a_run_broken_off_anywhere_ends_as_one_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(SMALL, tmp_path / "whole")
    batches = 2 * 2 * 2 * 3
    for stop in (0, 1, 7, batches - 1):
        folder = tmp_path / f"stopped-{stop}"
        real, written = suite.write_parquet, []

        def stopping(
            path: Path, frame: pd.DataFrame, stop: int = stop, real: Any = real, n: list[Path] = written
        ) -> None:
            if len(n) == stop:
                raise KeyboardInterrupt
            n.append(path)
            real(path, frame)

        monkeypatch.setattr(suite, "write_parquet", stopping)
        with pytest.raises(KeyboardInterrupt):
            run(SMALL, folder)
        monkeypatch.setattr(suite, "write_parquet", real)
        assert len(list(folder.glob("parts/*/*.parquet"))) == stop
        pd.testing.assert_frame_equal(run(SMALL, folder), whole)
        assert (folder / "items.parquet").read_bytes() == (tmp_path / "whole" / "items.parquet").read_bytes()


def test_a_second_start_answers_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(SMALL, tmp_path)
    monkeypatch.setattr(suite, "evaluate_items", None)
    lines: list[str] = []
    run_suite(SMALL, tmp_path, report=lines.append, load=load)
    assert lines == ["24 of 24 batches are there already"]


def test_a_folder_with_another_plan_is_refused_and_kept(tmp_path: Path) -> None:
    run(SMALL, tmp_path)
    before = (tmp_path / "items.parquet").read_bytes()
    with pytest.raises(ValueError, match=r"begun with other settings \(temperature is 0.5 and was 1.0\)"):
        run(replace(SMALL, temperature=0.5), tmp_path)
    assert (tmp_path / "items.parquet").read_bytes() == before
    run(replace(SMALL, batch_rows=7), tmp_path)  # how much is decoded at once changes no answer


def test_a_batch_that_lost_its_bytes_is_named(tmp_path: Path) -> None:
    run(SMALL, tmp_path)
    part = sorted(tmp_path.glob("parts/*/*.parquet"))[0]
    part.write_bytes(part.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"parts/.*0000.parquet cannot be read .*; remove it"):
        run(SMALL, tmp_path)


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    with suite._alone_in(tmp_path), pytest.raises(ValueError, match="another process is at work"):
        run(SMALL, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"benchmarks": ("gsm9k",)}, "unknown benchmark 'gsm9k'; known are hidden_profile"),
        ({"benchmarks": ("hidden_profile/riddle",)}, "unknown benchmark 'hidden_profile/riddle'"),
        ({"benchmarks": ()}, "benchmarks must be given"),
        ({"methods": ("single", "single")}, "methods must be given and distinct"),
        ({"methods": ("telepathy",)}, "unknown method 'telepathy'"),
        ({"methods": ("single@",)}, "names no folder after the @"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"caps": (None, 2), "methods": ("free_for_all",)}, "a cap of 2 tokens leaves some without any"),
        ({"members": 0}, "members must be at least 1"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)


def test_every_method_runs_under_every_cap_and_keeps_it(tmp_path: Path) -> None:
    frame = run(replace(SMALL, caps=(None, 8), seeds=(0,)), tmp_path)
    assert (frame.groupby(["benchmark", "arm", "cap"], dropna=False).size() == 5).all()
    assert frame.loc[frame["cap"] == 8, "tokens"].max() <= 8
    assert frame.loc[frame["cap"].isna(), "tokens"].max() > 8


def test_an_arm_can_speak_with_a_policy_of_its_own(tmp_path: Path, random_policy_folder: Path) -> None:
    loaded: list[str] = []

    def noting(settings: PolicySettings) -> Policy:
        loaded.append(settings.model)
        return build_policy()

    arm = f"free_for_all@{random_policy_folder}"
    frame = run_suite(replace(SMALL, methods=("free_for_all", arm)), tmp_path, report=None, load=noting)
    assert loaded == ["tiny", str(random_policy_folder)]
    own, other = (frame[frame["arm"] == name].drop(columns="arm") for name in ("free_for_all", arm))
    pd.testing.assert_frame_equal(own.reset_index(drop=True), other.reset_index(drop=True))


def test_batched_answers_are_those_of_one_problem_at_a_time_in_greedy_fp32() -> None:
    policy = build_policy()
    problems = suite.load_benchmark("hidden_profile", replace(SMALL, limit=12), policy)
    method = build_method("free_for_all", TEAM)
    together = evaluate_items(policy, method, problems)
    alone = [evaluate_items(policy, method, [problem])[0] for problem in problems]
    assert together == alone


def test_members_of_a_problem_are_answered_apart() -> None:
    policy = build_policy()
    problems = suite.load_benchmark("hidden_profile", replace(SMALL, limit=3), policy)
    items = evaluate_items(policy, build_method("self_consistency", TEAM), problems, members=4)
    assert [(r.item, r.member) for r in items] == [(p.id, m) for p in problems for m in range(4)]
    assert all(len(json.loads(r.transcript)) == 5 for r in items)
    assert len({r.transcript for r in items}) == len(items)


class TestCode:
    PROBLEM = Problem(
        id="code/0",
        question="def two():",
        answer="def two():\n    return 2",
        kind="code",
        tests=CodeTests(entry_point="two", program="assert two() == 2"),
    )

    def answers(self, monkeypatch: pytest.MonkeyPatch, run_code: Any) -> Any:
        monkeypatch.setattr("agent_gspo_core.evaluation.read_answer", lambda text, problem, **_: "def two(): return 2")
        return evaluate_items(build_policy(), build_method("single", TEAM), [self.PROBLEM], run_code=run_code)

    def test_code_stays_unscored_unless_it_was_asked_to_be_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        record = self.answers(monkeypatch, None)[0]
        assert record.correct is None
        assert record.prediction is not None

    @pytest.mark.parametrize("passed", [True, False])
    def test_a_program_is_run_once_and_its_outcome_recorded(
        self, monkeypatch: pytest.MonkeyPatch, passed: bool
    ) -> None:
        asked: list[Any] = []

        def runner(pairs: Any) -> list[bool]:
            asked.extend(pairs)
            return [passed] * len(pairs)

        record = self.answers(monkeypatch, runner)[0]
        assert (record.correct, record.strict_correct) == (passed, passed)
        assert asked == [("def two(): return 2", self.PROBLEM.tests)]


@pytest.mark.slow
def test_a_killed_run_loses_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]);"
        "from test_suite import SMALL, run; from dataclasses import replace;"
        "run(replace(SMALL, limit=12, batch_problems=1), Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", program]
    here = str(Path(__file__).parent)
    settings = replace(SMALL, limit=12, batch_problems=1)
    for wanted in (1, 30):
        with subprocess.Popen([*command, str(tmp_path / "killed"), here], start_new_session=True) as worker:
            deadline = time.monotonic() + 600
            while worker.poll() is None and time.monotonic() < deadline:
                if len(list((tmp_path / "killed").glob("parts/*/*.parquet"))) >= wanted:
                    os.killpg(worker.pid, signal.SIGKILL)
                    break
                time.sleep(0.01)
        assert worker.returncode == -signal.SIGKILL, "the run ended before it was killed"
    pd.testing.assert_frame_equal(run(settings, tmp_path / "killed"), run(settings, tmp_path / "whole"))
