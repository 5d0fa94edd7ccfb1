"""Scoring: the same number alone, padded and batched, and gradients only where a token was said."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from fixtures import build_policy, load_random
from hypothesis import given
from hypothesis import strategies as st

import agent_gspo_core.logprobs as module
from agent_gspo_core.decoder import LeanDecoder
from agent_gspo_core.logprobs import pick_logprobs, right_pad, score, token_budget_batches
from agent_gspo_core.prefixes import build_tree

PROMPTS = [(7, 8, 9, 10, 11, 12, 13), (20,), (30, 31, 32)]
REPLIES = [(40, 41), (50, 51, 52, 53, 54, 4), (60, 4, 61)]


def by_hand(policy, prompt, reply, temperature=1.0):
    """One row, no padding, log-softmax in fp64."""
    logits = policy.model(input_ids=torch.tensor([prompt + reply])).logits[0]
    table = torch.log_softmax(logits.double() / temperature, -1)
    return torch.stack([table[len(prompt) - 1 + t, token] for t, token in enumerate(reply)])


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_padded_rows_score_as_they_do_alone_first_and_last_token_included_verl_3287(random_policy, temperature):
    with torch.no_grad():
        logprobs, mask = score(random_policy, PROMPTS, REPLIES, temperature=temperature)
        for i, (prompt, reply) in enumerate(zip(PROMPTS, REPLIES, strict=True)):
            expected = by_hand(random_policy, prompt, reply, temperature)
            assert mask[i].sum() == len(reply)
            assert mask[i, : len(reply)].all()
            assert (logprobs[i, : len(reply)] - expected).abs().max() < 1e-5
            assert (logprobs[i, len(reply) :] == 0).all()
    assert logprobs.dtype == torch.float32


def test_row_order_does_not_matter(random_policy):
    with torch.no_grad():
        forwards, _ = score(random_policy, PROMPTS, REPLIES)
        backwards, _ = score(random_policy, PROMPTS[::-1], REPLIES[::-1])
    assert torch.allclose(forwards, backwards.flip(0), atol=1e-5)


def test_gradients_of_a_padded_batch_are_the_sum_over_single_rows():
    policy = build_policy()
    weights = [1.0, -0.5, 2.0]

    def gradients() -> list[torch.Tensor]:
        found = [p.grad.clone() for p in policy.trainable().values()]
        policy.model.zero_grad()
        return found

    logprobs, _ = score(policy, PROMPTS, REPLIES)
    (logprobs.sum(-1) * torch.tensor(weights)).sum().backward()
    together = gradients()
    for prompt, reply, weight in zip(PROMPTS, REPLIES, weights, strict=True):
        (score(policy, [prompt], [reply])[0].sum() * weight).backward()
    apart = gradients()
    scale = max(g.abs().max().item() for g in apart)
    assert scale > 0
    for a, b in zip(together, apart, strict=True):
        assert (a - b).abs().max().item() < 1e-5 * scale


def test_padding_sends_exactly_no_gradient_soup_723():
    policy = build_policy()
    logprobs, mask = score(policy, PROMPTS, REPLIES)
    logprobs.retain_grad()
    logprobs.masked_fill(mask, 0.0).sum().backward()  # everything but what was said
    assert all(p.grad is None or (p.grad == 0).all() for p in policy.trainable().values())


@pytest.mark.parametrize("path", ["lean", "library"])
def test_the_head_runs_only_where_a_reply_token_is_predicted(random_policy, monkeypatch, path):
    asked = []
    if path == "library":
        monkeypatch.setattr(module.LeanDecoder, "of", lambda policy: None)
    hook = random_policy.model.get_output_embeddings().register_forward_hook(
        lambda head, inputs, output: asked.append(inputs[0].shape[:-1].numel())
    )
    with torch.no_grad():
        score(random_policy, PROMPTS, REPLIES)
    hook.remove()
    # Padded: as wide as the longest reply and the position before it.
    assert asked == ([sum(map(len, REPLIES))] if path == "lean" else [3 * 7])


# --- shared prefixes

GROUP = [(7, 8, 9, 10, 11, 12, 13)] * 3 + [(7, 8, 9, 10, 20, 21)] * 2 + [(30,)]
SAID = [(40, 41), (40, 41), (40, 50, 51, 4), (60,), (60, 4, 61), (7, 8, 9, 10)]


def scored_with_gradients(policy, prompts, replies):
    policy.model.zero_grad()
    logprobs, mask = score(policy, prompts, replies)
    weights = torch.linspace(-1.0, 2.0, logprobs.numel()).view_as(logprobs)
    (logprobs * weights).sum().backward()
    return logprobs.detach(), mask, [p.grad.clone() for p in policy.trainable().values()]


@pytest.mark.parametrize("train", ["full", "lora"])
def test_shared_prefixes_change_neither_values_nor_gradients(random_policy_folder, monkeypatch, train):
    policy = load_random(random_policy_folder, train=train)
    with torch.no_grad():  # fresh adapters do nothing
        for name, parameter in policy.trainable().items():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    assert LeanDecoder.of(policy) is not None
    lean, mask, shared = scored_with_gradients(policy, GROUP, SAID)
    monkeypatch.setattr(module.LeanDecoder, "of", lambda policy: None)
    library, same_mask, apart = scored_with_gradients(policy, GROUP, SAID)
    assert torch.equal(mask, same_mask)
    assert (lean - library).abs().max() < 1e-5
    difference, size = (torch.cat([g.flatten() for g in parts]).norm() for parts in (
        [a - b for a, b in zip(shared, apart, strict=True)], apart,
    ))  # fmt: skip
    assert size > 0
    assert difference < 1e-6 * size


@pytest.mark.parametrize("frozen", [False, True])
def test_a_head_in_pieces_gives_the_same_values_and_gradients(frozen):
    torch.manual_seed(0)
    head = torch.nn.Linear(6, 40).double()
    head.requires_grad_(not frozen)
    hidden, targets = torch.randn(11, 6, dtype=torch.float64), torch.randint(0, 40, (11,))
    weights = torch.randn(11)

    def run(pick) -> list[torch.Tensor]:
        leaf = hidden.clone().requires_grad_()
        head.zero_grad()
        picked = pick(leaf)
        (picked * weights).sum().backward()
        return [picked.detach(), leaf.grad, *(p.grad.clone() for p in head.parameters() if p.requires_grad)]

    whole = run(lambda h: torch.log_softmax(head(h).float() / 0.7, -1).gather(-1, targets[:, None])[:, 0])
    pieces = run(lambda h: pick_logprobs(head, h, targets, 0.7, numbers=120))
    assert len(whole) == len(pieces) == (2 if frozen else 4)
    for a, b in zip(whole, pieces, strict=True):
        assert torch.allclose(a, b.to(a.dtype), atol=2e-6)


def test_micro_batches_count_what_is_computed(random_policy, monkeypatch):
    lean = list(module.micro_batches(random_policy, GROUP, SAID, 16))
    assert sorted(i for batch in lean for i in batch) == list(range(6))
    for batch in lean:
        tree = build_tree([GROUP[i] + SAID[i] for i in batch])
        assert len(tree.ids) <= 16
    monkeypatch.setattr(module.LeanDecoder, "of", lambda policy: None)
    padded = list(module.micro_batches(random_policy, GROUP, SAID, 22))
    assert sorted(i for batch in padded for i in batch) == list(range(6))
    for batch in padded:
        width = max(len(GROUP[i]) for i in batch) + max(len(SAID[i]) for i in batch)
        assert len(batch) * width <= 22


@pytest.mark.parametrize(
    ("prompts", "replies", "temperature", "message"),
    [
        ([(5,)], [(6,)], 0.0, "temperature must be positive"),
        ([(5,), (6,)], [(6,), ()], 1.0, "reply 1 is empty"),
        ([(5,), ()], [(6,), (7,)], 1.0, "prompt 1 is empty"),
        ([(5,)], [(6,), (7,)], 1.0, "1 prompts but 2 replies"),
        ([], [], 1.0, "no rows"),
    ],
)
def test_bad_input_is_refused_by_name(random_policy, prompts, replies, temperature, message):
    with pytest.raises(ValueError, match=message):
        score(random_policy, prompts, replies, temperature=temperature)


def test_right_pad_aligns_at_the_left():
    values, mask = right_pad([(1.0, 2.0, 3.0), (4.0,)], 9.0, torch.float32)
    assert values.tolist() == [[1.0, 2.0, 3.0], [4.0, 9.0, 9.0]]
    assert mask.tolist() == [[True, True, True], [True, False, False]]


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(1, 200))
def test_token_budget_batches_partition_the_rows_within_the_budget(lengths, budget):
    batches = list(token_budget_batches(lengths, budget))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert batch
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget
    # Greedy: the first row of the next batch did not fit any more.
    for batch, following in pairwise(batches):
        assert (len(batch) + 1) * lengths[batch[0]] > budget
        assert lengths[following[0]] <= min(lengths[i] for i in batch)
