"""The training loop: what moves, what is repeated to the bit, and what stops it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import build_policy, load_random

import agent_gspo_core.trainer as module
from agent_gspo_core.benchmarks import hidden_profile
from agent_gspo_core.budget import BudgetSettings
from agent_gspo_core.episode import Episode, Problem, all_rows
from agent_gspo_core.logprobs import right_pad, score
from agent_gspo_core.objective import ObjectiveSettings, gspo_loss
from agent_gspo_core.policy import Policy
from agent_gspo_core.reward import CommunicationReward, RewardSettings
from agent_gspo_core.rollout import Team, TeamSettings
from agent_gspo_core.silence import CollapseError, CollapseSettings
from agent_gspo_core.trainer import MismatchError, NonFiniteError, Trainer, TrainerSettings

TEAM = Team(TeamSettings(agents=2, message_tokens=6, answer_tokens=6))
PACE = TrainerSettings(steps=6, problems_per_step=2, members=3, learning_rate=1e-3, checkpoint_every=3, mini_batches=2)
FREE = RewardSettings(lambda_token=0.0, lambda_turn=0.0, lambda_repetition=0.0)
"""Only being right counts."""


def coin(text: str, problem: Problem) -> str | None:
    """A reader for a policy that talks nonsense: about half of all answers are right."""
    return problem.answer if len(text) % 2 else None


def problems(count: int = 7) -> list[Problem]:
    settings = hidden_profile.HiddenProfileSettings(agents=2)
    return hidden_profile.load("train", limit=count, settings=settings, count=lambda text: len(text.split()))


def make(folder: Path, policy: Policy | None = None, **parts: Any) -> Trainer:
    pace = {name: parts.pop(name) for name in list(parts) if name in TrainerSettings.__dataclass_fields__}
    return Trainer(
        policy or build_policy(),
        parts.pop("team", TEAM),
        parts.pop("problems", problems()),
        folder,
        settings=replace(PACE, **pace),
        read=parts.pop("read", coin),
        **parts,
    )


def records(folder: Path) -> list[dict[str, Any]]:
    """The metrics on disk; NaN and Infinity are not JSON."""

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} in the metrics")

    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def untimed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if not k.startswith("seconds_")} for line in lines]


def same(a: Any, b: Any) -> bool:
    """Equal bit for bit, tensors in dictionaries and lists included."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def changed(before: dict[str, torch.Tensor], policy: Policy) -> set[str]:
    return {name for name, p in policy.model.named_parameters() if not torch.equal(before[name], p)}


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in policy.model.named_parameters()}


@pytest.fixture(params=["full", "lora"])
def fresh(request: pytest.FixtureRequest, random_policy_folder: Path):
    """Makes equal policies, one at a call."""
    return lambda: build_policy() if request.param == "full" else load_random(random_policy_folder, train="lora")


# --- one step


def test_one_step_moves_the_trainable_weights_and_no_others_mlx_lm_lora_55(tmp_path, fresh):
    policy = fresh()
    before, trainable = weights(policy), policy.trainable().keys()
    record = make(tmp_path, policy, mini_batches=1).step()
    moved = changed(before, policy)
    assert moved <= trainable
    # Fresh adapters have B = 0, so the first step finds no gradient for A.
    assert moved >= {name for name in trainable if "lora_A" not in name}
    assert record["gradient_norm"] > 0
    assert abs(record["loss"]) < 1  # near 0 at ratio 1 and no sign of trouble: trl#3452


def test_frozen_weights_stay_where_they_are(tmp_path):
    policy = build_policy()
    policy.model.get_input_embeddings().weight.requires_grad_(False)
    before = weights(policy)
    make(tmp_path, policy).step()
    moved = changed(before, policy)
    assert moved
    assert not any("embed" in name for name in moved)


def plain_descent(trainer: Trainer, rate: float = 1e-2) -> Trainer:
    """Adam makes rounding in a tiny gradient visible at full size; with plain descent a step is its gradient."""
    trainer.optimiser = torch.optim.SGD(trainer.policy.trainable().values(), lr=rate)
    return trainer


def test_a_step_is_the_gradient_of_the_loss_over_all_rows_tied_groups_included_trl_6369(tmp_path, monkeypatch):
    """Tied groups add no gradient and are not even scored, but the mean is over them too."""
    easy = problems()[0].id

    def read(text: str, problem: Problem) -> str | None:
        return problem.answer if problem.id == easy else coin(text, problem)

    trainer = plain_descent(
        make(
            tmp_path, problems=problems(2), read=read, reward=FREE, mini_batches=1, members=4, gradient_clip=1e9,
            micro_batch_tokens=150,
        )
    )  # fmt: skip
    policy = trainer.policy
    before = policy.state()
    # The same step by hand, from the episodes that it is going to sample.
    episodes, groups = trainer._sample()
    batch, _, _ = trainer._judge(episodes, groups)
    messages = [episodes[row.episode].messages[row.message] for row in all_rows(groups)]
    assert batch.replies == [m.token_ids for m in messages]
    for row, advantage in zip(all_rows(groups), batch.advantages.tolist(), strict=True):
        if episodes[row.episode].problem.id == easy:
            assert advantage == 0
    logprobs, mask = score(policy, batch.prompts, batch.replies)
    old, _ = right_pad(batch.old_logprobs, 0.0, torch.float32)
    gspo_loss(logprobs, old, mask, batch.advantages)[0].backward()
    expected = {name: before[name] - 1e-2 * p.grad for name, p in policy.trainable().items()}

    scored: list[int] = []

    def counting(policy: Policy, prompts: Sequence[Any], replies: Sequence[Any], **rest: Any) -> Any:
        scored.append(len(prompts))
        return score(policy, prompts, replies, **rest)

    monkeypatch.setattr(module, "score", counting)
    record = trainer.step()
    live = int((batch.advantages != 0).sum())
    assert 0 < live < len(batch)
    assert sum(scored) == live
    assert len(scored) > 1  # several micro-batches
    assert record["zero_variance_groups"] >= 3
    assert record["groups"] == 6
    for name, parameter in policy.trainable().items():
        assert (parameter - expected[name]).abs().max() < 1e-6
    assert max((parameter - before[name]).abs().max() for name, parameter in policy.trainable().items()) > 1e-3


def test_micro_batches_do_not_change_the_step_unsloth_3006(tmp_path):
    def after(tokens: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        trainer = plain_descent(make(tmp_path / str(tokens), micro_batch_tokens=tokens))
        record = trainer.step()
        return trainer.policy.state(), record

    (one, a), (many, b) = after(1_000_000), after(1)
    assert max((one[name] - many[name]).abs().max() for name in one) < 1e-6
    for name in ("loss", "gradient_norm", "clip_share", "ratio_mean", "kl_old", "sequences", "tokens"):
        assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6)


def test_one_mini_batch_never_clips_and_four_do(tmp_path):
    one = make(tmp_path / "1", mini_batches=1, learning_rate=3e-3).run(3, progress=False)
    four = make(tmp_path / "4", mini_batches=4, learning_rate=3e-3).run(3, progress=False)
    assert [r["clip_share"] for r in one] == [0.0] * 3
    assert max(abs(r["ratio_max"] - 1) for r in one) < 1e-5
    assert max(r["clip_share"] for r in four) > 0
    assert all(r["ratio_max"] > r["ratio_min"] for r in four)


def test_sampler_and_scorer_agree_at_the_first_pass(tmp_path):
    for temperature in (1.0, 0.7):
        trainer = make(tmp_path / str(temperature), temperature=temperature)
        for record in trainer.run(3, progress=False):
            assert record["noise_floor_rms"] <= record["noise_floor_max"] < 1e-5


def test_scoring_at_another_temperature_is_noticed_before_anything_moves_trl_4159(tmp_path, monkeypatch):
    def hotter(*rows: Any, temperature: float) -> Any:
        return score(*rows, temperature=1.3 * temperature)

    monkeypatch.setattr(module, "score", hotter)
    trainer = make(tmp_path)
    before = weights(trainer.policy)
    with pytest.raises(MismatchError, match=r"at step 0, before any update.*differ by up to.*Check temperature"):
        trainer.run(1, progress=False)
    assert not changed(before, trainer.policy)


def test_the_first_mini_batch_that_is_scored_is_checked_even_if_earlier_ones_were_all_ties(tmp_path, monkeypatch):
    trainer = make(tmp_path, mini_batches=4)
    episodes, groups = trainer._sample()
    batch, _, _ = trainer._judge(episodes, groups)
    order: list[int] = []
    real = Trainer._optimise

    def watching(self: Trainer, mini: Any, *, first: bool) -> Any:
        order.append(len(order))
        if len(order) <= 2:  # as if these rows were ties
            mini = replace(mini, advantages=torch.zeros_like(mini.advantages))
        return real(self, mini, first=first)

    monkeypatch.setattr(Trainer, "_optimise", watching)
    metrics = trainer._update(batch)
    assert len(order) == 4
    assert metrics["noise_floor_max"] < 1e-5


def test_a_batch_of_ties_teaches_nothing_and_says_so(tmp_path):
    trainer = make(tmp_path, reward=FREE, read=lambda text, problem: None)
    before = weights(trainer.policy)
    record = trainer.step()
    assert not changed(before, trainer.policy)
    assert record["zero_variance_groups"] == record["groups"] == 6
    assert record["sequences"] == 0
    assert records(tmp_path)[0]["step"] == 0


def test_turn_wise_groups_train_too(tmp_path):
    trainer = make(tmp_path, grouping="turn", members=2)
    before = weights(trainer.policy)
    record = trainer.step()
    assert changed(before, trainer.policy)
    assert record["groups"] == 2 * 3
    assert record["advantage_std"] > 0


@pytest.mark.parametrize("ratio", ["sequence_token", "token"])
def test_the_other_ratios_train_too(tmp_path, ratio):
    trainer = make(tmp_path, objective=ObjectiveSettings(ratio=ratio))
    before = weights(trainer.policy)
    trainer.step()
    assert changed(before, trainer.policy)


def test_the_kl_penalty_measures_from_the_policy_with_its_adapters_off(tmp_path, random_policy_folder):
    policy = load_random(random_policy_folder, train="lora")
    trainer = make(
        tmp_path, policy, objective=ObjectiveSettings(kl_coefficient=0.1), mini_batches=1, learning_rate=1e-2
    )
    first, second, _ = trainer.run(3, progress=False)
    assert first["kl_reference"] == pytest.approx(0, abs=1e-9)
    assert second["kl_reference"] > 1e-6
    assert first["sequences"] == 2 * 3 * 3  # the penalty needs tied rows too


# --- what the step reports


def test_metrics_are_one_valid_json_line_a_step(tmp_path):
    trainer = make(tmp_path, budget=BudgetSettings(episode_tokens=8.0))
    returned = trainer.run(progress=False)
    lines = records(tmp_path)
    assert lines == returned
    assert [line["step"] for line in lines] == list(range(6))
    needed = {
        "accuracy", "reward", "reward_task", "reward_cost_tokens", "reward_cost_turns", "reward_cost_repetition",
        "tokens_per_episode", "silence_rate", "silence_right", "communication_efficiency", "unparsed_share",
        "truncated_share", "lambda_token", "budget_violation", "loss", "gradient_norm", "clip_share", "clip_share_low",
        "clip_share_high", "ratio_mean", "ratio_min", "ratio_max", "log_ratio_raw_max", "noise_floor_rms", "kl_old",
        "entropy_estimate", "zero_variance_groups", "advantage_std", "seconds_sampling", "seconds_update",
    }  # fmt: skip
    assert all(needed - {"budget_violation"} <= line.keys() for line in lines)
    assert all(needed <= line.keys() for line in lines[1:])


def test_the_bar_shows_the_numbers_that_matter(tmp_path, capsys):
    make(tmp_path).run(1)
    bar = capsys.readouterr().err
    assert all(f"{name}=" in bar for name in ("accuracy", "tokens", "silent", "λ", "clip"))


def price_paid(record: dict[str, Any], reward: RewardSettings) -> float:
    """λ_tok from what messages were charged: three messages an episode."""
    return float(record["reward_cost_tokens"] * reward.reference_tokens / (record["tokens_per_episode"] / 3))


def test_the_recorded_price_is_the_one_that_was_charged_with_and_without_a_budget(tmp_path):
    reward = RewardSettings(lambda_token=0.3, lambda_turn=0.0, lambda_repetition=0.0)
    fixed = make(tmp_path / "fixed", reward=reward).run(2, progress=False)
    assert [r["lambda_token"] for r in fixed] == [0.3, 0.3]
    budget = BudgetSettings(episode_tokens=3.0, lambda_initial=0.1, step_size=0.05)
    live = make(tmp_path / "live", reward=reward, budget=budget).run(3, progress=False)
    for record in fixed + live:
        assert price_paid(record, reward) == pytest.approx(record["lambda_token"], rel=1e-6)
    assert live[0]["lambda_token"] == 0.1
    assert live[0]["lambda_token"] < live[1]["lambda_token"] < live[2]["lambda_token"]  # three tokens are too few


def test_the_dual_variable_falls_to_its_floor_under_a_budget_far_above_need(tmp_path):
    budget = BudgetSettings(episode_tokens=500.0, lambda_initial=0.15, step_size=0.1)
    lines = make(tmp_path, budget=budget).run(4, progress=False)
    assert [line["lambda_token"] for line in lines][-1] == 0.0
    assert lines[-1]["lambda_at_floor"] == 1.0


def test_the_round_cap_holds_in_training(tmp_path):
    trainer = make(tmp_path, budget=BudgetSettings(round_tokens=4))
    episodes, _ = trainer._sample()
    assert all(sum(m.tokens for m in e.messages if m.round == 0) <= 4 for e in episodes)
    assert trainer.step()["truncated_share"] > 0


def test_answers_that_cannot_be_scored_have_advantage_zero_and_are_counted(tmp_path, monkeypatch):
    real = module.sample_episodes

    def some_unscorable(*args: Any, **kwargs: Any) -> list[Episode]:
        return [replace(e, correct=None) if i % 3 == 0 else e for i, e in enumerate(real(*args, **kwargs))]

    monkeypatch.setattr(module, "sample_episodes", some_unscorable)
    trainer = make(tmp_path)
    episodes, groups = trainer._sample()
    batch, _, _ = trainer._judge(episodes, groups)
    for row, advantage in zip(all_rows(groups), batch.advantages.tolist(), strict=True):
        if episodes[row.episode].correct is None:
            assert advantage == 0
    trainer.step()
    assert records(tmp_path)[0]["unscorable"] == 2
    assert records(tmp_path)[0]["accuracy"] is not None


def test_a_batch_without_any_scorable_answer_is_survived(tmp_path, monkeypatch):
    real = module.sample_episodes
    monkeypatch.setattr(module, "sample_episodes", lambda *a, **k: [replace(e, correct=None) for e in real(*a, **k)])
    trainer = make(tmp_path)
    before = weights(trainer.policy)
    trainer.run(1)
    assert records(tmp_path)[0]["accuracy"] is None
    assert not changed(before, trainer.policy)


# --- seeds and data order


def test_another_seed_gives_other_samples_and_another_order_trl_7040(tmp_path):
    def run(seed: int, name: str) -> tuple[list[dict[str, Any]], list[list[str]]]:
        trainer = make(tmp_path / name, seed=seed)
        order = [[p.id for p in trainer._problems_of_step(s)] for s in range(3)]
        return untimed(trainer.run(2, progress=False)), order

    first, again, other = run(1, "a"), run(1, "b"), run(2, "c")
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]


def test_every_problem_comes_once_an_epoch_and_none_twice_in_a_step(tmp_path):
    trainer = make(tmp_path, problems_per_step=3)
    steps = [[p.id for p in trainer._problems_of_step(s)] for s in range(20)]
    assert all(len(set(step)) == 3 for step in steps)
    for epoch in range(10):  # seven problems, three a step: one is left over
        assert len(set(steps[2 * epoch] + steps[2 * epoch + 1])) == 6
    assert len({tuple(step) for step in steps}) > 10
    assert len({name for step in steps for name in step}) == 7


# --- resume


def run_out(trainer: Trainer, steps: int | None = None) -> Trainer:
    trainer.run(steps, progress=False)
    return trainer


def test_six_steps_equal_three_and_resume_and_three_bit_for_bit_art_72(tmp_path, fresh):
    budget = BudgetSettings(episode_tokens=12.0)
    straight = run_out(make(tmp_path / "a", fresh(), budget=budget))
    half = run_out(make(tmp_path / "b", fresh(), budget=budget, steps=3))
    assert half.done == 3
    torch.manual_seed(99)  # another process starts from another random state
    policy = fresh()
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(1.0)  # nothing of the fresh weights may survive
    resumed = make(tmp_path / "b", policy, budget=budget)
    assert resumed.resume() == 3
    run_out(resumed)
    assert resumed.done == 6
    assert same(resumed.policy.state(), straight.policy.state())
    assert same(resumed.optimiser.state_dict(), straight.optimiser.state_dict())
    assert resumed.dual.state_dict() == straight.dual.state_dict()
    assert resumed.alarm.state_dict() == straight.alarm.state_dict()
    assert untimed(records(tmp_path / "b")) == untimed(records(tmp_path / "a"))
    assert len(records(tmp_path / "a")) == 6


def test_resume_cuts_the_record_back_to_the_checkpoint(tmp_path):
    first = run_out(make(tmp_path), 5)
    assert [p.name for p in first.checkpoints()] == ["step-000000.pt", "step-000003.pt", "step-000005.pt"]
    whole = untimed(records(tmp_path))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "accu')  # killed while writing
    second = make(tmp_path)
    assert second.resume(first.checkpoints()[1]) == 3
    assert [line["step"] for line in records(tmp_path)] == [0, 1, 2]
    run_out(second, 5)
    assert untimed(records(tmp_path)) == whole


def test_resume_without_a_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint in .*checkpoints; start with run\(\)"):
        make(tmp_path).resume()
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        make(tmp_path).resume(tmp_path / "checkpoints" / "step-000009.pt")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"learning_rate": 5e-4}, "trainer"),
        ({"seed": 1}, "trainer"),
        ({"team": Team(replace(TEAM.settings, message_tokens=5))}, "team"),
        ({"reward": RewardSettings(lambda_token=0.1)}, "reward"),
        ({"objective": ObjectiveSettings(epsilon_low=1e-3)}, "objective"),
        ({"budget": BudgetSettings(episode_tokens=9.0)}, "budget"),
        ({"collapse": CollapseSettings(window=7)}, "collapse"),
        ({"problems": problems(6)}, "problems"),
        ({"lora_alpha": 8}, "policy"),  # same names and shapes, other weights
    ],
)
def test_resume_under_other_settings_is_refused_by_name(tmp_path, change, named):
    make(tmp_path).save()
    policy = build_policy(lora_alpha=change.pop("lora_alpha", 32))
    with pytest.raises(ValueError, match=rf"written with other settings; they differ in {named}\."):
        make(tmp_path, policy, **change).resume()


def test_more_steps_are_no_other_settings(tmp_path):
    make(tmp_path).save()
    assert make(tmp_path, steps=50, checkpoint_every=7).resume() == 0


def test_an_interrupted_checkpoint_leaves_the_old_ones_whole(tmp_path, monkeypatch):
    trainer = run_out(make(tmp_path), 3)
    state = trainer.policy.state()
    trainer.run(4, progress=False)
    (tmp_path / "checkpoints" / "step-000004.pt").unlink()

    def dies(what: Any, path: Path) -> None:
        Path(path).write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        trainer.save()
    monkeypatch.undo()
    assert trainer.latest_checkpoint() == tmp_path / "checkpoints" / "step-000003.pt"
    again = make(tmp_path)
    assert again.resume() == 3
    assert same(again.policy.state(), state)
    assert run_out(again, 4).latest_checkpoint() == tmp_path / "checkpoints" / "step-000004.pt"


def test_a_fresh_run_does_not_write_into_the_record_of_another(tmp_path):
    run_out(make(tmp_path), 1)
    with pytest.raises(FileExistsError, match=r"holds the steps of another run; call resume\(\)"):
        make(tmp_path).run(1)
    assert len(records(tmp_path)) == 1


def test_what_was_trained_is_kept_wherever_run_is_told_to_stop(tmp_path):
    trainer = run_out(make(tmp_path, checkpoint_every=100), 2)
    again = make(tmp_path, checkpoint_every=100)
    assert again.resume() == 2
    assert same(again.policy.state(), trainer.policy.state())


# --- what stops a run


def saved_batch(error: NonFiniteError, folder: Path) -> dict[str, Any]:
    path = folder / "non-finite-step-000000.pt"
    assert str(path) in str(error)
    return dict(torch.load(path, weights_only=False))


def test_nan_log_probabilities_stop_the_run_and_save_the_batch(tmp_path, monkeypatch):
    def poisoned(*rows: Any, **rest: Any) -> Any:
        logprobs, mask = score(*rows, **rest)
        return logprobs * torch.where(torch.arange(len(logprobs)) == 0, math.nan, 1.0)[:, None], mask

    monkeypatch.setattr(module, "score", poisoned)
    trainer = make(tmp_path)
    before = weights(trainer.policy)
    with pytest.raises(NonFiniteError, match=r"log-probabilities hold NaN.*step 0.*saved to.*step-000000\.pt") as stop:
        trainer.run(1, progress=False)
    batch = saved_batch(stop.value, tmp_path)
    assert batch.keys() == {"prompts", "replies", "old_logprobs", "advantages"}
    assert len(batch["prompts"]) == len(batch["replies"]) == len(batch["advantages"]) > 0
    assert not changed(before, trainer.policy)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_nan_gradients_stop_the_run_although_the_loss_is_finite(tmp_path, monkeypatch):
    def poisoned(policy: Policy, *rows: Any, **rest: Any) -> Any:
        logprobs, mask = score(policy, *rows, **rest)
        weight = next(iter(policy.trainable().values())).flatten()[0]
        return logprobs + (weight - weight.detach()).abs().sqrt(), mask  # adds 0, with a gradient of 0 · ∞

    monkeypatch.setattr(module, "score", poisoned)
    trainer = make(tmp_path)
    before = weights(trainer.policy)
    with pytest.raises(NonFiniteError, match="gradient norm is nan") as stop:
        trainer.run(1, progress=False)
    saved_batch(stop.value, tmp_path)
    assert not changed(before, trainer.policy)
    assert all(p.grad is None for p in trainer.policy.trainable().values())


def test_nan_loss_stops_the_run(tmp_path, monkeypatch):
    real = module.policy_loss

    def poisoned(*args: Any, **kwargs: Any) -> Any:
        loss, metrics = real(*args, **kwargs)
        return loss * math.inf, metrics

    monkeypatch.setattr(module, "policy_loss", poisoned)
    trainer = make(tmp_path)
    before = weights(trainer.policy)
    with pytest.raises(NonFiniteError, match="loss is"):
        trainer.run(1, progress=False)
    assert not changed(before, trainer.policy)


def test_nan_advantages_stop_the_run_and_save_the_batch(tmp_path, monkeypatch):
    real = Trainer._judge

    def poisoned(self: Trainer, *args: Any) -> Any:
        batch, *rest = real(self, *args)
        batch.advantages[0] = math.nan
        return batch, *rest

    monkeypatch.setattr(Trainer, "_judge", poisoned)
    with pytest.raises(NonFiniteError, match="advantages hold NaN") as stop:
        make(tmp_path).run(1, progress=False)
    saved_batch(stop.value, tmp_path)


def test_a_policy_whose_weights_are_nan_is_noticed_when_it_speaks(tmp_path):
    trainer = make(tmp_path)
    with torch.no_grad():
        next(iter(trainer.policy.trainable().values())).fill_(math.nan)
    with pytest.raises(ValueError, match="NaN or infinite; its weights are damaged"):
        trainer.step()


def test_nan_reward_is_a_clear_error(tmp_path, monkeypatch):
    real = CommunicationReward.__call__

    def poisoned(self: CommunicationReward, *args: Any, **kwargs: Any) -> Any:
        terms = real(self, *args, **kwargs)
        terms[0][0] = replace(terms[0][0], total=math.nan)
        return terms

    monkeypatch.setattr(CommunicationReward, "__call__", poisoned)
    with pytest.raises(ValueError, match=r"reward of row 0 \(group 0\) is nan; expected a finite number"):
        make(tmp_path).run(1, progress=False)


def falling_silent(real: Any, since: int) -> Any:
    """From step `since` on nobody speaks and nothing is right."""

    def sampled(*args: Any, settings: Any, **kwargs: Any) -> list[Episode]:
        dead = settings.step >= since
        return [
            replace(
                e,
                correct=not dead,
                messages=tuple(replace(m, silent=dead) for m in e.messages),
            )
            for e in real(*args, settings=settings, **kwargs)
        ]

    return sampled


def test_harmful_silence_stops_the_run_and_names_the_last_good_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "sample_episodes", falling_silent(module.sample_episodes, since=4))
    trainer = make(tmp_path, steps=20, checkpoint_every=1, collapse=CollapseSettings(window=2))
    with pytest.raises(CollapseError, match=r"collapse into silence at step 4.*last good checkpoint is") as stop:
        trainer.run(progress=False)
    # Step 3 was sampled by a good policy: the one after three steps. The one after four fell silent.
    assert stop.value.last_good == 3
    assert trainer.latest_checkpoint() == tmp_path / "checkpoints" / "step-000004.pt"
    assert str(tmp_path / "checkpoints" / "step-000003.pt") in str(stop.value)
    assert records(tmp_path)[-1]["step"] == stop.value.step  # the step that rang is on record


def test_the_alarm_remembers_across_a_resume(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "sample_episodes", falling_silent(module.sample_episodes, since=3))
    collapse = CollapseSettings(window=3)
    run_out(make(tmp_path, collapse=collapse), 3)
    again = make(tmp_path, collapse=collapse)
    again.resume()
    with pytest.raises(CollapseError) as stop:
        run_out(again)
    assert stop.value.step < 6  # a forgetful alarm could not fire before its window is full again and a better one seen


# --- bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": 1}, "members is 1; an advantage compares members of a group, so it must be at least 2"),
        ({"members": 0}, "members is 0"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"mini_batches": 0}, "mini_batches must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"learning_rate": math.nan}, "learning_rate must be positive"),
        ({"learning_rate": math.inf}, "learning_rate must be positive"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"grouping": "pairs"}, "unknown grouping 'pairs'"),
    ],
)
def test_settings_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        TrainerSettings(**change)


@pytest.mark.parametrize("budget", [{"episode_tokens": 0.0}, {"episode_tokens": -3.0}, {"round_tokens": 0}])
def test_a_budget_of_nothing_is_refused(tmp_path, budget):
    with pytest.raises(ValueError, match="above 0"):
        make(tmp_path, budget=BudgetSettings(**budget))


def test_a_trainer_that_cannot_train_says_why(tmp_path):
    with pytest.raises(ValueError, match="no problems given; load some"):
        make(tmp_path, problems=[])
    with pytest.raises(ValueError, match="problems_per_step is 8 but there are 7 problems"):
        make(tmp_path, problems_per_step=8)
    with pytest.raises(ValueError, match=r"kl_coefficient needs train='lora'"):
        make(tmp_path, objective=ObjectiveSettings(kl_coefficient=0.1))
    frozen = build_policy()
    frozen.model.requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable weights"):
        make(tmp_path, frozen)
