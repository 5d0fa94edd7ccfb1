from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_gspo_core.kit import records


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(records, "project_root", lambda: tmp_path)
    return tmp_path


# --------------------------------------------------------------------------------------------------------------- places


def test_new_run_folder_lies_under_runs_and_latest_points_at_it(root: Path) -> None:
    first = records.new_run_folder("embedded")
    second = records.new_run_folder("embedded")  # most likely within the same second
    assert first != second
    assert re.fullmatch(r"\d{8}T\d{6}Z-embedded(-\d+)?", second.name)
    assert (root / "runs" / "latest").resolve() == second.resolve()
    assert os.readlink(root / "runs" / "latest") == second.name  # relative, so that the checkout can be moved
    assert [path.name for path in (root / "runs").iterdir() if path.name.startswith(".")] == []


def test_run_folder_of_a_profile_file_is_named_after_its_stem(root: Path) -> None:
    assert records.new_run_folder("some/where/mine.yaml").name.endswith("-mine")
    with pytest.raises(ValueError, match="cannot be part of a folder's name"):
        records.new_run_folder("../escape")


def test_a_real_folder_called_latest_is_never_replaced(root: Path) -> None:
    (root / "runs" / "latest").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="is not a link"):
        records.new_run_folder("smoke")


def test_open_run_folder_counts_from_the_project_root_and_not_from_the_working_folder(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert records.open_run_folder("runs/mine", "smoke") == root / "runs" / "mine"
    assert (root / "runs" / "latest").resolve() == (root / "runs" / "mine").resolve()
    assert records.relative_to_project(root / "runs" / "mine") == "runs/mine"
    assert records.open_run_folder(None, "smoke").parent == root / "runs"
    assert records.open_run_folder("", "smoke").parent == root / "runs", "a notebook's default is an empty text"
    outside = tmp_path_factory.mktemp("outside") / "run"
    assert records.open_run_folder(outside, "smoke") == outside
    assert not (outside.parent / "latest").exists()


def test_a_file_is_no_run_folder(root: Path) -> None:
    (root / "note").write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        records.open_run_folder("note", "smoke")


# -------------------------------------------------------------------------------------------------------------- records


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({"a": {"b": [1.0, math.nan]}}, r"x\.json\.a\.b\[1\] is nan"),
        ({"a": math.inf}, r"x\.json\.a is inf"),
        ([{"a": -math.inf}], r"x\.json\[0\]\.a is -inf"),
        ({"a": np.float64(1.0)}, r"x\.json\.a .*numpy\.float64"),
        ({"a": np.int64(1)}, r"x\.json\.a .*numpy\.int64"),
        ({"a": Path("b")}, r"x\.json\.a .*Path"),
        ({"seeds": {0: 1.0}}, r"x\.json\.seeds: key 0 is int"),
        ({"a": {1, 2}}, r"x\.json\.a .*set"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_key_path_and_the_old_record_stays(
    data: object, place: str, tmp_path: Path
) -> None:
    path = records.write_json(tmp_path / "x.json", {"old": True})
    with pytest.raises(ValueError, match=place):
        records.write_json(path, data)
    assert records.read_json(path) == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_write_that_fails_half_way_leaves_the_old_record_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = records.write_json(tmp_path / "x.json", {"old": True})

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        records.write_json(path, {"new": True})
    assert records.read_json(path) == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@settings(max_examples=50)
@given(data=JSON)
def test_every_json_value_survives_writing_and_reading(data: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "round.json"
    assert records.read_json(records.write_json(path, data)) == data


def test_read_json_names_the_file_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text('{"a": ')
    with pytest.raises(ValueError, match=r"torn\.json is not a JSON record"):
        records.read_json(tmp_path / "torn.json")


def test_a_torn_line_neither_swallows_the_next_record_nor_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    records.append_jsonl(path, {"step": 0, "λ": 0.1})
    records.append_jsonl(path, {"step": 1})
    with open(path, "a") as file:
        file.write('{"step": 2, "acc')
    assert records.read_jsonl(path) == [{"step": 0, "λ": 0.1}, {"step": 1}]
    records.append_jsonl(path, {"step": 2})
    assert path.read_text().splitlines()[-1] == '{"step": 2}'
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 3 is not JSON"):
        records.read_jsonl(path)
    with pytest.raises(ValueError, match=r"metrics\.jsonl\.loss is nan"):
        records.append_jsonl(path, {"loss": math.nan})


def test_merging_never_drops_keys_of_others(tmp_path: Path) -> None:
    records.merge_summary(tmp_path, profile="smoke", later={"part": {"x": 1}}, notebooks={"01": "ok"})
    records.merge_summary(tmp_path, notebooks={"02": "timeout"}, seeds=[0, 1], later={"part": {"y": 2}})
    assert records.merge_summary(tmp_path, seeds=[2]) == records.read_summary(tmp_path)
    assert records.read_summary(tmp_path) == {
        "profile": "smoke",
        "later": {"part": {"x": 1, "y": 2}},
        "notebooks": {"01": "ok", "02": "timeout"},
        "seeds": [2],
    }


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=records.merge_summary, args=(tmp_path,), kwargs={f"key{i}": i}) for i in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert records.read_summary(tmp_path) == {f"key{i}": i for i in range(12)}


# ------------------------------------------------------------------------------------------------------------ intervals


def test_student_interval_of_three_seeds() -> None:
    found = records.interval([1.0, 2.0, 3.0])
    half = 4.302652729911275 / math.sqrt(3)  # t table, 2 degrees of freedom
    assert found["mean"] == 2.0
    assert found["low"] == pytest.approx(2 - half, abs=1e-9)
    assert found["high"] == pytest.approx(2 + half, abs=1e-9)
    assert half == pytest.approx(2.484, abs=5e-4)


def test_one_seed_has_no_interval_and_equal_seeds_a_point() -> None:
    assert records.interval([0.5]) == {"mean": 0.5, "low": None, "high": None}
    assert records.interval([0.5, 0.5]) == {"mean": 0.5, "low": 0.5, "high": 0.5}


def test_interval_of_shares_is_not_clipped() -> None:
    high = records.interval([0.9, 1.0, 0.95])["high"]
    assert high is not None
    assert high > 1


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(8, 10, 0.49016, 0.94332), (0, 10, 0.0, 0.27753), (81, 263, 0.25529, 0.36621), (10, 10, 0.72247, 1.0)],
)
def test_wilson_oracles(successes: int, n: int, low: float, high: float) -> None:
    found = records.wilson(successes, n)
    assert found["mean"] == successes / n
    assert found["low"] == pytest.approx(low, abs=5e-6)
    assert found["high"] == pytest.approx(high, abs=5e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: records.interval([]), "no values"),
        (lambda: records.interval([1.0, math.nan]), "nan among the values"),
        (lambda: records.interval([1.0], confidence=95), "share between 0 and 1"),
        (lambda: records.wilson(3, 2), "3 successes of 2"),
        (lambda: records.wilson(0, 0), "n ≥ 1"),
    ],
)
def test_intervals_refuse_what_they_cannot_serve(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


# ----------------------------------------------------------------------------------------------------------- provenance


def test_provenance_is_json_and_holds_no_place_of_this_machine() -> None:
    record = records.provenance()
    records.check_json(record)
    text = json.dumps(record)
    assert str(Path.home()) + "/" not in text
    assert str(Path(records.__file__).resolve().parents[2]) not in text
    assert record["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"torch", "transformers", "papermill"} <= record["packages"].keys()
    assert record["cpu_count"] >= 1


def test_git_state_tells_commit_and_dirt_and_ignores_a_repository_around_the_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    tmp_path = tmp_path.resolve()
    assert records._git_state(tmp_path) is None
    git("init")
    git("commit", "--allow-empty", "-m", "first")
    state = records._git_state(tmp_path)
    assert state is not None
    assert re.fullmatch(r"[0-9a-f]{40}", str(state["commit"]))
    assert state["dirty"] is False
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_text("x")
    assert records._git_state(tmp_path) == {**state, "dirty": True}
    assert records._git_state(tmp_path / "inner") is None


def test_scrub_takes_home_and_checkout_out_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ann"))
    root = Path(records.__file__).resolve().parents[2]
    assert records.scrub(f"no /home/ann/x and {root}/data") == "no ~/x and ./data"
    assert records.scrub("/home/anna/x") == "/home/anna/x"
