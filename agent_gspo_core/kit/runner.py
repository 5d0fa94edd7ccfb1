"""Run the notebooks of a profile and say honestly how each of them ended.

papermill executes, but its record is no run status: a killed kernel leaves every cell `completed`, `sys.exit(0)` counts
as success, unknown parameters only warn. So every notebook runs in a process of its own under a watchdog, parameters
are checked before, the executed copy is read afterwards, and an outcome record is written last. Whatever happens, the
executed copy, its HTML and the log are kept.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, get_args

from agent_gspo_core.kit import records

if TYPE_CHECKING:
    from nbformat import NotebookNode
    from rich.console import Console
    from rich.table import Table

Outcome = Literal[
    "ok",
    "cell_error",
    "early_exit",
    "timeout",
    "kernel_died",
    "no_kernel",
    "bad_parameters",
    "bad_notebook",
    "interrupted",
    "unfinished",
]
"""How a notebook ended.

ok: every code cell ran without an error. cell_error: a cell raised. early_exit: a cell left by `sys.exit(0)` or the
like, so that not all cells ran. timeout: the watchdog ended it. kernel_died: the kernel, or the process that drives it,
was killed (often for want of memory). no_kernel: no kernel could be started. bad_parameters: it does not take the
parameters of this run. bad_notebook: it cannot be read. interrupted: Ctrl-C or SIGTERM. unfinished: it was begun and
nothing more is known, or it was never begun.
"""

KERNEL = "agent-gspo"
MARKER = "AGENT_GSPO_RUN_MARKER"
"""Environment variable by which the processes of one notebook are found: kernels leave their parent's group."""

START_TIMEOUT = 120
"""Seconds a kernel may take to start; a busy machine needs more than papermill's 60."""

ORPHANED = 75
"""Exit code of a worker whose runner is gone."""

HEARTBEAT = 60.0
"""Seconds between signs of life where there is no terminal to redraw."""

HEADLINE = (
    "accuracy_before",
    "accuracy_after",
    "tokens_before",
    "tokens_after",
    "communication_efficiency_after",
    "silence_right_after",
)
"""Keys of `summary.json`'s headline, each {"mean", "low", "high"}."""

# ------------------------------------------------------------------------------------------------------------- outcomes


@dataclass(frozen=True)
class NotebookOutcome:
    """How one notebook ended and where its evidence lies; paths count from the run folder."""

    name: str
    outcome: Outcome
    seconds: float
    """Wall time, kernel start included."""
    message: str = ""
    """What went wrong; empty when nothing did."""
    executed: str = ""
    """The executed copy."""
    html: str = ""
    """The copy for a browser; empty where it could not be made."""
    log: str = ""
    """All that the notebook printed, as it came."""
    started: str = ""
    """UTC."""


@dataclass(frozen=True)
class RunReport:
    """What `reproduce` did."""

    run_folder: Path
    outcomes: tuple[NotebookOutcome, ...]
    summary: Mapping[str, Any]
    """`summary.json` as it stands at the end."""

    @property
    def ok(self) -> bool:
        """Whether every notebook ended well."""
        return all(outcome.outcome == "ok" for outcome in self.outcomes)

    @property
    def exit_code(self) -> int:
        """0 when all is well, 130 after an interrupt (as shells have it), else 1."""
        if any(outcome.outcome == "interrupted" for outcome in self.outcomes):
            return 130
        return 0 if self.ok else 1


# ------------------------------------------------------------------------------------------ which notebooks, parameters


def find_notebooks(folder: Path, only: Sequence[str] | None = None) -> list[Path]:
    """Notebooks `NN_name.ipynb` of a folder in order, or those of them that `only` names.

    A name may be a number ("2", "02"), a stem, a file name, or a path to a notebook anywhere.

    Raises:
        ValueError: there are none, a name fits none, or two have the same stem.
    """
    known = sorted(path for path in folder.glob("[0-9][0-9]_*.ipynb"))
    if only is None:
        if not known:
            raise ValueError(f"notebooks: {folder} holds none named NN_name.ipynb")
        return known
    chosen = [_find_notebook(known, name) for name in dict.fromkeys(only)]
    if not chosen:
        raise ValueError("notebooks: none named; leave the choice out to run them all")
    stems = [path.stem for path in chosen]
    twice = sorted({stem for stem in stems if stems.count(stem) > 1})
    if twice:
        raise ValueError(f"notebooks: {twice[0]!r} is chosen twice; its records would overwrite each other")
    return sorted(chosen, key=lambda path: path.name)


def _find_notebook(known: Sequence[Path], name: str) -> Path:
    for path in known:
        if name in (path.stem, path.name, path.stem[:2]) or (name.isdigit() and int(name) == int(path.stem[:2])):
            return path
    if name.endswith(".ipynb") and Path(name).is_file():
        return Path(name).resolve()
    choices = ", ".join(path.stem for path in known) or "none are here"
    raise ValueError(f"notebooks: {name!r} is none of them ({choices})")


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook. ValueError when it is none, or not Python's."""
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # nbformat raises whatever its parsers raise
        first = (str(error) or repr(error)).splitlines()[0]
        raise ValueError(f"{path.name} is not a notebook that can be read: {first}") from error
    return notebook  # type: ignore[no-any-return]


def declared_parameters(notebook: NotebookNode) -> tuple[str, ...]:
    """Names that the cell tagged `parameters` assigns.

    Read from the syntax tree: papermill's own reader works line by line and misreads annotations and calls.

    Raises:
        ValueError: no such cell or two of them, it is no Python, or one of its values is computed from another, which
            would keep the default's value after the injected cell has changed it.
    """
    tagged = _parameter_cells(notebook)
    if len(tagged) != 1:
        found = "no cell is" if not tagged else f"{len(tagged)} cells are"
        raise ValueError(f"{found} tagged 'parameters'; tag the one cell that assigns them")
    try:
        tree = ast.parse(notebook.cells[tagged[0]].source)
    except SyntaxError as error:
        raise ValueError(f"the cell tagged 'parameters' is no Python: {error}") from error
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [t for one in assigned for t in (one.targets if isinstance(one, ast.Assign) else [one.target])]
    names = [node.id for target in targets for node in ast.walk(target) if _is_name(node, ast.Store)]
    read = {node.id for node in ast.walk(tree) if _is_name(node, ast.Load)}
    computed_from = [name for name in names if name in read]
    if computed_from:
        raise ValueError(
            f"the cell tagged 'parameters' computes something from {computed_from[0]!r}, which is injected after it; "
            "move that to the next cell"
        )
    return tuple(dict.fromkeys(names))


def check_parameters(notebook: NotebookNode, parameters: Mapping[str, object]) -> None:
    """Refuse parameters that papermill would pass in vain.

    Raises:
        ValueError: as in `declared_parameters`; a parameter is not declared; or no later cell reads it.
    """
    declared = declared_parameters(notebook)
    unknown = [name for name in parameters if name not in declared]
    if unknown:
        raise ValueError(f"parameter {unknown[0]!r} is not declared; declared are {', '.join(declared) or 'none'}")
    used = _names_read(notebook, after=_parameter_cells(notebook)[0])
    idle = [name for name in parameters if name not in used]
    if idle:
        raise ValueError(f"parameter {idle[0]!r} is declared, but no later cell reads it: it would change nothing")


def _is_name(node: ast.AST, context: type[ast.expr_context]) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, context)


def _parameter_cells(notebook: NotebookNode) -> list[int]:
    return [
        index
        for index, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", [])
    ]


def _names_read(notebook: NotebookNode, *, after: int) -> set[str]:
    from IPython.core.inputtransformer2 import TransformerManager

    manager = TransformerManager()  # type: ignore[no-untyped-call]
    names: set[str] = set()
    for cell in notebook.cells[after + 1 :]:
        if cell.cell_type != "code":
            continue
        try:
            tree = ast.parse(manager.transform_cell(cell.source))  # turns %magic and !command into calls
        except SyntaxError:
            continue  # running it will say so
        names |= {node.id for node in ast.walk(tree) if _is_name(node, ast.Load)}
    return names


# --------------------------------------------------------------------------------------------------------- one notebook


def run_notebook(
    notebook: Path,
    parameters: Mapping[str, object],
    run_folder: Path,
    *,
    timeout: float,
    cwd: Path,
    progress: Callable[[float], None] | None = None,
) -> NotebookOutcome:
    """Execute one notebook in a process of its own; never raises for what the notebook does.

    Args:
        notebook: the source, which stays as it is.
        parameters: plain JSON values by name.
        run_folder: receives `notebooks/<name>.ipynb`, `.html`, `.log` and, last, `.json` with the outcome.
        timeout: seconds after which every process of the notebook is killed.
        cwd: working folder of the kernel.
        progress: called about twice a second with the seconds gone by.

    Raises:
        ValueError: a parameter is no JSON value.
    """
    records.check_json(parameters, "parameters")
    folder = run_folder / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    name = notebook.stem
    executed, log = folder / f"{name}.ipynb", folder / f"{name}.log"
    for stale in (executed, log, folder / f"{name}.html", folder / f"{name}.json"):
        stale.unlink(missing_ok=True)
    log.touch()
    started, clock = records.utc_now(), time.monotonic()

    outcome, message = _refusal(notebook, parameters)
    if outcome is None:
        outcome, message = _execute(notebook, parameters, executed, log, timeout=timeout, cwd=cwd, progress=progress)
    message = records.scrub(message)
    html = _finish_copies(notebook, executed, outcome, message, log)

    result = NotebookOutcome(
        name=name,
        outcome=outcome,
        seconds=round(time.monotonic() - clock, 2),
        message=message,
        executed=executed.relative_to(run_folder).as_posix(),
        html=html.relative_to(run_folder).as_posix() if html else "",
        log=log.relative_to(run_folder).as_posix(),
        started=started,
    )
    records.write_json(folder / f"{name}.json", asdict(result))
    return result


def _refusal(notebook: Path, parameters: Mapping[str, object]) -> tuple[Outcome | None, str]:
    """Why a notebook is not even begun, or (None, "")."""
    try:
        source = read_notebook(notebook)
    except ValueError as error:
        return "bad_notebook", str(error)
    kernel = source.metadata.get("kernelspec", {})
    if kernel.get("language", "python") != "python" or kernel.get("name", "python3") != "python3":
        return "no_kernel", (
            f"it asks for the kernel {kernel.get('name')!r} ({kernel.get('language', 'language not said')}); notebooks "
            "here run on this interpreter, so name python3"
        )
    try:
        check_parameters(source, parameters)
    except ValueError as error:
        return "bad_parameters", str(error)
    return None, ""


def _execute(
    notebook: Path,
    parameters: Mapping[str, object],
    executed: Path,
    log: Path,
    *,
    timeout: float,
    cwd: Path,
    progress: Callable[[float], None] | None,
) -> tuple[Outcome, str]:
    """Drive the worker process, watch the clock, and judge what it left."""
    marker = uuid.uuid4().hex
    # Under /tmp where there is one: kernels talk through sockets whose paths may not exceed about 100 characters.
    base = "/tmp" if os.path.isdir("/tmp") else None
    scratch = Path(tempfile.mkdtemp(prefix="gspo-", dir=base))
    worker: subprocess.Popen[bytes] | None = None
    try:
        job = {
            "notebook": _from(cwd, notebook),
            "executed": _from(cwd, executed),
            "parameters": dict(parameters),
            "connection_file": str(scratch / "kernel.json"),
            "result": str(scratch / "result.json"),
        }
        records.write_json(scratch / "job.json", job)
        _write_kernelspec(scratch)
        with open(log, "ab") as sink:
            worker = subprocess.Popen(
                [sys.executable, "-m", "agent_gspo_core.kit.runner", str(scratch / "job.json")],
                stdin=subprocess.PIPE,  # held open: its end tells the worker that this process is gone
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=_environment(scratch, marker),
                start_new_session=True,
            )
        if not _wait(worker, timeout, progress):
            return "timeout", f"not finished after {_clock(timeout)} (timeout_minutes of the profile)"
        return _judge(worker.returncode, scratch / "result.json", executed)
    except KeyboardInterrupt:
        return "interrupted", "stopped by Ctrl-C or SIGTERM"
    finally:
        _end_processes(marker)  # the kernel's own children too, which may outlive it even after a good end
        if worker is not None:
            worker.wait()
            if worker.stdin is not None:
                worker.stdin.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _wait(worker: subprocess.Popen[bytes], timeout: float, progress: Callable[[float], None] | None) -> bool:
    """Wait for the worker; False when the time is up."""
    start = time.monotonic()
    while (gone := time.monotonic() - start) < timeout:
        try:
            worker.wait(timeout=min(0.5, timeout - gone))
        except subprocess.TimeoutExpired:
            if progress is not None:
                progress(time.monotonic() - start)
        else:
            return True
    return worker.poll() is not None


def _judge(code: int, result: Path, executed: Path) -> tuple[Outcome, str]:
    """The outcome that the worker reports, checked against the executed copy."""
    if not result.is_file():
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return "kernel_died", f"the process that drives the kernel {how}; was there enough memory?"
    report = records.read_json(result)
    outcome: Outcome = report["outcome"]
    if outcome not in get_args(Outcome):
        raise ValueError(f"runner: the worker reports an unknown outcome {outcome!r}")
    if outcome == "ok":
        skipped = _cells_not_run(read_notebook(executed))
        if skipped is not None:
            return "early_exit", skipped
    return outcome, report["message"]


def _cells_not_run(executed: NotebookNode) -> str | None:
    """What shows that not all of a notebook ran although nothing failed; None when all of it did."""
    cells = [cell for cell in executed.cells if cell.cell_type == "code" and cell.source.strip()]
    for number, cell in enumerate(cells, start=1):
        if any(output.output_type == "error" and output.ename == "SystemExit" for output in cell.outputs):
            return f"code cell {number} of {len(cells)} left by SystemExit, so what follows did not run"
    missing = [number for number, cell in enumerate(cells, start=1) if cell.execution_count is None]
    if missing:
        return f"code cell {missing[0]} of {len(cells)} did not run, though none failed"
    return None


def _from(folder: Path, path: Path) -> str:
    """Relative where possible: papermill writes the paths it is given into the executed copy."""
    path, folder = path.resolve(), folder.resolve()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def _write_kernelspec(scratch: Path) -> None:
    """Bind the kernel to this very interpreter, in a place that only this run sees."""
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "agent-gspo",
        "language": "python",
    }
    records.write_json(scratch / "kernels" / KERNEL / "kernel.json", spec)


def _environment(scratch: Path, marker: str) -> dict[str, str]:
    """Environment of worker and kernel."""
    environment = dict(os.environ)
    environment.pop("MPLBACKEND", None)  # Agg, as tests set it, makes figures vanish from executed notebooks
    package = str(Path(__file__).resolve().parents[2])

    def before(name: str, value: str) -> str:
        return os.pathsep.join([value, *filter(None, [environment.get(name)])])

    environment |= {
        MARKER: marker,
        "JUPYTER_PATH": before("JUPYTER_PATH", str(scratch)),
        "JUPYTER_RUNTIME_DIR": str(scratch / "runtime"),
        "IPYTHONDIR": str(scratch / "ipython"),  # neither start-up files nor history of the user
        "PYTHONPATH": before("PYTHONPATH", package),  # the notebook runs the code that runs it, installed or not
        "PYTHONUNBUFFERED": "1",
    }
    # All cores, and waiting threads sleep: two processes that spin on two cores run ten times slower than alone.
    # A notebook that trains several seeds side by side divides the cores itself.
    for name in records.THREAD_VARIABLES:
        environment.setdefault(name, str(records.usable_cores()))
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    return environment


def _end_processes(marker: str) -> None:
    """Kill every process, save this one, that carries the marker in its environment.

    A process group would not do: Jupyter starts kernels in sessions of their own, and they may start others.
    """
    import psutil  # type: ignore[import-untyped]

    for _ in range(100):  # a process may fork while it is being looked for
        found = False
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and process.environ().get(MARKER) == marker:
                    process.kill()
                    found = True
            except (psutil.Error, OSError):  # gone by now, or another user's
                continue
        if not found:
            return
        time.sleep(0.05)


# ------------------------------------------------------------------------------------------------ copies for the reader


def _finish_copies(source: Path, executed: Path, outcome: Outcome, message: str, log: Path) -> Path | None:
    """Say in the executed copy how the notebook ended, and export it to HTML. Neither can change the outcome."""
    import nbformat

    try:
        if not executed.is_file():  # never begun, or ended before its first cell
            shutil.copyfile(source, executed)
        notebook = read_notebook(executed)
        notebook.metadata["agent_gspo"] = {"outcome": outcome, "message": message}
        if outcome != "ok":
            for cell in notebook.cells:
                if cell.cell_type == "code" and cell.execution_count is None and "papermill" in cell.metadata:
                    cell.metadata.papermill["status"] = "not run"  # papermill calls it completed
            banner = nbformat.v4.new_markdown_cell(f"**This run did not end well: {outcome}.** {message}")
            notebook.cells.insert(0, banner)
        records.write_text(executed, nbformat.writes(notebook) + "\n")
        return _export_html(notebook, executed.with_suffix(".html"))
    except Exception as error:  # whatever an exporter raises over a broken notebook
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"\nNo HTML copy: {type(error).__name__}: {error}\n")
        return None


# The default template drops alt texts and lets the exporter write that there are none.
_TEMPLATE = """{%- extends 'lab/index.html.j2' -%}
{% block data_png scoped %}
<div class="jp-RenderedImage jp-OutputArea-output {{ extra_class }}">
<img src="data:image/png;base64,{{ output.data['image/png'] | escape_html }}"
{%- set width = output | get_metadata('width', 'image/png') -%}
{%- if width is not none %} width="{{ width | escape_html }}"{% endif -%}
{%- set alt = output | get_metadata('alt', 'image/png') -%}
{%- if alt is not none %} alt="{{ alt | escape_html }}"{% endif %}>
</div>
{%- endblock data_png %}
"""


def _export_html(notebook: NotebookNode, path: Path) -> Path:
    from nbconvert.exporters import HTMLExporter

    exporter = HTMLExporter(raw_template=_TEMPLATE)  # type: ignore[no-untyped-call]
    page, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": path.stem}})
    return records.write_text(path, page)


# --------------------------------------------------------------------------------------------------- the worker process


def _work(job_file: Path) -> None:
    """Execute the notebook of a job file with papermill and write how it went. Runs in a process of its own."""
    threading.Thread(target=_end_with_runner, args=(job_file.parent,), daemon=True).start()
    job = records.read_json(job_file)
    outcome, message = _papermill(job)
    if message:
        print(message, flush=True)
    records.write_json(Path(job["result"]), {"outcome": outcome, "message": message})


def _end_with_runner(scratch: Path) -> None:
    """Kill kernel and worker once the runner is gone, however it went: the pipe it holds open then ends."""
    while os.read(0, 1):
        pass
    _end_processes(os.environ[MARKER])
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(ORPHANED)


def _papermill(job: Mapping[str, Any]) -> tuple[Outcome, str]:
    import logging

    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    # Sockets in the scratch folder: ports chosen by parallel kernels can collide (papermill#511).
    config = Config({"KernelManager": {"transport": "ipc", "connection_file": job["connection_file"]}})
    try:
        papermill.execute_notebook(
            job["notebook"],
            job["executed"],
            parameters=job["parameters"],
            kernel_name=KERNEL,
            language="python",
            progress_bar=False,
            log_output=True,
            start_timeout=START_TIMEOUT,
            autosave_cell_every=10,  # what a killed notebook has shown by then is kept
            config=config,
            # No torn progress bars, widget state or time stamps in the copy.
            coalesce_streams=True,
            store_widget_state=False,
            record_timing=False,
        )
    except papermill.PapermillExecutionError as error:
        return "cell_error", f"in [{error.exec_count}]: {error.ename}: {_first_lines(error.evalue)}"
    except DeadKernelError:
        return "kernel_died", "the kernel died while a cell ran; was there enough memory?"
    except RuntimeError as error:
        # nbclient: "Kernel died before replying to kernel_info", "Kernel didn't respond in … seconds".
        if "kernel" not in str(error).lower():
            raise
        return "no_kernel", f"no kernel could be started on {sys.executable}: {error}"
    return "ok", ""


def _first_lines(text: str, limit: int = 500) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).strip()
    return plain if len(plain) <= limit else plain[:limit] + " …"


# ------------------------------------------------------------------------------------------------------------ all of it


def reproduce(
    profile: str,
    *,
    notebooks: Sequence[str] | None = None,
    run_folder: Path | None = None,
    seeds: Sequence[int] | None = None,
    backend: str | None = None,
    overrides: Mapping[str, object] | None = None,
) -> RunReport:
    """Run the notebooks of the project under a profile and report, on the screen and in `summary.json`.

    All notebooks run, also after one failed. Every notebook is given `profile` and `run_folder`; `seeds`, `backend` and
    `overrides` go to those that declare them.

    Args:
        profile: name of a shipped profile or path of a .yaml file.
        notebooks: those to run (see `find_notebooks`); all by default.
        run_folder: where to; a new folder under `runs/` by default.
        seeds: training seeds in place of the profile's.
        backend: "transformers" or "unsloth", in place of the profile's.
        overrides: settings by dotted name, e.g. {"trainer.steps": 3}.

    Raises:
        FileNotFoundError: no such profile.
        ValueError: a notebook, seed, backend or setting that does not exist; the run folder already holds the outcome
            of a chosen notebook, or belongs to other settings.
    """
    from rich.console import Console

    from agent_gspo_core.kit.settings import load_profile, override

    records.check_json(overrides or {}, "overrides")
    overrides = json.loads(json.dumps(overrides or {}))  # tuples become the lists that a record gives back
    if profile.endswith((".yaml", ".yml")):
        profile = str(Path(profile).absolute())
    loaded = load_profile(profile)
    changed = override(loaded.settings, overrides, where="overrides")
    if backend is not None:
        changed = override(changed, {"policy.backend": backend}, where="backend")
    chosen_seeds = _check_seeds(loaded.seeds if seeds is None else seeds)
    root = records.project_root()
    if Path(profile).is_absolute():
        profile = records.relative_to_project(profile)  # notebooks run in the project root
    paths = find_notebooks(root / "notebooks", notebooks)
    settings = {
        "profile": profile,
        "seeds": chosen_seeds,
        "backend": changed.policy.backend,
        "overrides": overrides,
    }
    asked = [name for name, given in (("seeds", seeds), ("backend", backend), ("overrides", overrides)) if given]
    taken = {path: _declared(path) for path in paths}
    for name in asked:
        if not any(name in declared for declared in taken.values()):
            raise ValueError(f"{name}: no chosen notebook takes it, so it would change nothing")
    if run_folder is not None:
        _check_folder(records.project_path(run_folder), settings, [path.stem for path in paths])
    folder = records.open_run_folder(run_folder, profile)
    always = {"profile": profile, "run_folder": records.relative_to_project(folder)}

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Profile {profile}: {loaded.description}", markup=False)
    console.print(f"Run folder {records.relative_to_project(folder)}", markup=False)
    begun = {path.stem: "unfinished" for path in paths}
    records.merge_summary(folder, **settings, notebooks=begun)
    records.write_json(folder / "provenance.json", records.provenance())

    outcomes: list[NotebookOutcome] = []
    with _sigterm_interrupts():
        for path, declared in taken.items():
            for name in asked:
                if name not in declared:
                    console.print(f"{path.stem} takes no {name}; it runs as its profile has it", markup=False)
            with _progress(console, path.stem) as progress:
                outcome = run_notebook(
                    path,
                    always | {name: value for name, value in settings.items() if name in declared},
                    folder,
                    timeout=60 * loaded.timeout_minutes,
                    cwd=root,
                    progress=progress,
                )
            outcomes.append(outcome)
            records.merge_summary(folder, notebooks={outcome.name: outcome.outcome})
            _print_outcome(console, outcome, folder)
            if outcome.outcome == "interrupted":
                break
    summary = records.read_summary(folder)
    report = RunReport(folder, tuple(outcomes), summary)
    print_report(report, console)
    return report


def _check_seeds(seeds: Sequence[int]) -> list[int]:
    odd = [seed for seed in seeds if type(seed) is not int or seed < 0]
    if not seeds or odd or len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds: expected distinct whole numbers from 0, got {list(seeds)}")
    return list(seeds)


def _check_folder(folder: Path, settings: Mapping[str, object], names: Sequence[str]) -> None:
    """A run folder holds one run: nothing is overwritten, nothing mixed."""
    before = records.read_summary(folder)
    for key, value in settings.items():
        if key in before and before[key] != value:
            raise ValueError(
                f"run folder {records.relative_to_project(folder)} belongs to a run with {key} {before[key]!r}, "
                f"not {value!r}; name a new folder"
            )
    done = [name for name in names if name in before.get("notebooks", {})]
    if done:
        raise ValueError(
            f"run folder {records.relative_to_project(folder)} already holds {done[0]} "
            f"({before['notebooks'][done[0]]}); name a new folder"
        )


def _declared(path: Path) -> tuple[str, ...]:
    """Parameters that a notebook takes; none where it cannot be said, which its outcome will explain."""
    try:
        return declared_parameters(read_notebook(path))
    except ValueError:
        return ()


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that kernels end with the runner and the outcome is recorded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# -------------------------------------------------------------------------------------------------------- on the screen


@contextmanager
def _progress(console: Console, name: str) -> Iterator[Callable[[float], None]]:
    """One line that counts the time on a terminal; elsewhere a line at the start and one a minute."""
    if console.is_terminal:
        with console.status(f"{name}  0:00") as status:
            yield lambda seconds: status.update(f"{name}  {_clock(seconds)}")
        return
    console.print(f"{name} …", markup=False)
    told = 0.0

    def tell(seconds: float) -> None:
        nonlocal told
        if seconds - told >= HEARTBEAT:
            told = seconds
            console.print(f"{name} … {_clock(seconds)}", markup=False)

    yield tell


def _print_outcome(console: Console, outcome: NotebookOutcome, folder: Path) -> None:
    from rich.markup import escape

    colour = "green" if outcome.outcome == "ok" else "red"
    console.print(f"{escape(outcome.name)}  [{colour}]{outcome.outcome}[/]  {_clock(outcome.seconds)}")
    if outcome.outcome != "ok":
        where = records.relative_to_project(folder / (outcome.html or outcome.log))
        console.print(f"  {outcome.message}\n  see {where}", markup=False)


def _clock(seconds: float) -> str:
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def print_report(report: RunReport, console: Console) -> None:
    """The headline table, the figures and where everything lies; says so where there is no headline."""
    headline = report.summary.get("headline")
    if not headline:
        console.print("No headline: no notebook of this run recorded one (02_training_single_gpu does)", markup=False)
    else:
        console.print(headline_table(headline, len(report.summary.get("seeds", []))))
    figures = sorted((report.run_folder / "figures").rglob("*.png"))
    if figures:
        console.print("Figures", markup=False)
        for figure in figures:
            console.print(f"  {records.relative_to_project(figure)}", markup=False)
    console.print(f"Summary {records.relative_to_project(report.run_folder / records.SUMMARY)}", markup=False)


def headline_table(headline: Mapping[str, Any], seeds: int) -> Table:
    """The headline (see `HEADLINE`) as a rich table of at most 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    unit = f"mean of {seeds} seeds [95 % interval]" if seeds != 1 else "one seed, so no interval"
    table = Table(
        title=escape(f"Before and after training: {unit}"),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("", min_width=13)  # may wrap; a number never does
    for title in ("before", "after", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    accuracy = [headline.get(key) or {} for key in HEADLINE[:2]]
    tokens = [headline.get(key) or {} for key in HEADLINE[2:4]]
    efficiency, silence = (headline.get(key) or {} for key in HEADLINE[4:])
    table.add_row("accuracy, %", *(_interval_text(one, 100) for one in accuracy), _points(accuracy))
    table.add_row("tokens per episode", *(_interval_text(one) for one in tokens), _percent(tokens))
    table.add_row("communication efficiency", "", _interval_text(efficiency, digits=2), "")
    table.add_row("silence right, %", "", _interval_text(silence, 100), "")
    return table


def _interval_text(value: Mapping[str, float | None], scale: float = 1.0, digits: int = 1) -> str:
    from rich.markup import escape

    mean, low, high = (value.get(key) for key in ("mean", "low", "high"))
    if mean is None:
        return "not measured"
    text = f"{mean * scale:.{digits}f}"
    if low is None or high is None:
        return text
    return escape(f"{text} [{low * scale:.{digits}f}, {high * scale:.{digits}f}]")


def _points(pair: Sequence[Mapping[str, float | None]]) -> str:
    before, after = (one.get("mean") for one in pair)
    return "" if before is None or after is None else f"{100 * (after - before):+.1f} points"


def _percent(pair: Sequence[Mapping[str, float | None]]) -> str:
    before, after = (one.get("mean") for one in pair)
    return "" if not before or after is None else f"{100 * (after / before - 1):+.0f} %"


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
