"""Evaluation runs: every method on every benchmark, one Parquet file per batch of problems, taken up after any stop.

A run folder holds `plan.json` (what was asked and on which problems), `parts/…` (records of one batch each, written
whole or not at all), and at the end `items.parquet` with all of them. Batches are cut before anything is answered, so a
run that was killed and taken up again has answered the same problems side by side as one that was not.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from agent_gspo_core.benchmarks import BENCHMARKS, hidden_profile
from agent_gspo_core.episode import CodeTests, Problem
from agent_gspo_core.evaluation import CodeRunner, ItemRecord, evaluate_items
from agent_gspo_core.kit import records
from agent_gspo_core.methods import build_method
from agent_gspo_core.policy import Policy, PolicySettings, load_policy
from agent_gspo_core.rollout import TeamSettings

log = logging.getLogger(__name__)

HIDDEN_PROFILE = "hidden_profile"
"""Generated problems, beside the benchmarks; "hidden_profile/sum" takes one family of them."""

KEYS = ("benchmark", "arm", "cap", "seed")
"""Columns that name a cell; `cap` is missing where a method ran without one."""


@dataclass(frozen=True)
class SuiteSettings:
    """An evaluation: each method on each benchmark. Every default is ours."""

    benchmarks: tuple[str, ...] = ("hidden_profile/sum", "hidden_profile/comparison", "hidden_profile/choice")
    """Names from `agent-gspo data list`, "hidden_profile", or "hidden_profile/" and a family."""
    methods: tuple[str, ...] = ("single", "free_for_all", "free_for_all_capped")
    """Names from `methods.METHODS`; "free_for_all@runs/latest/policy" runs one with a trained policy or adapter. The
    first is what the others are compared with."""
    team: TeamSettings = field(default_factory=TeamSettings)
    """What the methods share: agents, rounds, caps, prompt style."""
    policy: PolicySettings = field(default_factory=PolicySettings)
    """Who speaks where a method names no policy of its own."""
    limit: int | None = 100
    """Problems per benchmark, drawn by `data_seed`; `None` takes all."""
    members: int = 1
    """Answers per problem and seed."""
    seeds: tuple[int, ...] = (0,)
    """Sampling seeds. Greedy decoding gives the same under each."""
    temperature: float = 0.0
    """0 decodes greedily; methods that prescribe a temperature keep theirs."""
    caps: tuple[int | None, ...] = (None,)
    """Most completion tokens that one problem may cost, whatever the method (see `methods.under_cap`); each method runs
    under each, `None` is without."""
    batch_problems: int = 32
    """Problems answered side by side and recorded together: what a kill can cost."""
    batch_rows: int = 128
    """Most messages decoded at once; bounds memory."""
    data_seed: int = 0
    """Seed of the draw of problems."""
    root: str | None = None
    """Local folder with benchmark files; else the environment variable AGENT_GSPO_DATA, else the hub."""
    run_code: bool = False
    """Run model-written programs in the sandbox. Off: answers of kind "code" stay unscored."""

    def __post_init__(self) -> None:
        for name in ("benchmarks", "methods", "caps", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"suite: {name} must be given and distinct, got {values}")
        for name in ("members", "batch_problems", "batch_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"suite: {name} must be at least 1, got {getattr(self, name)}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"suite: limit must be at least 1, or none for all problems, got {self.limit}")
        for name in self.benchmarks:
            _check_benchmark(name)
        for name in self.methods:
            for cap in self.caps:
                build_method(split_arm(name)[0], self.team, cap=cap)


def split_arm(arm: str) -> tuple[str, str | None]:
    """Method and policy folder of "method" or "method@folder"."""
    method, at, folder = arm.partition("@")
    if at and not folder:
        raise ValueError(f"suite: {arm!r} names no folder after the @")
    return method, folder or None


def with_trained(settings: SuiteSettings, training: Path) -> SuiteSettings:
    """The same evaluation with one arm more: free-for-all with the policy that the first seed of a training run left.

    `training` holds the folders `seed-N/policy` of `experiment.train_seeds`. Without any the settings stay as they are.
    """
    trained = sorted(training.glob("seed-*/policy"), key=lambda path: int(path.parent.name.removeprefix("seed-")))
    if not trained:
        return settings
    arm = f"free_for_all@{records.relative_to_project(trained[0])}"
    return replace(settings, methods=(*settings.methods, arm))


def _check_benchmark(name: str) -> None:
    head, slash, family = name.partition("/")
    if head == HIDDEN_PROFILE and (not slash or family in hidden_profile.FAMILIES):
        return
    if name not in BENCHMARKS:
        known = [HIDDEN_PROFILE, *(f"{HIDDEN_PROFILE}/{family}" for family in hidden_profile.FAMILIES), *BENCHMARKS]
        raise ValueError(f"suite: unknown benchmark {name!r}; known are {', '.join(known)}")


def load_benchmark(name: str, settings: SuiteSettings, policy: Policy) -> list[Problem]:
    """The problems of one benchmark as the suite asks for them. Errors as in the benchmark's own `load`."""
    head, _, family = name.partition("/")
    if head == HIDDEN_PROFILE:
        families = (family,) if family else hidden_profile.FAMILIES
        return hidden_profile.load(
            "test",
            limit=settings.limit or 200,
            seed=settings.data_seed,
            settings=hidden_profile.HiddenProfileSettings(agents=settings.team.agents, families=families),
            count=policy.count,
        )
    card = BENCHMARKS[name]
    return card.load(card.evaluation_split, root=settings.root, limit=settings.limit, seed=settings.data_seed)


@dataclass(frozen=True)
class Batch:
    """Problems that are answered side by side by one arm under one seed."""

    benchmark: str
    arm: str
    cap: int | None
    seed: int
    number: int
    problems: tuple[Problem, ...]

    @property
    def cell(self) -> tuple[str, str, int | None, int]:
        """What `KEYS` names."""
        return (self.benchmark, self.arm, self.cap, self.seed)

    @property
    def path(self) -> Path:
        """Where its records lie, below the run folder."""
        digest = hashlib.sha256(json.dumps(self.cell).encode()).hexdigest()[:12]
        name = "-".join((self.benchmark.replace("/", "."), split_arm(self.arm)[0], digest))
        return Path("parts") / name / f"{self.number:04d}.parquet"


def run_suite(
    settings: SuiteSettings,
    folder: Path | str,
    *,
    report: Callable[[str], None] | None = print,
    load: Callable[[PolicySettings], Policy] = load_policy,
) -> pd.DataFrame:
    """Answer everything that the folder does not hold yet and return all records, also written as `items.parquet`.

    Columns: `benchmark`, `arm`, `seed` and the fields of `evaluation.ItemRecord`; rows in the order of the plan.

    Args:
        settings: what to run.
        folder: run folder; one that was begun with the same settings and problems is taken up.
        report: called with a line per finished cell (benchmark × arm × seed); `None` is quiet.
        load: loads a policy.

    Raises:
        ValueError: the folder holds another plan, or is in use; bad settings.
        FileNotFoundError, ConnectionError: a benchmark or policy that is not there.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder):
        policy = load(settings.policy)
        problems = {name: load_benchmark(name, settings, policy) for name in settings.benchmarks}
        _check_plan(folder, settings, problems)
        batches = list(plan_batches(settings, problems))
        if not (folder / "provenance.json").exists():
            records.write_json(folder / "provenance.json", records.provenance())
        run_code = sandbox_runner() if settings.run_code else None
        _run_missing(settings, folder, batches, policy, load, run_code, report)
        frame = _read(folder, batches)
        write_parquet(folder / "items.parquet", frame)
    return frame


def plan_batches(settings: SuiteSettings, problems: Mapping[str, Sequence[Problem]]) -> Iterator[Batch]:
    """Every batch, arms outermost, so that each policy is loaded once."""
    for arm, name, cap, seed in product(settings.methods, settings.benchmarks, settings.caps, settings.seeds):
        for number, start in enumerate(range(0, len(problems[name]), settings.batch_problems)):
            part = tuple(problems[name][start : start + settings.batch_problems])
            yield Batch(name, arm, cap, seed, number, part)


def _run_missing(
    settings: SuiteSettings,
    folder: Path,
    batches: Sequence[Batch],
    policy: Policy,
    load: Callable[[PolicySettings], Policy],
    run_code: CodeRunner | None,
    report: Callable[[str], None] | None,
) -> None:
    missing = [batch for batch in batches if not (folder / batch.path).is_file()]
    if report is not None and len(missing) < len(batches):
        report(f"{len(batches) - len(missing)} of {len(batches)} batches are there already")
    last_of = {batch.cell: batch for batch in missing}
    spoken, loaded = policy, None
    with _progress(sum(len(batch.problems) for batch in missing)) as advance:
        for batch in missing:
            name, own = split_arm(batch.arm)
            if own != loaded:
                place = None if own is None else str(records.project_path(own))
                spoken = policy if place is None else load(replace(settings.policy, model=place))
                loaded = own
            advance(0, f"{batch.benchmark} · {batch.arm}")
            write_parquet(folder / batch.path, _answer(settings, batch, name, spoken, run_code))
            advance(len(batch.problems), None)
            if report is not None and batch is last_of[batch.cell]:
                report(_cell_line(folder, [b for b in batches if b.cell == batch.cell]))


def _answer(
    settings: SuiteSettings, batch: Batch, method: str, policy: Policy, run_code: CodeRunner | None
) -> pd.DataFrame:
    items = evaluate_items(
        policy,
        build_method(method, settings.team, cap=batch.cap),
        batch.problems,
        members=settings.members,
        seed=batch.seed,
        temperature=settings.temperature,
        run_code=run_code,
        batch_rows=settings.batch_rows,
    )
    return to_frame(batch.cell, items)


def to_frame(cell: tuple[str, str, int | None, int], items: Sequence[ItemRecord]) -> pd.DataFrame:
    """Records as a table whose column types do not depend on what happens to be in it."""
    frame = pd.DataFrame([asdict(item) for item in items])
    for place, (key, value) in enumerate(zip(KEYS, cell, strict=True)):
        frame.insert(place, key, value)
    text = ("benchmark", "arm", "item", "family", "gold", "prediction", "strict_prediction", "reply", "transcript")
    types = dict.fromkeys(text, "string") | dict.fromkeys(("correct", "strict_correct"), "boolean")
    return frame.astype(types | {"cap": "Int64", "seed": "int64"})


def _read(folder: Path, batches: Sequence[Batch]) -> pd.DataFrame:
    parts = []
    for batch in batches:
        try:
            parts.append(pd.read_parquet(folder / batch.path))
        except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
            raise ValueError(
                f"suite: {records.relative_to_project(folder / batch.path)} cannot be read ({error}); remove it and "
                "start again: only its problems are answered anew"
            ) from error
    return pd.concat(parts, ignore_index=True)


def _cell_line(folder: Path, batches: Sequence[Batch]) -> str:
    frame = _read(folder, batches)
    scored = frame["correct"].dropna()
    accuracy = "not scored" if scored.empty else f"{100 * scored.mean():.1f} % right"
    first = batches[0]
    under = "" if first.cap is None else f" · at most {first.cap} tokens"
    return (
        f"{first.benchmark} · {first.arm}{under} · seed {first.seed}: {len(frame)} answers, {accuracy}, "
        f"{frame['tokens'].mean():.1f} tokens each, {100 * frame['prediction'].isna().mean():.1f} % unparsed"
    )


def _check_plan(folder: Path, settings: SuiteSettings, problems: Mapping[str, Sequence[Problem]]) -> None:
    """Write the plan into a new folder; refuse a folder that was begun with another."""
    plan = {
        "settings": json.loads(json.dumps(asdict(settings))),
        "problems": {
            name: {"count": len(drawn), "sha256": hashlib.sha256(repr(list(drawn)).encode()).hexdigest()}
            for name, drawn in problems.items()
        },
    }
    path = folder / "plan.json"
    if not path.is_file():
        records.write_json(path, plan)
        return
    begun = records.read_json(path)
    # Where the data lies and how much is decoded at once may change between two starts; neither changes an answer.
    now, then = (dict(_leaves(record["settings"])) for record in (plan, begun))
    differs = [
        f"{name} is {now.get(name)!r} and was {then.get(name)!r}"
        for name in sorted({*now, *then} - {"root", "batch_rows"})
        if now.get(name) != then.get(name)
    ]
    differs += [
        f"the problems of {name} differ" for name in problems if begun["problems"].get(name) != plan["problems"][name]
    ]
    if differs:
        raise ValueError(
            f"suite: {records.relative_to_project(folder)} was begun with other settings ({differs[0]}); "
            "give another run folder, or the settings it was begun with"
        )


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Single settings by dotted name."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def sandbox_runner() -> CodeRunner:
    """Runs programs in the sandbox, over all cores. Imported here, so that nothing can run one unasked."""
    from agent_gspo_core.scoring.sandbox import SandboxSettings, check_solutions

    settings = SandboxSettings()

    def passed(pairs: Sequence[tuple[str, CodeTests]]) -> list[bool]:
        return [outcome.passed for outcome in check_solutions(pairs, settings)]

    return passed


def write_parquet(path: Path, frame: pd.DataFrame) -> None:
    """Write the table whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    frame.to_parquet(part, index=False)
    part.replace(path)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Refuse a folder in which another process is at work; a killed one's lock goes with it."""
    import fcntl

    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"suite: another process is at work in {records.relative_to_project(folder)}; wait for it, or give "
                "another run folder"
            ) from None
        yield


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int, str | None], None]]:
    """A bar with the time that is left, on a terminal; a notebook or a log gets the lines of `report` only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, what: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("answering", total=total)

        def advance(done: int, what: str | None) -> None:
            if what is not None:
                bar.update(task, description=what)
            bar.advance(task, done)

        yield advance
