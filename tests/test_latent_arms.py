"""Arms and controls on equal footing, and how steady their answers are."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import build_policy

from agent_gspo_core.benchmarks import hidden_profile
from agent_gspo_core.episode import Problem
from agent_gspo_core.latent.arms import (
    ADAPTERS,
    ARMS,
    ArmSettings,
    load_adapter,
    run_arm,
    talk,
    text_team,
    train_adapter,
)
from agent_gspo_core.latent.decoding import Reply
from agent_gspo_core.latent.examples import hidden_profile_examples
from agent_gspo_core.latent.stability import measure_stability, perplexity, self_consistency, token_entropy
from agent_gspo_core.latent.team import Cost, LatentAnswer, LatentTeam, LatentTeamSettings, note_holders
from agent_gspo_core.latent.training import DiffMASSettings

PROBLEMS = hidden_profile.load("test", limit=5)
EXAMPLES = hidden_profile_examples("train", limit=4)
TEAM = LatentTeamSettings(
    roles=note_holders(3), latent_steps=2, prompt_style="compact", temperature=0.0, answer_tokens=6
)
PACE = DiffMASSettings(lora_rank=2, updates=2, micro_batch=2, accumulation=1, learning_rate=1e-2, checkpointing=False)


@pytest.fixture(scope="module")
def settings(random_policy_folder: Path) -> ArmSettings:
    return ArmSettings(
        team=TEAM,
        training=PACE,
        model=str(random_policy_folder),
        device="cpu",
        message_tokens=8,
        topology="free_for_all",
    )


@pytest.fixture(scope="module")
def folders(settings: ArmSettings, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    places = {name: tmp_path_factory.mktemp(name) for name in ADAPTERS}
    for name, folder in places.items():
        train_adapter(name, settings, EXAMPLES, folder, progress=False)
    return dict(places)


def texts(answers: list[LatentAnswer]) -> list[tuple[int, ...]]:
    return [answer.reply.token_ids for answer in answers]


def test_every_arm_answers_every_problem_and_counts_alike(settings: ArmSettings, folders: dict[str, Path]) -> None:
    parameters = load_adapter(settings, None, {}).parameters
    for name, arm in ARMS.items():
        answers = run_arm(name, settings, PROBLEMS, folders)
        assert [answer.problem.id for answer in answers] == [problem.id for problem in PROBLEMS]
        for answer in answers:
            cost = answer.cost
            assert len(answer.reply.token_ids) <= TEAM.answer_tokens
            assert cost.forward_flops == 2 * parameters * (cost.read + cost.latent + cost.said)
            assert cost.latent == (6 if arm.channel == "trace" and arm.latent_steps is None else 0)
            messages = cost.said - len(answer.reply.token_ids)
            assert (messages > 0) == (arm.channel == "text"), "only text arms say anything but the answer"


def test_table_holds_the_arms_that_the_summary_reports() -> None:
    wanted = "single textmas textmas_sft latentmas stitchmas detached last_agent diffmas zeroed foreign"
    assert set(wanted.split()) <= set(ARMS)
    assert {arm.adapter for arm in ARMS.values()} == {None, *ADAPTERS}


def test_trained_arms_differ_from_each_other(settings: ArmSettings, folders: dict[str, Path]) -> None:
    states = {name: load_adapter(settings, name, folders).state() for name in ADAPTERS}
    flat = {name: torch.cat([weight.flatten() for weight in state.values()]) for name, state in states.items()}
    for i, one in enumerate(ADAPTERS):
        for two in ADAPTERS[i + 1 :]:
            assert not torch.allclose(flat[one], flat[two], atol=1e-5), (one, two)


def test_untrained_arms_use_the_model_as_it_came(settings: ArmSettings) -> None:
    plain = LatentTeam(build_policy(), TEAM)
    assert texts(run_arm("latentmas", settings, PROBLEMS)) == texts(plain.answers(PROBLEMS))


def test_single_agent_knows_the_question_only(settings: ArmSettings) -> None:
    others = [replace(problem, notes=("nothing", "at", "all")) for problem in PROBLEMS]
    assert texts(run_arm("single", settings, PROBLEMS)) == texts(run_arm("single", settings, others))
    assert texts(run_arm("single_all_notes", settings, PROBLEMS)) != texts(run_arm("single", settings, PROBLEMS))


def test_foreign_arm_reads_other_items(settings: ArmSettings, folders: dict[str, Path]) -> None:
    one, other = PROBLEMS[0], replace(PROBLEMS[1], notes=PROBLEMS[2].notes)
    first = run_arm("foreign", settings, [one, PROBLEMS[1]], folders)
    second = run_arm("foreign", settings, [one, other], folders)
    assert first[0].reply.logprobs != second[0].reply.logprobs, "row 0 reads the notes of row 1"
    assert first[1].reply.logprobs == pytest.approx(second[1].reply.logprobs, abs=1e-4)
    with pytest.raises(ValueError, match="at least two"):
        run_arm("foreign", settings, [one], folders)


def test_foreign_arm_never_leaves_a_row_alone_in_its_batch(settings: ArmSettings, folders: dict[str, Path]) -> None:
    assert len(run_arm("foreign", settings, PROBLEMS, folders, batch_rows=4)) == 5


def test_dropped_arm_drops_the_named_writer(settings: ArmSettings, folders: dict[str, Path]) -> None:
    first = run_arm("dropped", settings, PROBLEMS, folders)
    third = run_arm("dropped", replace(settings, dropped="Agent 3"), PROBLEMS, folders)
    assert [a.reply.logprobs for a in first] != [a.reply.logprobs for a in third]
    with pytest.raises(ValueError, match="Agent 7"):
        replace(settings, dropped="Agent 7")


def test_batches_change_nothing(settings: ArmSettings, folders: dict[str, Path]) -> None:
    for name in ("textmas", "diffmas", "single"):
        assert texts(run_arm(name, settings, PROBLEMS, folders)) == texts(
            run_arm(name, settings, PROBLEMS, folders, batch_rows=2)
        )


def test_samples_of_a_problem_stand_side_by_side(settings: ArmSettings) -> None:
    sampled = replace(settings, team=replace(TEAM, temperature=1.0, top_p=1.0))
    answers = run_arm("latentmas", sampled, PROBLEMS[:2], samples=3)
    assert [a.problem.id for a in answers] == [p.id for p in PROBLEMS[:2] for _ in range(3)]
    assert len(set(texts(answers))) > 2
    assert texts(answers) == texts(run_arm("latentmas", sampled, PROBLEMS[:2], samples=3))
    assert texts(answers) != texts(run_arm("latentmas", sampled, PROBLEMS[:2], samples=3, seed=1))


def test_untrained_adapter_and_unknown_names_are_refused(settings: ArmSettings, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="train_adapter"):
        run_arm("diffmas", settings, PROBLEMS, {"diffmas": tmp_path})
    with pytest.raises(ValueError, match="unknown arm"):
        run_arm("telepathy", settings, PROBLEMS)
    with pytest.raises(ValueError, match="unknown adapter"):
        train_adapter("telepathy", settings, EXAMPLES, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="stands twice"):
        train_adapter("single_sft", settings, [*EXAMPLES, EXAMPLES[0]], tmp_path)


def test_relay_lets_everybody_hear_all_before() -> None:
    team = text_team(ArmSettings(team=replace(TEAM, temperature=1.0)))
    assert team.topology.stages(0) == ((0,), (1,), (2,))
    assert [sorted(team.topology.spatial[0].predecessors(agent)) for agent in range(3)] == [[], [0], [0, 1]]
    assert team.topology.decider_hears == frozenset(range(3))


def test_text_arm_answers_from_what_the_decider_reads(settings: ArmSettings) -> None:
    policy = load_adapter(settings, None, {})
    episodes = talk(policy, settings, PROBLEMS, seed=0, greedy=True)
    answers = run_arm("textmas", settings, PROBLEMS)
    for episode, answer in zip(episodes, answers, strict=True):
        *messages, last = episode.messages
        assert answer.cost.read == sum(len(m.prompt_ids) for m in messages) + len(last.prompt_ids)
        assert last.token_ids[0] == answer.reply.token_ids[0], "both greedy from the same prompt"


@pytest.mark.parametrize("topology", ["relay", "free_for_all", "chain"])
def test_notes_can_be_the_messages_that_are_learned(settings: ArmSettings, tmp_path: Path, topology: str) -> None:
    noted = replace(settings, messages="notes", topology=topology)
    records = train_adapter("textmas_sft", noted, EXAMPLES, tmp_path, progress=False)
    assert len(records) == PACE.updates
    bare = [replace(e, problem=replace(e.problem, notes=())) for e in EXAMPLES]
    with pytest.raises(ValueError, match="no notes"):
        train_adapter("textmas_sft", noted, bare, tmp_path / "bare", progress=False)


def test_instruct_team_answers_a_problem_without_notes(random_policy_folder: Path) -> None:
    described = LatentTeamSettings(latent_steps=1, answer_tokens=4)
    shared = ArmSettings(team=described, training=PACE, model=str(random_policy_folder), device="cpu", message_tokens=3)
    problem = Problem("gsm", "How many?", "3")
    team = LatentTeam(load_adapter(shared, None, {}), described)
    system = [team.chat(problem, agent)[0]["content"] for agent in range(4)]
    assert ["read" in words for words in system] == [True] * 3 + [False], "writers are told that they are read"
    assert "thoughts" in system[3]
    for name in ("single", "single_all_notes", "textmas", "latentmas"):
        (answer,) = run_arm(name, shared, [problem])
        assert answer.cost.latent == (3 if name == "latentmas" else 0)


# ---------------------------------------------------------------------------------------------------------- stability


def answered(
    problem: str, prediction: str | None, logprobs: tuple[float, ...] = (-0.5,), **changes: Any
) -> LatentAnswer:
    reply = Reply(tuple(range(len(logprobs))), logprobs, changes.get("entropies", (0.1,) * len(logprobs)), False)
    return LatentAnswer(Problem(problem, "?", "1"), "", prediction, None, reply, Cost(1, 1, 0, 1, 1.0))


def test_perplexity_is_the_inverse_geometric_mean_of_the_probabilities() -> None:
    answer = answered("p", "1", (math.log(0.5), math.log(0.125)))
    assert perplexity(answer) == pytest.approx(4.0)
    assert perplexity(answered("p", "1", (0.0, 0.0))) == 1.0


def test_token_entropy_is_the_mean_along_the_answer() -> None:
    assert token_entropy(answered("p", "1", (-1.0, -1.0), entropies=(0.0, 3.0))) == 1.5


def test_self_consistency_counts_agreeing_pairs() -> None:
    def of(*predictions: str | None) -> float:
        return self_consistency([answered("p", prediction) for prediction in predictions])

    assert of("1", "1", "1") == 1.0
    assert of("1", "2", "3") == 0.0
    assert of("1", "1", "2") == pytest.approx(1 / 3)
    assert of(None, None) == 0.0, "what cannot be read agrees with nothing"
    with pytest.raises(ValueError, match="at least 2"):
        of("1")


def test_stability_weighs_problems_alike() -> None:
    measured = measure_stability(
        [
            answered("a", "1", (-1.0,)),
            answered("b", "2", (0.0,)),
            answered("a", "1", (-1.0,)),
            answered("b", "3", (0.0,)),
        ]
    )
    assert measured.self_consistency == 0.5
    assert measured.perplexity == pytest.approx((math.e + 1) / 2)
    assert (measured.problems, measured.samples) == (2, 2)
    assert measure_stability([answered("a", "1")]).self_consistency is None
    with pytest.raises(ValueError, match="same number"):
        measure_stability([answered("a", "1"), answered("a", "1"), answered("b", "1")])
    with pytest.raises(ValueError, match="no answers"):
        measure_stability([])


def test_entropy_of_a_reply_is_that_of_the_policys_own_distribution(settings: ArmSettings) -> None:
    (answer,) = run_arm("single", settings, PROBLEMS[:1])
    policy = load_adapter(settings, None, {})
    prompt = LatentTeam(policy, replace(TEAM, roles=TEAM.roles[-1:])).prompt(replace(PROBLEMS[0], notes=()), 0)
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([prompt])).logits[0, -1]
    assert answer.reply.entropies[0] == pytest.approx(
        torch.distributions.Categorical(logits=logits).entropy().item(), abs=1e-4
    )
