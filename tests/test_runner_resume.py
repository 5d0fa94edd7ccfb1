"""Resuming keeps exactly what rests on nothing that changed. Notebooks here import nothing heavy: a kernel each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import agent_gspo_core
from agent_gspo_core.kit import cli, execution, keys, records, runner
from agent_gspo_core.kit.sources import Contract, read_contract

PARAMETERS = 'profile: str = ""\nrun_folder: str = ""'


def notebook(*cells: str, markdown: str = "# Title", contract: dict[str, Any] | None = None) -> nbformat.NotebookNode:
    first = new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
    metadata: dict[str, Any] = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    if contract is not None:
        metadata["agent_gspo"] = contract
    code = [new_code_cell(cell) for cell in ("(profile, run_folder)", *cells)]
    return new_notebook(cells=[new_markdown_cell(markdown), first, *code], metadata=metadata)


def leaves(name: str) -> str:
    """A cell that notes each of its runs and leaves a file."""
    return textwrap.dedent(f"""
        import os
        with open("ran.txt", "a") as file:
            file.write("{name}\\n")
        with open(os.path.join(run_folder, "{name}.txt"), "w") as file:
            file.write("{name}")
    """)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(records, "project_root", lambda: tmp_path)
    (tmp_path / "tiny.yaml").write_text("description: tests\nseeds: [0]\ntimeout_minutes: 5\n")
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "data" / "tiny_policy").mkdir(parents=True)
    (tmp_path / "data" / "tiny_policy" / "weights").write_text("one")
    return tmp_path


def write(root: Path, name: str, *cells: str, **options: Any) -> Path:
    path = root / "notebooks" / f"{name}.ipynb"
    nbformat.write(notebook(*cells, **options), path)
    return path


def fake_run(root: Path, name: str, outcome: str = "ok", **record: Any) -> Path:
    """A run folder as a finished (or broken-off) run of one notebook leaves it, without a kernel."""
    folder = root / "runs" / "20260101T000000Z-tiny"
    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text(name)
    (folder / "notebooks" / f"{name}.ipynb").write_text("{}")
    parameters = {"profile": "tiny.yaml", "run_folder": records.relative_to_project(folder)}
    source = nbformat.read(root / "notebooks" / f"{name}.ipynb", as_version=4)
    settings = runner._resolved(runner_profile(root), [0])
    key = keys.notebook_key(source, parameters, settings, data=keys.data_digests(settings, root), upstream={})
    found = execution.NotebookOutcome(
        name=name,
        outcome=outcome,  # type: ignore[arg-type]
        seconds=1.0,
        executed=f"notebooks/{name}.ipynb",
        parameters=parameters,
        key=key,
        outputs={f"{name}.txt": keys.file_digest(folder / f"{name}.txt")} if outcome == "ok" else {},
        summary_keys=("headline",),
    )
    from dataclasses import asdict

    records.write_json(folder / "notebooks" / f"{name}.json", asdict(found) | record)
    whole = {"profile": "tiny.yaml", "seeds": [0], "backend": "transformers", "overrides": {}}
    records.merge_summary(folder, **whole, notebooks={name: outcome}, headline={"x": 1})
    return folder


def runner_profile(root: Path) -> Any:
    from agent_gspo_core.kit.settings import load_profile

    return load_profile(root / "tiny.yaml")


def plan(root: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    runner.reproduce(str(root / "tiny.yaml"), resume=True, dry_run=True, **options)
    return capsys.readouterr().out


def test_what_has_not_changed_is_kept_and_a_changed_markdown_cell_is_no_change(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, "01_a", leaves("a"))
    fake_run(root, "01_a")
    assert "01_a  kept" in plan(root, capsys)
    write(root, "01_a", leaves("a"), markdown="# Another title, many more words")
    assert "01_a  kept" in plan(root, capsys)


def test_every_thing_that_a_result_rests_on_is_noticed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(root, "01_a", leaves("a"))
    folder = fake_run(root, "01_a")
    write(root, "01_a", leaves("a"), "1 + 1")
    assert "would run: notebook changed: code cells" in plan(root, capsys)
    write(root, "01_a", leaves("a"))
    (root / "data" / "tiny_policy" / "weights").write_text("two")
    assert "would run: data changed: data/tiny_policy/weights" in plan(root, capsys)
    (root / "data" / "tiny_policy" / "weights").write_text("one")
    (root / "tiny.yaml").write_text(
        "description: other words\nseeds: [0]\ntimeout_minutes: 7\nsettings: {trainer: {steps: 3}}\n"
    )
    assert "would run: settings changed: profile" in plan(root, capsys)
    (root / "tiny.yaml").write_text("description: other words\nseeds: [0]\ntimeout_minutes: 7\n")
    assert "01_a  kept" in plan(root, capsys)
    (folder / "01_a.txt").write_text("tampered with")
    assert "would run: 01_a.txt is not what it left" in plan(root, capsys)
    (folder / "01_a.txt").unlink()
    assert "would run: 01_a.txt is gone" in plan(root, capsys)


@pytest.mark.parametrize("outcome", ["timeout", "interrupted", "unfinished", "cell_error"])
def test_only_what_ended_well_is_kept(outcome: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(root, "01_a", leaves("a"))
    fake_run(root, "01_a", outcome)
    assert "would run: it " in plan(root, capsys)


def test_a_changed_core_module_reruns_what_reaches_it_and_nothing_else(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "01_a", "from agent_gspo_core import group_advantages")
    write(root, "02_b", "import math")
    fake_run(root, "01_a")
    fake_run(root, "02_b")
    real = keys.file_digest
    monkeypatch.setattr(keys, "file_digest", lambda path: "other" if path.name == "objective.py" else real(path))
    told = plan(root, capsys)
    assert "01_a  would run: modules changed: agent_gspo_core.objective" in told
    assert "02_b  kept" in told


def test_lazy_imports_public_names_and_child_programs_are_reached() -> None:
    reached = keys.module_digests(
        notebook("from agent_gspo_core.kit import experiment\nfrom agent_gspo_core import Team")
    )
    assert {"agent_gspo_core.kit.experiment", "agent_gspo_core.trainer", "agent_gspo_core.objective"} <= set(reached)
    assert {"agent_gspo_core.rollout", "agent_gspo_core.statistics", "agent_gspo_core"} <= set(reached)
    assert "agent_gspo_core.kit.runner" not in reached
    assert keys.module_digests(notebook("import numpy")) == {}
    everything = keys.module_digests(notebook("import agent_gspo_core as gspo"))
    assert {f"agent_gspo_core.{module}" for module in agent_gspo_core._PUBLIC} <= set(everything)
    beside = keys.module_digests(notebook("from agent_gspo_core.kit import claims"))
    assert "agent_gspo_core.kit/claims.yaml" in beside


def test_what_was_made_under_another_key_is_removed_before_it_runs_again(root: Path) -> None:
    write(root, "01_a", leaves("a"))
    folder = fake_run(root, "01_a")
    write(root, "02_b", leaves("b"))
    fake_run(root, "02_b", "unfinished")
    (folder / "training").mkdir()
    (folder / "training" / "checkpoint").write_text("half")
    declared, contract = runner._declared(root / "notebooks" / "01_a.ipynb")
    steps = [runner._Step(root / "notebooks" / f"{name}.ipynb", declared, contract, {}) for name in ("01_a", "02_b")]
    same = {step.name: execution.read_outcome(folder, step.name).key for step in steps}  # type: ignore[union-attr]

    runner._clear_stale(folder, steps, lambda step: same[step.name])
    assert (folder / "training" / "checkpoint").is_file()  # broken off under the same key: it goes on from there
    runner._clear_stale(folder, steps, lambda step: {**same[step.name], "versions": {"torch": "other"}})
    assert not (folder / "training").exists()
    assert not (folder / "01_a.txt").exists()
    assert "headline" not in records.read_summary(folder)


def test_a_resumed_run_must_be_the_same_run_and_alone(root: Path) -> None:
    write(root, "01_a", leaves("a"))
    with pytest.raises(ValueError, match="there is no run of profile"):
        runner.reproduce(str(root / "tiny.yaml"), resume=True)
    folder = fake_run(root, "01_a")
    records.merge_summary(folder, seeds=[5])
    with pytest.raises(ValueError, match=r"belongs to a run with seeds \[5\], not \[0\]"):
        runner.reproduce(str(root / "tiny.yaml"), resume=True)
    records.merge_summary(folder, seeds=[0])
    with runner._alone_in(folder), pytest.raises(ValueError, match="is in use by another run"):
        runner.reproduce(str(root / "tiny.yaml"), resume=True)


def test_a_dry_run_touches_nothing_and_foresees_refusals(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(root, "01_a", leaves("a"))
    nbformat.write(new_notebook(cells=[new_code_cell("1")]), root / "notebooks" / "02_untagged.ipynb")
    write(root, "03_late", contract={"inputs": ["a.txt"], "after": ["01"]})
    report = runner.reproduce(str(root / "tiny.yaml"), dry_run=True)
    told = capsys.readouterr().out
    assert "01_a  would run: it has not run here" in told
    assert "02_untagged  would be refused, bad_parameters: no cell is tagged" in told
    assert "03_late  would run" in told
    assert report.exit_code == 1
    assert not (root / "runs").exists()


def test_from_runs_a_notebook_and_what_follows(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("01_a", "02_b", "03_c"):
        write(root, name)
    runner.reproduce(str(root / "tiny.yaml"), start="2", dry_run=True)
    told = capsys.readouterr().out
    assert "02_b  would run" in told
    assert "03_c  would run" in told
    assert "01_a" not in told
    with pytest.raises(ValueError, match="both --only and --from"):
        runner.reproduce(str(root / "tiny.yaml"), start="2", notebooks=["3"], dry_run=True)
    with pytest.raises(ValueError, match="jobs is 0"):
        runner.reproduce(str(root / "tiny.yaml"), jobs=0, dry_run=True)


def test_the_plan_is_the_same_from_the_root_and_from_the_notebooks_folder(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "01_a", leaves("a"))
    fake_run(root, "01_a")
    told = []
    for place, profile in ((root, "tiny.yaml"), (root / "notebooks", "../tiny.yaml")):
        monkeypatch.chdir(place)
        assert cli.main(["reproduce", "--profile", str(Path(profile).resolve()), "--resume", "--dry-run"]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert "01_a  kept" in told[0]


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        ({"needs": ["x"]}, "may hold lists after, inputs, outputs"),
        ({"inputs": "x"}, r"agent_gspo\.inputs is 'x'; give a list"),
        ({"outputs": ["../x"]}, "lie in it"),
        ({"outputs": ["/x"]}, "lie in it"),
    ],
)
def test_a_contract_that_cannot_be_kept_is_refused(contract: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_contract(notebook(contract=contract))


def test_followers_are_told_by_number_stem_or_all() -> None:
    assert Contract(after=("*",)).follows("06_report", "02_b")
    assert not Contract(after=("*",)).follows("06_report", "07_c")
    assert Contract(after=("02",)).follows("06_report", "02_b")
    assert not Contract(after=("02",)).follows("06_report", "03_c")
    assert not Contract().follows("06_report", "02_b")


def test_cores_are_dealt_out_and_none_is_left_without() -> None:
    assert runner._shares(1) == [[]]
    if hasattr(os, "sched_getaffinity"):
        shares = runner._shares(3)
        assert len(shares) == 3
        assert all(shares)
        assert {core for share in shares for core in share} == os.sched_getaffinity(0)


def test_time_left_is_told_from_the_last_run_or_from_the_cells() -> None:
    assert runner._state(30, 2, 10, 90) == "0:30, 2 of 10 cells, about 1:00 left"
    assert runner._state(100, 9, 10, 90) == "1:40, 9 of 10 cells, last time it took 1:30"
    assert runner._state(30, 2, 10, None) == "0:30, 2 of 10 cells, 2:00 left if cells were alike"
    assert runner._state(3, 0, 10, None) == "0:03, 0 of 10 cells"


@pytest.mark.slow
def test_a_runner_killed_on_the_way_starts_again_with_only_what_is_missing(root: Path) -> None:
    """SIGKILL while the second of three notebooks runs; then again, to its end; then a changed notebook."""
    write(root, "01_a", leaves("a"))
    slow = "import os, time\nif not os.path.exists('go'):\n    open('waiting', 'w').close()\n    time.sleep(600)"
    write(root, "02_b", slow, leaves("b"))
    write(root, "03_c", leaves("c"), contract={"after": ["*"], "inputs": ["a.txt", "b.txt"], "outputs": ["c.txt"]})
    code = (
        "import sys; from pathlib import Path; from agent_gspo_core.kit import cli, records\n"
        "records.project_root = lambda: Path.cwd()\n"
        "sys.exit(cli.main(['reproduce', '--profile', 'tiny.yaml', *sys.argv[1:]]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(runner.__file__).resolve().parents[2])}

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True)

    first = start()
    end = time.monotonic() + 600
    while not (root / "waiting").exists():
        assert time.monotonic() < end
        assert first.poll() is None
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    (folder,) = [path for path in (root / "runs").iterdir() if not path.is_symlink()]
    assert records.read_summary(folder)["notebooks"] == {"01_a": "ok", "02_b": "unfinished", "03_c": "unfinished"}
    (root / "go").touch()

    again = start("--resume")
    told, _ = again.communicate()
    assert again.returncode == 0, told
    assert "01_a  kept" in told
    assert (root / "ran.txt").read_text().split() == ["a", "b", "c"]
    assert set(records.read_summary(folder)["notebooks"].values()) == {"ok"}
    assert records.read_json(folder / "provenance.json")["earlier"]

    write(root, "02_b", slow, leaves("b"), "'another cell'")
    third = start("--resume")
    told, _ = third.communicate()
    assert third.returncode == 0, told
    assert (root / "ran.txt").read_text().split() == ["a", "b", "c", "b"]  # its file came out the same, so c is kept
    assert "03_c  kept" in told


def test_files_of_a_broken_off_try_count_as_those_of_the_try_that_goes_on_from_them(root: Path) -> None:
    write(root, "01_a", leaves("a"))
    folder = fake_run(root, "01_a", "unfinished")
    write(root, "02_b", leaves("b"))
    fake_run(root, "02_b")
    (folder / "training").mkdir()
    (folder / "training" / "checkpoint").write_text("half")
    left = execution._left_before(folder, execution.read_outcome(folder, "01_a"))
    assert set(left) == {"01_a.txt", "training/checkpoint"}
    assert execution._left_before(folder, None) == {}
