"""The runner against notebooks that end in every way a notebook can end, all in one run with two side by side."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from rich.console import Console

from agent_gspo_core.kit import cli, execution, records, runner, sources

READ = "(profile, run_folder)"
PARAMETERS = 'profile = "embedded"\nrun_folder = None'
PLANTED = "hunter2-hunter2"


def write_notebook(
    path: Path,
    *cells: str,
    parameters: str | None = PARAMETERS,
    contract: dict[str, list[str]] | None = None,
    **kernel: str,
) -> Path:
    """A notebook with a parameters cell (None: without its tag) and the given code cells."""
    first = new_code_cell(parameters or READ, metadata={"tags": ["parameters"]} if parameters else {})
    metadata: dict[str, Any] = {"kernelspec": {"name": "python3", "display_name": "Python 3", **kernel}}
    if contract is not None:
        metadata["agent_gspo"] = contract
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=[first, *map(new_code_cell, cells)], metadata=metadata), path)
    return path


def load(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def gone(pid: int, within: float = 5.0) -> bool:
    """Whether a process has ended (a zombie that nobody waits for counts as ended)."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


# --------------------------------------------------------------------------------------- one run over hostile notebooks

OK = f"""{READ}
import os, subprocess
assert profile == "tiny.yaml" and seeds == [0, 1] and overrides == {{"trainer.steps": 3}}
assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE" and os.environ["OMP_NUM_THREADS"]
"""
FIGURE = """
import matplotlib.pyplot as plt
plt.plot([0, 1])
"""
ALT_FIGURE = """
from agent_gspo_core.kit import plots, records
figure = plots.lines([0, 1], {"a": [0, 1]}, xlabel="x", ylabel="y")
plots.display_figure(figure, records.Path(run_folder) / "figures" / "line.png", 'A "line" & more.');
"""
THREAD = """
import threading
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
"""
NAN = """
from agent_gspo_core.kit import records
records.write_json(records.Path(run_folder) / "12_nan.json", {"loss": float("nan")})
"""
FLOOD = """
for _ in range(120):
    print("x" * 100_000)
"""
SECRET = """
import os, sys
print("the token is", os.environ["PLANTED_TOKEN"])
print("another is hf_" + "A" * 34, "and home is", os.path.expanduser("~/x"), file=sys.stderr)
open(os.path.join(run_folder, "15_note.txt"), "w").write("left")
{"shown": os.environ["PLANTED_TOKEN"]}
"""
LEFT_BEHIND = """
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
open("child.pid", "w").write(str(child.pid))
records.merge_summary(run_folder, headline={"accuracy_after": {"mean": 0.9, "low": None, "high": None}})
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("project").resolve()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "project_root", lambda: folder)
        patch.setenv("MPLBACKEND", "Agg")
        yield folder


@pytest.fixture(scope="module")
def run(root: Path) -> runner.RunReport:
    notebooks = root / "notebooks"
    declared = 'profile = "embedded"\nrun_folder = None\nseeds: list[int] | None = None\noverrides = dict()'
    use = "(seeds, overrides)"
    write_notebook(notebooks / "01_ok.ipynb", OK, FIGURE, ALT_FIGURE, LEFT_BEHIND, parameters=declared)
    write_notebook(notebooks / "02_cell_error.ipynb", READ, "1 / 0", "print('never')")
    write_notebook(notebooks / "03_sys_exit.ipynb", READ, "import sys; print('before'); sys.exit(0)", "print('never')")
    write_notebook(notebooks / "04_killed.ipynb", READ, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", use)
    write_notebook(notebooks / "05_undeclared.ipynb", READ, parameters='profile = "x"')
    write_notebook(notebooks / "06_untagged.ipynb", READ, parameters=None)
    (notebooks / "07_torn.ipynb").write_text('{"cells": [')
    write_notebook(notebooks / "08_thread.ipynb", READ, THREAD, "print('went on')")
    write_notebook(notebooks / "09_command.ipynb", READ, "!exit 3")
    write_notebook(notebooks / "10_quit.ipynb", READ, "quit()", "print('never')")
    write_notebook(notebooks / "11_wrong_type.ipynb", READ, "seeds", parameters=f"{PARAMETERS}\nseeds: str = ''")
    write_notebook(notebooks / "12_nan.ipynb", READ, NAN)
    write_notebook(notebooks / "13_no_kernel.ipynb", READ, name="ir")
    write_notebook(notebooks / "14_flood.ipynb", READ, FLOOD, "print('after the flood')")
    write_notebook(notebooks / "15_secret.ipynb", READ, SECRET)
    write_notebook(notebooks / "16_no_output.ipynb", READ, contract={"outputs": ["16_promised.json"]})
    write_notebook(notebooks / "17_no_input.ipynb", READ, contract={"inputs": ["16_promised.json"], "after": ["16"]})
    write_notebook(notebooks / "scratch.ipynb", "1 / 0")
    (root / "tiny.yaml").write_text("description: tests\nseeds: [0, 1]\ntimeout_minutes: 5\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANTED_TOKEN", PLANTED)
        return runner.reproduce(str(root / "tiny.yaml"), overrides={"trainer.steps": 3}, jobs=2)


ENDINGS = {
    "01_ok": "ok",
    "02_cell_error": "cell_error",
    "03_sys_exit": "early_exit",
    "04_killed": "kernel_died",
    "05_undeclared": "bad_parameters",
    "06_untagged": "bad_parameters",
    "07_torn": "bad_notebook",
    "08_thread": "cell_error",
    "09_command": "cell_error",
    "10_quit": "early_exit",
    "11_wrong_type": "bad_parameters",
    "12_nan": "cell_error",
    "13_no_kernel": "no_kernel",
    "14_flood": "ok",
    "15_secret": "ok",
    "16_no_output": "missing_output",
    "17_no_input": "missing_input",
}


def test_every_notebook_runs_and_every_ending_is_told_apart(run: runner.RunReport, root: Path) -> None:
    assert run.run_folder.parent == root / "runs"
    assert run.run_folder.name.endswith("-tiny")
    assert {o.name: o.outcome for o in run.outcomes} == ENDINGS, [o.message for o in run.outcomes]
    assert run.exit_code == 1
    summary = json.loads((root / "runs" / "latest" / "summary.json").read_text())
    assert summary["notebooks"] == ENDINGS
    assert {key: summary[key] for key in ("profile", "seeds", "backend", "overrides")} == {
        "profile": "tiny.yaml",
        "seeds": [0, 1],
        "backend": "transformers",
        "overrides": {"trainer.steps": 3},
    }
    assert summary["headline"]["accuracy_after"]["mean"] == 0.9
    assert records.read_json(run.run_folder / "provenance.json")["packages"]["papermill"]


@pytest.mark.parametrize("name", ENDINGS)
def test_executed_copy_log_and_outcome_are_kept_for_every_ending(name: str, run: runner.RunReport) -> None:
    folder = run.run_folder / "notebooks"
    assert (folder / f"{name}.ipynb").is_file()
    assert (folder / f"{name}.log").is_file()
    record = records.read_json(folder / f"{name}.json")
    assert record["outcome"] == ENDINGS[name]
    assert record["executed"] == f"notebooks/{name}.ipynb"
    assert bool(record["message"]) == (ENDINGS[name] != "ok")
    if name == "07_torn":
        assert not record["html"]
        assert "No HTML copy" in (folder / f"{name}.log").read_text()
    else:
        assert (run.run_folder / record["html"]).is_file()
    if ENDINGS[name] != "ok" and record["html"]:
        assert ENDINGS[name] in load(folder / f"{name}.ipynb").cells[0].source
        assert ENDINGS[name] in (run.run_folder / record["html"]).read_text()


def test_messages_say_what_went_wrong(run: runner.RunReport) -> None:
    said = {o.name: o.message for o in run.outcomes}
    assert said["02_cell_error"] == "in [4]: ZeroDivisionError: division by zero"
    assert "code cell 4 of 5 left by SystemExit" in said["03_sys_exit"]
    assert "kernel died" in said["04_killed"]
    assert "parameter 'run_folder' is not declared; declared are profile" in said["05_undeclared"]
    assert "no cell is tagged 'parameters'" in said["06_untagged"]
    assert said["08_thread"] == "a thread failed: ZeroDivisionError: division by zero"
    assert "!exit 3 ended with code 3" in said["09_command"]
    assert "parameter 'seeds' is declared as str, but is given [0, 1] (list)" in said["11_wrong_type"]
    assert "12_nan.json.loss is nan" in said["12_nan"]
    assert "it asks for the kernel 'ir'" in said["13_no_kernel"]
    assert "16_promised.json, which it promises, is not there" in said["16_no_output"]
    assert "16_promised.json is not in the run folder (it follows 16)" in said["17_no_input"]


def test_a_flood_of_output_is_cut_and_what_follows_is_kept(run: runner.RunReport) -> None:
    copy = run.run_folder / "notebooks" / "14_flood.ipynb"
    assert copy.stat().st_size < 2 * execution.OUTPUT_LIMIT
    text = copy.read_text()
    assert "characters of output: the rest of this cell's is left out" in text
    assert "after the flood" in text
    assert "after the flood" in (run.run_folder / "notebooks" / "14_flood.log").read_text()


def test_planted_secrets_and_the_home_folder_reach_neither_copies_nor_logs_nor_records(run: runner.RunReport) -> None:
    assert "the token is [secret]" in (run.run_folder / "notebooks" / "15_secret.log").read_text()
    for path in run.run_folder.rglob("*"):
        if path.is_file():
            held = path.read_bytes()
            assert PLANTED.encode() not in held, path
            assert b"hf_AAAA" not in held, path
            assert f"{Path.home()}/x".encode() not in held, path


def test_every_record_tells_what_was_given_left_and_depended_on(run: runner.RunReport) -> None:
    record = records.read_json(run.run_folder / "notebooks" / "15_secret.json")
    assert list(record["outputs"]) == ["15_note.txt"]
    assert record["key"]["notebook"]["code cells"]
    assert record["started"] <= record["ended"]
    assert records.read_json(run.run_folder / "notebooks" / "01_ok.json")["summary_keys"] == ["headline"]
    provenance = records.read_json(run.run_folder / "provenance.json")
    assert provenance["seeds"] == [0, 1]
    assert len(provenance["settings_sha256"]) == 64
    assert provenance["outputs"]["15_note.txt"] == record["outputs"]["15_note.txt"]
    assert provenance["started"] <= provenance["ended"]
    assert {"cpu", "memory_gib", "git", "packages", "threads"} <= provenance.keys()


def test_sources_are_untouched_and_nothing_lies_beside_them(run: runner.RunReport, root: Path) -> None:
    assert sorted(p.name for p in root.iterdir()) == ["child.pid", "notebooks", "runs", "tiny.yaml"]
    for path in (root / "notebooks").glob("[01][1-6]_*.ipynb"):
        assert all(not cell.outputs and cell.execution_count is None for cell in load(path).cells)


def test_figures_and_their_alt_texts_reach_copy_and_html_although_tests_use_agg(run: runner.RunReport) -> None:
    cells = load(run.run_folder / "notebooks" / "01_ok.ipynb").cells
    images = [out for cell in cells for out in cell.get("outputs", []) if "image/png" in out.get("data", {})]
    assert len(images) == 2
    assert images[1].data["text/plain"] == 'A "line" & more.'
    page = (run.run_folder / "notebooks" / "01_ok.html").read_text()
    shown = [html.unescape(tag) for tag in re.findall(r"<img [^>]*>", page)]
    assert len(shown) == 2
    assert 'A "line" & more.' in shown[1]
    assert (run.run_folder / "figures" / "line.png").is_file()


def test_copies_hold_no_absolute_path_and_no_time_stamps_of_cells(run: runner.RunReport, root: Path) -> None:
    for path in (run.run_folder / "notebooks").glob("0[1346]*.ipynb"):
        assert str(root) not in path.read_text()
    assert all("execution" not in c.metadata for c in load(run.run_folder / "notebooks" / "01_ok.ipynb").cells)


def test_a_cell_that_papermill_calls_completed_is_marked_as_not_run(run: runner.RunReport) -> None:
    last = load(run.run_folder / "notebooks" / "04_killed.ipynb").cells[-1]
    assert last.metadata.papermill.status == "not run"


def test_processes_that_a_notebook_leaves_behind_end_with_it(run: runner.RunReport, root: Path) -> None:
    assert gone(int((root / "child.pid").read_text()))


def test_a_run_folder_is_never_mixed_or_overwritten(run: runner.RunReport, root: Path) -> None:
    profile = str(root / "tiny.yaml")
    with pytest.raises(ValueError, match=r"already holds 01_ok \(ok\)"):
        runner.reproduce(profile, notebooks=["1"], run_folder=run.run_folder, overrides={"trainer.steps": 3})
    with pytest.raises(ValueError, match=r"belongs to a run with overrides .*name a new folder"):
        runner.reproduce(profile, notebooks=["2"], run_folder=run.run_folder)


# ---------------------------------------------------------------------------------------------- watchdog and interrupts


def test_the_watchdog_ends_an_endless_loop_and_keeps_the_evidence(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "01_endless.ipynb", READ, "while True: pass")
    start = time.monotonic()
    outcome = execution.run_notebook(
        notebook, {"profile": "p", "run_folder": "r"}, tmp_path / "run", timeout=3, cwd=tmp_path
    )
    assert outcome.outcome == "timeout"
    assert "not finished after 0:03" in outcome.message
    assert time.monotonic() - start < 30
    assert "timeout" in load(tmp_path / "run" / outcome.executed).cells[0].source
    assert (tmp_path / "run" / outcome.html).is_file()


def test_an_interrupt_is_recorded_and_ends_the_worker(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "01_long.ipynb", READ, "while True: pass")
    workers: list[int] = []
    others = {child.pid for child in psutil.Process().children()}  # earlier tests leave multiprocessing's tracker

    def interrupt(seconds: float, done: int, cells: int) -> None:
        workers.extend(child.pid for child in psutil.Process().children() if child.pid not in others)
        raise KeyboardInterrupt

    outcome = execution.run_notebook(
        notebook, {"profile": "p", "run_folder": "r"}, tmp_path / "run", timeout=60, cwd=tmp_path, progress=interrupt
    )
    assert outcome.outcome == "interrupted"
    assert workers
    assert all(gone(pid) for pid in workers)
    assert runner.RunReport(tmp_path, (outcome,), {}).exit_code == 130


def test_sigterm_counts_as_an_interrupt() -> None:
    with runner._sigterm_interrupts(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_worker_ends_when_the_runner_is_gone(tmp_path: Path) -> None:
    records.write_json(tmp_path / "scratch" / "job.json", {"notebook": "x", "result": "y", "cores": []})
    environment = {**os.environ, execution.MARKER: uuid.uuid4().hex}
    code = "from pathlib import Path; import time; from agent_gspo_core.kit import execution\n"
    code += "execution._papermill = lambda job: time.sleep(60); execution._work(Path('scratch/job.json'))"
    environment["PYTHONPATH"] = str(Path(execution.__file__).resolve().parents[2])
    worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, cwd=tmp_path, env=environment)
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(timeout=30) == execution.ORPHANED
    assert list(tmp_path.iterdir()) == []


def test_processes_are_found_across_sessions_and_others_are_left_alone(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    marker = uuid.uuid4().hex
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, execution.MARKER: one}
        )
        for one in (marker, "another")
    ]
    grandchildren = [int(process.stdout.readline()) for process in both]  # type: ignore[union-attr]
    try:
        execution._end_processes(marker)
        assert both[0].wait(timeout=5) == -signal.SIGKILL
        assert gone(grandchildren[0])
        assert both[1].poll() is None
        assert not gone(grandchildren[1], within=0.1)
    finally:
        for process in both:
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
        if psutil.pid_exists(grandchildren[1]):
            os.kill(grandchildren[1], signal.SIGKILL)


def test_a_killed_worker_counts_as_a_dead_kernel(tmp_path: Path) -> None:
    outcome, message = execution._judge(-signal.SIGKILL, tmp_path, tmp_path / "x.ipynb")
    assert outcome == "kernel_died"
    assert "SIGKILL" in message


def test_a_foreign_kernel_is_refused_before_anything_starts(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "01_r.ipynb", READ, name="ir", language="R")
    outcome = execution.run_notebook(notebook, {}, tmp_path / "run", timeout=60, cwd=tmp_path)
    assert outcome.outcome == "no_kernel"
    assert "'ir' (R)" in outcome.message


# ----------------------------------------------------------------------------------------------------------- parameters


def notebook_of(parameters: str, *cells: str) -> nbformat.NotebookNode:
    tagged = new_code_cell(parameters, metadata={"tags": ["parameters"]})
    return new_notebook(cells=[tagged, *map(new_code_cell, cells)])


def test_declared_parameters_are_read_from_the_syntax_tree() -> None:
    source = 'x: list[str] | None = None  # y = 3\nopts = dict(a=1)\nshape = [i for i in (1, 2)]\n"""z = 4"""'
    assert sources.declared_parameters(notebook_of(source)) == ("x", "opts", "shape")


@pytest.mark.parametrize(
    ("notebook", "message"),
    [
        (notebook_of("x = "), "is no Python"),
        (notebook_of("x = 1\ny = x + 1"), "computes something from 'x'"),
        (notebook_of("y = 1", "y"), "parameter 'x' is not declared; declared are y"),
        (notebook_of("x = 1", "x = 2", "# x"), "no later cell reads it"),
        (
            new_notebook(cells=[*notebook_of("x = 1").cells, *notebook_of("x = 2", "x").cells]),
            "2 cells are tagged",
        ),
    ],
)
def test_parameters_that_would_change_nothing_are_refused(notebook: nbformat.NotebookNode, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sources.check_parameters(notebook, {"x": 5})


def test_a_parameter_read_beside_a_magic_or_in_an_f_string_counts_as_read() -> None:
    sources.check_parameters(notebook_of("x = 1", "%matplotlib inline\nprint(f'{x}')"), {"x": 5})


def test_parameters_that_are_no_json_are_refused_before_the_run(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "01_a.ipynb", READ)
    with pytest.raises(ValueError, match=r"parameters\.x is nan"):
        execution.run_notebook(notebook, {"x": float("nan")}, tmp_path / "run", timeout=1, cwd=tmp_path)


def test_notebooks_are_found_by_number_stem_name_or_path(tmp_path: Path) -> None:
    folder = tmp_path / "notebooks"
    one, two = (write_notebook(folder / f"0{i}_{name}.ipynb") for i, name in ((1, "a"), (2, "b")))
    write_notebook(folder / "draft.ipynb")
    other = write_notebook(tmp_path / "elsewhere" / "09_c.ipynb")
    assert sources.find_notebooks(folder) == [one, two]
    for name in ("2", "02", "02_b", "02_b.ipynb"):
        assert sources.find_notebooks(folder, [name]) == [two]
    assert sources.find_notebooks(folder, [str(other), "2", "1", "2"]) == [one, two, other.resolve()]
    with pytest.raises(ValueError, match=r"'3' is none of them \(01_a, 02_b\)"):
        sources.find_notebooks(folder, ["3"])
    with pytest.raises(ValueError, match="holds none"):
        sources.find_notebooks(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"overrides": {"trainer.stepz": 3}}, "unknown setting 'stepz'"),
        ({"overrides": {"trainer.steps": "many"}}, "expected int, got 'many'"),
        ({"overrides": {"trainer.learning_rate": float("inf")}}, r"overrides\.trainer\.learning_rate is inf"),
        ({"backend": "jax"}, "'jax' is not one of"),
        ({"seeds": [1, 1]}, "distinct whole numbers"),
        ({"seeds": []}, "distinct whole numbers"),
        ({"notebooks": ["99"]}, "'99' is none of them"),
        ({"notebooks": ["2"], "seeds": [3]}, "seeds: no chosen notebook takes it"),
    ],
)
def test_bad_requests_are_refused_before_a_run_folder_is_made(
    arguments: dict[str, Any], message: str, run: runner.RunReport, root: Path
) -> None:
    before = sorted((root / "runs").iterdir())
    with pytest.raises(ValueError, match=message):
        runner.reproduce(str(root / "tiny.yaml"), **arguments)
    assert sorted((root / "runs").iterdir()) == before


# ----------------------------------------------------------------------------------------------------------- the screen


def printed(report: runner.RunReport) -> str:
    console = Console(file=StringIO(), width=80, highlight=False, soft_wrap=True)
    runner.print_report(report, console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_headline_is_shown_with_intervals_and_changes(root: Path) -> None:
    def three(mean: float, half: float) -> dict[str, float]:
        return {"mean": mean, "low": mean - half, "high": mean + half}

    headline = {
        "accuracy_before": three(0.72, 0.029),
        "accuracy_after": three(0.89, 0.02),
        "tokens_before": three(188.31, 20.0),
        "tokens_after": three(40.0, 3.0),
        "communication_efficiency_after": three(0.85, 0.02),
        "silence_right_after": {"mean": 0.93, "low": None, "high": None},
    }
    (root / "shown" / "figures").mkdir(parents=True)
    (root / "shown" / "figures" / "a.png").touch()
    text = printed(runner.RunReport(root / "shown", (), {"headline": headline, "seeds": [0, 1, 2]}))
    assert "mean of 3 seeds [95 % interval]" in text
    for piece in (
        "72.0 [69.1, 74.9]",
        "89.0 [87.0, 91.0]",
        "+17.0 points",
        "188.3 [168.3, 208.3]",
        "-79 %",
        "0.85 [0.83",
    ):
        assert piece in text
    assert "shown/figures/a.png" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_missing_or_partial_headline_is_said_and_not_an_error(root: Path) -> None:
    assert "No headline" in printed(runner.RunReport(root, (), {}))
    partial = {"headline": {"accuracy_after": {"mean": 0.9, "low": None, "high": None}}, "seeds": [0]}
    text = printed(runner.RunReport(root, (), partial))
    assert text.count("not measured") == 5
    assert "one seed, so no interval" in text


# ----------------------------------------------------------------------------------------------------- the command line


def test_help_answers_without_loading_torch() -> None:
    code = (
        "import sys\nfrom agent_gspo_core.kit import cli\n"
        "try: cli.main(['--help'])\nexcept SystemExit: pass\n"
        "assert not {'torch', 'matplotlib', 'papermill', 'scipy'} & sys.modules.keys(), sorted(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "reproduce" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "nope"], "profile 'nope' not found"),
        (["--profile", "tiny.yaml", "--set", "trainer.steps"], "expected name=value"),
        (["--profile", "tiny.yaml", "--set", "trainer.steps=3", "trainer.steps=4"], "given twice"),
        (["--profile", "tiny.yaml", "--set", "trainer.steps=[3"], "the value is no YAML"),
        (["--profile", "tiny.yaml", "--only", "44"], "'44' is none of them"),
    ],
)
def test_errors_are_one_line_on_stderr_and_exit_code_2(
    arguments: list[str],
    message: str,
    run: runner.RunReport,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(root)
    assert cli.main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("agent-gspo: ")
    assert message in error
    assert error.count("\n") == 1


def test_changes_are_typed_as_yaml_types_them() -> None:
    changes = ["trainer.steps=3", "trainer.learning_rate=1.0e-4", "policy.train=lora", "budget.episode_tokens=null"]
    assert cli.read_changes([*changes, "reward.scale_by_pass_rate=false", "budget.round_tokens=[4, 5]"]) == {
        "trainer.steps": 3,
        "trainer.learning_rate": 1e-4,
        "policy.train": "lora",
        "budget.episode_tokens": None,
        "reward.scale_by_pass_rate": False,
        "budget.round_tokens": [4, 5],
    }


def test_the_command_hands_everything_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def reproduce(profile: str, **options: Any) -> runner.RunReport:
        calls.append((profile, options))
        return runner.RunReport(tmp_path, (), {})

    monkeypatch.setattr(runner, "reproduce", reproduce)
    line = "reproduce --profile smoke --only 01 2 --seeds 0 3 --backend unsloth --set trainer.steps=3 --set data.seed=1"
    line += " --jobs 2 --resume --dry-run"
    assert cli.main([*line.split(), "--run-folder", str(tmp_path / "out")]) == 0
    assert calls == [
        (
            "smoke",
            {
                "notebooks": ["01", "2"],
                "run_folder": tmp_path / "out",
                "seeds": [0, 3],
                "backend": "unsloth",
                "overrides": {"trainer.steps": 3, "data.seed": 1},
                "start": None,
                "jobs": 2,
                "resume": True,
                "dry_run": True,
            },
        )
    ]
    assert cli.main(["reproduce"]) == 0
    assert calls[1][0] == "embedded"
