"""A team that talks in keys and values: writers fill the latent trace, the last agent reads it and answers.

    team = LatentTeam.load("runs/diffmas")
    print(team.answer(problem).text)

Roles and their order are DiffMAS's (Planner → Critic → Refiner → Solver); its prompts are not published, so the words
are ours. In a hidden profile agent i holds note i and the last agent holds none: it sees the question only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from agent_gspo_core.episode import Problem
from agent_gspo_core.generation import left_pad
from agent_gspo_core.latent.cache import check_cache_interface, count_layers
from agent_gspo_core.latent.decoding import Reply, decode
from agent_gspo_core.latent.embedding_map import EmbeddingMap, MapKind
from agent_gspo_core.latent.trace import LatentTrace, detached, empty_trace, extend, joined
from agent_gspo_core.policy import Policy, PolicySettings, load_policy
from agent_gspo_core.prompts import ChatMessage, PromptStyle, Working, build_chat, render_question
from agent_gspo_core.rollout import AnswerReader, Role, derive_seed
from agent_gspo_core.scoring import is_correct, read_answer

GradientMode = Literal["full", "detached", "last_agent"]
Build = Literal["chain", "apart", "apart_corrected"]

DIFFMAS_ROLES = (
    Role("Planner", "Plan how the question can be answered."),
    Role("Critic", "Look for what is wrong or missing in the plan."),
    Role("Refiner", "Put the plan right where it was criticised."),
    Role("Solver", "Answer the question for your team."),
)
"""K = 4 agents in DiffMAS's order; the instructions are ours."""
_WRITES = "Only think: your team reads your thoughts, not your words."
_READS = "Your team has thought about it before you; use its thoughts."


def note_holders(agents: int) -> tuple[Role, ...]:
    """Roles of a hidden profile in the tiny policy's language: "Agent 1", …, then the "Judge" who answers."""
    return (*(Role(f"Agent {i + 1}") for i in range(agents)), Role("Judge"))


@dataclass(frozen=True)
class LatentTeamSettings:
    """Who thinks in which order, how long, and how the last agent answers."""

    roles: tuple[Role, ...] = DIFFMAS_ROLES
    """In speaking order; the last one answers. DiffMAS: K = 4."""
    latent_steps: int = 10
    """Latent steps m of every writer. DiffMAS (note): 10."""
    embedding_map: MapKind = "ridge"
    """Hidden state → input embedding. LatentMAS: ridge; DiffMAS's is unknown."""
    ridge: float = 1e-5
    """λ of the ridge map (LatentMAS)."""
    build: Build = "chain"
    """"chain": every writer reads what was written before (DiffMAS). "apart": segments built alone from position 0 and
    joined, their phases wrong (StitchMAS). "apart_corrected": built alone at the positions that they will have."""
    prompt_style: PromptStyle = "instruct"
    """"compact" for the tiny policy, "instruct" for instruct models."""
    working: Working = "brief"
    """Working that an answer shows (instruct style only)."""
    answer_tokens: int = 64
    """Most tokens of the answer, end token included (ours)."""
    temperature: float = 0.6
    """Of the answer; 0 decodes greedily. DiffMAS (note): 0.6."""
    top_p: float = 0.95
    """Nucleus of the answer. DiffMAS (note): 0.95."""

    def __post_init__(self) -> None:
        names = [role.name for role in self.roles]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"latent team: roles {names} must be one or more, each with a name of its own")
        if self.latent_steps < 0:
            raise ValueError(f"latent team: latent_steps is {self.latent_steps}; give 0 or more")
        if self.answer_tokens < 1:
            raise ValueError(f"latent team: answer_tokens is {self.answer_tokens}; an answer needs its end token")
        for name, kind in (
            ("embedding_map", MapKind),
            ("build", Build),
            ("prompt_style", PromptStyle),
            ("working", Working),
        ):
            if getattr(self, name) not in get_args(kind):
                chosen = ", ".join(get_args(kind))
                raise ValueError(f"latent team: unknown {name} {getattr(self, name)!r}; choose {chosen}")
        if not self.ridge > 0:  # also catches NaN
            raise ValueError(f"latent team: ridge must be positive, got {self.ridge}")
        if not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1:
            raise ValueError(
                f"latent team: temperature {self.temperature} must be 0 or more and top_p {self.top_p} in (0, 1]"
            )

    @property
    def writers(self) -> tuple[Role, ...]:
        """All but the last."""
        return self.roles[:-1]


@dataclass(frozen=True)
class Cost:
    """What one answer cost, counted alike for text and for traces."""

    said: int
    """Tokens said by everybody, end tokens included."""
    read: int
    """Prompt tokens read by everybody."""
    latent: int
    """Latent positions thought."""
    kv_bytes: int
    """Keys and values that the answering agent attends to at its last token."""
    forward_flops: float
    """2 · parameters · (tokens read + positions thought + tokens said), as in `Episode.forward_flops`."""


@dataclass(frozen=True)
class LatentAnswer:
    """One problem answered."""

    problem: Problem
    text: str
    prediction: str | None
    """As read from the text; `None` when nothing could be read."""
    correct: bool | None
    """`None` when the answer could not be scored."""
    reply: Reply
    cost: Cost


@dataclass(frozen=True)
class Spent:
    """What went into an answer before the last agent read its own prompt."""

    said: int = 0
    read: int = 0
    latent: int = 0


def answer_on(
    policy: Policy,
    settings: LatentTeamSettings,
    problems: Sequence[Problem],
    trace: LatentTrace,
    prompts: Sequence[Sequence[int]],
    spent: Sequence[Spent],
    *,
    seed: int = 0,
    samples: int = 1,
    read: AnswerReader = read_answer,
) -> list[LatentAnswer]:
    """Stage II: the last agent reads its prompt on each row of a trace (which may be empty) and answers.

    Args:
        policy: who speaks.
        settings: cap, temperature and nucleus of the answers.
        problems: N problems.
        trace: N rows.
        prompts: what the last agent reads.
        spent: what was spent before.
        seed: seeds the answers, each with its problem's id and sample number.
        samples: answers per problem, side by side, each a branch of its own.
        read: reads the prediction from the text.
    """
    branches: list[list[Reply]] = [
        decode(
            policy,
            trace,
            prompts,
            cap=settings.answer_tokens,
            seeds=[derive_seed(seed, problem.id, sample) for problem in problems],
            temperature=settings.temperature,
            top_p=settings.top_p,
        )
        for sample in range(samples)
    ]
    held = trace.kv_bytes.tolist()
    answers: list[LatentAnswer] = []
    for row, problem in enumerate(problems):
        for reply in (branch[row] for branch in branches):
            before, own = spent[row], len(prompts[row])
            said, tokens_read = before.said + len(reply.token_ids), before.read + own
            text = policy.decode(reply.token_ids)
            prediction = read(text, problem)
            cost = Cost(
                said=said,
                read=tokens_read,
                latent=before.latent,
                kv_bytes=held[row] + kv_bytes_per_column(policy) * (own + len(reply.token_ids)),
                forward_flops=2.0 * policy.parameters * (tokens_read + before.latent + said),
            )
            correct = is_correct(prediction, problem)
            answers.append(LatentAnswer(problem, text, prediction, correct, reply, cost))
    return answers


@dataclass
class LatentTeam:
    """A policy, its map from hidden states to embeddings, and the roles it plays in turn."""

    policy: Policy
    settings: LatentTeamSettings = field(default_factory=LatentTeamSettings)
    embed: EmbeddingMap | None = None
    """Fitted to the policy if not given."""

    def __post_init__(self) -> None:
        check_cache_interface()
        count_layers(self.policy.model)  # refuses models whose caches forget
        if self.policy.settings.backend != "transformers":
            raise ValueError(
                f"latent team: the policy runs on {self.policy.settings.backend}, whose kernels keep caches of their "
                "own; load it with backend='transformers'"
            )
        if self.embed is None:
            self.embed = EmbeddingMap.fit(self.policy.model, self.settings.embedding_map, self.settings.ridge)
        self._written: dict[str, tuple[int, ...]] = {}

    def trainable(self) -> dict[str, nn.Parameter]:
        """The policy's trainable weights and, if it is learned, the map's."""
        found = self.policy.trainable()
        assert self.embed is not None
        found |= {f"embedding_map.{name}": p for name, p in self.embed.named_parameters() if p.requires_grad}
        return found

    # --------------------------------------------------------------------------------------------------- what is read

    def chat(self, problem: Problem, agent: int) -> list[ChatMessage]:
        """What agent `agent` (0 … K−1) reads of a problem: the question and its own note, the last agent no note.

        Raises:
            ValueError: a problem whose notes do not fit the writers.
        """
        s, last = self.settings, agent == len(self.settings.roles) - 1
        role = s.roles[agent]
        if problem.notes and len(problem.notes) != len(s.writers):
            raise ValueError(
                f"latent team: problem {problem.id!r} has {len(problem.notes)} private notes but the team has "
                f"{len(s.writers)} writers; generate it for that many agents"
            )
        note = problem.notes[agent] if problem.notes and not last else None
        if s.prompt_style == "compact" or last:
            return build_chat(
                problem,
                style=s.prompt_style,
                name=role.name,
                heard=(),
                note=note,
                answering=last,
                instruction=f"{role.instruction} {_READS if s.writers else ''}".strip(),
                working=s.working,
            )
        # build_chat would ask a discussion agent for a message, and a writer says nothing.
        lines = [f"Question: {render_question(problem)}", *([f"Note: {note}"] if note else [])]
        return [
            {
                "role": "system",
                "content": " ".join(p for p in (f"You are {role.name}.", role.instruction, _WRITES) if p),
            },
            {"role": "user", "content": "\n".join(lines)},
        ]

    def prompt(self, problem: Problem, agent: int) -> tuple[int, ...]:
        """Token ids of `chat`; each wording is tokenised once."""
        chat = self.chat(problem, agent)
        key = repr(chat)
        if key not in self._written:
            self._written[key] = self.policy.encode_chat(chat)
        return self._written[key]

    # ---------------------------------------------------------------------------------------------- the two stages

    def write(
        self, problems: Sequence[Problem], *, gradient: GradientMode = "full", checkpointing: bool = False
    ) -> LatentTrace:
        """Stage I: every writer in turn reads its prompt on the trace, thinks, and appends its segment.

        Args:
            problems: N problems, one row each.
            gradient: "full": the loss of the last agent reaches every writer, also through what later writers read.
                "detached": a writer reads its predecessors' segments without gradient, so the loss reaches each writer
                through its own segment only. (Cutting before the last agent too would be "last_agent".)
                "last_agent": the writers run under no_grad. The trace's values are the same in all three.
            checkpointing: recompute every prefill and latent step in the backward pass.
        """
        if not problems:
            raise ValueError("latent team: no problems given; load some, see agent_gspo_core.benchmarks")
        if gradient not in get_args(GradientMode):
            raise ValueError(f"latent team: unknown gradient {gradient!r}; choose {', '.join(get_args(GradientMode))}")
        device = self.policy.device
        trace = empty_trace(len(problems), device=device)
        parts: list[LatentTrace] = []
        after = trace.next_position
        assert self.embed is not None
        for agent, role in enumerate(self.settings.writers):
            ids, mask = left_pad([self.prompt(problem, agent) for problem in problems], self.policy.pad_id)
            heard = detached(trace) if gradient == "detached" else trace
            if self.settings.build != "chain":
                start = after if self.settings.build == "apart_corrected" else 0
                heard = empty_trace(len(problems), start=start, device=device)
            with torch.no_grad() if gradient == "last_agent" else nullcontext():
                grown = extend(
                    self.policy.model,
                    heard,
                    ids.to(device),
                    mask.to(device),
                    agent=role.name,
                    steps=self.settings.latent_steps,
                    embed=self.embed,
                    checkpointing=checkpointing,
                )
            after = grown.next_position
            parts.append(LatentTrace(grown.segments[len(heard.segments) :], grown.next_position))
            trace = LatentTrace((*trace.segments, *parts[-1].segments), grown.next_position)
        if self.settings.build == "chain" or not parts:
            return trace
        return joined(parts)

    def answers(
        self,
        problems: Sequence[Problem],
        *,
        seed: int = 0,
        samples: int = 1,
        change: Callable[[LatentTrace], LatentTrace] | None = None,
        batch_rows: int = 64,
        read: AnswerReader = read_answer,
    ) -> list[LatentAnswer]:
        """Both stages: write the trace, then the last agent reads it and answers.

        Args:
            problems: what is asked.
            seed: seeds the answers' sampling (each with its problem's id and sample number).
            samples: answers per problem, side by side, all read from one trace.
            change: what is done to the trace in between (`trace.zeroed`, `trace.foreign`, …).
            batch_rows: most problems written at once; no batch is left with a single problem if it can be avoided.
            read: reads the prediction from the text.
        """
        if samples < 1 or batch_rows < 1:
            raise ValueError(f"latent team: samples {samples} and batch_rows {batch_rows} must be at least 1")
        found: list[LatentAnswer] = []
        count = -(-len(problems) // batch_rows)
        for part in range(count):
            chunk = problems[part * len(problems) // count : (part + 1) * len(problems) // count]
            found += self._answer_chunk(chunk, seed, samples, change, read)
        return found

    @torch.no_grad()
    def _answer_chunk(
        self,
        problems: Sequence[Problem],
        seed: int,
        samples: int,
        change: Callable[[LatentTrace], LatentTrace] | None,
        read: AnswerReader,
    ) -> list[LatentAnswer]:
        written = self.write(problems)
        trace = change(written) if change is not None else written
        prompts = [self.prompt(problem, len(self.settings.roles) - 1) for problem in problems]
        spent = [
            Spent(read=tokens, latent=thoughts)
            for tokens, thoughts in zip(written.count("prompt").tolist(), written.count("latent").tolist(), strict=True)
        ]
        return answer_on(
            self.policy, self.settings, problems, trace, prompts, spent, seed=seed, samples=samples, read=read
        )

    def answer(self, problem: Problem, *, seed: int = 0) -> LatentAnswer:
        """Answer one problem."""
        return self.answers([problem], seed=seed)[0]

    # ---------------------------------------------------------------------------------------------------- on disk

    def save(self, folder: Path | str) -> Path:
        """Write the adapter in PEFT's format, the tokenizer, the team's settings and the map."""
        folder = self.policy.save(folder)
        (folder / "latent_team.json").write_text(json.dumps(asdict(self.settings), indent=1) + "\n", encoding="utf-8")
        assert self.embed is not None
        kept = {name: p.detach().contiguous().cpu() for name, p in self.embed.named_parameters()}
        kept["norm"] = torch.tensor(self.embed.norm, dtype=torch.float64)
        save_file(kept, folder / "embedding_map.safetensors")
        return folder

    @classmethod
    def load(cls, folder: Path | str, **policy: Any) -> LatentTeam:
        """A team from the folder that `save` wrote.

        Args:
            folder: adapter, settings and map.
            policy: further `PolicySettings` (device, dtype, …).

        Raises:
            FileNotFoundError: no saved team there, or its base model is not here.
        """
        folder = Path(folder)
        for name in ("latent_team.json", "embedding_map.safetensors"):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"latent team: {folder} holds no {name}; give the folder that LatentTeam.save wrote"
                )
        described = json.loads((folder / "latent_team.json").read_text(encoding="utf-8"))
        described["roles"] = tuple(Role(**role) for role in described["roles"])
        settings = LatentTeamSettings(**described)
        adapter = folder / "adapter_config.json"
        if adapter.is_file():
            lora = json.loads(adapter.read_text(encoding="utf-8"))
            policy = {"train": "lora", "lora_rank": lora["r"], "lora_alpha": lora["lora_alpha"], **policy}
        loaded = load_policy(PolicySettings(model=str(folder), **policy))
        return cls(loaded, settings, load_map(folder, settings.embedding_map, loaded))


def load_map(folder: Path | str, kind: MapKind, policy: Policy) -> EmbeddingMap:
    """The map that `LatentTeam.save` wrote, on the policy's device."""
    kept = load_file(Path(folder) / "embedding_map.safetensors")
    return EmbeddingMap(kind, kept.get("weight"), float(kept["norm"])).to(policy.device)


def kv_bytes_per_column(policy: Policy) -> int:
    """Bytes of keys and values that one position keeps, over all layers."""
    config = policy.model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = next(policy.model.parameters()).element_size()
    return int(2 * config.num_hidden_layers * heads * size * width)
