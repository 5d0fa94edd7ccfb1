"""Unsloth for real, on a CPU: `make test-unsloth` builds an environment with it and runs this file there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agent_gspo_core.benchmarks import hidden_profile
from agent_gspo_core.generation import sample
from agent_gspo_core.logprobs import score
from agent_gspo_core.objective import ObjectiveSettings
from agent_gspo_core.policy import Policy, PolicySettings, load_policy
from agent_gspo_core.prompts import build_chat
from agent_gspo_core.reward import RewardSettings
from agent_gspo_core.rollout import Team, TeamSettings
from agent_gspo_core.trainer import Trainer, TrainerSettings

pytestmark = pytest.mark.unsloth

LORA = PolicySettings(train="lora", lora_rank=4, lora_alpha=8, device="cpu")


@pytest.fixture(scope="module")
def pair() -> tuple[Policy, Policy]:
    """The tiny policy with fresh adapters, through transformers and through Unsloth."""
    import unsloth  # noqa: F401  # missing: an error, so that a broken environment cannot pass

    return load_policy(LORA), load_policy(replace(LORA, backend="unsloth"))


def rows(policy: Policy) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    problems = hidden_profile.load("validation", limit=6)
    prompts = [
        policy.encode_chat(build_chat(p, style="compact", name=f"Agent {a + 1}", heard=[], note=p.notes[a]))
        for p in problems
        for a in range(3)
    ]
    replies = sample(policy, prompts, caps=[24] * len(prompts), seeds=list(range(len(prompts))))
    return prompts, [reply.token_ids for reply in replies]


def test_log_probabilities_equal_the_transformers_path(pair: tuple[Policy, Policy]) -> None:
    plain, fast = pair
    prompts, replies = rows(plain)
    with torch.no_grad():
        (expected, mask), (found, _) = score(plain, prompts, replies), score(fast, prompts, replies)
    assert mask.any()
    assert (expected - found).abs().max() < 1e-3


def test_sampling_says_the_same_words(pair: tuple[Policy, Policy]) -> None:
    plain, fast = pair
    assert rows(plain)[1] == rows(fast)[1]


def test_one_gspo_step_moves_the_adapter_the_same_way(tmp_path: Path) -> None:
    import unsloth  # noqa: F401  # missing: an error, so that a broken environment cannot pass

    moved = {}
    for backend in ("transformers", "unsloth"):
        policy = load_policy(replace(LORA, backend=backend))  # type: ignore[arg-type]
        before = policy.state()
        trainer = Trainer(
            policy,
            Team(TeamSettings()),
            hidden_profile.load("train", limit=8, count=policy.count),
            tmp_path / backend,
            settings=TrainerSettings(steps=1, problems_per_step=2, members=4, learning_rate=1e-3),
            objective=ObjectiveSettings(epsilon_low=0.05, epsilon_high=0.05, std_floor=0.1),
            reward=RewardSettings(),
        )
        record = trainer.step()
        assert record["gradient_norm"] > 0
        after = policy.state()
        moved[backend] = torch.cat([(after[name] - before[name]).flatten() for name in sorted(before)])
        assert moved[backend].abs().max() > 0
    cosine = torch.nn.functional.cosine_similarity(moved["transformers"], moved["unsloth"], dim=0)
    assert cosine > 0.999


def test_an_adapter_saved_by_unsloth_loads_on_the_transformers_path(
    pair: tuple[Policy, Policy], tmp_path: Path
) -> None:
    plain, fast = pair
    prompts, replies = rows(plain)
    with torch.no_grad():
        for name, parameter in fast.trainable().items():
            if "lora_B" in name:
                parameter.fill_(0.01)
        expected, _ = score(fast, prompts, replies)
        folder = fast.save(tmp_path / "adapter")
        found, _ = score(load_policy(replace(LORA, model=str(folder))), prompts, replies)
    assert (expected - found).abs().max() < 1e-3


def test_notebook_02_runs_in_smoke_size_with_unsloth(tmp_path: Path) -> None:
    import unsloth  # noqa: F401  # missing: an error, so that a broken environment cannot pass

    from agent_gspo_core.kit.runner import reproduce

    report = reproduce("smoke", notebooks=["02"], run_folder=tmp_path / "run", backend="unsloth")
    assert report.summary["notebooks"] == {"02_training_single_gpu": "ok"}
    assert report.exit_code == 0
    log = (tmp_path / "run" / "notebooks" / "02_training_single_gpu.log").read_text(encoding="utf-8")
    assert "Unsloth" in log, "the kernel never imported Unsloth"
