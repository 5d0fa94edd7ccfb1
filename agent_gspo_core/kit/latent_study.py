"""The study of latent communication: every arm of `latent.arms`, under several seeds, on the same problems.

An adapter is trained once a seed, and an arm answers once a seed and benchmark. Each is a folder of its own, named by
what it is and a digest of all it depends on, so a study that was stopped goes on where it was, and a changed setting
trains and answers only what it changes.

    adapters/<adapter>-<digest>/seed-0/            as `latent.train_adapter` leaves it, and result.json
    arms/<arm>-<benchmark>-<digest>/seed-0/        items.csv with an answer a row, and result.json with the scores

What all arms share: the problems, the seeds, the form of the supervised answers, the decoding of the last agent's
answer and its cap. What a seed changes: the adapter's first weights, the order of the training examples, and the
sampling of answers; so intervals over seeds say how far another training would land, not another draw of problems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_gspo_core.benchmarks import BENCHMARKS, hidden_profile
from agent_gspo_core.episode import CodeTests, Problem
from agent_gspo_core.kit import records
from agent_gspo_core.kit.experiment import run_jobs, weights_digest
from agent_gspo_core.kit.keys import digest
from agent_gspo_core.kit.latent_settings import SUBJECT, LatentStudySettings, LatentTaskSettings
from agent_gspo_core.kit.suite import HIDDEN_PROFILE, sandbox_runner
from agent_gspo_core.kit.tables import write_csv
from agent_gspo_core.latent.arms import ARMS, Adapter, run_arm, train_adapter
from agent_gspo_core.latent.examples import Example, hidden_profile_examples, problem_examples
from agent_gspo_core.latent.stability import measure_stability, perplexity, token_entropy
from agent_gspo_core.latent.team import LatentAnswer
from agent_gspo_core.policy import PolicySettings

if TYPE_CHECKING:
    import pandas as pd

# --------------------------------------------------------------------------------------------------------- the problems


def training_examples(settings: LatentStudySettings, task: LatentTaskSettings) -> list[Example]:
    """What the adapters of a task learn from. Errors as in the benchmark's own `load`."""
    if task.train_on == HIDDEN_PROFILE:
        return hidden_profile_examples(
            "train",
            limit=task.train_problems,
            seed=settings.data_seed,
            settings=task.hidden_profile,
            target=task.target,
        )
    card = BENCHMARKS[task.train_on]
    split = card.training_split or card.evaluation_split
    return problem_examples(
        card.load(split, root=settings.root, limit=task.train_problems, seed=settings.data_seed),
    )


def asked_problems(settings: LatentStudySettings, task: LatentTaskSettings, benchmark: str) -> list[Problem]:
    """What the arms are asked, without what the adapters have learned from. Errors as in the benchmark's own `load`.

    Raises:
        ValueError: fewer than two problems are left.
    """
    if benchmark == HIDDEN_PROFILE:
        return hidden_profile.load(
            "test", limit=task.test_problems or 200, seed=settings.data_seed, settings=task.hidden_profile
        )
    card = BENCHMARKS[benchmark]
    drawn = card.load(card.evaluation_split, root=settings.root, seed=settings.data_seed)
    trained_on = {_plain(example.problem.question) for example in training_examples(settings, task)}
    left = [problem for problem in drawn if _plain(problem.question) not in trained_on][: task.test_problems]
    if len(left) < 2:
        raise ValueError(
            f"latent study: {len(left)} problems of {benchmark} are left that {task.train_on} did not hold"
        )
    return left


def _plain(question: str) -> str:
    """A question by which two benchmarks' copies of one problem are known, whatever their blanks."""
    return "".join(question.split())


def chance(problem: Problem) -> float:
    """What guessing from the question alone is worth: the best guess at a hidden profile, 1 ÷ options, else 0."""
    if problem.needed is not None:
        return hidden_profile.best_guess(problem)
    return 1 / len(problem.choices) if problem.choices else 0.0


# ----------------------------------------------------------------------------------------------------------- the places

_PACE = ("checkpointing", "checkpoint_every", "gradient", "seed")
"""Training settings that change no adapter beyond what its name and seed say."""
_DECODING = ("answer_tokens", "temperature", "top_p")
_TRACE = ("latent_steps", "embedding_map", "ridge", "build")
_WORDS = ("message_tokens", "topology", "messages")


@dataclass(frozen=True)
class Study:
    """What a study consists of, and where it lies."""

    settings: LatentStudySettings
    folder: Path
    weights: str
    """See `experiment.weights_digest`."""

    def adapter_place(self, task: LatentTaskSettings, adapter: Adapter, seed: int) -> Path:
        """Folder of one adapter under one seed; a trained team for `LatentTeam.load` if it is trained on traces."""
        return self.folder / "adapters" / f"{adapter}-{digest(self._of_adapter(task, adapter))[:10]}" / f"seed-{seed}"

    def arm_place(self, task: LatentTaskSettings, arm: str, benchmark: str, seed: int) -> Path:
        """Folder of one arm's answers under one seed."""
        name = f"{arm}-{benchmark}-{digest(self._of_arm(task, arm, benchmark))[:10]}"
        return self.folder / "arms" / name / f"seed-{seed}"

    def metrics(self, task: LatentTaskSettings, adapter: Adapter, seed: int) -> list[dict[str, Any]]:
        """The optimiser steps of one adapter."""
        return records.read_jsonl(self.adapter_place(task, adapter, seed) / "metrics.jsonl")

    @property
    def cells(self) -> list[tuple[LatentTaskSettings, str, str, int]]:
        """(task, benchmark, arm, seed) of everything that is measured, in the order of the tables."""
        s = self.settings
        return [
            (task, benchmark, arm, seed)
            for task in s.tasks
            for benchmark in task.test_on
            for arm in s.arms
            for seed in s.seeds
        ]

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """Those that the arms need, in the order of the arms."""
        needed = [ARMS[arm].adapter for arm in self.settings.arms]
        return tuple(dict.fromkeys(adapter for adapter in needed if adapter is not None))

    def _of_adapter(self, task: LatentTaskSettings, adapter: Adapter) -> dict[str, Any]:
        """All that an adapter depends on, the seed aside."""
        traced = adapter in ("diffmas", "detached", "last_agent")
        learned: dict[str, Any] = {"train_on": task.train_on, "problems": task.train_problems, "target": task.target}
        if task.train_on == HIDDEN_PROFILE:
            learned["hidden_profile"] = asdict(task.hidden_profile)
        return {
            "adapter": adapter,
            "task": learned,
            "data_seed": self.settings.data_seed,
            "weights": self.weights,
            "shared": self._shared(_DECODING + (() if traced else _TRACE), _WORDS if adapter == "textmas_sft" else ()),
        }

    def _of_arm(self, task: LatentTaskSettings, name: str, benchmark: str) -> dict[str, Any]:
        """All that an arm's answers depend on, the seed aside."""
        arm, s = ARMS[name], self.settings
        traced, worded = arm.channel == "trace", arm.channel == "text"
        asked: dict[str, Any] = {"benchmark": benchmark, "problems": task.test_problems}
        if benchmark == HIDDEN_PROFILE:
            asked["hidden_profile"] = asdict(task.hidden_profile)
        else:  # what was trained on is not asked
            asked["without"] = [task.train_on, task.train_problems]
        if BENCHMARKS.get(benchmark) is not None and BENCHMARKS[benchmark].kind == "code":
            asked["run_code"] = s.run_code
        return {
            "arm": asdict(arm),
            "asked": asked,
            "data_seed": s.data_seed,
            "weights": self.weights,
            "adapter": None if arm.adapter is None else self._of_adapter(task, arm.adapter),
            "samples": s.samples,
            "dropped": s.shared.dropped if arm.change == "dropped" else "",
            "shared": self._shared(() if traced else _TRACE, _WORDS if worded else (), training=False),
        }

    def _shared(self, without: Sequence[str], words: Sequence[str], *, training: bool = True) -> dict[str, Any]:
        """What counts of the shared settings: not where the model runs, and not `without` of the team's."""
        described = asdict(self.settings.shared)
        kept: dict[str, Any] = {name: described[name] for name in ("dtype", *words)}
        kept["team"] = {name: value for name, value in described["team"].items() if name not in without}
        if training:
            kept["training"] = {name: value for name, value in described["training"].items() if name not in _PACE}
        return kept


# -------------------------------------------------------------------------------------------------------------- the run


@dataclass(frozen=True)
class Job:
    """What runs in one go: an adapter is trained if it is not there, and all arms that use it answer."""

    task: LatentTaskSettings
    adapter: Adapter | None
    """`None`: the arms that use the model as it came."""
    seed: int


def run_study(
    settings: LatentStudySettings,
    folder: Path | str,
    *,
    jobs: int = 1,
    report: Callable[[str], None] | None = print,
) -> Study:
    """Train and measure what the folder does not hold yet.

    A job that fails does not stop the others; the first failure is raised at the end.

    Args:
        settings: what to run.
        folder: of the study; one that was begun is taken up.
        jobs: adapters trained side by side, each with cores ÷ jobs threads.
        report: called with a line per finished job; `None` is quiet.

    Raises:
        RuntimeError: a job failed; the others are recorded.
        ValueError: jobs below 1.
    """
    if jobs < 1:
        raise ValueError(f"latent study: jobs must be at least 1, got {jobs}")
    weights = weights_digest(PolicySettings(model=settings.shared.model))
    study = Study(settings, Path(folder), weights)
    study.folder.mkdir(parents=True, exist_ok=True)
    missing = [job for job in _jobs(study) if _is_missing(study, job)]
    failures: list[tuple[Job, Exception]] = []

    def told(job: Job, result: str | Exception) -> None:
        where = f"{job.task.train_on}, seed {job.seed}, {job.adapter or 'untrained'}"
        if isinstance(result, Exception):
            failures.append((job, result))
            result = f"failed ({type(result).__name__}: {result})"
        if report is not None:
            report(f"{where}: {result}")

    run_jobs({job: partial(run_job, study, job) for job in missing}, told, jobs=jobs)
    if failures:
        job, error = failures[0]
        raise RuntimeError(
            f"latent study: {job.adapter or 'untrained arms'}, seed {job.seed} failed ({type(error).__name__}: "
            f"{error}); {len(failures)} of {len(missing)} jobs failed, the others are recorded"
        ) from error
    return study


def _jobs(study: Study) -> list[Job]:
    """Seed by seed; within a seed DiffMAS's first, whose many arms take longest."""
    adapters = sorted(study.adapters, key=lambda name: name != SUBJECT)
    used = [*adapters, *([None] if any(ARMS[arm].adapter is None for arm in study.settings.arms) else [])]
    return [
        Job(task, adapter, seed) for task in study.settings.tasks for seed in study.settings.seeds for adapter in used
    ]


def _answering(study: Study, job: Job) -> list[tuple[str, str]]:
    """(arm, benchmark) that a job still has to answer."""
    return [
        (arm, benchmark)
        for arm in study.settings.arms
        if ARMS[arm].adapter == job.adapter
        for benchmark in job.task.test_on
        if not (study.arm_place(job.task, arm, benchmark, job.seed) / "result.json").is_file()
    ]


def _is_trained(study: Study, job: Job) -> bool:
    return job.adapter is None or (study.adapter_place(job.task, job.adapter, job.seed) / "result.json").is_file()


def _is_missing(study: Study, job: Job) -> bool:
    return not _is_trained(study, job) or bool(_answering(study, job))


def run_job(study: Study, job: Job) -> str:
    """Train what is missing, answer what is missing; says in words what was done."""
    told = []
    if not _is_trained(study, job):
        told.append(train(study, job))
    asked: dict[str, list[Problem]] = {}
    for arm, benchmark in _answering(study, job):
        if benchmark not in asked:
            asked[benchmark] = asked_problems(study.settings, job.task, benchmark)
        scores = answer(study, job, arm, benchmark, asked[benchmark])
        right = scores["accuracy"]
        told.append(f"{arm} {'not scored' if right is None else f'{100 * right:.1f} %'}")
    return ", ".join(told)


def train(study: Study, job: Job) -> str:
    """Train a job's adapter; its folder then holds the adapter, the metrics of its steps and `result.json`."""
    assert job.adapter is not None
    place = study.adapter_place(job.task, job.adapter, job.seed)
    examples = training_examples(study.settings, job.task)
    if not (place / "checkpoint.pt").is_file():  # broken off before its first one: there is nothing to go on from
        (place / "metrics.jsonl").unlink(missing_ok=True)
    train_adapter(job.adapter, study.settings.under(job.seed), examples, place, progress=False)
    steps = records.read_jsonl(place / "metrics.jsonl")
    records.write_json(
        place / "result.json",
        {
            "adapter": job.adapter,
            "seed": job.seed,
            "steps": len(steps),
            "seconds": sum(step["seconds"] for step in steps),
            "settings": asdict(study.settings.under(job.seed)),
            "task": asdict(job.task),
            "provenance": records.provenance(),
        },
    )
    # Last, or a kill between the two would leave nothing to go on from.
    (place / "checkpoint.pt").unlink(missing_ok=True)
    return f"trained {len(steps)} steps, loss {steps[0]['loss']:.2f} → {steps[-1]['loss']:.2f}"


def answer(study: Study, job: Job, arm: str, benchmark: str, problems: Sequence[Problem]) -> dict[str, Any]:
    """Let one arm answer; writes `items.csv` and, last, `result.json` with the scores, which are returned."""
    s = study.settings
    folders: dict[str, Path] = {}
    if job.adapter is not None:
        folders[job.adapter] = study.adapter_place(job.task, job.adapter, job.seed)
    answers = run_arm(
        arm, s.under(job.seed), problems, folders, seed=job.seed, samples=s.samples, batch_rows=s.batch_rows
    )
    if s.run_code:
        answers = _with_code_run(answers)
    place = study.arm_place(job.task, arm, benchmark, job.seed)
    items = answers_table(answers)
    write_csv(place / "items.csv", items)
    scores = score(answers, items)
    records.write_json(place / "result.json", scores)
    return scores


def _with_code_run(answers: Sequence[LatentAnswer]) -> list[LatentAnswer]:
    """The answers with programs run, each once."""

    def program(answer: LatentAnswer) -> tuple[str, CodeTests] | None:
        tests = answer.problem.tests
        return None if tests is None or answer.prediction is None else (answer.prediction, tests)

    wanted = dict.fromkeys(pair for one in answers if (pair := program(one)) is not None)
    if not wanted:
        return list(answers)
    passed = dict(zip(wanted, sandbox_runner()(list(wanted)), strict=True))
    return [one if (pair := program(one)) is None else replace(one, correct=passed[pair]) for one in answers]


def answers_table(answers: Sequence[LatentAnswer]) -> pd.DataFrame:
    """An answer a row: what was asked, what was said, whether it is right, and what it cost."""
    import pandas as pd

    seen: dict[str, int] = {}
    rows = []
    for one in answers:
        problem, cost = one.problem, one.cost
        seen[problem.id] = seen.get(problem.id, -1) + 1
        rows.append(
            {
                "item": problem.id,
                "family": problem.family,
                "needed": "" if problem.needed is None else " ".join(map(str, sorted(problem.needed))),
                "chance": chance(problem),
                "sample": seen[problem.id],
                "gold": "" if problem.tests else problem.answer,
                "prediction": one.prediction,
                "correct": one.correct,
                "truncated": one.reply.truncated,
                "said": cost.said,
                "message_tokens": cost.said - len(one.reply.token_ids),
                "read": cost.read,
                "latent": cost.latent,
                "kv_bytes": cost.kv_bytes,
                "flops": cost.forward_flops,
                "perplexity": perplexity(one),
                "token_entropy": token_entropy(one),
                "text": one.text,
            }
        )
    return pd.DataFrame(rows)


COSTS = ("said", "message_tokens", "read", "latent", "kv_bytes", "flops")
"""Columns of `items.csv` that are costs of an answer: tokens said by all, those of them that are messages, tokens read,
latent positions, bytes of keys and values at the last token, forward FLOPs (see `latent.team.Cost`)."""


def score(answers: Sequence[LatentAnswer], items: pd.DataFrame) -> dict[str, Any]:
    """Means over problems (each has as many samples): accuracy, what could not be read, costs, stability."""
    steady = measure_stability(answers)
    scored = not items["correct"].isna().any()
    return {
        "accuracy": float(items["correct"].astype(float).mean()) if scored else None,
        "chance": float(items["chance"].mean()),
        "unparsed": float(items["prediction"].isna().mean()),
        "truncated": float(items["truncated"].mean()),
        **{name: float(items[name].mean()) for name in COSTS},
        "perplexity": steady.perplexity,
        "token_entropy": steady.token_entropy,
        "self_consistency": steady.self_consistency,
        "problems": steady.problems,
        "samples": steady.samples,
    }


def losses(study: Study, task: LatentTaskSettings) -> Mapping[str, list[float]]:
    """Mean over the seeds of the training loss (nats per answer token) at every step, by adapter."""
    found = {}
    for adapter in study.adapters:
        curves = [[step["loss"] for step in study.metrics(task, adapter, seed)] for seed in study.settings.seeds]
        found[str(adapter)] = [sum(values) / len(values) for values in zip(*curves, strict=True)]
    return found
