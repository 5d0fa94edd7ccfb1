"""Execute one notebook and say honestly how it ended.

papermill executes, but its record is no run status: a killed kernel leaves every cell `completed`, `sys.exit(0)` counts
as success, unknown parameters only warn. So every notebook runs in a process of its own under a watchdog, parameters
are checked before, the executed copy is read afterwards, and an outcome record is written last. Whatever happens, the
executed copy, its HTML and the log are kept.
"""

from __future__ import annotations

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from agent_gspo_core.kit import records
from agent_gspo_core.kit.keys import Key, file_digest
from agent_gspo_core.kit.sources import Contract, check_parameters, read_contract, read_notebook

if TYPE_CHECKING:
    from nbformat import NotebookNode

Outcome = Literal[
    "ok",
    "cell_error",
    "early_exit",
    "timeout",
    "kernel_died",
    "no_kernel",
    "bad_parameters",
    "bad_notebook",
    "missing_input",
    "missing_output",
    "interrupted",
    "unfinished",
]
"""How a notebook ended.

ok: every code cell ran without an error. cell_error: a cell raised, or a thread or a shell command that it started
failed. early_exit: a cell left by `sys.exit(0)`, `quit()` or the like, so that not all cells ran. timeout: the watchdog
ended it. kernel_died: the kernel, or the process that drives it, was killed (often for want of memory). no_kernel: no
kernel could be started. bad_parameters: it does not take the parameters of this run. bad_notebook: it cannot be read.
missing_input: a file that it names as its input was not there. missing_output: all cells ran, but a file that it
promises is not there. interrupted: Ctrl-C or SIGTERM. unfinished: it was begun and nothing more is known, or it was
never begun.
"""

KERNEL = "agent-gspo"
MARKER = "AGENT_GSPO_RUN_MARKER"
"""Environment variable by which the processes of one notebook are found: kernels leave their parent's group."""

START_TIMEOUT = 120
"""Seconds a kernel may take to start; a busy machine needs more than papermill's 60."""

ORPHANED = 75
"""Exit code of a worker whose runner is gone."""

OUTPUT_LIMIT = 4_000_000
"""Most characters that one cell may leave in the executed copy; what comes after is left out, and that is said."""

LOG_LIMIT = 50_000_000
"""Most characters of a log."""

OWN = ("notebooks", records.SUMMARY, "provenance.json", "report.html", "report.md")
"""What the runner itself keeps in a run folder."""

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
    ended: str = ""
    """UTC."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What it was given."""
    key: Key = field(default_factory=dict)
    """What its result depends on, see `keys`; empty where the run had none or it changed on the way."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of every file that it left in the run folder."""
    summary_keys: tuple[str, ...] = ()
    """Keys of `summary.json` that it wrote."""


# --------------------------------------------------------------------------------------------------------- one notebook


Progress = Callable[[float, int, int], None]
"""Called about twice a second with the seconds gone by, the cells done, and the cells in all."""


def run_notebook(
    notebook: Path,
    parameters: Mapping[str, object],
    run_folder: Path,
    *,
    timeout: float,
    cwd: Path,
    progress: Progress | None = None,
    key: Callable[[], Key] | None = None,
    stop: threading.Event | None = None,
    cores: Sequence[int] = (),
) -> NotebookOutcome:
    """Execute one notebook in a process of its own; never raises for what the notebook does.

    Args:
        notebook: the source, which stays as it is.
        parameters: plain JSON values by name.
        run_folder: receives `notebooks/<name>.ipynb`, `.html`, `.log` and, last, `.json` with the outcome.
        timeout: seconds after which every process of the notebook is killed.
        cwd: working folder of the kernel.
        progress: see `Progress`.
        key: gives what the result depends on; asked before and after, so that a change on the way is noticed.
        stop: ends the notebook as interrupted when it is set.
        cores: the processor cores that its processes may use; all when empty.

    Raises:
        ValueError: a parameter is no JSON value.
    """
    records.check_json(parameters, "parameters")
    folder = run_folder / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    name = notebook.stem
    executed, log, record = folder / f"{name}.ipynb", folder / f"{name}.log", folder / f"{name}.json"
    earlier = read_outcome(run_folder, name)
    begun = NotebookOutcome(
        name=name,
        outcome="unfinished",
        seconds=0.0,
        log=log.relative_to(run_folder).as_posix(),
        started=records.utc_now(),
        parameters=records.scrub_all(parameters),
        key=key() if key else {},
        outputs=_left_before(run_folder, earlier),
        summary_keys=earlier.summary_keys if earlier else (),
    )
    _write_outcome(record, begun)  # before anything of an earlier try goes: from here on this one counts
    for stale in (executed, log, folder / f"{name}.html"):
        stale.unlink(missing_ok=True)
    log.touch()
    began, files, summary = time.monotonic(), files_of(run_folder), records.read_summary(run_folder)

    contract, outcome, message = refusal(notebook, parameters, run_folder)
    if outcome is None:
        outcome, message = _execute(
            notebook,
            parameters,
            executed,
            log,
            timeout=timeout,
            cwd=cwd,
            progress=progress,
            stop=stop or threading.Event(),
            cores=cores,
        )
    absent = [path for path in contract.outputs if not (run_folder / path).is_file()]
    if outcome == "ok" and absent:
        outcome, message = "missing_output", f"all cells ran, but {absent[0]}, which it promises, is not there"
    message = records.scrub(message)
    _scrub_log(log)
    html = _finish_copies(notebook, executed, outcome, message, log)

    now = files_of(run_folder)
    left = sorted({*written(name, files, now), *(path for path in begun.outputs if path in now)})
    after = records.read_summary(run_folder)
    changed = {one for one in after if one not in RUN_KEYS and (one not in summary or after[one] != summary[one])}
    result = replace(
        begun,
        outcome=outcome,
        seconds=round(time.monotonic() - began, 2),
        message=message,
        executed=executed.relative_to(run_folder).as_posix(),
        html=html.relative_to(run_folder).as_posix() if html else "",
        ended=records.utc_now(),
        key=begun.key if key is None or key() == begun.key else {},
        outputs={path: file_digest(run_folder / path) for path in left},
        summary_keys=tuple(sorted({*changed, *(one for one in begun.summary_keys if one in after)})),
    )
    _write_outcome(record, result)
    return result


RUN_KEYS = ("profile", "seeds", "backend", "overrides", "notebooks")
"""Keys of `summary.json` that belong to the run and to no notebook."""


def _left_before(run_folder: Path, earlier: NotebookOutcome | None) -> dict[str, str]:
    """Files that an earlier try under the same key left, recorded or not: the next one may go on from them."""
    if earlier is None:
        return {}
    paths = set(earlier.outputs)
    if earlier.outcome == "unfinished":
        others = [path.stem for path in (run_folder / "notebooks").glob("*.json") if path.stem != earlier.name]
        taken = {path for other in others if (found := read_outcome(run_folder, other)) for path in found.outputs}
        paths |= {*written(earlier.name, {}, files_of(run_folder))} - taken
    return {path: file_digest(run_folder / path) for path in sorted(paths) if (run_folder / path).is_file()}


def _write_outcome(path: Path, outcome: NotebookOutcome) -> None:
    records.write_json(path, asdict(outcome))


def read_outcome(run_folder: Path, name: str) -> NotebookOutcome | None:
    """The record of a notebook in a run folder; None where there is none that can be read."""
    try:
        found = records.read_json(run_folder / "notebooks" / f"{name}.json")
        return NotebookOutcome(**{**found, "summary_keys": tuple(found.get("summary_keys", ()))})
    except (OSError, ValueError, TypeError):
        return None


def files_of(run_folder: Path) -> dict[str, tuple[int, int]]:
    """Files of a run folder that notebooks wrote, with what shows that one was written again."""
    found = {}
    for path in sorted(run_folder.rglob("*")):
        name = path.relative_to(run_folder)
        if name.parts[0] in OWN or name.name.startswith("."):
            continue
        try:
            if path.is_file() and not path.is_symlink():
                state = path.stat()
                found[name.as_posix()] = (state.st_mtime_ns, state.st_size)
        except OSError:  # gone by now
            continue
    return found


def written(name: str, before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Files that are new or changed, save those that a notebook running beside this one marks as its own by number."""
    changed = [path for path, state in after.items() if before.get(path) != state]
    others = re.compile(r"(?:^|/)(?!" + re.escape(name[:2]) + r"_)\d\d_")
    return [path for path in changed if not others.search(path)]


def refusal(notebook: Path, parameters: Mapping[str, object], run_folder: Path) -> tuple[Contract, Outcome | None, str]:
    """The notebook's contract, and why it is not even begun, or None and ""."""
    try:
        source = read_notebook(notebook)
        contract = read_contract(source)
    except ValueError as error:
        return Contract(), "bad_notebook", str(error)
    kernel = source.metadata.get("kernelspec", {})
    if kernel.get("language", "python") != "python" or kernel.get("name", "python3") != "python3":
        return (
            contract,
            "no_kernel",
            f"it asks for the kernel {kernel.get('name')!r} ({kernel.get('language', 'language not said')}); notebooks "
            "here run on this interpreter, so name python3",
        )
    try:
        check_parameters(source, parameters)
    except ValueError as error:
        return contract, "bad_parameters", str(error)
    absent = [path for path in contract.inputs if not (run_folder / path).is_file()]
    if absent:
        before = f" (it follows {', '.join(contract.after)})" if contract.after else ""
        return contract, "missing_input", f"{absent[0]} is not in the run folder{before}; run what makes it first"
    return contract, None, ""


def _execute(
    notebook: Path,
    parameters: Mapping[str, object],
    executed: Path,
    log: Path,
    *,
    timeout: float,
    cwd: Path,
    progress: Progress | None,
    stop: threading.Event,
    cores: Sequence[int],
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
            "cores": list(cores),
        }
        records.write_json(scratch / "job.json", job)
        _write_kernelspec(scratch)
        records.write_text(scratch / "ipython" / "profile_default" / "startup" / "00-honest.py", _STARTUP)
        with open(log, "ab") as sink:
            worker = subprocess.Popen(
                [sys.executable, "-m", "agent_gspo_core.kit.execution", str(scratch / "job.json")],
                stdin=subprocess.PIPE,  # held open: its end tells the worker that this process is gone
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=_environment(scratch, marker, cores),
                start_new_session=True,
            )
        if not _wait(worker, timeout, progress, stop, log, len(read_notebook(notebook).cells) + 1):
            return "timeout", f"not finished after {clock(timeout)} (timeout_minutes of the profile)"
        if stop.is_set():
            return "interrupted", "stopped by Ctrl-C or SIGTERM"
        return _judge(worker.returncode, scratch, executed)
    except KeyboardInterrupt:
        return "interrupted", "stopped by Ctrl-C or SIGTERM"
    finally:
        _end_processes(marker)  # the kernel's own children too, which may outlive it even after a good end
        if worker is not None:
            worker.wait()
            if worker.stdin is not None:
                worker.stdin.close()
        shutil.rmtree(scratch, ignore_errors=True)


# Runs in the kernel before the first cell. Jupyter lets both pass: an exception in a thread, and a command that failed.
_STARTUP = """
def _be_honest():
    import os
    import threading

    from IPython import get_ipython

    def tell(what):
        with open(os.environ["AGENT_GSPO_FAILURES"], "a", encoding="utf-8") as file:
            file.write(what + "\\n")

    thread_failed = threading.excepthook

    def in_thread(failure):
        thread_failed(failure)
        if not issubclass(failure.exc_type, SystemExit):
            tell(f"a thread failed: {failure.exc_type.__name__}: {failure.exc_value}")

    threading.excepthook = in_thread
    shell = get_ipython()
    run = shell.system

    def system(command):
        run(command)
        code = shell.user_ns.get("_exit_code", 0)
        if code:
            raise RuntimeError(f"!{command} ended with code {code}")

    shell.system = system

    def leave():  # quit() would end the kernel, which then looks like one that was killed
        raise SystemExit(0)

    shell.ask_exit = leave


_be_honest()
del _be_honest
"""


def _wait(
    worker: subprocess.Popen[bytes],
    timeout: float,
    progress: Progress | None,
    stop: threading.Event,
    log: Path,
    cells: int,
) -> bool:
    """Wait for the worker, or until `stop` is set; False when the time is up."""
    start = time.monotonic()
    done = read = 0
    while (gone := time.monotonic() - start) < timeout:
        try:
            worker.wait(timeout=min(0.5, timeout - gone))
        except subprocess.TimeoutExpired:
            if stop.is_set():
                return True
            if progress is not None:
                with open(log, "rb") as file:
                    file.seek(read)
                    new = file.read()
                read += len(new)
                done += len(re.findall(rb"^Executing Cell \d+-", new, re.MULTILINE))
                progress(time.monotonic() - start, max(0, done - 1), cells)
        else:
            return True
    return worker.poll() is not None


def _judge(code: int, scratch: Path, executed: Path) -> tuple[Outcome, str]:
    """The outcome that the worker reports, checked against the executed copy and against what failed unseen."""
    result, failures = scratch / "result.json", scratch / "failures"
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
        if failures.is_file():
            return "cell_error", _first_lines(failures.read_text(encoding="utf-8", errors="replace"))
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


def _environment(scratch: Path, marker: str, cores: Sequence[int]) -> dict[str, str]:
    """Environment of worker and kernel."""
    environment = dict(os.environ)
    environment.pop("MPLBACKEND", None)  # Agg, as tests set it, makes figures vanish from executed notebooks
    package = str(Path(__file__).resolve().parents[2])

    def before(name: str, value: str) -> str:
        return os.pathsep.join([value, *filter(None, [environment.get(name)])])

    environment |= {
        MARKER: marker,
        "AGENT_GSPO_FAILURES": str(scratch / "failures"),
        "JUPYTER_PATH": before("JUPYTER_PATH", str(scratch)),
        "JUPYTER_RUNTIME_DIR": str(scratch / "runtime"),
        "IPYTHONDIR": str(scratch / "ipython"),  # neither start-up files nor history of the user
        "PYTHONPATH": before("PYTHONPATH", package),  # the notebook runs the code that runs it, installed or not
        "PYTHONUNBUFFERED": "1",
    }
    # Waiting threads sleep, and all notebooks together have no more threads than cores: two processes that spin on two
    # cores run ten times slower than alone. A notebook that trains several seeds side by side divides its share itself.
    for name in records.THREAD_VARIABLES:
        environment.setdefault(name, str(len(cores) or records.usable_cores()))
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
        notebook = _scrub_notebook(read_notebook(executed))
        notebook.metadata["agent_gspo_run"] = {"outcome": outcome, "message": message}
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


def _scrub_notebook(notebook: NotebookNode) -> NotebookNode:
    """The copy without places of this machine and secrets; pictures and other encoded data stay as they are."""
    from nbformat import from_dict

    def clean(value: Any, kind: str = "") -> Any:
        if isinstance(value, Mapping):
            return {name: clean(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [clean(inner, kind) for inner in value]
        return records.scrub(value) if isinstance(value, str) and not kind.startswith("image/") else value

    return from_dict(clean(notebook))  # type: ignore[no-any-return]


def _scrub_log(log: Path) -> None:
    text = log.read_text(encoding="utf-8", errors="replace")
    clean = records.scrub(text)
    if clean != text:
        records.write_text(log, clean)


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
    if job["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, job["cores"])  # the kernel and what it starts inherit it
    outcome, message = _papermill(job)
    if message:
        print(records.scrub(message), flush=True)
    records.write_json(Path(job["result"]), {"outcome": outcome, "message": message})


def _end_with_runner(scratch: Path) -> None:
    """Kill kernel and worker once the runner is gone, however it went: the pipe it holds open then ends."""
    while os.read(0, 1):
        pass
    _end_processes(os.environ[MARKER])
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(ORPHANED)


def _log_handler() -> Any:
    """Writes the log as it comes, without secrets, up to `LOG_LIMIT`."""
    import logging

    class Handler(logging.StreamHandler):  # type: ignore[type-arg]
        written = 0

        def format(self, record: logging.LogRecord) -> str:
            text = super().format(record)
            left = LOG_LIMIT - self.written
            self.written += len(text)
            if len(text) > left:
                text = text[: max(0, left)] + "\n[the log is full: what else was printed is left out]" * (left > 0)
            return records.scrub(text)

        def emit(self, record: logging.LogRecord) -> None:
            if self.written <= LOG_LIMIT:
                super().emit(record)

    handler = Handler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler


def _bounded_engine() -> str:
    """Register papermill's own engine with a bound on what a cell may leave in the copy; returns its name."""
    from nbformat.v4 import new_output
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine, papermill_engines
    from papermill.log import logger

    class Client(PapermillNotebookClient):  # type: ignore[misc]
        cell = -1
        left = OUTPUT_LIMIT

        def output(self, outs: list[Any], msg: dict[str, Any], display_id: str, cell_index: int) -> Any:
            if cell_index != self.cell:
                self.cell, self.left = cell_index, OUTPUT_LIMIT
            if self.left < 0 and msg["msg_type"] != "error":
                return None
            self.left -= len(json.dumps(msg["content"], default=str))
            if self.left >= 0 or msg["msg_type"] == "error":
                return super().output(outs, msg, display_id, cell_index)
            note = f"[more than {OUTPUT_LIMIT:,} characters of output: the rest of this cell's is left out]\n"
            outs.append(new_output("stream", name="stderr", text=note))
            return outs[-1]

    class Engine(NBClientEngine):  # type: ignore[misc]
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> Any:
            options.pop("input_path", None)
            for name in ("stdout_file", "stderr_file", "execution_timeout"):
                options.pop(name, None)
            start = options.pop("start_timeout")
            return Client(nb_man, kernel_name=kernel_name, startup_timeout=start, log=logger, **options).execute()

    papermill_engines.register("agent_gspo", Engine)
    return "agent_gspo"


def _papermill(job: Mapping[str, Any]) -> tuple[Outcome, str]:
    import logging

    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    logging.basicConfig(level=logging.INFO, handlers=[_log_handler()])
    # Sockets in the scratch folder: ports chosen by parallel kernels can collide (papermill#511).
    config = Config({"KernelManager": {"transport": "ipc", "connection_file": job["connection_file"]}})
    try:
        papermill.execute_notebook(
            job["notebook"],
            job["executed"],
            parameters=job["parameters"],
            engine_name=_bounded_engine(),
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


def clock(seconds: float) -> str:
    """`1:05` or `1:02:03`."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
