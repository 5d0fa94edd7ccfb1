"""The study of latent communication in its smallest size: what is rerun, what is recorded, what is said about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from agent_gspo_core.benchmarks import BENCHMARKS
from agent_gspo_core.episode import CodeTests, Problem
from agent_gspo_core.kit import cli, latent_figures, latent_study, latent_tables, records
from agent_gspo_core.kit.latent_settings import LatentStudySettings, LatentTaskSettings
from agent_gspo_core.kit.latent_study import Study, run_study
from agent_gspo_core.kit.settings import load_profile, override, profile_names
from agent_gspo_core.latent import ADAPTERS, ARMS, AnswerTrainer, LatentTeam, problem_examples

SMALL = {
    "shared.device": "cpu",
    "shared.team.answer_tokens": 4,
    "shared.message_tokens": 4,
    "shared.training.lora_rank": 2,
    "tasks": [{"train_problems": 4, "test_problems": 3}],
    "seeds": [0, 1],
    "arms": ["diffmas", "zeroed", "latentmas"],
}
WANTED = ("single", "textmas", "textmas_sft", "latentmas", "stitchmas", "detached", "last_agent", "diffmas", "zeroed")


@pytest.fixture(scope="module")
def settings(random_policy_folder: Path) -> LatentStudySettings:
    return override(load_profile("smoke").latent, {**SMALL, "shared.model": str(random_policy_folder)})


@pytest.fixture(scope="module")
def study(settings: LatentStudySettings, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A finished study that no test changes."""
    return run_study(settings, tmp_path_factory.mktemp("study"), report=None)


def done_again(monkeypatch: pytest.MonkeyPatch, settings: LatentStudySettings, study: Study) -> list[str]:
    """What a study with these settings in the same folder would train and answer, without doing it."""
    done: list[str] = []

    def trained(_: Study, job: latent_study.Job) -> str:
        done.append(f"train {job.adapter} {job.seed}")
        return ""

    def answered(_: Study, job: latent_study.Job, arm: str, *__: Any) -> dict[str, Any]:
        done.append(f"{arm} {job.seed}")
        return {"accuracy": None}

    with monkeypatch.context() as patched:
        patched.setattr(latent_study, "train", trained)
        patched.setattr(latent_study, "answer", answered)
        run_study(settings, study.folder, report=None)
    return done


# --- what runs, and what is taken from disk


def test_a_finished_study_is_only_read_and_gives_the_same_bytes(
    settings: LatentStudySettings, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert done_again(monkeypatch, settings, study) == []
    again = run_study(replace(settings, seeds=(0,)), tmp_path / "again", report=None)
    latent_tables.write_tables(again, tmp_path / "again")
    latent_tables.write_tables(replace(study, settings=again.settings), tmp_path / "first")
    for name in ("latent_arms.csv", "latent_differences.csv", "latent_items.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"seeds": [0, 1, 5]}, ["train diffmas 5", "diffmas 5", "zeroed 5", "latentmas 5"]),
        ({"shared.training.updates": 3, "seeds": [0]}, ["train diffmas 0", "diffmas 0", "zeroed 0"]),
        ({"shared.team.temperature": 0.9, "seeds": [0]}, ["diffmas 0", "zeroed 0", "latentmas 0"]),
        ({"shared.team.latent_steps": 3, "seeds": [0]}, ["train diffmas 0", "diffmas 0", "zeroed 0", "latentmas 0"]),
        ({"samples": 1, "seeds": [1]}, ["diffmas 1", "zeroed 1", "latentmas 1"]),
        ({"arms": ["diffmas", "foreign"], "seeds": [0]}, ["foreign 0"]),
        ({"arms": ["diffmas", "detached"], "seeds": [1]}, ["train detached 1", "detached 1"]),
        ({"shared.message_tokens": 9, "shared.topology": "chain", "shared.messages": "sampled"}, []),
        ({"shared.training.checkpointing": True, "shared.training.checkpoint_every": 1}, []),
        ({"shared.dropped": "Agent 2", "batch_rows": 2, "root": "elsewhere"}, []),
    ],
)
def test_a_changed_setting_runs_only_what_it_changes(
    changes: dict[str, Any],
    expected: list[str],
    settings: LatentStudySettings,
    study: Study,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert done_again(monkeypatch, override(settings, changes), study) == expected


class Killed(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("after", [0, 1], ids=["before its first checkpoint", "after it"])
def test_an_interrupted_training_goes_on_to_the_same_adapter(
    after: int, settings: LatentStudySettings, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = override(settings, {"seeds": [0], "arms": ["diffmas"], "shared.training.checkpoint_every": 1})
    save = AnswerTrainer.save

    def killed(trainer: AnswerTrainer) -> Path:
        if after:
            save(trainer)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(AnswerTrainer, "save", killed)
        with pytest.raises(RuntimeError, match="Killed"):
            run_study(one, tmp_path, report=None)
    begun = run_study(one, tmp_path, report=None)
    place, whole = (s.adapter_place(settings.tasks[0], "diffmas", 0) for s in (begun, study))
    assert (place / "adapter_model.safetensors").read_bytes() == (whole / "adapter_model.safetensors").read_bytes()
    assert not (place / "checkpoint.pt").exists()
    assert records.read_json(place / "result.json")["steps"] == 2


def test_a_job_that_fails_does_not_stop_the_others(
    settings: LatentStudySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> str:
        raise ArithmeticError("no good")

    monkeypatch.setattr(latent_study, "train", fails)
    one = replace(settings, seeds=(0,))
    told: list[str] = []
    with pytest.raises(RuntimeError, match=r"diffmas, seed 0 failed \(ArithmeticError: no good\); 1 of 2 jobs"):
        run_study(one, tmp_path, report=told.append)
    assert [line.split(":")[0] for line in told] == [
        "hidden_profile, seed 0, diffmas",
        "hidden_profile, seed 0, untrained",
    ]


# --- what is recorded


def test_the_tables_hold_every_arm_seed_and_answer(study: Study) -> None:
    table, items = latent_tables.arms_table(study), latent_tables.items_table(study)
    assert list(zip(table["arm"], table["seed"], strict=True)) == [(a, s) for a in study.settings.arms for s in (0, 1)]
    assert len(items) == 3 * 2 * 3 * study.settings.samples
    traced = table[table["arm"] != "latentmas"]
    assert set(table["latent"]) == {6.0}
    assert set(table["message_tokens"]) == {0.0}
    assert (traced["kv_bytes"] > 0).all()
    mean = items.groupby(["arm", "seed"], sort=False)["correct"].apply(lambda right: right.astype(float).mean())
    assert mean.tolist() == pytest.approx(table["accuracy"].tolist())
    assert set(items["needed"].str.split().explode()) <= {"0", "1", "2"}


def test_a_trained_team_is_loaded_from_the_study(study: Study) -> None:
    task = study.settings.tasks[0]
    team = LatentTeam.load(study.adapter_place(task, "diffmas", 0), device="cpu")
    problem = latent_study.asked_problems(study.settings, task, "hidden_profile")[0]
    items = latent_tables.items_table(study)
    first = items[(items["arm"] == "diffmas") & (items["seed"] == 0) & (items["item"] == problem.id)].iloc[0]
    assert team.answer(problem).text == first["text"]
    trace = team.write([problem])
    segments = latent_tables.trace_table(trace)
    assert segments["kind"].tolist() == ["read", "thought"] * 3
    assert (segments["from"].to_numpy()[1:] == segments["to"].to_numpy()[:-1] + 1).all()
    assert segments["bytes"].sum() == int(trace.kv_bytes[0])
    assert latent_tables.glimpse_table(team, trace)["step"].tolist() == [1, 2] * 3


def frame(**arms: list[float]) -> pd.DataFrame:
    rows = [
        {"benchmark": "hidden_profile", "arm": arm, "seed": seed, "accuracy": right, "chance": 0.3}
        for arm, values in arms.items()
        for seed, right in enumerate(values)
    ]
    return pd.DataFrame(rows)


def test_differences_are_paired_by_seed() -> None:
    table = frame(diffmas=[0.5, 0.7, 0.6], zeroed=[0.1, 0.3, 0.21], vague=[0.9, 0.1, 0.6])
    found = latent_tables.differences_table(table).set_index("against")
    assert found.loc["zeroed", "mean"] == pytest.approx(0.3967, abs=1e-3)
    assert found.loc["zeroed", "shows"].endswith("more than zeroed")
    assert not found.loc["zeroed", "holds_0"]
    assert found.loc["vague", "holds_0"]


def test_the_summary_has_an_interval_for_every_arm() -> None:
    summary = latent_tables.summary(frame(**{arm: [0.5, 0.6, 0.7] for arm in (*WANTED, "foreign")}))
    assert set(summary["accuracy"]) == {*WANTED, "foreign"}
    assert all(set(figure) == {"mean", "low", "high"} for figure in summary["accuracy"].values())
    assert set(summary["minus"]) == {*WANTED, "foreign"} - {"diffmas"}
    assert summary["chance"] == pytest.approx(0.3)
    assert "benchmarks" not in summary
    records.check_json(summary)
    two = pd.concat([frame(diffmas=[0.5]), frame(diffmas=[0.7]).assign(benchmark="other")])
    several = latent_tables.summary(two)
    assert several["accuracy"]["diffmas"] == {"mean": pytest.approx(0.6), "low": None, "high": None}
    assert set(several["benchmarks"]) == {"hidden_profile", "other"}


def test_what_was_not_scored_is_not_summed_up() -> None:
    table = frame(diffmas=[0.5, 0.6], zeroed=[0.1, 0.2])
    table["accuracy"] = table["accuracy"].astype(object)
    table.loc[table["arm"] == "zeroed", "accuracy"] = None
    assert set(latent_tables.summary(table)["accuracy"]) == {"diffmas"}
    with pytest.raises(ValueError, match="no arm was scored"):
        latent_figures.accuracy_bars(table.assign(accuracy=None))


def test_the_figure_shows_every_seed_and_chance(study: Study) -> None:
    table = latent_tables.arms_table(study)
    figure = latent_figures.accuracy_bars(table)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(study.settings.arms)
    assert "chance" in latent_figures.in_words(table)


def test_a_dropped_agent_is_told_by_need() -> None:
    rows = [
        {"arm": arm, "needed": needed, "correct": right, "sample": 0}
        for arm, needed, right in (
            ("diffmas", "0 2", True), ("dropped", "0 2", False), ("diffmas", "1", True), ("dropped", "1", True),
        )
    ]  # fmt: skip
    whole = Study(load_profile("smoke").latent, Path(), "")
    found = latent_tables.dropped_table(whole, pd.DataFrame(rows))
    assert found.loc["Agent 1's note is needed", "dropped"] == 0
    assert found.loc["Agent 1's note is not needed", "dropped"] == 1
    without = replace(whole, settings=replace(whole.settings, arms=("diffmas",)))
    assert latent_tables.dropped_table(without, pd.DataFrame(rows)).empty


# --- settings and problems


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_has_a_study_with_the_arms_of_the_summary(name: str) -> None:
    settings = load_profile(name).latent
    assert {*WANTED, "foreign"} <= set(settings.arms)
    assert set(Study(settings, Path(), "").adapters) == set(ADAPTERS)
    if name == "embedded":
        assert len(settings.seeds) >= 3
        assert settings.arms == tuple(ARMS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": []}, "seeds must be given and distinct"),
        ({"arms": ["diffmas", "telepathy"]}, "unknown arm 'telepathy'"),
        ({"arms": ["zeroed"]}, "arm 'diffmas' is missing"),
        ({"samples": 0}, "samples 0"),
        ({"tasks": [{"test_on": []}]}, "test_on must be given"),
        ({"tasks": [{"train_on": "hearsay"}]}, "unknown benchmark 'hearsay'"),
        ({"tasks": [{"test_problems": 1}]}, "a foreign trace is another problem's"),
        ({"tasks": [{"train_on": "gsm8k", "target": "worked"}]}, "gsm8k needs 'bare'"),
        ({"tasks": [{}, {"train_problems": 3}]}, "measured by two tasks"),
        ({"tasks": [{"hidden_profile": {"agents": 4}}]}, "for 4 agents, but the team has 3 writers"),
    ],
)
def test_a_study_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        override(LatentStudySettings(), changes)


def test_problems_that_were_trained_on_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def problems(numbers: range) -> list[Problem]:
        return [Problem(f"p{n}", f"How  many {n}?", str(n)) for n in numbers]

    for name, drawn in (("humaneval", problems(range(3))), ("humaneval_plus", problems(range(1, 8)))):
        card = replace(BENCHMARKS[name], load=lambda *_, drawn=drawn, limit=None, **__: drawn[:limit])  # type: ignore[misc]
        monkeypatch.setitem(BENCHMARKS, name, card)
    task = LatentTaskSettings("humaneval", ("humaneval_plus",), train_problems=2, test_problems=4)
    settings = LatentStudySettings(tasks=(task,))
    assert [e.target for e in latent_study.training_examples(settings, task)] == ["#### 0", "#### 1"]
    asked = latent_study.asked_problems(settings, task, "humaneval_plus")
    assert [problem.id for problem in asked] == ["p2", "p3", "p4", "p5"]
    few = replace(task, train_problems=3, test_problems=2)
    monkeypatch.setitem(BENCHMARKS, "humaneval_plus", replace(BENCHMARKS["humaneval"]))
    with pytest.raises(ValueError, match="0 problems of humaneval_plus are left that humaneval did not hold"):
        latent_study.asked_problems(settings, few, "humaneval_plus")


def test_a_program_is_learned_as_a_block_and_chance_is_known() -> None:
    program = Problem("c", "Add.", "def f():\n    return 1\n", "code", tests=CodeTests("f", "assert f() == 1"))
    (example,) = problem_examples([program])
    assert example.target == "```python\ndef f():\n    return 1\n```"
    assert latent_study.chance(program) == 0.0
    assert latent_study.chance(Problem("b", "Which?", "A", "choice", ("1", "2", "3", "4"))) == 0.25


def test_the_command_writes_tables_and_summary(
    tmp_path: Path, random_policy_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["latent", "--profile", "smoke", "--run-folder", str(tmp_path), "--arm", "latentmas", "--seeds", "3"]
    changes = {name: value for name, value in SMALL.items() if "." in name} | {"shared.model": random_policy_folder}
    command += ["--set", *(f"{name}={value}" for name, value in changes.items())]
    command += ["tasks=[{train_problems: 4, test_problems: 2}]"]
    assert cli.main(command) == 0
    assert "diffmas − latentmas: accuracy" in capsys.readouterr().out
    summary = records.read_summary(tmp_path)
    assert set(summary["diffmas"]["accuracy"]) == {"diffmas", "latentmas"}
    assert summary["seeds"] == [3]
    assert set(pd.read_csv(tmp_path / "latent_arms.csv")["arm"]) == {"diffmas", "latentmas"}
    assert cli.main([*command, "samples=0"]) == 2
