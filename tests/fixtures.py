"""A policy of 40,000 random weights that talks: what the tests speak with when they need a real model.

`build_policy` makes a new one in a few milliseconds (tests that train take their own); the session fixtures share one
and its folder. Its weights are wide enough to be far from uniform: replies end early, end late, are silent or are cut
at the cap, each often enough to be met in a batch of a dozen rows.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_gspo_core.policy import Policy, PolicySettings, load_policy
from agent_gspo_core.warm_start import WarmStartSettings, build_model, build_tokenizer, save

TINY = WarmStartSettings(hidden_size=32, layers=2, heads=2, intermediate_size=64, vocabulary=400, context=512)


@cache
def tokenizer() -> Any:
    """The recipe's tokenizer with a small vocabulary; training it takes a second or two, so once a process."""
    return build_tokenizer(TINY)


def build_random_model() -> Any:
    """Random weights, the same at every call."""
    model = build_model(TINY, len(tokenizer()), tokenizer())
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.normal_(std=0.2 if "embed" in name else 0.16, generator=source)
        model.get_input_embeddings().weight[tokenizer().eos_token_id].mul_(4.0)
    return model.eval()


def build_policy(**settings: Any) -> Policy:
    """A fresh policy, not shared with any other test."""
    model = build_random_model()
    end = tokenizer().eos_token_id
    return Policy(
        model,
        tokenizer(),
        PolicySettings(model="random", device="cpu", **settings),
        end_ids=frozenset({end}),
        pad_id=tokenizer().pad_token_id,
        context=TINY.context,
    )


@pytest.fixture(scope="session")
def random_policy() -> Policy:
    """Shared by all tests of a session; nobody may change its weights."""
    return build_policy()


@pytest.fixture(scope="session")
def random_policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same policy in Hugging Face form on disk."""
    folder = tmp_path_factory.mktemp("random_policy")
    save(build_random_model(), tokenizer(), folder)
    return folder


def load_random(folder: Path, **settings: Any) -> Policy:
    """Load the folder of `random_policy_folder` on the CPU."""
    return load_policy(PolicySettings(model=str(folder), device="cpu", **settings))
