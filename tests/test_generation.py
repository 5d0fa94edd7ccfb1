"""The decode loop against transformers' own `generate`, against softmax, and against a scoring pass."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from fixtures import build_policy
from scipy.stats import chisquare

import agent_gspo_core.generation as generation
from agent_gspo_core.generation import Completion, PreallocatedLayer, draw, left_pad, sample
from agent_gspo_core.logprobs import score
from agent_gspo_core.policy import Policy

PROMPTS = [
    "How many pens do Ben and Ida have together?",
    "Ben has 3 pens.",
    "Who has more cups, Ada or Una? Agent 1: Hello team, let me look at the question carefully.",
    "4",
]


def chats(policy: Policy, texts: list[str] | None = None) -> list[tuple[int, ...]]:
    return [policy.encode_chat([{"role": "user", "content": text}]) for text in (PROMPTS if texts is None else texts)]


def greedy(policy: Policy, prompts: list[tuple[int, ...]], cap: int) -> list[Completion]:
    return sample(policy, prompts, caps=[cap] * len(prompts), seeds=[0] * len(prompts), temperature=0.0)


def reference(policy: Policy, prompt: tuple[int, ...], cap: int) -> tuple[int, ...]:
    """What transformers' `generate` says, alone and without padding."""
    ids = torch.tensor([prompt])
    out = policy.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=cap,
        do_sample=False,
        eos_token_id=sorted(policy.end_ids),
        pad_token_id=policy.pad_id,
    )
    return tuple(out[0, len(prompt) :].tolist())


# --- against transformers


def test_greedy_decoding_equals_transformers_generate_token_by_token(random_policy):
    prompts = chats(random_policy)
    prompts = [*prompts, prompts[0], prompts[2], prompts[0]]  # equal prompts are read once
    replies = greedy(random_policy, prompts, 24)
    assert [r.token_ids for r in replies] == [reference(random_policy, prompt, 24) for prompt in prompts]
    assert len({len(prompt) for prompt in prompts}) > 2
    assert len({len(r.token_ids) for r in replies}) > 1  # some end, some are cut


def test_sliding_window_models_keep_the_librarys_own_cache():
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=60,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=6,
        initializer_range=0.3,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    policy = replace(build_policy(), model=MistralForCausalLM(config).eval(), end_ids=frozenset({1}), context=64)
    prompts = [(5, 6, 7, 8, 9, 10, 11, 12, 13), (20, 21), (30, 31, 32, 33, 34)]
    replies = greedy(policy, prompts, 12)
    assert [r.token_ids for r in replies] == [reference(policy, prompt, 12) for prompt in prompts]


def test_absolute_positions_count_from_the_first_real_token():
    """GPT-2 notices padding that is counted as positions; rotary models do not."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.5, bos_token_id=1,
        eos_token_id=1,
    )  # fmt: skip
    policy = replace(build_policy(), model=GPT2LMHeadModel(config).eval(), end_ids=frozenset({1}), context=64)
    prompts = [(5, 6, 7, 8, 9, 10, 11, 12, 13), (20, 21), (30, 31, 32, 33, 34)]
    replies = greedy(policy, prompts, 12)
    assert [r.token_ids for r in replies] == [reference(policy, prompt, 12) for prompt in prompts]
    with torch.no_grad():
        together, _ = score(policy, prompts, [r.token_ids for r in replies])
        for i, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
            alone, _ = score(policy, [prompt], [reply.token_ids])
            assert torch.allclose(together[i, : len(reply.token_ids)], alone[0], atol=1e-5)


def test_preallocated_cache_returns_what_was_written_and_drops_rows():
    layer = PreallocatedLayer(capacity=5)
    first, second = torch.randn(2, 3, 1, 2, 4).unbind(0), torch.randn(2, 3, 1, 1, 4).unbind(0)
    layer.update(*first)
    keys, values = layer.update(*second)
    assert torch.equal(keys, torch.cat([first[0], second[0]], dim=2))
    assert torch.equal(values, torch.cat([first[1], second[1]], dim=2))
    assert layer.get_seq_length() == 3
    layer.batch_select_indices(torch.tensor([2, 2]))
    assert torch.equal(layer.keys, keys[[2, 2]])
    third = torch.randn(2, 2, 1, 1, 4).unbind(0)
    keys, _ = layer.update(*third)
    assert keys.shape == (2, 1, 4, 4)
    assert torch.equal(keys[:, :, -1:], third[0])


# --- against softmax


def test_draw_inverts_the_cumulative_distribution():
    probabilities = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]] * 4)
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 1 - 2**-53], dtype=torch.float64)
    assert draw(probabilities, uniforms).tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_frequencies_are_those_of_softmax(temperature):
    policy = build_policy()
    prompt = chats(policy, ["Who?"])[0]
    rows = 6000
    replies = sample(policy, [prompt] * rows, caps=[1] * rows, seeds=list(range(rows)), temperature=temperature)
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([prompt])).logits[0, -1]
    expected = torch.softmax(logits / temperature, -1).double() * rows
    seen = torch.bincount(torch.tensor([r.token_ids[0] for r in replies]), minlength=len(expected)).double()
    order = expected.argsort(descending=True)
    big = [i for i in order.tolist() if expected[i] >= 8]
    assert len(big) > 20
    observed = [*seen[big].tolist(), rows - seen[big].sum().item()]
    wanted = [*expected[big].tolist(), rows - expected[big].sum().item()]
    assert chisquare(observed, wanted).pvalue > 1e-3
    # The test would notice another temperature.
    other = torch.softmax(logits / (temperature * 1.15), -1).double() * rows
    wrong = [*other[big].tolist(), rows - other[big].sum().item()]
    assert chisquare(observed, wrong).pvalue < 1e-6


# --- the kept log-probabilities


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_kept_logprobs_equal_a_scoring_pass_trl_4159(random_policy, temperature):
    prompts = [prompt for prompt in chats(random_policy) for _ in range(8)]
    replies = sample(random_policy, prompts, caps=[20] * 32, seeds=list(range(32)), temperature=temperature)
    with torch.no_grad():
        logprobs, mask = score(random_policy, prompts, [r.token_ids for r in replies], temperature=temperature)
    ratios = []
    for i, reply in enumerate(replies):
        n = len(reply.token_ids)
        assert mask[i].tolist() == [True] * n + [False] * (mask.shape[1] - n)
        difference = logprobs[i, :n] - torch.tensor(reply.logprobs)
        assert difference.abs().max() < 1e-5
        ratios.append(difference.mean().item())
    assert max(map(abs, ratios)) < 2e-6  # rounding of single tokens, 4e-7 typically
    assert abs(sum(ratios) / len(ratios)) < 1e-6  # unsloth#4502


def test_greedy_replies_carry_logprobs_at_temperature_one(random_policy):
    prompt = chats(random_policy)[0]
    reply = greedy(random_policy, [prompt], 8)[0]
    with torch.no_grad():
        logprobs, _ = score(random_policy, [prompt], [reply.token_ids])
    assert torch.allclose(logprobs[0], torch.tensor(reply.logprobs), atol=1e-5)


# --- rows stand alone


def test_a_rows_reply_does_not_depend_on_the_rest_of_the_batch(random_policy):
    prompts = chats(random_policy)
    together = sample(random_policy, prompts, caps=[20, 5, 12, 17], seeds=[11, 12, 13, 14])
    alone = [
        sample(random_policy, [prompt], caps=[cap], seeds=[seed])[0]
        for prompt, cap, seed in zip(prompts, [20, 5, 12, 17], [11, 12, 13, 14], strict=True)
    ]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    backwards = sample(random_policy, prompts[::-1], caps=[17, 12, 5, 20], seeds=[14, 13, 12, 11])
    assert [r.token_ids for r in backwards[::-1]] == [r.token_ids for r in alone]
    for a, b in zip(together, alone, strict=True):
        assert torch.allclose(torch.tensor(a.logprobs), torch.tensor(b.logprobs), atol=1e-5)


def test_a_longer_cap_continues_the_same_reply(random_policy):
    prompts = chats(random_policy)
    short = sample(random_policy, prompts, caps=[4] * 4, seeds=[1, 2, 3, 4])
    long = sample(random_policy, prompts, caps=[16] * 4, seeds=[1, 2, 3, 4])
    assert [r.token_ids for r in short] == [r.token_ids[:4] for r in long]


def test_same_seed_same_reply_and_other_seed_other_reply(random_policy):
    prompts = [chats(random_policy)[0]] * 6
    first = sample(random_policy, prompts, caps=[16] * 6, seeds=[5, 5, 6, 7, 8, 2**63 + 1])
    again = sample(random_policy, prompts, caps=[16] * 6, seeds=[5, 5, 6, 7, 8, 2**63 + 1])
    assert first == again
    assert first[0] == first[1]
    assert len({r.token_ids for r in first[1:]}) == 5


def test_the_global_random_state_is_neither_read_nor_moved(random_policy):
    prompt = chats(random_policy)[0]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = sample(random_policy, [prompt], caps=[8], seeds=[3])
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert sample(random_policy, [prompt], caps=[8], seeds=[3]) == first


# --- how replies end


def test_caps_hold_per_row_and_mark_what_they_cut(random_policy):
    prompts = [chats(random_policy)[i % 4] for i in range(24)]
    caps = [1 + i % 7 for i in range(24)]
    replies = sample(random_policy, prompts, caps=caps, seeds=list(range(24)))
    for reply, cap in zip(replies, caps, strict=True):
        ended = reply.token_ids[-1] in random_policy.end_ids
        assert 1 <= len(reply.token_ids) <= cap
        assert reply.truncated is not ended
        assert len(reply.token_ids) == cap or ended
        assert not set(reply.token_ids[:-1]) & random_policy.end_ids
    assert any(r.truncated for r in replies)
    assert any(not r.truncated for r in replies)


def test_an_end_token_at_the_very_cap_is_not_truncation(random_policy):
    prompts = chats(random_policy) * 8
    full = sample(random_policy, prompts, caps=[30] * 32, seeds=list(range(32)))
    row = next(i for i, r in enumerate(full) if not r.truncated)
    exact = sample(random_policy, [prompts[row]], caps=[len(full[row].token_ids)], seeds=[row])[0]
    assert exact.token_ids == full[row].token_ids
    assert not exact.truncated


def test_the_end_token_is_kept_when_it_is_also_the_pad_token(random_policy):
    """tiny-grpo and MemGen#33 mask by id and never train the end token."""
    end = next(iter(random_policy.end_ids))
    same = replace(random_policy, pad_id=end)
    prompts = chats(random_policy) * 4
    apart = sample(random_policy, prompts, caps=[20] * 16, seeds=list(range(16)))
    shared = sample(same, prompts, caps=[20] * 16, seeds=list(range(16)))
    assert [r.token_ids for r in shared] == [r.token_ids for r in apart]
    assert any(r.token_ids[-1] == end for r in shared)
    with torch.no_grad():
        logprobs, mask = score(same, prompts, [r.token_ids for r in shared])
    assert mask.sum(-1).tolist() == [len(r.token_ids) for r in shared]
    for i, reply in enumerate(shared):
        assert logprobs[i, len(reply.token_ids) - 1].item() == pytest.approx(reply.logprobs[-1], abs=1e-5)


def test_any_of_several_end_tokens_ends_a_reply(random_policy):
    prompts = chats(random_policy) * 4
    plain = sample(random_policy, prompts, caps=[20] * 16, seeds=list(range(16)))
    extra = next(r.token_ids[2] for r in plain if len(r.token_ids) > 4)
    two = replace(random_policy, end_ids=random_policy.end_ids | {extra})
    replies = sample(two, prompts, caps=[20] * 16, seeds=list(range(16)))
    assert any(r.token_ids[-1] == extra and not r.truncated for r in replies)
    assert all(extra not in r.token_ids[:-1] for r in replies)


@pytest.fixture
def widths(monkeypatch):
    """Rows of every decode step, one number a step."""
    seen: list[int] = []
    step = generation.LeanDecoder.step

    def counting(self, tokens, cache):
        seen.append(len(tokens))
        return step(self, tokens, cache)

    monkeypatch.setattr(generation.LeanDecoder, "step", counting)
    return seen


def test_finished_rows_leave_the_decode_batch(random_policy, widths):
    prompts = chats(random_policy)
    replies = sample(random_policy, [*prompts, prompts[0], prompts[0]], caps=[20] * 6, seeds=list(range(6)))
    lengths = [len(r.token_ids) for r in replies]
    assert widths == [sum(n > t for n in lengths) for t in range(1, max(lengths))]


def test_finished_rows_leave_the_librarys_batch_too(random_policy, monkeypatch):
    widths = []
    forward = random_policy.model.forward

    def counting(*args, **kwargs):
        widths.append(kwargs["attention_mask"].shape[0])
        return forward(*args, **kwargs)

    monkeypatch.setattr(generation.LeanDecoder, "of", lambda policy: None)
    monkeypatch.setattr(random_policy.model, "forward", counting)
    prompts = chats(random_policy)
    replies = sample(random_policy, [*prompts, prompts[0], prompts[0]], caps=[20] * 6, seeds=list(range(6)))
    lengths = [len(r.token_ids) for r in replies]
    assert widths[0] == 4  # six rows, four wordings
    assert widths[1:] == [sum(n > t for n in lengths) for t in range(1, max(lengths))]


def test_the_lean_path_and_the_librarys_say_the_same_words(random_policy, monkeypatch):
    prompts = chats(random_policy) * 6
    lean = sample(random_policy, prompts, caps=[20] * 24, seeds=list(range(24)))
    monkeypatch.setattr(generation.LeanDecoder, "of", lambda policy: None)
    library = sample(random_policy, prompts, caps=[20] * 24, seeds=list(range(24)))
    assert [r.token_ids for r in lean] == [r.token_ids for r in library]
    for a, b in zip(lean, library, strict=True):
        assert torch.allclose(torch.tensor(a.logprobs), torch.tensor(b.logprobs), atol=1e-5)


@pytest.mark.parametrize("path", ["lean", "library"])
def test_rows_beyond_the_limit_wait_for_a_place_and_say_the_same(random_policy, monkeypatch, path):
    if path == "library":
        monkeypatch.setattr(generation.LeanDecoder, "of", lambda policy: None)
    prompts = chats(random_policy) * 6
    caps = [3 + i % 17 for i in range(24)]
    together = sample(random_policy, prompts, caps=caps, seeds=list(range(24)))
    for rows in (1, 5, 23):
        few = sample(random_policy, prompts, caps=caps, seeds=list(range(24)), batch_rows=rows)
        assert [r.token_ids for r in few] == [r.token_ids for r in together]


def test_a_waiting_row_takes_the_place_of_one_that_ended(random_policy, widths):
    prompts = chats(random_policy) * 16
    replies = sample(random_policy, prompts, caps=[20] * 64, seeds=list(range(64)), batch_rows=8)
    steps = sum(len(r.token_ids) - 1 for r in replies)
    assert sum(widths) == steps
    assert max(widths) <= 8
    assert len(widths) < 1.5 * steps / 8  # the batch stays nearly full to its end


# --- bad input


def test_nothing_asked_nothing_said(random_policy):
    assert sample(random_policy, [], caps=[], seeds=[]) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": [(5,), ()]}, "prompt 1 is empty"),
        ({"caps": [4, 0]}, "cap of row 1 is 0"),
        ({"caps": [4]}, "2 prompts, 1 caps and 2 seeds"),
        ({"caps": [4, 600]}, r"row 1 needs 1 prompt tokens \+ 600 new tokens, but the policy's context is 512"),
        ({"temperature": -0.5}, "temperature must be 0"),
        ({"batch_rows": 0}, "batch_rows must be at least 1"),
        ({"temperature": math.nan}, "temperature must be 0"),
    ],
)
def test_bad_input_is_refused_by_name(random_policy, change, message):
    arguments = {"prompts": [(5,), (6,)], "caps": [4, 4], "seeds": [1, 2], **change}
    with pytest.raises(ValueError, match=message):
        sample(random_policy, arguments.pop("prompts"), **arguments)


def test_left_pad_aligns_at_the_right():
    ids, mask = left_pad([(1, 2, 3), (4,)], 9)
    assert ids.tolist() == [[1, 2, 3], [9, 9, 4]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]


def test_half_precision_replies_keep_fp32_logprobs():
    policy = build_policy()
    half = replace(policy, model=copy.deepcopy(policy.model).to(torch.bfloat16))
    reply = sample(half, chats(policy)[:1], caps=[6], seeds=[0])[0]
    total = torch.tensor(reply.logprobs, dtype=torch.float64)
    # A number rounded to bf16 has 16 zero bits at its end.
    assert any(value != torch.tensor(value).bfloat16().item() for value in total.tolist())
