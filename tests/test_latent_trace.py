"""The latent trace: caches, positions, padding, controls. Tests named "hazard" guard known traps of caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import build_policy, load_random
from torch import Tensor
from torch.nn import functional as F

from agent_gspo_core.benchmarks import hidden_profile
from agent_gspo_core.generation import sample
from agent_gspo_core.latent import cache as adapter
from agent_gspo_core.latent.cache import CacheInterfaceError, check_cache_interface, count_layers, fresh_cache
from agent_gspo_core.latent.decoding import answer_nll, decode
from agent_gspo_core.latent.embedding_map import EmbeddingMap, ridge_map
from agent_gspo_core.latent.team import (
    LatentTeam,
    LatentTeamSettings,
    kv_bytes_per_column,
    note_holders,
)
from agent_gspo_core.latent.trace import (
    LatentTrace,
    decoder_of,
    dropped,
    empty_trace,
    extend,
    foreign,
    inspect_trace,
    joined,
    rerotated,
    select,
    zeroed,
)
from agent_gspo_core.policy import Policy

SETTINGS = LatentTeamSettings(
    roles=note_holders(3), latent_steps=2, prompt_style="compact", temperature=0.0, answer_tokens=6
)
PROBLEMS = hidden_profile.load("train", limit=5)
NOTES = PROBLEMS[0].notes
LONG = replace(PROBLEMS[0], id="long", question="How many stones do Fay and Fay and Fay and Fay have together?")


def team_of(policy: Policy, **changes: Any) -> LatentTeam:
    return LatentTeam(policy, replace(SETTINGS, **changes))


@pytest.fixture(scope="module")
def team(random_policy: Policy) -> LatentTeam:
    return team_of(random_policy)


def answers_nll(team: LatentTeam, trace: LatentTrace, problems: list[Any]) -> Tensor:
    """Mean negative log-likelihood of one made-up answer per row, [N]."""
    found = []
    for row, problem in enumerate(problems):
        alone = select(trace, torch.tensor([row]))
        loss, count = answer_nll(team.policy, alone, [team.prompt(problem, 3)], [(7, 9, 11, 4)])
        found.append(loss / count)
    return torch.stack(found)


def same_trace(a: LatentTrace, b: LatentTrace) -> bool:
    return all(
        torch.equal(x, y) for one, two in zip(a.layers, b.layers, strict=True) for x, y in zip(one, two, strict=True)
    )


# ------------------------------------------------------------------------------------------------ the trace itself


@torch.no_grad()
def uncached_nll(team: LatentTeam, problem: Any, answer: tuple[int, ...]) -> Tensor:
    """The same team without any cache: everything is read again for every latent step."""
    model, embed = team.policy.model, team.embed
    assert embed is not None
    words = model.get_input_embeddings()
    row = torch.zeros(1, 0, model.config.hidden_size, dtype=words.weight.dtype)
    for agent in range(3):
        row = torch.cat([row, words(torch.tensor([team.prompt(problem, agent)]))], dim=1)
        for _ in range(team.settings.latent_steps):
            hidden = decoder_of(model)(inputs_embeds=row, use_cache=False).last_hidden_state
            row = torch.cat([row, embed(hidden[:, -1])[:, None]], dim=1)
    tail = torch.tensor([team.prompt(problem, 3) + answer])
    row = torch.cat([row, words(tail)], dim=1)
    logits = model(inputs_embeds=row, use_cache=False).logits[0, -len(answer) - 1 : -1]
    return F.cross_entropy(logits, torch.tensor(answer))


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_cached_equals_uncached_loss(random_policy: Policy, steps: int) -> None:
    team = team_of(random_policy, latent_steps=steps)
    answer = (7, 9, 11, 4)
    for problem in PROBLEMS[:3]:
        loss, count = answer_nll(team.policy, team.write([problem]), [team.prompt(problem, 3)], [answer])
        assert (loss / count).item() == pytest.approx(uncached_nll(team, problem, answer).item(), abs=1e-6)


def test_padded_batch_equals_one_by_one_hazard_5(team: LatentTeam) -> None:
    problems = [LONG, *PROBLEMS[:3]]
    together = team.write(problems)
    assert (together.mask == 0).any(), "the prompts should be unequal, or the test shows nothing"
    with torch.no_grad():
        batched = answers_nll(team, together, problems)
        alone = torch.cat([answers_nll(team, team.write([problem]), [problem]) for problem in problems])
        whole, count = answer_nll(team.policy, together, [team.prompt(p, 3) for p in problems], [(7, 9, 11, 4)] * 4)
    assert torch.allclose(batched, alone, atol=1e-5, rtol=0)
    assert (whole / count).item() == pytest.approx(alone.mean().item(), abs=1e-5)


def test_padded_batch_says_what_each_says_alone(team: LatentTeam) -> None:
    problems = [LONG, *PROBLEMS]
    together = [answer.reply.token_ids for answer in team.answers(problems)]
    assert together == [team.answer(problem).reply.token_ids for problem in problems]


def test_positions_count_real_columns_across_agents(team: LatentTeam) -> None:
    trace = team.write([LONG, PROBLEMS[0]])
    for row in range(2):
        kept = trace.mask[row].bool()
        assert trace.positions[row][kept].tolist() == list(range(int(kept.sum())))
    assert trace.next_position.tolist() == trace.mask.sum(1).tolist()
    assert [span[:2] for span in trace.spans] == [
        (f"Agent {i}", kind) for i in (1, 2, 3) for kind in ("prompt", "latent")
    ]
    assert trace.spans[-1][3] == trace.mask.shape[1] == trace.layers[0][0].shape[2]


def test_no_latent_steps_keep_the_prompts_cache(random_policy: Policy) -> None:
    team = team_of(random_policy, latent_steps=0)
    trace = team.write(PROBLEMS[:2])
    read = [sum(len(team.prompt(problem, agent)) for agent in range(3)) for problem in PROBLEMS[:2]]
    assert trace.count("prompt").tolist() == read
    assert trace.count("latent").tolist() == [0, 0]
    empty = empty_trace(2)
    assert not torch.allclose(answers_nll(team, trace, PROBLEMS[:2]), answers_nll(team, empty, PROBLEMS[:2]))


def test_costs_are_counted(team: LatentTeam) -> None:
    problem = PROBLEMS[0]
    answer = team.answer(problem)
    read = sum(len(team.prompt(problem, agent)) for agent in range(4))
    columns = read + 3 * 2 + answer.cost.said
    assert (answer.cost.read, answer.cost.latent) == (read, 6)
    assert answer.cost.said == len(answer.reply.token_ids)
    assert answer.cost.kv_bytes == columns * kv_bytes_per_column(team.policy)
    assert answer.cost.forward_flops == 2 * team.policy.parameters * columns
    trace = team.write([LONG, problem])
    held = sum(t[1:].numel() * t.element_size() for pair in trace.layers for t in pair)
    assert held * int(trace.mask[1].sum()) // trace.mask.shape[1] == int(trace.kv_bytes[1])


def test_inspection_shows_what_each_latent_position_would_say(team: LatentTeam) -> None:
    seen = inspect_trace(team.policy, team.write(PROBLEMS[:2]), row=1, top=3)
    assert [(glimpse.agent, glimpse.step) for glimpse in seen] == [
        (f"Agent {i}", step) for i in (1, 2, 3) for step in (1, 2)
    ]
    for glimpse in seen:
        shares = [share for _, share in glimpse.tokens]
        assert len(shares) == 3
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1 + 1e-6


# ------------------------------------------------------------------------------------------------------ cache hazards


@pytest.fixture
def fresh_probe() -> Iterator[None]:
    check_cache_interface.cache_clear()
    yield
    check_cache_interface.cache_clear()


@pytest.mark.usefixtures("fresh_probe")
def test_installed_cache_interface_is_the_expected_one() -> None:
    check_cache_interface()


@pytest.mark.usefixtures("fresh_probe")
def test_changed_cache_interface_is_named_with_the_versions_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def update(self: Any, keys: Tensor) -> tuple[Tensor, Tensor]:
        return keys, keys

    monkeypatch.setattr(adapter._GrowingLayer, "update", update)
    with pytest.raises(CacheInterfaceError, match=r"transformers>=5\.15,<=5\.17\.0"):
        check_cache_interface()


@pytest.mark.usefixtures("fresh_probe")
def test_cache_update_without_gradient_is_noticed_hazard_1(monkeypatch: pytest.MonkeyPatch) -> None:
    original = adapter._GrowingLayer.update
    monkeypatch.setattr(adapter._GrowingLayer, "update", torch.no_grad()(original))
    with pytest.raises(CacheInterfaceError):
        check_cache_interface()


def test_probe_does_not_touch_the_random_stream() -> None:
    check_cache_interface.cache_clear()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    check_cache_interface()
    assert torch.equal(torch.rand(1), expected)


def test_trace_used_by_two_branches_is_not_disturbed_hazard_1(team: LatentTeam) -> None:
    problems = PROBLEMS[:3]
    trace = team.write(problems)
    kept = select(trace, torch.arange(3))
    prompts = [team.prompt(problem, 3) for problem in problems]

    def branch(seed: int) -> list[tuple[int, ...]]:
        replies = decode(team.policy, trace, prompts, cap=8, seeds=[seed] * 3, temperature=1.0)
        return [reply.token_ids for reply in replies]

    first, other, again = branch(0), branch(1), branch(0)
    assert first == again
    assert first != other
    assert same_trace(trace, kept)
    extend(
        team.policy.model,
        trace,
        torch.tensor([[5, 6]] * 3),
        torch.ones(3, 2, dtype=torch.long),
        agent="another",
        steps=1,
        embed=EmbeddingMap.fit(team.policy.model),
    )
    assert same_trace(trace, kept)


def test_cache_serves_one_forward_only_hazard_1(team: LatentTeam) -> None:
    cache = fresh_cache(2, [])
    team.policy.model(input_ids=torch.tensor([[5, 6]]), past_key_values=cache)
    with pytest.raises(CacheInterfaceError, match="second forward"):
        team.policy.model(input_ids=torch.tensor([[5, 6]]), past_key_values=cache)


def test_built_in_checkpointing_that_drops_the_cache_is_refused_hazard_2() -> None:
    policy = build_policy()
    team = team_of(policy)
    policy.model.gradient_checkpointing_enable()
    policy.model.train()
    with pytest.raises(CacheInterfaceError, match="gradient checkpointing"):
        team.write(PROBLEMS[:1])


def test_decoding_covers_past_and_new_hazard_3(team: LatentTeam) -> None:
    """Greedy decoding on a trace picks, token by token, what scoring on the same trace finds likeliest."""
    trace = team.write(PROBLEMS[:2])
    prompts = [team.prompt(problem, 3) for problem in PROBLEMS[:2]]
    for row, reply in enumerate(decode(team.policy, trace, prompts, cap=5, seeds=[0, 0])):
        loss, _ = answer_nll(team.policy, select(trace, torch.tensor([row])), [prompts[row]], [reply.token_ids])
        assert -sum(reply.logprobs) == pytest.approx(loss.item(), abs=1e-4)


def test_decoding_without_a_trace_is_ordinary_sampling(random_policy: Policy) -> None:
    prompts = [(5, 6, 7), (8, 9), (10, 11, 12, 13)]
    for temperature in (0.0, 1.0):
        ours = decode(random_policy, empty_trace(3), prompts, cap=9, seeds=[3, 4, 5], temperature=temperature)
        theirs = sample(random_policy, prompts, caps=[9] * 3, seeds=[3, 4, 5], temperature=temperature)
        assert [r.token_ids for r in ours] == [c.token_ids for c in theirs]
        assert [r.truncated for r in ours] == [c.truncated for c in theirs]
        assert [x for r in ours for x in r.logprobs] == pytest.approx([x for c in theirs for x in c.logprobs], abs=1e-5)


def test_nucleus_never_says_what_lies_outside_it(random_policy: Policy) -> None:
    prompt = (5, 6, 7)
    rows = 64
    sharp = decode(
        random_policy, empty_trace(rows), [prompt] * rows, cap=1, seeds=range(rows), temperature=1.0, top_p=1e-6
    )
    (greedy,) = decode(random_policy, empty_trace(1), [prompt], cap=1, seeds=[0])
    assert {reply.token_ids for reply in sharp} == {greedy.token_ids}
    wide = decode(random_policy, empty_trace(rows), [prompt] * rows, cap=1, seeds=range(rows), temperature=1.0)
    assert len({reply.token_ids for reply in wide}) > 5


def test_models_whose_caches_forget_are_refused() -> None:
    policy = build_policy()
    policy.model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ValueError, match="sliding_attention"):
        count_layers(policy.model)
    with pytest.raises(ValueError, match="full attention"):
        team_of(policy)


# -------------------------------------------------------------------------------------------- positions and stitching


def test_rerotation_equals_building_with_offset_positions_hazard_4(team: LatentTeam) -> None:
    ids, mask = torch.tensor([[0, 5, 6, 7], [8, 9, 10, 11]]), torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    embed = EmbeddingMap.fit(team.policy.model)
    offset = torch.tensor([3, 40])
    with torch.no_grad():
        built = extend(team.policy.model, empty_trace(2, start=offset), ids, mask, agent="a", steps=2, embed=embed)
        plain = extend(team.policy.model, empty_trace(2), ids, mask, agent="a", steps=2, embed=embed)
        turned = rerotated(team.policy.model, plain, offset)
    real = built.mask.bool()[:, None, :, None]
    for (keys, values), (wanted_keys, wanted_values), (old, _) in zip(
        turned.layers, built.layers, plain.layers, strict=True
    ):
        assert torch.allclose(keys * real, wanted_keys * real, atol=1e-5)
        assert torch.allclose(values * real, wanted_values * real, atol=1e-5)
        assert not torch.allclose(old * real, wanted_keys * real, atol=1e-2)
    assert torch.equal(turned.next_position, built.next_position)
    assert torch.equal(turned.positions[built.mask.bool()], built.positions[built.mask.bool()])


def test_stitched_segments_have_wrong_or_corrected_positions(random_policy: Policy) -> None:
    problems = [LONG, PROBLEMS[1]]
    traces = {b: team_of(random_policy, build=b).write(problems) for b in ("chain", "apart", "apart_corrected")}
    chain, wrong, right = traces["chain"], traces["apart"], traces["apart_corrected"]
    assert torch.equal(right.positions, chain.positions)
    assert torch.equal(right.next_position, chain.next_position)
    assert torch.equal(wrong.next_position, chain.next_position)
    assert not torch.equal(wrong.positions, chain.positions)
    first = chain.spans[1][3]  # the first writer has nobody before it
    for layer in range(2):
        for other in (wrong, right):
            assert torch.allclose(other.layers[layer][0][:, :, :first], chain.layers[layer][0][:, :, :first], atol=1e-5)
        assert not torch.allclose(right.layers[layer][0], wrong.layers[layer][0], atol=1e-3)
        assert torch.allclose(right.layers[layer][1], wrong.layers[layer][1], atol=1e-4), "values carry no phase"
    # Later writers read nobody when built apart, so their values differ from the chain's.
    assert not torch.allclose(right.layers[1][1], chain.layers[1][1], atol=1e-3)


def test_wrongly_stitched_segments_turned_later_are_the_corrected_ones(random_policy: Policy) -> None:
    wrong = team_of(random_policy, build="apart")
    parts, start = [], torch.zeros(2, dtype=torch.long)
    for agent in range(3):
        one = LatentTeam(
            wrong.policy, replace(wrong.settings, roles=(wrong.settings.roles[agent], *SETTINGS.roles[3:]))
        )
        problems = [replace(p, notes=(p.notes[agent],)) for p in (LONG, PROBLEMS[1])]
        built = one.write(problems)
        parts.append(rerotated(wrong.policy.model, built, start))
        start = parts[-1].next_position
    right = team_of(random_policy, build="apart_corrected").write([LONG, PROBLEMS[1]])
    turned = joined(parts)
    with torch.no_grad():
        assert torch.allclose(
            answers_nll(wrong, turned, PROBLEMS[:2]), answers_nll(wrong, right, PROBLEMS[:2]), atol=1e-5
        )


def test_model_without_plain_rotary_keys_is_refused(random_policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = team_of(random_policy).write(PROBLEMS[:1])
    monkeypatch.setattr(decoder_of(random_policy.model).rotary_emb, "attention_scaling", 1.2)
    with pytest.raises(ValueError, match="start=offset"):
        rerotated(random_policy.model, trace, torch.tensor([3]))


# ------------------------------------------------------------------------------------------------------- the controls


def test_controls_leave_the_trace_as_it_is(team: LatentTeam) -> None:
    trace = team.write(PROBLEMS[:3])
    kept = select(trace, torch.arange(3))
    for change in (zeroed, foreign, lambda t: dropped(t, "Agent 2")):
        change(trace)
    assert same_trace(trace, kept)


def test_zeroed_trace_keeps_columns_and_loses_content(team: LatentTeam) -> None:
    trace = team.write(PROBLEMS[:2])
    empty = zeroed(trace)
    assert all(not tensor.any() for pair in empty.layers for tensor in pair)
    assert torch.equal(empty.mask, trace.mask)
    assert torch.equal(empty.next_position, trace.next_position)
    other = replace(PROBLEMS[0], notes=tuple(note.translate(str.maketrans("23456789", "98765432")) for note in NOTES))
    assert [len(team.prompt(other, i)) for i in range(3)] == [len(team.prompt(PROBLEMS[0], i)) for i in range(3)]
    read = [answers_nll(team, zeroed(team.write([problem])), [PROBLEMS[0]]) for problem in (PROBLEMS[0], other)]
    assert torch.equal(*read), "what the notes say must be gone"


def test_foreign_trace_is_the_neighbours_with_its_own_mask(team: LatentTeam) -> None:
    problems = [LONG, *PROBLEMS[:2]]
    trace = team.write(problems)
    other = foreign(trace)
    for row in range(3):
        source = (row - 1) % 3
        assert torch.equal(other.mask[row], trace.mask[source])
        assert torch.equal(other.layers[0][0][row], trace.layers[0][0][source])
        assert other.next_position[row] == trace.next_position[source]
    with pytest.raises(ValueError, match="at least two"):
        foreign(select(trace, torch.tensor([0])))


def test_dropped_segment_leaves_the_other_positions(team: LatentTeam) -> None:
    trace = team.write([LONG, PROBLEMS[1]])
    less = dropped(trace, "Agent 2")
    assert {span[0] for span in less.spans} == {"Agent 1", "Agent 3"}
    assert torch.equal(less.next_position, trace.next_position)
    assert torch.equal(less.segments[-1].positions, trace.segments[-1].positions)
    assert not torch.allclose(answers_nll(team, less, PROBLEMS[:2]), answers_nll(team, trace, PROBLEMS[:2]))
    with pytest.raises(ValueError, match="Agent 9"):
        dropped(trace, "Agent 9")


def test_dropping_equals_masking(team: LatentTeam) -> None:
    """Columns that left the trace and columns that nobody may look at are the same to the reader."""
    trace = team.write([LONG, PROBLEMS[1]])
    masked = replace(
        trace,
        segments=tuple(
            replace(s, mask=torch.zeros_like(s.mask)) if s.agent == "Agent 2" else s for s in trace.segments
        ),
    )
    with torch.no_grad():
        assert torch.allclose(
            answers_nll(team, dropped(trace, "Agent 2"), PROBLEMS[:2]),
            answers_nll(team, masked, PROBLEMS[:2]),
            atol=1e-5,
        )


def test_last_agent_sees_the_question_only(team: LatentTeam) -> None:
    problem = PROBLEMS[0]
    words = team.policy.decode(team.prompt(problem, 3))
    assert problem.question in words
    assert not any(note in words for note in problem.notes)
    for agent in range(3):
        mine = team.policy.decode(team.prompt(problem, agent))
        assert [note in mine for note in problem.notes] == [i == agent for i in range(3)]


# ------------------------------------------------------------------------------------------------ the embedding map


def test_ridge_map_solves_its_normal_equations() -> None:
    generator = torch.Generator().manual_seed(0)
    out, into = torch.randn(40, 6, generator=generator), torch.randn(40, 6, generator=generator)
    weight = ridge_map(out, into, 0.5)
    residual = out.T @ (into - out @ weight) - 0.5 * weight
    assert residual.abs().max() < 1e-3


def test_tied_embeddings_need_no_map(random_policy: Policy) -> None:
    weight = EmbeddingMap.fit(random_policy.model).weight
    assert weight is not None
    assert torch.allclose(weight, torch.eye(weight.shape[0]), atol=1e-3)


@pytest.mark.parametrize("kind", ["identity", "ridge", "learned"])
def test_mapped_states_have_the_mean_length_of_embeddings(random_policy: Policy, kind: Any) -> None:
    embed = EmbeddingMap.fit(random_policy.model, kind)
    lengths = random_policy.model.get_input_embeddings().weight.norm(dim=-1)
    mapped = embed(torch.randn(5, 32) * 100)
    assert mapped.norm(dim=-1).tolist() == pytest.approx([lengths.mean().item()] * 5, rel=1e-5)
    assert bool(embed(torch.zeros(1, 32)).isfinite().all())


# ----------------------------------------------------------------------------------------------------------- refusals


def test_prompts_that_end_in_padding_are_refused(team: LatentTeam) -> None:
    embed = EmbeddingMap.fit(team.policy.model)
    ids, mask = torch.tensor([[5, 6, 0]]), torch.tensor([[1, 1, 0]])
    with pytest.raises(ValueError, match="pad at the left"):
        extend(team.policy.model, empty_trace(1), ids, mask, agent="a", steps=1, embed=embed)
    with pytest.raises(ValueError, match="rows"):
        extend(team.policy.model, empty_trace(2), ids, mask, agent="a", steps=1, embed=embed)
    with pytest.raises(ValueError, match="-1 latent steps"):
        extend(team.policy.model, empty_trace(1), ids, torch.ones_like(mask), agent="a", steps=-1, embed=embed)


def test_notes_that_do_not_fit_the_team_are_refused(team: LatentTeam) -> None:
    odd = replace(PROBLEMS[0], notes=PROBLEMS[0].notes[:2])
    with pytest.raises(ValueError, match="2 private notes"):
        team.write([odd])
    with pytest.raises(ValueError, match="no problems"):
        team.write([])


def test_rows_beyond_the_context_are_refused(random_policy_folder: Path) -> None:
    policy = load_random(random_policy_folder, context=60)
    with pytest.raises(ValueError, match="context is 60"):
        team_of(policy).answer(PROBLEMS[0])
    trace, prompt = team_of(policy).write(PROBLEMS[:1]), team_of(policy).prompt(PROBLEMS[0], 3)
    with pytest.raises(ValueError, match="context is 60"):
        answer_nll(policy, trace, [prompt], [(7, 4)])


@pytest.mark.parametrize(
    "change",
    [
        {"roles": ()},
        {"roles": (*note_holders(1), *note_holders(1))},
        {"latent_steps": -1},
        {"embedding_map": "linear"},
        {"build": "sideways"},
        {"answer_tokens": 0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"ridge": 0.0},
        {"working": "much"},
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="latent team"):
        replace(SETTINGS, **change)
