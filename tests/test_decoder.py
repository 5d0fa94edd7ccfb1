"""The lean forward against the library's, family by family: grouped keys, biases, tied and untied heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agent_gspo_core.decoder import LeanDecoder
from agent_gspo_core.generation import sample
from agent_gspo_core.logprobs import score
from agent_gspo_core.policy import Policy, PolicySettings

SHAPE = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.4,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
FAMILIES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama with scaled positions": (
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    ),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
}
PROMPTS = [(5, 6, 7, 8), (5, 6, 7, 8), (5, 6, 9), (30,), (5, 6, 7, 8, 9, 10, 11), (5, 6, 7, 8), (5, 6, 9), (40, 41)] * 3
CAPS = [3 + i % 14 for i in range(24)]


def policy_of(family: str, **changes: Any) -> Policy:
    config, model, extra = FAMILIES[family]
    torch.manual_seed(0)
    return Policy(
        model(config(**{**SHAPE, **extra, **changes})).eval(),
        None,
        PolicySettings(model="random", device="cpu"),
        end_ids=frozenset({1, 2}),
        pad_id=0,
        context=128,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_words_values_and_gradients_are_the_librarys(monkeypatch, family):
    policy = policy_of(family)
    assert LeanDecoder.of(policy) is not None

    def everything(**limits: int) -> tuple[list[Any], torch.Tensor, torch.Tensor]:
        said = [
            reply
            for temperature in (1.0, 0.0)
            for reply in sample(policy, PROMPTS, caps=CAPS, seeds=list(range(24)), temperature=temperature, **limits)
        ]
        policy.model.zero_grad()
        logprobs, _ = score(policy, PROMPTS, [reply.token_ids for reply in said[:24]])
        (logprobs * torch.linspace(-1.0, 2.0, logprobs.numel()).view_as(logprobs)).sum().backward()
        return said, logprobs.detach(), torch.cat([p.grad.flatten() for p in policy.trainable().values()])

    lean = [everything(), everything(batch_rows=5)]
    monkeypatch.setattr(LeanDecoder, "of", lambda policy: None)
    said, logprobs, gradient = everything()
    for ours in lean:
        assert [r.token_ids for r in ours[0]] == [r.token_ids for r in said]
        for a, b in zip(ours[0], said, strict=True):
            assert torch.allclose(torch.tensor(a.logprobs), torch.tensor(b.logprobs), atol=1e-4)
        assert (ours[1] - logprobs).abs().max() < 1e-4
        assert (ours[2] - gradient).norm() < 2e-6 * gradient.norm()


def test_windows_and_other_backends_keep_the_librarys_forward():
    assert LeanDecoder.of(policy_of("mistral", sliding_window=6)) is None
    qwen = policy_of("qwen3", use_sliding_window=True, sliding_window=6, max_window_layers=1)
    assert LeanDecoder.of(qwen) is None
    plain = policy_of("llama")
    plain.settings = PolicySettings(model="random", device="cpu", backend="unsloth")
    assert LeanDecoder.of(plain) is None
