"""The main job in its smallest size: measured, trained, measured again, for several seeds."""

from __future__ import annotations

import json
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_gspo_core.kit import experiment, tables
from agent_gspo_core.kit.settings import DataSettings, RunSettings, load_profile, override, profile_names
from agent_gspo_core.trainer import Trainer


@pytest.fixture
def settings(random_policy_folder: Path) -> RunSettings:
    small = load_profile("smoke").settings
    return override(
        small,
        {
            "policy.model": str(random_policy_folder),
            "policy.device": "cpu",
            "team.message_tokens": 8,
            "team.answer_tokens": 8,
            "data.test_problems": 4,
        },
    )


def without_times(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = []
    for result in results:
        clean = {key: result[key] for key in ("seed", "steps", "settings")}
        for when in ("before", "after"):
            clean[when] = json.loads(json.dumps(result[when]))
            for kind in ("sampled", "greedy"):
                del clean[when][kind]["seconds"]
        kept.append(clean)
    return kept


def test_seeds_side_by_side_give_what_they_give_one_by_one(settings: RunSettings, tmp_path: Path) -> None:
    alone = experiment.train_seeds(settings, [0, 1], tmp_path / "alone", jobs=1)
    together = experiment.train_seeds(settings, [0, 1], tmp_path / "together", jobs=2)
    assert without_times(alone) == without_times(together)
    assert alone[0]["before"]["sampled"] != alone[1]["before"]["sampled"]


def test_an_interrupted_seed_goes_on_where_it_stopped(
    settings: RunSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = experiment.train_seed(settings, 3, tmp_path / "whole", progress=False)
    real = Trainer.step

    def stops_after_one(trainer: Trainer) -> dict[str, Any]:
        if trainer.done == 1:
            raise KeyboardInterrupt
        return real(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stops_after_one)
        with pytest.raises(KeyboardInterrupt):
            experiment.train_seed(settings, 3, tmp_path / "broken", progress=False)
    resumed = experiment.train_seed(settings, 3, tmp_path / "broken", progress=False)
    assert without_times([resumed]) == without_times([whole])


def test_a_finished_seed_is_read_and_not_trained_again(
    settings: RunSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = experiment.train_seed(settings, 0, tmp_path, progress=False)
    monkeypatch.setattr(experiment, "load_policy", lambda _: pytest.fail("trained again"))
    assert experiment.train_seed(settings, 0, tmp_path, progress=False) == json.loads(json.dumps(first))


def test_a_finished_folder_of_other_settings_is_refused(settings: RunSettings, tmp_path: Path) -> None:
    experiment.train_seed(settings, 0, tmp_path, progress=False)
    other = override(settings, {"trainer.learning_rate": 5e-3})
    with pytest.raises(ValueError, match="other settings"):
        experiment.train_seed(other, 0, tmp_path, progress=False)


def test_training_and_test_problems_share_none_and_know_their_optimum(settings: RunSettings) -> None:
    policy = experiment.load_policy(settings.policy)
    data = DataSettings(train_problems=300, test_problems=100)
    train, test = experiment.load_problems(data, policy)
    told = [{(p.question, p.notes, p.choices) for p in part} for part in (train, test)]
    assert not told[0] & told[1]
    assert all(p.least_tokens is not None for p in train + test)


def test_headline_leaves_out_what_a_benchmark_cannot_know() -> None:
    score = {"accuracy": 0.5, "tokens": 10.0, "communication_efficiency": None, "silence_right": None}
    result = {"before": {"sampled": score}, "after": {"sampled": score | {"tokens": 5.0}}}
    found = experiment.headline([result, result])
    assert set(found) == {"accuracy_before", "accuracy_after", "tokens_before", "tokens_after"}
    assert found["tokens_after"] == {"mean": 5.0, "low": 5.0, "high": 5.0}


def test_tables_show_before_and_after(settings: RunSettings, tmp_path: Path) -> None:
    results = experiment.train_seeds(settings, [0], tmp_path, jobs=1)
    headline = tables.headline_table(experiment.headline(results))
    assert list(headline.columns) == ["before", "after"]
    assert "accuracy" in headline.index
    told = tables.transcripts_table(results[0], limit=2)
    assert len(told) == 2 * (3 + 1 + 1)  # three agents, the judge and the reading, twice
    assert set(tables.settings_table(settings)["concern"]) >= {"policy", "team", "trainer", "budget"}


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_is_valid(name: str) -> None:
    profile = load_profile(name)
    assert profile.description
    assert replace(profile, jobs=1).settings == profile.settings


def test_a_worker_that_dies_loses_no_seed(
    settings: RunSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Dying:
            return self

        def __exit__(self, *_: object) -> None: ...

        def submit(self, *_: object) -> None:
            raise BrokenProcessPool("a worker was killed")

    monkeypatch.setattr(experiment, "ProcessPoolExecutor", Dying)
    results = experiment.train_seeds(settings, [0, 1], tmp_path, jobs=2)
    assert [result["seed"] for result in results] == [0, 1]
