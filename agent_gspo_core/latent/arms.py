"""Every arm and control of the study as one row of a table, on equal data and equal budgets.

Equal means: the same examples in the same order, the same number of optimiser steps, the same adapter size, the same
decoding loop and the same cap for the last agent's answer, and costs counted by the same rule (`team.Cost`). What an
arm spends on messages or latent steps is its own affair and is reported.

`train_adapter` trains what an arm needs, `run_arm` answers problems with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, get_args

import networkx as nx

from agent_gspo_core.episode import Episode, Problem
from agent_gspo_core.latent.examples import Example, encode_target
from agent_gspo_core.latent.team import (
    Build,
    LatentAnswer,
    LatentTeam,
    LatentTeamSettings,
    Spent,
    answer_on,
    load_map,
)
from agent_gspo_core.latent.trace import LatentTrace, dropped, empty_trace, foreign, zeroed
from agent_gspo_core.latent.training import AnswerTrainer, DiffMASSettings, Row, adapter_policy, row_loss, train_diffmas
from agent_gspo_core.policy import TINY, Policy, PolicySettings, load_policy
from agent_gspo_core.prompts import build_chat
from agent_gspo_core.rollout import AnswerReader, SamplingSettings, Team, TeamSettings, sample_episodes
from agent_gspo_core.scoring import read_answer
from agent_gspo_core.topology import TOPOLOGIES, Topology

Channel = Literal["none", "notes", "text", "trace"]
Adapter = Literal["single_sft", "textmas_sft", "diffmas", "detached", "last_agent"]
Change = Literal["zeroed", "foreign", "dropped"]

ADAPTERS: tuple[Adapter, ...] = get_args(Adapter)
"""What is trained, each once a seed."""


@dataclass(frozen=True)
class Arm:
    """How the last agent comes to know what the others know, and what was trained."""

    channel: Channel
    """"none": the question only. "notes": the question and every note in words (an upper bound). "text": messages.
    "trace": keys and values."""
    adapter: Adapter | None = None
    """Trained adapter in use; `None` is the model as it came."""
    build: Build | None = None
    """How the trace is built, where not as the settings say."""
    change: Change | None = None
    """What is done to the trace before it is read."""
    latent_steps: int | None = None
    """Latent steps, where not as the settings say."""


ARMS: dict[str, Arm] = {
    "single": Arm("none"),
    "single_sft": Arm("none", "single_sft"),
    "single_all_notes": Arm("notes"),
    "textmas": Arm("text"),
    "textmas_sft": Arm("text", "textmas_sft"),
    "latentmas": Arm("trace"),
    # The paper does not say which weights its stitched segments come from; ours are DiffMAS's.
    "stitchmas": Arm("trace", "diffmas", build="apart"),
    "stitchmas_corrected": Arm("trace", "diffmas", build="apart_corrected"),
    "detached": Arm("trace", "detached"),
    "last_agent": Arm("trace", "last_agent"),
    "diffmas": Arm("trace", "diffmas"),
    "no_latent_steps": Arm("trace", "diffmas", latent_steps=0),
    "zeroed": Arm("trace", "diffmas", change="zeroed"),
    "foreign": Arm("trace", "diffmas", change="foreign"),
    "dropped": Arm("trace", "diffmas", change="dropped"),
}
"""In the order of a results table: baselines, training-free trace, trained traces, controls of DiffMAS."""


@dataclass(frozen=True)
class ArmSettings:
    """What all arms of a study share."""

    team: LatentTeamSettings = field(default_factory=LatentTeamSettings)
    """Roles, latent steps, answer cap and decoding."""
    training: DiffMASSettings = field(default_factory=DiffMASSettings)
    """Adapter and pace; its `gradient` is set by the arm."""
    model: str = TINY
    """The frozen model, as in `PolicySettings.model`."""
    dtype: str = "float32"
    """Of the frozen model, as in `PolicySettings.dtype`."""
    device: str = "auto"
    """As in `PolicySettings.device`."""
    message_tokens: int = 48
    """Text arms: most tokens of a message, end token included (ours)."""
    topology: str = "relay"
    """Text arms: who hears whom. "relay": everybody hears all who spoke before, as on a trace. Or a topology's name."""
    messages: Literal["sampled", "notes"] = "sampled"
    """Supervised text arm: what its messages are trained towards beside the answers. "sampled": the model's own greedy
    messages. "notes": the sender's note, word for word (hidden profile). Ours; the paper's traces are synthetic."""
    dropped: str = ""
    """Control "dropped": name of the role whose segments are dropped; the first writer if empty."""

    def __post_init__(self) -> None:
        if self.topology not in ("relay", *TOPOLOGIES):
            raise ValueError(f"arms: unknown topology {self.topology!r}; choose relay, {', '.join(TOPOLOGIES)}")
        if self.messages not in ("sampled", "notes"):
            raise ValueError(f"arms: unknown messages {self.messages!r}; choose sampled or notes")
        names = [role.name for role in self.team.writers]
        if self.dropped and self.dropped not in names:
            raise ValueError(f"arms: dropped is {self.dropped!r}; the writers are {', '.join(names)}")


class _Relay(Team):
    """A team in which everybody hears, in its one round, all who spoke before."""

    @cached_property
    def topology(self) -> Topology:
        """Agent i hears 0 … i − 1; the decider hears all."""
        order = nx.DiGraph()
        order.add_nodes_from(range(self.settings.agents))
        order.add_edges_from((u, v) for v in range(self.settings.agents) for u in range(v))
        silent = nx.empty_graph(self.settings.agents, create_using=nx.DiGraph)
        return Topology(
            "relay", self.settings.agents, (order,), (silent,), decider_hears=frozenset(range(self.settings.agents))
        )


def text_team(settings: ArmSettings) -> Team:
    """The text arms' team: the same roles, one round of messages, the same last agent."""
    s = settings.team
    described = TeamSettings(
        agents=len(s.writers),
        rounds=1,
        topology="free_for_all" if settings.topology == "relay" else settings.topology,
        message_tokens=settings.message_tokens,
        answer_tokens=1,  # the answer itself is decoded by `answer_on`, as in every arm
        prompt_style=s.prompt_style,
        working=s.working,
        roles=s.writers,
        decider_role=s.roles[-1],
    )
    return _Relay(described) if settings.topology == "relay" else Team(described)


def talk(
    policy: Policy, settings: ArmSettings, problems: Sequence[Problem], *, seed: int, greedy: bool
) -> list[Episode]:
    """The text arms' messages; each episode's last message holds, as its prompt, what the last agent reads."""
    sampling = SamplingSettings(seed=seed, temperature=0.0 if greedy else settings.team.temperature)
    return sample_episodes(policy, text_team(settings), problems, settings=sampling)


def _single(policy: Policy, settings: ArmSettings) -> LatentTeam:
    """The last agent alone."""
    return LatentTeam(policy, replace(settings.team, roles=settings.team.roles[-1:]))


def _without_notes(problem: Problem) -> Problem:
    return replace(problem, notes=())


def _notes_prompt(
    policy: Policy, settings: ArmSettings, problem: Problem, of: Collection[int] | None = None
) -> tuple[int, ...]:
    """What the last agent reads when the writers `of` (by default all) have said their notes word for word."""
    s = settings.team
    said = zip(s.writers, problem.notes, strict=bool(problem.notes))
    heard = [(role.name, note) for agent, (role, note) in enumerate(said) if of is None or agent in of]
    chat = build_chat(
        problem,
        style=s.prompt_style,
        name=s.roles[-1].name,
        heard=heard,
        answering=True,
        instruction=s.roles[-1].instruction,
        working=s.working,
    )
    return policy.encode_chat(chat)


# -------------------------------------------------------------------------------------------------------- training


def _fresh(settings: ArmSettings) -> Policy:
    """The model with a fresh adapter, which changes nothing until it is trained."""
    return adapter_policy(settings.model, settings.training, dtype=settings.dtype, device=settings.device)


def train_adapter(
    name: Adapter,
    settings: ArmSettings,
    examples: Sequence[Example],
    folder: Path | str,
    *,
    progress: bool = True,
) -> list[dict[str, float]]:
    """Train one adapter and save it to `folder` in PEFT's format; returns the metrics of its steps.

    A folder that was interrupted is gone on with. All adapters start from the same weights and see the same examples
    in the same order for the same number of steps.

    Raises:
        ValueError: unknown name; a problem that stands twice among the examples.
    """
    if name not in ADAPTERS:
        raise ValueError(f"arms: unknown adapter {name!r}; choose {', '.join(ADAPTERS)}")
    twice = [known for known, times in Counter(e.problem.id for e in examples).items() if times > 1]
    if twice:  # supervised rows are kept by problem
        raise ValueError(f"arms: problem id {twice[0]!r} stands twice among the examples; ids must differ")
    folder = Path(folder)
    policy = _fresh(settings)
    if name in ("diffmas", "detached", "last_agent"):
        gradient = "full" if name == "diffmas" else name
        training = replace(settings.training, gradient=gradient)
        return train_diffmas(LatentTeam(policy, settings.team), examples, folder, training, progress=progress)
    rows = (_single_rows if name == "single_sft" else _text_rows)(policy, settings, examples)
    trainer = AnswerTrainer(policy.trainable(), row_loss(policy, rows), examples, folder, settings.training)
    if (folder / "checkpoint.pt").is_file():
        trainer.resume()
    records = trainer.run(progress=progress)
    policy.save(folder)
    return records


def _single_rows(policy: Policy, settings: ArmSettings, examples: Sequence[Example]) -> dict[str, list[Row]]:
    single = _single(policy, settings)
    found = {}
    for example in examples:
        problem = _without_notes(example.problem)
        answer = encode_target(policy, single.chat(problem, 0), example.target)
        found[example.problem.id] = [Row(single.prompt(problem, 0), answer)]
    return found


def _text_rows(policy: Policy, settings: ArmSettings, examples: Sequence[Example]) -> dict[str, list[Row]]:
    """A text trace per example: every message after what its sender read, and the answer after the messages."""
    if settings.messages == "notes":
        traces = [_noted_rows(policy, settings, example.problem) for example in examples]
    else:
        episodes = talk(policy, settings, [example.problem for example in examples], seed=0, greedy=True)
        traces = [
            ([Row(m.prompt_ids, m.token_ids) for m in episode.messages[:-1]], episode.messages[-1].prompt_ids)
            for episode in episodes
        ]
    chat = [{"role": "user", "content": "?"}]  # the template writes a reply the same way after any chat
    return {
        example.problem.id: [*rows, Row(prompt, encode_target(policy, chat, example.target))]
        for example, (rows, prompt) in zip(examples, traces, strict=True)
    }


def _noted_rows(policy: Policy, settings: ArmSettings, problem: Problem) -> tuple[list[Row], tuple[int, ...]]:
    """Every writer says its note and hears those of others as the topology has it; then what the last agent reads."""
    if not problem.notes:
        raise ValueError(f"arms: problem {problem.id!r} has no notes to be said; set messages='sampled'")
    s, team, rows = settings.team, text_team(settings), []
    for agent, (role, note) in enumerate(zip(s.writers, problem.notes, strict=True)):
        ears = sorted(team.topology.spatial[0].predecessors(agent))
        chat = build_chat(
            problem,
            style=s.prompt_style,
            name=role.name,
            heard=[(s.roles[i].name, problem.notes[i]) for i in ears],
            note=note,
            instruction=role.instruction,
            pass_word=team.settings.pass_word,
            working=s.working,
        )
        rows.append(Row(policy.encode_chat(chat), encode_target(policy, chat, note)))
    return rows, _notes_prompt(policy, settings, problem, team.topology.decider_hears)


# -------------------------------------------------------------------------------------------------------- answering


def load_adapter(settings: ArmSettings, adapter: Adapter | None, folders: Mapping[str, Path]) -> Policy:
    """The policy of an arm: the model as it came, or with the adapter that `train_adapter` left in `folders[adapter]`.

    Raises:
        FileNotFoundError: that adapter has not been trained.
    """
    if adapter is None:
        return _fresh(settings)
    folder = folders.get(adapter)
    if folder is None or not (Path(folder) / "adapter_config.json").is_file():
        raise FileNotFoundError(
            f"arms: adapter {adapter!r} is not trained ({folder}); call train_adapter({adapter!r}, …) first"
        )
    t = settings.training
    return load_policy(
        PolicySettings(
            model=str(folder),
            train="lora",
            lora_rank=t.lora_rank,
            lora_alpha=t.lora_alpha,
            dtype=settings.dtype,
            device=settings.device,
        )
    )


def run_arm(
    name: str,
    settings: ArmSettings,
    problems: Sequence[Problem],
    folders: Mapping[str, Path] | None = None,
    *,
    seed: int = 0,
    samples: int = 1,
    batch_rows: int = 64,
    read: AnswerReader = read_answer,
) -> list[LatentAnswer]:
    """Answer every problem with one arm.

    Args:
        name: a key of `ARMS`.
        settings: shared by all arms.
        problems: what is asked.
        folders: adapter name → folder of `train_adapter`.
        seed: seeds messages and answers.
        samples: answers per problem, side by side (`stability` wants several).
        batch_rows: most problems at once.
        read: reads the prediction from the text.

    Raises:
        ValueError: unknown arm; a foreign trace asked for a single problem.
        FileNotFoundError: the arm's adapter has not been trained.
    """
    if name not in ARMS:
        raise ValueError(f"arms: unknown arm {name!r}; choose {', '.join(ARMS)}")
    arm = ARMS[name]
    policy = load_adapter(settings, arm.adapter, folders or {})
    if arm.channel == "trace":
        described = settings.team
        if arm.build is not None:
            described = replace(described, build=arm.build)
        if arm.latent_steps is not None:
            described = replace(described, latent_steps=arm.latent_steps)
        team = _trained_team(policy, described, arm, folders or {})
        change = _changes(settings)[arm.change] if arm.change else None
        return team.answers(problems, seed=seed, samples=samples, change=change, batch_rows=batch_rows, read=read)
    found: list[LatentAnswer] = []
    for start in range(0, len(problems), batch_rows):
        chunk = problems[start : start + batch_rows]
        prompts, spent = _words(arm.channel, policy, settings, chunk, seed)
        trace = empty_trace(len(chunk), device=policy.device)
        found += answer_on(policy, settings.team, chunk, trace, prompts, spent, seed=seed, samples=samples, read=read)
    return found


def _trained_team(policy: Policy, described: LatentTeamSettings, arm: Arm, folders: Mapping[str, Path]) -> LatentTeam:
    """A team with the map that was trained with its adapter, if there is one."""
    embed = None
    if arm.adapter is not None and described.embedding_map == "learned":
        embed = load_map(folders[arm.adapter], "learned", policy)
    return LatentTeam(policy, described, embed)


def _changes(settings: ArmSettings) -> dict[Change, Callable[[LatentTrace], LatentTrace]]:
    writers = settings.team.writers
    agent = settings.dropped or (writers[0].name if writers else "")
    return {"zeroed": zeroed, "foreign": foreign, "dropped": partial(dropped, agent=agent)}


def _words(
    channel: Channel, policy: Policy, settings: ArmSettings, problems: Sequence[Problem], seed: int
) -> tuple[list[tuple[int, ...]], list[Spent]]:
    """What the last agent reads in the arms without a trace, and what was spent on it."""
    if channel == "none":
        single = _single(policy, settings)
        return [single.prompt(_without_notes(problem), 0) for problem in problems], [Spent()] * len(problems)
    if channel == "notes":
        return [_notes_prompt(policy, settings, problem) for problem in problems], [Spent()] * len(problems)
    episodes = talk(policy, settings, problems, seed=seed, greedy=settings.team.temperature == 0)
    spent = [
        Spent(
            said=sum(m.tokens for m in episode.messages[:-1]),
            read=sum(len(m.prompt_ids) for m in episode.messages[:-1]),
        )
        for episode in episodes
    ]
    return [episode.messages[-1].prompt_ids for episode in episodes], spent
