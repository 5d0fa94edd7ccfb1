"""The main job: measure a team, train it, measure it again, for one seed or for several side by side."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers.utils.logging import disable_progress_bar

from agent_gspo_core.benchmarks import BENCHMARKS, hidden_profile
from agent_gspo_core.episode import Episode, Problem
from agent_gspo_core.evaluation import TeamScore, evaluate_team
from agent_gspo_core.kit.records import interval, provenance, read_json, read_jsonl, usable_cores, write_json
from agent_gspo_core.kit.settings import DataSettings, RunSettings
from agent_gspo_core.policy import Policy, PolicySettings, find_model, load_policy
from agent_gspo_core.rollout import SamplingSettings, Team, derive_seed
from agent_gspo_core.trainer import Trainer

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

HEADLINE = {
    "accuracy": "accuracy",
    "tokens": "tokens",
    "communication_efficiency": "communication_efficiency",
    "silence_right": "silence_right",
}
TRANSCRIPTS = 12
"""Episodes whose words are kept before and after training."""


def load_problems(data: DataSettings, policy: Policy) -> tuple[list[Problem], list[Problem]]:
    """Training and test problems; they share none. Hidden profiles know their optimum in the policy's own tokens."""
    if data.source == "hidden_profile":
        draw = partial(hidden_profile.load, seed=data.seed, settings=data.hidden_profile, count=policy.count)
        return draw("train", limit=data.train_problems), draw("test", limit=data.test_problems)
    card = BENCHMARKS[data.source]
    split = data.train_split or card.training_split
    if split is None or split == card.evaluation_split:
        raise ValueError(f"data: {data.source} has no training split of its own; name another with data.train_split")
    draw_from = partial(card.load, root=data.root, seed=data.seed)
    return (
        draw_from(split, limit=data.train_problems),
        draw_from(card.evaluation_split, limit=data.test_problems),
    )


def measure(
    policy: Policy, settings: RunSettings, problems: Sequence[Problem], *, seed: int, temperature: float | None = None
) -> tuple[TeamScore, list[Episode]]:
    """Score the team as it stands, under the run's round cap. `seed` seeds the sampling."""
    sampling = SamplingSettings(
        seed=derive_seed(seed, "evaluation"),
        temperature=settings.evaluation.temperature if temperature is None else temperature,
        round_tokens=settings.budget.round_tokens,
    )
    return evaluate_team(policy, Team(settings.team), problems, members=settings.evaluation.members, sampling=sampling)


def transcript(episode: Episode) -> dict[str, Any]:
    """An episode in words, for people."""
    return {
        "problem": episode.problem.id,
        "question": episode.problem.question,
        "choices": list(episode.problem.choices),
        "notes": list(episode.problem.notes),
        "needed": None if episode.problem.needed is None else sorted(episode.problem.needed),
        "answer": episode.problem.answer,
        "prediction": episode.prediction,
        "correct": episode.correct,
        "tokens": episode.tokens,
        "least_tokens": episode.problem.least_tokens,
        "messages": [
            {
                "role": m.role,
                "round": m.round,
                "text": m.text,
                "tokens": m.tokens,
                "silent": m.silent,
                "cut": m.truncated,
            }
            for m in episode.messages
        ],
    }


def make_trainer(policy: Policy, settings: RunSettings, problems: Sequence[Problem], folder: Path) -> Trainer:
    """The trainer that these settings describe."""
    return Trainer(
        policy,
        Team(settings.team),
        problems,
        folder,
        settings=settings.trainer,
        objective=settings.objective,
        reward=settings.reward,
        budget=settings.budget,
        collapse=settings.collapse,
    )


def with_seed(settings: RunSettings, seed: int) -> RunSettings:
    """The same run under another training seed; problems and evaluation stay."""
    return replace(settings, trainer=replace(settings.trainer, seed=seed), policy=replace(settings.policy, seed=seed))


def weights_digest(settings: PolicySettings) -> str:
    """Digest of the weights that a local model's folder holds; of its name and revision where it comes from a hub.

    Part of an arm's folder name: new weights under an old name must not meet results of the old ones.
    """
    location, gguf = find_model(settings.model)
    names = (gguf,) if gguf else ("*.safetensors", "*.bin", "*.json", "*.jinja")
    digest = hashlib.sha256()
    for path in sorted(path for name in names for path in Path(location).glob(name)):
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    if not Path(location).is_dir():
        digest.update(f"{settings.model}@{settings.revision}".encode())
    return digest.hexdigest()


def _measure_into(folder: Path, name: str, policy: Policy, settings: RunSettings, problems: list[Problem]) -> Any:
    """Measure sampled and greedy, keep scores and transcripts; taken up from disk if already done."""
    path = folder / f"{name}.json"
    if path.is_file():
        return read_json(path)
    seed = settings.trainer.seed
    sampled, episodes = measure(policy, settings, problems, seed=seed)
    greedy, _ = measure(policy, settings, problems, seed=seed, temperature=0.0)
    record = {
        "sampled": sampled.as_dict(),
        "greedy": greedy.as_dict(),
        "transcripts": [transcript(episode) for episode in episodes[:TRANSCRIPTS]],
    }
    write_json(path, record)
    return record


def train_seed(settings: RunSettings, seed: int, folder: Path, *, progress: bool = True) -> dict[str, Any]:
    """Measure, train and measure again under one seed; the folder then holds everything, checkpoints included.

    A folder that was interrupted is taken up where it stopped; a finished one is only read.

    Returns:
        `{"seed", "before", "after", "steps", "settings", "provenance"}`, also written as `result.json`.
    """
    folder = Path(folder)
    finished = folder / "result.json"
    settings = with_seed(settings, seed)
    if finished.is_file():
        result: dict[str, Any] = read_json(finished)
        if result["settings"] != json.loads(json.dumps(asdict(settings))):
            raise ValueError(
                f"experiment: {folder} holds a finished run with other settings; give another run folder or remove it"
            )
        return result
    folder.mkdir(parents=True, exist_ok=True)
    policy = load_policy(settings.policy)
    train, test = load_problems(settings.data, policy)
    before = _measure_into(folder, "before", policy, settings, test)
    trainer = make_trainer(policy, settings, train, folder)
    if trainer.latest_checkpoint() is not None:
        trainer.resume()
    trainer.run(progress=progress)
    after = _measure_into(folder, "after", policy, settings, test)
    policy.save(folder / "policy")
    result = {
        "seed": seed,
        "steps": trainer.done,
        "before": before,
        "after": after,
        "settings": asdict(settings),
        "provenance": provenance(),
    }
    write_json(finished, result)
    return result


@contextmanager
def worker_pool(jobs: int) -> Iterator[tuple[ProcessPoolExecutor, int]]:
    """`jobs` worker processes, and the threads that each may use: cores ÷ jobs. The environment is put back after."""
    threads = max(1, usable_cores() // jobs)
    names = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    before = {name: os.environ.get(name) for name in names}
    os.environ |= names  # read by the workers when they start
    try:
        # A fresh interpreter per worker: torch's thread pools do not survive a fork.
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            yield pool, threads
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _in_job(job: Callable[[], T], threads: int) -> T:
    torch.set_num_threads(threads)
    disable_progress_bar()
    return job()


def run_jobs(jobs_by_name: Mapping[K, Callable[[], T]], told: Callable[[K, T | Exception], None], *, jobs: int) -> None:
    """Do every job, in order; one that fails does not stop the others.

    Args:
        jobs_by_name: what is to be done; with more than one worker it must pickle (a `partial` of a module's function).
        told: called with the name of each finished job and its result, or what it failed by.
        jobs: how many side by side, each with cores ÷ jobs threads.
    """
    left = dict(jobs_by_name)
    if jobs > 1 and left:
        try:
            with worker_pool(jobs) as (pool, threads):
                futures = {pool.submit(_in_job, job, threads): name for name, job in left.items()}
                try:
                    for future in as_completed(futures):
                        error = future.exception()
                        if isinstance(error, BrokenProcessPool):
                            raise error
                        del left[futures[future]]
                        told(futures[future], error if isinstance(error, Exception) else future.result())
                except BaseException:  # an interrupted run must not go on with what was queued
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
        except BrokenProcessPool:
            # A worker was killed (memory, mostly). Nothing is lost: its job goes on from what it kept, here and alone.
            print(f"a worker died; {len(left)} runs go on one by one", flush=True)
    for name, job in left.items():
        try:
            result: T | Exception = job()
        except Exception as error:  # whatever a job fails by, the others still run
            result = error
        told(name, result)


def train_seeds(settings: RunSettings, seeds: Sequence[int], folder: Path, *, jobs: int = 1) -> list[dict[str, Any]]:
    """`train_seed` for every seed, `jobs` side by side with cores ÷ jobs threads each; results in the order of `seeds`.

    Small models gain more from a process per core than from threads: two processes with two threads each crawl on two
    cores, so the threads are divided.
    """
    folder = Path(folder)
    places = {seed: folder / f"seed-{seed}" for seed in seeds}
    if jobs == 1:
        return [train_seed(settings, seed, places[seed]) for seed in seeds]
    found: dict[int, dict[str, Any]] = {}
    failures: list[Exception] = []

    def told(seed: int, result: dict[str, Any] | Exception) -> None:
        if isinstance(result, Exception):
            failures.append(result)
        else:
            found[seed] = result
            print(one_line(result), flush=True)

    run_jobs(
        {seed: partial(train_seed, settings, seed, places[seed], progress=False) for seed in seeds}, told, jobs=jobs
    )
    if failures:
        raise failures[0]
    return [found[seed] for seed in seeds]


def one_line(result: dict[str, Any]) -> str:
    """What a seed came to, for the screen."""
    before, after = result["before"]["sampled"], result["after"]["sampled"]
    return (
        f"seed {result['seed']}: accuracy {before['accuracy']:.3f} → {after['accuracy']:.3f}, "
        f"tokens per episode {before['tokens']:.1f} → {after['tokens']:.1f}"
    )


def headline(results: Iterable[dict[str, Any]], *, kind: str = "sampled") -> dict[str, dict[str, float | None]]:
    """Means with 95 % t-intervals over seeds: `{accuracy_before, accuracy_after, tokens_before, tokens_after, …}`.

    Efficiency and silence are left out where no seed could measure them (real benchmarks know no optimum).
    """
    results = list(results)
    figures: dict[str, dict[str, float | None]] = {}
    for name, key in HEADLINE.items():
        for when in ("before", "after"):
            values = [result[when][kind][key] for result in results]
            if all(value is not None for value in values):
                figures[f"{name}_{when}"] = dict(interval(values))
    return figures


def metrics_by_seed(folder: Path, seeds: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """The step records of every seed."""
    return {seed: read_jsonl(Path(folder) / f"seed-{seed}" / "metrics.jsonl") for seed in seeds}
