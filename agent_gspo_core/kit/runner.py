"""Run the notebooks of a profile: which, in what order, what is kept from an earlier start, and what comes of it.

How one notebook is executed is told in `execution`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_gspo_core.kit import records
from agent_gspo_core.kit.execution import (
    NotebookOutcome,
    Progress,
    clock,
    files_of,
    read_outcome,
    refusal,
    run_notebook,
    written,
)
from agent_gspo_core.kit.keys import Key, data_digests, difference, digest, file_digest, notebook_key
from agent_gspo_core.kit.sources import Contract, declared_parameters, find_notebooks, read_contract, read_notebook

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from agent_gspo_core.kit.settings import Profile

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


@dataclass(frozen=True)
class RunReport:
    """What `reproduce` did."""

    run_folder: Path
    outcomes: tuple[NotebookOutcome, ...]
    """In the order of the notebooks; those kept from an earlier start too."""
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


# ------------------------------------------------------------------------------------------------------------ all of it


@dataclass(frozen=True, eq=False)
class _Step:
    """One notebook of a run, before it runs."""

    path: Path
    declared: tuple[str, ...]
    contract: Contract
    parameters: Mapping[str, object]

    @property
    def name(self) -> str:
        return self.path.stem


def reproduce(
    profile: str,
    *,
    notebooks: Sequence[str] | None = None,
    start: str | None = None,
    run_folder: Path | None = None,
    seeds: Sequence[int] | None = None,
    backend: str | None = None,
    overrides: Mapping[str, object] | None = None,
    jobs: int = 1,
    resume: bool = False,
    dry_run: bool = False,
) -> RunReport:
    """Run the notebooks of the project under a profile and report, on the screen and in `summary.json`.

    All notebooks run, also after one failed. Every notebook is given `profile` and `run_folder`; `seeds`, `backend` and
    `overrides` go to those that declare them.

    With `resume`, a run folder is taken up: a notebook that ended well and whose key (see `keys`) is still the same is
    kept. One that was broken off under the same key goes on from what it left; what was made under another key is
    removed before it runs.

    Args:
        profile: name of a shipped profile or path of a .yaml file.
        notebooks: those to run (see `find_notebooks`); all by default.
        start: run this one and those behind it.
        run_folder: where to; a new folder under `runs/` by default, with `resume` the newest of this profile.
        seeds: training seeds in place of the profile's.
        backend: "transformers" or "unsloth", in place of the profile's.
        overrides: settings by dotted name, e.g. {"trainer.steps": 3}.
        jobs: notebooks run side by side, each on its share of the cores; one that follows another waits for it.
        resume: take a run folder up.
        dry_run: say what would be done and do nothing; the report then holds no outcomes but those of refusals.

    Raises:
        FileNotFoundError: no such profile.
        ValueError: a notebook, seed, backend or setting that does not exist; the run folder already holds the outcome
            of a chosen notebook (without `resume`), belongs to other settings, or is in use; nothing to resume.
    """
    from rich.console import Console

    from agent_gspo_core.kit.settings import load_profile, override

    if jobs < 1:
        raise ValueError(f"jobs is {jobs}; give the number of notebooks to run side by side, at least 1")
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
    paths = find_notebooks(root / "notebooks", notebooks, start)
    settings = {
        "profile": profile,
        "seeds": chosen_seeds,
        "backend": changed.policy.backend,
        "overrides": overrides,
    }
    asked = [name for name, given in (("seeds", seeds), ("backend", backend), ("overrides", overrides)) if given]
    taken = {path: _declared(path) for path in paths}
    for name in asked:
        if not any(name in declared for declared, _ in taken.values()):
            raise ValueError(f"{name}: no chosen notebook takes it, so it would change nothing")
    folder = None if run_folder is None else records.project_path(run_folder)
    if resume and folder is None:
        folder = _newest_folder(root, profile)
    if folder is not None:
        _check_folder(folder, settings, [] if resume else [path.stem for path in paths])
    if not dry_run:
        folder = records.open_run_folder(folder, profile)
    resolved = _resolved(replace(loaded, settings=changed), chosen_seeds)
    data = data_digests(resolved, root)
    always = {"profile": profile, "run_folder": records.relative_to_project(folder) if folder else ""}
    steps = [
        _Step(path, declared, contract, always | {name: settings[name] for name in settings if name in declared})
        for path, (declared, contract) in taken.items()
    ]

    def key_of(step: _Step) -> Key:
        return _key(step, folder, resolved, data)

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Profile {profile}: {loaded.description}", markup=False)
    console.print(f"Run folder {always['run_folder'] or 'runs/<time>-' + Path(profile).stem}", markup=False)
    if dry_run:
        return _dry_run(console, steps, folder, key_of)
    assert folder is not None
    for step in steps:
        for name in asked:
            if name not in step.declared:
                console.print(f"{step.name} takes no {name}; it runs as its profile has it", markup=False)
    with _alone_in(folder), _sigterm_interrupts():
        _begin(folder, settings, steps, resolved, data)
        _clear_stale(folder, steps, key_of)
        outcomes = _run_all(console, steps, folder, loaded, key_of, root=root, jobs=min(jobs, len(steps)))
    provenance = records.read_json(folder / "provenance.json")
    ended = {"ended": records.utc_now(), "outputs": {path: file_digest(folder / path) for path in files_of(folder)}}
    records.write_json(folder / "provenance.json", provenance | ended)
    report = RunReport(folder, tuple(outcomes), records.read_summary(folder))
    print_report(report, console)
    return report


def _resolved(profile: Profile, seeds: Sequence[int]) -> dict[str, Any]:
    """All that a profile comes to, save what changes no result."""
    values = asdict(profile)
    for name in ("description", "timeout_minutes"):
        values.pop(name)
    return dict(json.loads(json.dumps(values | {"seeds": list(seeds)})))


def _begin(
    folder: Path,
    settings: Mapping[str, object],
    steps: Sequence[_Step],
    resolved: Mapping[str, Any],
    data: Mapping[str, str],
) -> None:
    """Write down what is run on what; a folder that is taken up keeps when and on which commit it was begun."""
    begun = {step.name: "unfinished" for step in steps}
    records.merge_summary(folder, **settings, notebooks=begun)
    place = folder / "provenance.json"
    before = records.read_json(place) if place.is_file() else None
    earlier = [] if before is None else [*before.get("earlier", []), {k: before.get(k) for k in ("started", "git")}]
    records.write_json(
        place,
        records.provenance(
            seeds=settings["seeds"],
            settings_sha256=digest(resolved),
            inputs=dict(data),
            **({"earlier": earlier} if earlier else {}),
        ),
    )


def _key(step: _Step, folder: Path | None, resolved: Mapping[str, Any], data: Mapping[str, str]) -> Key:
    """The key of a step as things stand; empty where the notebook cannot be read, which its outcome will explain."""
    try:
        notebook = read_notebook(step.path)
    except ValueError:
        return {}
    upstream: dict[str, str] = {}
    for record in sorted((folder / "notebooks").glob("*.json")) if folder else ():
        if step.contract.follows(step.name, record.stem):
            found = read_outcome(record.parents[1], record.stem)
            if found is not None:
                upstream[record.stem] = found.outcome
                upstream |= {f"{record.stem}: {path}": sha for path, sha in found.outputs.items()}
    return notebook_key(notebook, step.parameters, resolved, data=data, upstream=upstream)


def _why_run(step: _Step, folder: Path, key: Key) -> str:
    """Why a step cannot be kept from an earlier start; empty when it can."""
    found = read_outcome(folder, step.name)
    if found is None:
        return "it has not run here"
    if found.outcome != "ok":
        return f"it ended with {found.outcome}" if found.outcome != "unfinished" else "it was broken off"
    changed = difference(found.key, key)
    if changed:
        return changed
    # A file that a later notebook wrote again is as good as the first one: that notebook's record vouches for it.
    vouched = {
        (path, sha)
        for record in (folder / "notebooks").glob("*.json")
        if (other := read_outcome(folder, record.stem)) is not None and other.outcome == "ok"
        for path, sha in other.outputs.items()
    }
    for path in (*found.outputs, found.executed):
        if not (folder / path).is_file():
            return f"{path} is gone"
    for path in found.outputs:
        if (path, file_digest(folder / path)) not in vouched:
            return f"{path} is not what it left"
    return ""


def _clear_stale(folder: Path, steps: Sequence[_Step], key_of: Callable[[_Step], Key]) -> None:
    """Remove what chosen notebooks made under another key. What came before them is looked at when their turn comes."""
    for step in steps:
        if _is_stale(step, folder, key_of(step), without=("upstream",)):
            _clear(step, folder)


def _is_stale(step: _Step, folder: Path, key: Key, *, without: tuple[str, ...] = ()) -> bool:
    found = read_outcome(folder, step.name)
    return found is not None and bool(difference(found.key, key, without=without))


def _clear(step: _Step, folder: Path) -> None:
    """Remove the files of a step, those that a broken-off try left unrecorded, and what it put into the summary."""
    found = read_outcome(folder, step.name)
    if found is None:
        return
    others = [
        other
        for record in (folder / "notebooks").glob("*.json")
        if record.stem != step.name and (other := read_outcome(folder, record.stem)) is not None
    ]
    remove = set(found.outputs)
    if found.outcome == "unfinished":
        recorded = {path for other in others for path in other.outputs}
        remove |= {path for path in written(step.name, {}, files_of(folder)) if path not in recorded}
    for path in sorted(remove, reverse=True):
        place = folder / path
        place.unlink(missing_ok=True)
        for parent in place.parents:
            if parent == folder or not parent.is_dir() or any(parent.iterdir()):
                break
            parent.rmdir()
    kept = {key for other in others for key in other.summary_keys}
    records.drop_from_summary(folder, [key for key in found.summary_keys if key not in kept])
    (folder / "notebooks" / f"{step.name}.json").unlink(missing_ok=True)


def _run_all(
    console: Console,
    steps: Sequence[_Step],
    folder: Path,
    profile: Profile,
    key_of: Callable[[_Step], Key],
    *,
    root: Path,
    jobs: int,
) -> list[NotebookOutcome]:
    """Run what cannot be kept, `jobs` at a time, followers after what they follow; outcomes in the order of steps."""
    finished: dict[str, NotebookOutcome] = {}
    waiting, stop = list(steps), threading.Event()
    free = _shares(jobs)
    running: dict[Future[NotebookOutcome], tuple[_Step, list[int]]] = {}

    def is_ready(step: _Step) -> bool:
        ahead = {*(other.name for other in waiting), *(other.name for other, _ in running.values())} - {step.name}
        return not any(step.contract.follows(step.name, name) for name in ahead)

    def end(outcome: NotebookOutcome, kept: bool = False) -> None:
        finished[outcome.name] = outcome
        records.merge_summary(folder, notebooks={outcome.name: outcome.outcome})
        _print_outcome(console, outcome, folder, kept=kept)

    with ExitStack() as open_now:
        screen = open_now.enter_context(_screen(console))
        pool = open_now.enter_context(ThreadPoolExecutor(jobs))
        while (waiting and not stop.is_set()) or running:
            try:
                for step in [step for step in waiting if is_ready(step)]:
                    if not free or stop.is_set():
                        break
                    if not is_ready(step):  # it follows one that was begun in this very round
                        continue
                    waiting.remove(step)
                    if not _why_run(step, folder, key_of(step)):
                        found = read_outcome(folder, step.name)
                        assert found is not None
                        end(found, kept=True)
                        continue
                    if _is_stale(step, folder, key_of(step)):  # by what came before it in this run
                        _clear(step, folder)
                    cores = free.pop()
                    future = pool.submit(
                        run_notebook,
                        step.path,
                        step.parameters,
                        folder,
                        timeout=60 * profile.timeout_minutes,
                        cwd=root,
                        progress=screen(step.name, _last_time(step, root)),
                        key=lambda step=step: key_of(step),  # type: ignore[misc]
                        stop=stop,
                        cores=cores,
                    )
                    running[future] = (step, cores)
                done, _ = wait_for(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    _, cores = running.pop(future)
                    free.append(cores)
                    screen(future.result().name, None, done=True)
                    end(future.result())
            except KeyboardInterrupt:
                stop.set()
    return [finished[step.name] for step in steps if step.name in finished]


def _shares(jobs: int) -> list[list[int]]:
    """The cores of this process dealt out to `jobs` notebooks; empty lists, which mean all, for one alone."""
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return [[] for _ in range(jobs)]
    cores = sorted(os.sched_getaffinity(0))
    return [cores[index::jobs] or [cores[index % len(cores)]] for index in range(jobs)]


def _last_time(step: _Step, root: Path) -> float | None:
    """Seconds that the notebook took when it last ended well with the same parameters."""
    given = {name: value for name, value in step.parameters.items() if name != "run_folder"}
    folders = sorted((root / "runs").glob("*/notebooks"), reverse=True)
    for folder in [one.parent for one in folders if one.parent.name != "latest"][:30]:
        found = read_outcome(folder, step.name)
        if found is not None and found.outcome == "ok":
            before = {name: value for name, value in found.parameters.items() if name != "run_folder"}
            if before == given:
                return found.seconds
    return None


def _dry_run(
    console: Console, steps: Sequence[_Step], folder: Path | None, key_of: Callable[[_Step], Key]
) -> RunReport:
    """Say what would run and why. Refusals that can be foreseen are the report's outcomes."""
    refused: list[NotebookOutcome] = []
    would_run: list[str] = []
    for step in steps:
        place = folder or Path("runs")
        _, outcome, message = refusal(step.path, step.parameters, place)
        ahead = [name for name in would_run if step.contract.follows(step.name, name)]
        if outcome == "missing_input" and ahead:
            outcome = None  # it may be there by then
        why = "it has not run here" if folder is None else _why_run(step, folder, key_of(step))
        if not why and ahead:
            why = f"{ahead[0]}, which it follows, runs"
        if not why:
            console.print(f"{step.name}  kept", markup=False)
            continue
        would_run.append(step.name)
        if outcome is not None:
            refused.append(NotebookOutcome(step.name, outcome, 0.0, message))
            console.print(f"{step.name}  would be refused, {outcome}: {message}", markup=False)
        else:
            console.print(f"{step.name}  would run: {why}", markup=False)
    return RunReport(place, tuple(refused), {})


def _check_seeds(seeds: Sequence[int]) -> list[int]:
    odd = [seed for seed in seeds if type(seed) is not int or seed < 0]
    if not seeds or odd or len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds: expected distinct whole numbers from 0, got {list(seeds)}")
    return list(seeds)


def _newest_folder(root: Path, profile: str) -> Path:
    """The newest run folder of a profile, told by its name."""
    stem = re.escape(Path(profile).stem if profile.endswith((".yaml", ".yml")) else profile)
    name = re.compile(rf"(\d{{8}}T\d{{6}}Z)-{stem}(?:-(\d+))?")
    found = [
        (match[1], int(match[2] or 1), path)
        for path in (root / "runs").glob("*")
        if path.is_dir() and not path.is_symlink() and (match := name.fullmatch(path.name))
    ]
    if not found:
        raise ValueError(f"resume: there is no run of profile {profile!r} under runs/; start one without --resume")
    return max(found)[2]


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
            f"({before['notebooks'][done[0]]}); name a new folder, or take it up with --resume"
        )


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Refuse a folder in which another runner is at work; a killed one's lock goes with it."""
    place = folder / "notebooks"
    place.mkdir(exist_ok=True)
    handle = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ValueError(
            f"run folder {records.relative_to_project(folder)} is in use by another run; wait for it, or name a new one"
        ) from None
    finally:
        os.close(handle)


def _declared(path: Path) -> tuple[tuple[str, ...], Contract]:
    """A notebook's parameters and contract; none where they cannot be read, which its outcome will explain."""
    try:
        notebook = read_notebook(path)
        contract = read_contract(notebook)
    except ValueError:
        return (), Contract()
    try:
        return declared_parameters(notebook), contract
    except ValueError:
        return (), contract


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
def _screen(console: Console) -> Iterator[Callable[..., Progress | None]]:
    """A line per running notebook with the time gone by and the time left; without a terminal, a line a minute."""
    if not console.is_terminal:
        yield lambda name, expected, done=False: None if done else _heartbeat(console, name, expected)
        return
    from rich.progress import Progress as Lines
    from rich.progress import TaskID, TextColumn

    with Lines(TextColumn("{task.description}", markup=False), console=console, transient=True) as lines:
        tasks: dict[str, TaskID] = {}

        def show(name: str, expected: float | None, done: bool = False) -> Progress | None:
            if done:
                lines.remove_task(tasks.pop(name))
                return None
            tasks[name] = lines.add_task(f"{name}  0:00")
            task = tasks[name]
            return lambda seconds, ran, cells: lines.update(
                task, description=f"{name}  {_state(seconds, ran, cells, expected)}"
            )

        yield show


def _heartbeat(console: Console, name: str, expected: float | None) -> Progress:
    console.print(f"{name} …" + (f" took {clock(expected)} last time" if expected else ""), markup=False)
    told = 0.0

    def tell(seconds: float, ran: int, cells: int) -> None:
        nonlocal told
        if seconds - told >= HEARTBEAT:
            told = seconds
            console.print(f"{name} … {_state(seconds, ran, cells, expected)}", markup=False)

    return tell


def _state(seconds: float, ran: int, cells: int, expected: float | None) -> str:
    """Time gone by, cells done, and the time left: by the last run that was like this one, else by the cells."""
    text = f"{clock(seconds)}, {ran} of {cells} cells"
    if expected is not None:
        left = expected - seconds
        return f"{text}, about {clock(left)} left" if left > 0 else f"{text}, last time it took {clock(expected)}"
    return f"{text}, {clock(seconds / ran * (cells - ran))} left if cells were alike" if ran else text


def _print_outcome(console: Console, outcome: NotebookOutcome, folder: Path, *, kept: bool) -> None:
    from rich.markup import escape

    if kept:
        console.print(f"{outcome.name}  kept, nothing that it depends on has changed", markup=False)
        return
    colour = "green" if outcome.outcome == "ok" else "red"
    console.print(f"{escape(outcome.name)}  [{colour}]{outcome.outcome}[/]  {clock(outcome.seconds)}")
    if outcome.outcome != "ok":
        where = records.relative_to_project(folder / (outcome.html or outcome.log))
        console.print(f"  {outcome.message}\n  see {where}", markup=False)


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
