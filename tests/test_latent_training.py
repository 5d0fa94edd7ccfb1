"""DiffMAS training: where the gradient goes, what checkpointing and batching may not change, resume, saving."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import build_policy, load_random
from torch import Tensor

from agent_gspo_core.benchmarks import hidden_profile
from agent_gspo_core.latent.decoding import answer_nll
from agent_gspo_core.latent.examples import Example, encode_target, hidden_profile_examples
from agent_gspo_core.latent.team import LatentTeam, LatentTeamSettings, note_holders
from agent_gspo_core.latent.training import AnswerTrainer, DiffMASSettings, adapter_policy, trace_loss, train_diffmas
from agent_gspo_core.policy import Policy
from agent_gspo_core.trainer import NonFiniteError
from agent_gspo_core.warm_start import Example as Supervised
from agent_gspo_core.warm_start import encode

SETTINGS = LatentTeamSettings(
    roles=note_holders(3), latent_steps=2, prompt_style="compact", temperature=0.0, answer_tokens=6
)
EXAMPLES = hidden_profile_examples("train", limit=6)
PACE = DiffMASSettings(
    lora_rank=4, lora_alpha=8, updates=4, micro_batch=2, accumulation=1, learning_rate=1e-2, checkpointing=False
)


def lora_team(folder: Path, **changes: Any) -> LatentTeam:
    return LatentTeam(load_random(folder, train="lora", lora_rank=4, lora_alpha=8), replace(SETTINGS, **changes))


def warmed(team: LatentTeam) -> LatentTeam:
    """A fresh adapter is zero on one side, which stops the gradient of the other: fill it."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in team.policy.trainable().values():
            parameter.normal_(std=0.1, generator=generator)
    return team


def gradients(team: LatentTeam, examples: Sequence[Example], **mode: Any) -> tuple[float, dict[str, Tensor]]:
    for parameter in team.trainable().values():
        parameter.grad = None
    loss, count = trace_loss(team, **mode)(examples)
    loss.backward()
    found = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in team.trainable().items()}
    return loss.item() / count, found


def reach(team: LatentTeam, gradient: Any) -> list[float]:
    """Largest gradient of the answer's loss on each segment's first keys; 0 where none arrives."""
    trace = team.write([e.problem for e in EXAMPLES[:2]], gradient=gradient)
    prompts = [team.prompt(e.problem, 3) for e in EXAMPLES[:2]]
    loss, _ = answer_nll(team.policy, trace, prompts, [(7, 9, 4)] * 2)
    found = []
    for segment in trace.segments:
        keys = segment.layers[0][0]
        if not keys.requires_grad:
            found.append(0.0)
            continue
        (grad,) = torch.autograd.grad(loss, keys, retain_graph=True)
        found.append(grad.abs().max().item())
    return found


# ------------------------------------------------------------------------------------------------------- the gradient


def test_gradient_reaches_agent_1_in_full_mode(random_policy_folder: Path) -> None:
    assert min(reach(warmed(lora_team(random_policy_folder)), "full")) > 0


def test_gradient_is_exactly_zero_at_the_writers_in_last_agent_mode(random_policy_folder: Path) -> None:
    team = warmed(lora_team(random_policy_folder, embedding_map="learned"))
    assert reach(team, "last_agent") == [0.0] * 6
    # Only writers use the map, so nothing of the last agent's own gradient can hide it.
    _, full = gradients(team, EXAMPLES, gradient="full")
    _, last = gradients(team, EXAMPLES, gradient="last_agent")
    assert full["embedding_map.weight"].abs().max() > 0
    assert last["embedding_map.weight"].abs().max() == 0


def test_last_agent_mode_is_the_gradient_on_a_given_trace(random_policy_folder: Path) -> None:
    team = warmed(lora_team(random_policy_folder))
    _, last = gradients(team, EXAMPLES[:1], gradient="last_agent")
    example = EXAMPLES[0]
    with torch.no_grad():
        trace = team.write([example.problem])
    for parameter in team.trainable().values():
        parameter.grad = None
    answer = encode_target(team.policy, team.chat(example.problem, 3), example.target)
    answer_nll(team.policy, trace, [team.prompt(example.problem, 3)], [answer])[0].backward()
    for name, parameter in team.trainable().items():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, last[name])


def test_gradient_modes_share_the_loss_and_differ_in_the_gradient_hazard_6(random_policy_folder: Path) -> None:
    team = warmed(lora_team(random_policy_folder))
    found = {mode: gradients(team, EXAMPLES, gradient=mode) for mode in ("full", "detached", "last_agent")}
    losses = [loss for loss, _ in found.values()]
    assert losses == [losses[0]] * 3
    flat = {m: torch.cat([g.flatten() for g in grads.values()]) for m, (_, grads) in found.items()}
    for one, two in (("full", "detached"), ("full", "last_agent"), ("detached", "last_agent")):
        assert torch.nn.functional.cosine_similarity(flat[one], flat[two], dim=0) < 0.9999


def test_detached_mode_reaches_a_writer_through_its_own_segment_only(random_policy_folder: Path) -> None:
    """Agent 2 has read agent 1, but its thoughts carry nothing back to agent 1."""
    team = warmed(lora_team(random_policy_folder))
    trace = team.write([EXAMPLES[0].problem], gradient="detached")
    first, later = trace.segments[0].layers[0][0], trace.segments[2].layers[1][0]
    assert first.requires_grad
    assert torch.autograd.grad(later.sum(), first, allow_unused=True, retain_graph=True) == (None,)
    full = team.write([EXAMPLES[0].problem], gradient="full")
    assert torch.autograd.grad(full.segments[2].layers[1][0].sum(), full.segments[0].layers[0][0])[0].abs().max() > 0


@pytest.mark.parametrize("gradient", ["full", "detached", "last_agent"])
def test_checkpointed_gradients_equal_plain_ones_to_the_bit(random_policy_folder: Path, gradient: Any) -> None:
    team = warmed(lora_team(random_policy_folder, embedding_map="learned"))
    loss, plain = gradients(team, EXAMPLES, gradient=gradient, checkpointing=False)
    again, recomputed = gradients(team, EXAMPLES, gradient=gradient, checkpointing=True)
    assert loss == again
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)


def test_answers_alone_are_trained(random_policy_folder: Path) -> None:
    team = lora_team(random_policy_folder)
    _, count = trace_loss(team)(EXAMPLES)
    expected = [encode_target(team.policy, team.chat(e.problem, 3), e.target) for e in EXAMPLES]
    assert count == sum(map(len, expected))


def test_targets_are_what_the_policy_would_have_said(random_policy: Policy) -> None:
    team = LatentTeam(random_policy, SETTINGS)
    for example in EXAMPLES:
        chat = team.chat(example.problem, 3)
        prompt, reply = encode(Supervised(chat, example.target), random_policy.tokenizer)
        assert team.prompt(example.problem, 3) == tuple(prompt)
        assert encode_target(random_policy, chat, example.target) == tuple(reply)


def test_examples_are_the_problems_of_the_benchmark_with_right_answers() -> None:
    assert [e.problem for e in EXAMPLES] == hidden_profile.load("train", limit=6)
    for target in ("worked", "brief", "bare"):
        for e in hidden_profile_examples("test", limit=20, target=target):  # type: ignore[arg-type]
            assert e.target.endswith(f"#### {e.problem.answer}")
    with pytest.raises(ValueError, match="unknown target"):
        hidden_profile_examples("test", limit=1, target="long")  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------- the loop


def train(folder: Path, out: Path, updates: int | None = None, **changes: Any) -> AnswerTrainer:
    team = lora_team(folder, embedding_map="learned")
    trainer = AnswerTrainer(team.trainable(), trace_loss(team), EXAMPLES, out, replace(PACE, **changes))
    trainer.run(updates, progress=False)
    return trainer


def test_resume_is_bit_for_bit(random_policy_folder: Path, tmp_path: Path) -> None:
    whole = train(random_policy_folder, tmp_path / "whole")
    train(random_policy_folder, tmp_path / "parts", 2)
    team = lora_team(random_policy_folder, embedding_map="learned")
    rest = AnswerTrainer(team.trainable(), trace_loss(team), EXAMPLES, tmp_path / "parts", PACE)
    assert rest.resume() == 2
    rest.run(progress=False)
    assert all(torch.equal(whole.parameters[name], rest.parameters[name]) for name in whole.parameters)

    def losses(name: str) -> list[float]:
        return [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]

    assert losses("whole") == losses("parts")
    assert len(losses("whole")) == 4


def test_resume_cuts_steps_that_were_recorded_after_the_checkpoint(random_policy_folder: Path, tmp_path: Path) -> None:
    trainer = train(random_policy_folder, tmp_path, 2)
    trainer.step()  # recorded, not saved; then the process dies in the middle of a line
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "lo')
    assert trainer.resume() == 2
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [0, 1]


def test_resume_under_other_settings_or_examples_is_refused(random_policy_folder: Path, tmp_path: Path) -> None:
    trainer = train(random_policy_folder, tmp_path, 1)
    trainer.settings = replace(PACE, learning_rate=1e-3)
    with pytest.raises(ValueError, match="learning_rate"):
        trainer.resume()
    trainer.settings, trainer.examples = PACE, EXAMPLES[:3]
    with pytest.raises(ValueError, match="examples"):
        trainer.resume()
    with pytest.raises(FileExistsError, match="resume"):
        train(random_policy_folder, tmp_path)


def test_micro_batches_of_any_size_make_the_same_step(random_policy_folder: Path, tmp_path: Path) -> None:
    one = train(random_policy_folder, tmp_path / "a", 1, micro_batch=6, accumulation=1)
    six = train(random_policy_folder, tmp_path / "b", 1, micro_batch=1, accumulation=6)
    for name, parameter in one.parameters.items():
        assert parameter.grad is not None
        other = six.parameters[name].grad
        assert other is not None
        assert torch.allclose(parameter.grad, other, atol=1e-6)


def test_training_moves_every_trained_weight_and_nothing_else(random_policy_folder: Path, tmp_path: Path) -> None:
    team = lora_team(random_policy_folder, embedding_map="learned")
    mine = {name: p.detach().clone() for name, p in team.trainable().items()}
    frozen = {n: p.detach().clone() for n, p in team.policy.model.named_parameters() if not p.requires_grad}
    loss = trace_loss(team)
    with torch.no_grad():
        before_training = loss(EXAMPLES)[0].item()
    AnswerTrainer(team.trainable(), loss, EXAMPLES, tmp_path, replace(PACE, updates=12)).run(progress=False)
    with torch.no_grad():
        assert loss(EXAMPLES)[0].item() < before_training
    assert all(not torch.equal(before, team.trainable()[name]) for name, before in mine.items())
    now = dict(team.policy.model.named_parameters())
    assert all(torch.equal(before, now[name]) for name, before in frozen.items())


def test_damaged_weights_stop_the_run_before_an_update(random_policy_folder: Path, tmp_path: Path) -> None:
    team = lora_team(random_policy_folder)
    trainer = AnswerTrainer(team.trainable(), trace_loss(team), EXAMPLES, tmp_path, PACE)
    name, first = next(iter(team.trainable().items()))
    with torch.no_grad():
        first[0, 0] = float("nan")
    before = {n: p.detach().clone() for n, p in team.trainable().items() if n != name}
    with pytest.raises(NonFiniteError, match="step 0"):
        trainer.run(progress=False)
    assert all(torch.equal(kept, team.trainable()[n]) for n, kept in before.items())
    assert trainer.done == 0


def test_rate_is_a_cosine_after_its_warm_up() -> None:
    s = DiffMASSettings(updates=10, warmup=2, learning_rate=1.0)
    rates = [s.rate(step) for step in range(10)]
    assert rates[0] == 0.5
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert 0 < rates[-1] < 0.05
    assert replace(s, warmup=0).rate(0) == 1.0


def test_defaults_are_the_papers() -> None:
    s, team = DiffMASSettings(), LatentTeamSettings()
    assert (s.lora_rank, s.lora_alpha, s.learning_rate, s.accumulation * s.micro_batch) == (8, 16, 5e-5, 64)
    assert [role.name for role in team.roles] == ["Planner", "Critic", "Refiner", "Solver"]
    assert (team.latent_steps, team.temperature, team.top_p, team.ridge) == (10, 0.6, 0.95, 1e-5)


# ---------------------------------------------------------------------------------------------------------- on disk


@pytest.mark.parametrize("kind", ["ridge", "learned", "identity"])
def test_saved_team_answers_like_the_trained_one(random_policy_folder: Path, tmp_path: Path, kind: Any) -> None:
    team = warmed(lora_team(random_policy_folder, embedding_map=kind))
    train_diffmas(team, EXAMPLES, tmp_path, PACE, progress=False)
    loaded = LatentTeam.load(tmp_path, device="cpu")
    assert loaded.settings == team.settings
    problems = [e.problem for e in EXAMPLES]
    assert [a.reply for a in loaded.answers(problems)] == [a.reply for a in team.answers(problems)]
    assert loaded.answer(problems[0]).text == team.answer(problems[0]).text


def test_saved_adapter_is_in_pefts_own_format(random_policy_folder: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    team = warmed(lora_team(random_policy_folder))
    team.save(tmp_path)
    base = AutoModelForCausalLM.from_pretrained(random_policy_folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(tmp_path)).eval()
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(model(input_ids=ids).logits, team.policy.model(input_ids=ids).logits)


def test_interrupted_training_is_gone_on_with(random_policy_folder: Path, tmp_path: Path) -> None:
    whole = lora_team(random_policy_folder)
    train_diffmas(whole, EXAMPLES, tmp_path / "whole", PACE, progress=False)
    cut = lora_team(random_policy_folder)
    AnswerTrainer(cut.trainable(), trace_loss(cut), EXAMPLES, tmp_path / "cut", PACE).run(2, progress=False)
    again = lora_team(random_policy_folder)
    assert len(train_diffmas(again, EXAMPLES, tmp_path / "cut", PACE, progress=False)) == 2
    assert all(torch.equal(p, again.trainable()[n]) for n, p in whole.trainable().items())


def test_folder_without_a_team_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"latent_team\.json"):
        LatentTeam.load(tmp_path)


def test_adapter_is_seeded(random_policy_folder: Path) -> None:
    one, same, other = (
        adapter_policy(str(random_policy_folder), replace(PACE, seed=seed), device="cpu").state() for seed in (0, 0, 1)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_nothing_to_learn_from_is_refused(random_policy_folder: Path, tmp_path: Path) -> None:
    team = lora_team(random_policy_folder)
    with pytest.raises(ValueError, match="no examples"):
        AnswerTrainer(team.trainable(), trace_loss(team), [], tmp_path)
    frozen = build_policy()
    frozen.model.requires_grad_(False)
    with pytest.raises(ValueError, match="train='lora'"):
        AnswerTrainer(frozen.trainable(), trace_loss(team), EXAMPLES, tmp_path)
    with pytest.raises(ValueError, match="empty"):
        Example(EXAMPLES[0].problem, " ")
    with pytest.raises(ValueError, match="micro_batch"):
        DiffMASSettings(micro_batch=0)
    with pytest.raises(ValueError, match="unknown gradient"):
        team.write([EXAMPLES[0].problem], gradient="some")  # type: ignore[arg-type]
