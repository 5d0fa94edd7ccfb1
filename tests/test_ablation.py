"""The ablation in its smallest size: arms, what reruns, what is recorded, and what is said about it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from agent_gspo_core.kit import ablation, ablation_figures, cli, experiment
from agent_gspo_core.kit.ablation import Arm, choose_arms, run_ablation
from agent_gspo_core.kit.settings import RunSettings, load_profile, override, profile_names
from agent_gspo_core.silence import CollapseError
from agent_gspo_core.trainer import Trainer

SMALL = {
    "policy.device": "cpu",
    "team.message_tokens": 6,
    "team.answer_tokens": 6,
    "data.test_problems": 4,
    "trainer.steps": 1,
    "budget.episode_tokens": 15.0,
}


@pytest.fixture(scope="module")
def base(random_policy_folder: Path) -> RunSettings:
    settings = load_profile("smoke").settings
    return override(settings, {"policy.model": str(random_policy_folder), **SMALL})


@pytest.fixture(scope="module")
def arms(base: RunSettings) -> dict[str, Arm]:
    return choose_arms(base, ["silence_forbidden", "untrained"]) | ablation.lambda_arms([0.0])


@pytest.fixture(scope="module")
def plan(base: RunSettings, arms: dict[str, Arm], tmp_path_factory: pytest.TempPathFactory) -> ablation.Plan:
    """A finished ablation that no test changes."""
    return run_ablation(base, arms, [0, 1], tmp_path_factory.mktemp("ablation"), report=None)


def quiet(*arguments: Any, **options: Any) -> ablation.Plan:
    return run_ablation(*arguments, report=None, **options)


# --- arms


@pytest.mark.parametrize("name", profile_names())
def test_every_arm_of_every_shipped_profile_is_valid_and_changes_something(name):
    profile = load_profile(name)
    for form in (profile.ablation.short, profile.ablation.full):
        settings = ablation.base_settings(profile, form)
        arms = ablation.all_arms(settings, form)
        assert next(iter(arms)) == "full"
        for arm in arms.values():
            changed = ablation.diff(settings, ablation.arm_settings(settings, arm))
            assert {name for name, _, _ in changed} <= set(arm.changes)
            assert changed or arm.name in ("full", "untrained", "lambda=0.5"), arm.name


def test_switches_go_to_the_side_where_the_base_is_not():
    settings = RunSettings()
    assert {"pass_rate_on", "mean_only"} <= set(ablation.catalogue(settings))
    other = override(settings, {"reward.scale_by_pass_rate": True, "objective.advantage_scale": "none"})
    assert {"pass_rate_off", "std_scaled"} <= set(ablation.catalogue(other))


def test_an_arm_that_would_change_nothing_is_not_offered():
    without_dual = RunSettings()
    assert without_dual.budget.episode_tokens is None
    assert "fixed_lambda" not in ablation.catalogue(without_dual)
    with pytest.raises(ValueError, match=r"arm 'fixed_lambda' does not exist or changes nothing.*choose from full"):
        choose_arms(without_dual, ["fixed_lambda"])


def test_the_diff_names_what_changes_and_nothing_else(base):
    grpo = ablation.catalogue(base)["grpo"]
    assert ablation.diff(base, ablation.arm_settings(base, grpo)) == [
        ("objective.ratio", "sequence", "token"),
        ("objective.epsilon_low", "0.05", "0.2"),
        ("objective.epsilon_high", "0.05", "0.27"),
    ]
    table = ablation.diff_table(base, ablation.catalogue(base))
    assert ("silence_forbidden", "team.allow_silence") in table.index
    assert ("untrained (not trained)", "–") in table.index


def test_all_trained_arms_sample_equally_many_messages(base):
    for arm in ablation.catalogue(base).values():
        settings = ablation.arm_settings(base, arm)
        rows = settings.trainer.problems_per_step * settings.trainer.members * ablation._messages(settings)
        assert not arm.trained or rows == base.trainer.problems_per_step * base.trainer.members * 4


# --- what runs, and what is taken from disk


def test_a_finished_ablation_is_only_read_and_gives_the_same_bytes(base, arms, plan, monkeypatch):
    ablation.write_tables(plan)
    first = (plan.folder / "arms.csv").read_bytes()
    monkeypatch.setattr(ablation, "run_arm", lambda *_, **__: pytest.fail("ran again"))
    again = quiet(base, arms, [0, 1], plan.folder)
    ablation.write_tables(again)
    assert (plan.folder / "arms.csv").read_bytes() == first
    assert b"second" not in first


def test_rerunning_one_arm_gives_the_same_bytes(base, arms, plan, tmp_path):
    shutil.copytree(plan.folder, tmp_path / "copy")
    copied = replace(plan, folder=tmp_path / "copy")
    ablation.write_tables(copied)
    first = (copied.folder / "arms.csv").read_bytes()
    place = copied.place("silence_forbidden", 1)
    own = (place.parent / "arm.csv").read_bytes()
    shutil.rmtree(place.parent)
    ablation.write_tables(quiet(base, arms, [0, 1], copied.folder, only=["silence_forbidden"]))
    assert (copied.folder / "arms.csv").read_bytes() == first
    assert (place.parent / "arm.csv").read_bytes() == own


def test_changing_one_arm_runs_only_that_arm(base, arms, plan, tmp_path, monkeypatch):
    ran = []

    def recorded(settings: RunSettings, seed: int, folder: Path, *, trained: bool = True) -> dict[str, Any]:
        ran.append((folder.parent.name.rsplit("-", 1)[0], seed))
        return {
            "before": {"sampled": {"accuracy": 0.0, "tokens": 1.0}},
            "after": {"sampled": {"accuracy": 0, "tokens": 1}},
        }

    monkeypatch.setattr(ablation, "run_arm", recorded)
    changed = dict(arms) | {"lambda=0": Arm("lambda=0", {**arms["lambda=0"].changes, "reward.ngram": 2}, "")}
    quiet(base, changed, [0, 1], plan.folder)
    assert ran == [("lambda=0", 0), ("lambda=0", 1)]


def test_new_weights_under_the_old_name_are_not_met_by_old_results(base, random_policy_folder, tmp_path):
    folder = tmp_path / "policy"
    shutil.copytree(random_policy_folder, folder)
    settings = override(base.policy, {"model": str(folder)})
    before = experiment.weights_digest(settings)
    assert experiment.weights_digest(settings) == before
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert experiment.weights_digest(settings) != before


def test_pace_of_training_does_not_concern_an_arm_that_is_not_trained(base, arms, tmp_path):
    slower = override(base, {"trainer.learning_rate": 1e-5})
    for name, same in (("untrained", True), ("full", False)):
        places = {ablation.arm_folder(tmp_path, settings, arms[name], "") for settings in (base, slower)}
        assert (len(places) == 1) == same


def test_a_collapse_is_a_result_measured_at_its_last_good_checkpoint(base, arms, tmp_path, monkeypatch):
    settings = override(base, {"trainer.steps": 3, "trainer.checkpoint_every": 1})
    real = Trainer.step

    def collapses(trainer: Trainer) -> dict[str, Any]:
        record = real(trainer)
        if trainer.done == 3:
            raise CollapseError("everybody is silent", step=2, last_good=1)
        return record

    monkeypatch.setattr(Trainer, "step", collapses)
    plan = quiet(settings, {"full": arms["full"]}, [0], tmp_path)
    result = plan.result("full", 0)
    assert result["collapsed"] == {"step": 2, "last_good": 1, "measured": 1}
    table = ablation.arms_table(plan)
    assert table["collapsed_at"].tolist() == [2]
    assert table["steps"].tolist() == [3]
    assert (plan.place("full", 0) / "policy" / "config.json").is_file() or (
        plan.place("full", 0) / "policy" / "adapter_config.json"
    ).is_file()
    assert not (plan.place("full", 0) / "checkpoints").exists()
    monkeypatch.setattr(Trainer, "step", lambda _: pytest.fail("trained again"))
    quiet(settings, {"full": arms["full"]}, [0], tmp_path)


def test_an_arm_that_fails_does_not_stop_the_others(base, arms, tmp_path, monkeypatch):
    done = []

    def fails(settings: RunSettings, seed: int, folder: Path, *, trained: bool = True) -> dict[str, Any]:
        done.append(folder.parent.name)
        if settings.team.allow_silence is False:
            raise ArithmeticError("no good")
        return {
            "before": {"sampled": {"accuracy": None, "tokens": 1}},
            "after": {"sampled": {"accuracy": None, "tokens": 1}},
        }

    monkeypatch.setattr(ablation, "run_arm", fails)
    with pytest.raises(RuntimeError, match="arm silence_forbidden, seed 0 failed"):
        quiet(base, arms, [0], tmp_path)
    assert len(done) == 4


def test_what_cannot_be_an_ablation_is_refused(base, arms, tmp_path):
    for seeds in ([], [1, 1]):
        with pytest.raises(ValueError, match="seeds must be given and distinct"):
            quiet(base, arms, seeds, tmp_path)
    with pytest.raises(ValueError, match="no arm 'full'"):
        quiet(base, {"untrained": arms["untrained"]}, [0], tmp_path)
    with pytest.raises(ValueError, match="arm 'gspo' is not part"):
        quiet(base, arms, [0], tmp_path, only=["gspo"])
    with pytest.raises(ValueError, match=r"arm odd\.trainer: unknown setting 'step'"):
        quiet(base, arms | {"odd": Arm("odd", {"trainer.step": 1}, "")}, [0], tmp_path)
    with pytest.raises(ValueError, match="'full' is not finished"):
        ablation.arms_table(replace(quiet(base, {"full": arms["full"]}, [0], tmp_path, only=[]), seeds=(7,)))


# --- what it shows


def test_the_table_holds_every_arm_and_seed_with_what_it_sampled(plan, base):
    table = ablation.arms_table(plan)
    assert list(zip(table["arm"], table["seed"], strict=True)) == [(a, s) for a in plan.arms for s in (0, 1)]
    trained = table[table["arm"] != "untrained"]
    assert set(trained["sampled_messages"]) == {base.trainer.problems_per_step * base.trainer.members * 4}
    assert (trained["sampled_tokens"] >= trained["sampled_messages"]).all()
    assert set(table[table["arm"] == "untrained"]["sampled_messages"]) == {0}
    assert set(table[table["arm"] == "silence_forbidden"]["silence_rate"]) == {0.0}


def frame(**values: list[tuple[float, float]]) -> pd.DataFrame:
    rows = [
        {"arm": arm, "seed": seed, "accuracy": right, "tokens": tokens, "collapsed_at": None}
        for arm, pairs in values.items()
        for seed, (right, tokens) in enumerate(pairs)
    ]
    return pd.DataFrame(rows)


def test_differences_are_paired_by_seed_and_say_what_can_be_told():
    table = frame(
        full=[(0.5, 10.0), (0.7, 20.0), (0.6, 30.0)],
        dearer=[(0.5, 15.0), (0.7, 25.1), (0.6, 34.9)],
        vague=[(0.1, 10.0), (0.9, 20.0), (0.6, 30.0)],
    )
    arms = {name: Arm(name, {}, "why") for name in ("full", "dearer", "vague")}
    found = ablation.differences_table(table, arms).set_index("arm")
    assert found.loc["dearer", "tokens_mean"] == pytest.approx(5.0)
    assert not found.loc["dearer", "tokens_holds_0"]
    assert found.loc["dearer", "shows"].startswith("accuracy: the same in every seed; tokens +5.0 [+4.8, +5.2]: more")
    assert found.loc["vague", "accuracy_holds_0"]
    assert "the interval holds 0, cannot be told" in found.loc["vague", "shows"]


def test_one_seed_tells_nothing():
    table = frame(full=[(0.5, 10.0)], other=[(0.9, 5.0)])
    arms = {name: Arm(name, {}, "") for name in ("full", "other")}
    found = ablation.differences_table(table, arms).iloc[0]
    assert found["shows"] == "accuracy +40.0 points, one seed: cannot be told; tokens -5.0, one seed: cannot be told"
    assert found["tokens_holds_0"] is None


def test_a_collapsed_arm_and_one_without_a_score_are_named():
    table = frame(full=[(0.5, 10.0), (0.5, 10.0)], silent=[(None, 4.0), (None, 4.0)])
    table.loc[table["arm"] == "silent", "collapsed_at"] = [3, None]
    found = ablation.differences_table(table, {"full": Arm("full", {}, ""), "silent": Arm("silent", {}, "")}).iloc[0]
    assert found["shows"].startswith("accuracy: not measured; tokens -6.0")
    assert found["shows"].endswith("collapsed into silence in 1 of 2 seeds")
    assert set(ablation.summary_of(table)["silent"]) == {"tokens"}


def test_the_summary_holds_means_and_intervals(plan):
    summary = ablation.summary_of(ablation.arms_table(plan))
    assert set(summary) == set(plan.arms)
    assert all(set(figure) == {"mean", "low", "high"} for arm in summary.values() for figure in arm.values())
    assert all(set(arm) == {"accuracy", "tokens"} for arm in summary.values())


def test_silence_robustness_and_scaling_cover_what_was_asked(plan):
    silent, told = ablation.replay_table(plan, 4)
    assert list(zip(silent["seed"], silent["state"], strict=True)) == [
        (s, w) for s in (0, 1) for w in ("before", "after")
    ]
    assert set(told["change"]) == {"restore needed", "restore not needed", "mute needed", "mute not needed"}
    assert (told["changed"] <= told["meant"]).all()
    robust = ablation.robustness_table(plan, ["free_for_all", "chain"], 3)
    assert len(robust) == 2 * 2 * 2 * 4
    assert set(robust["insider"]) == {"none", "lies", "babbles", "repeats"}
    assert set(robust[robust["state"] == "after"]["policy"]) == {"full"}
    sizes = ablation.scaling_table(plan, [2, 4], 3)
    assert sizes.groupby("agents")["least"].first().is_monotonic_increasing
    for figure in (
        ablation_figures.silence_bars(silent),
        ablation_figures.replay_dots(told),
        ablation_figures.robustness_dots(robust),
        ablation_figures.robustness_dots(robust, "tokens_of_others"),
        ablation_figures.scaling_lines(sizes),
    ):
        figure.canvas.draw()


def test_figures_draw_and_say_their_numbers(plan):
    table, differences = ablation.write_tables(plan)
    metrics = {name: [plan.metrics(name, seed) for seed in plan.seeds] for name in plan.arms}
    for figure in (
        ablation_figures.arm_bars(table),
        ablation_figures.difference_dots(differences),
        ablation_figures.learning_curves(metrics, "tokens_per_episode"),
        ablation_figures.frontier(table),
    ):
        figure.canvas.draw()
    assert ablation_figures.in_words(table).startswith("full: ")
    with pytest.raises(ValueError, match="holds no arm"):
        ablation_figures.arm_bars(table.iloc[:0])
    with pytest.raises(ValueError, match="no records of arm 'full'"):
        ablation_figures.learning_curves({"grpo": [[]]}, "accuracy")


def test_the_command_runs_arm_by_arm(base, tmp_path, random_policy_folder, capsys, monkeypatch):
    ran: list[str] = []
    real = ablation.run_arm

    def recorded(settings: RunSettings, seed: int, folder: Path, *, trained: bool = True) -> dict[str, Any]:
        ran.append(folder.parent.name.rsplit("-", 1)[0])
        return real(settings, seed, folder, trained=trained)

    monkeypatch.setattr(ablation, "run_arm", recorded)
    common = [
        "ablate",
        "--profile",
        "smoke",
        "--run-folder",
        str(tmp_path),
        "--set",
        f"policy.model={random_policy_folder}",
    ]
    common += [f"{name}={'null' if value is None else value}" for name, value in SMALL.items()]
    assert cli.main([*common, "--arm", "untrained"]) == 0
    assert "no table yet" in capsys.readouterr().out
    assert cli.main([*common, "--arm", "full"]) == 0
    assert ran == ["untrained", "full"]
    assert "untrained: accuracy" in capsys.readouterr().out
    assert set(pd.read_csv(tmp_path / "arms.csv")["arm"]) == {"full", "untrained"}
    assert cli.main([*common, "--arm", "nothing"]) == 2
