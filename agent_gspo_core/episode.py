"""The nouns: what is asked, what is said, and what belongs together.

Everything here is frozen and free of torch. Token ids travel with every message, because a decoded message that is
tokenised again need not give the ids that were sampled (TRL #5224, verl #6719).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

AnswerKind = Literal["number", "choice", "text", "latex", "code"]


@dataclass(frozen=True)
class CodeTests:
    """What a program is held to: `program` runs after the solution, in its module, and raises where it is wrong."""

    entry_point: str
    """Name of the function that the solution must define."""
    program: str
    """Python source of the tests. It ends with the call that runs them."""
    prompt: str = ""
    """Source that a solution may continue or leave out: imports, signature, docstring."""

    def __post_init__(self) -> None:
        if not self.entry_point.isidentifier():
            raise ValueError(f"code tests: the entry point {self.entry_point!r} is no Python name")
        if not self.program.strip():
            raise ValueError(
                f"code tests of {self.entry_point!r}: no test program; an untested solution proves nothing"
            )


@dataclass(frozen=True)
class Problem:
    """One question with its answer, and what each agent alone knows about it.

    `needed` and `least_tokens` are known for generated problems only; `None` means unknown, never zero.
    """

    id: str
    question: str
    answer: str
    kind: AnswerKind = "number"
    choices: tuple[str, ...] = ()
    """Option texts in letter order (A, B, …); empty unless `kind` is "choice"."""
    notes: tuple[str, ...] = ()
    """Private note of each discussion agent; empty when everybody sees the same."""
    family: str = ""
    needed: frozenset[int] | None = None
    """Agents whose notes the question needs."""
    least_tokens: int | None = None
    """Least completion tokens (end tokens included) with which a whole episode can still be answered."""
    tests: CodeTests | None = None
    """What to run; kind "code" only. `answer` is then the canonical solution."""

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise ValueError(f"problem {self.id!r}: the question is empty; every problem needs a question")
        if self.kind == "choice" and len(self.choices) < 2:
            raise ValueError(f"problem {self.id!r}: kind 'choice' needs at least two choices, got {self.choices!r}")
        if (self.kind == "code") != (self.tests is not None):
            raise ValueError(f"problem {self.id!r}: kind {self.kind!r}; tests go with kind 'code', and only with it")


@dataclass(frozen=True)
class Message:
    """One action: a whole utterance, its end token included.

    `token_ids` are the sampled ids and `logprobs` their log-probabilities in fp32 at the sampling temperature, one per
    id. A silent message still holds at least its end token, so it is never of length zero.
    """

    agent: int
    """0 … n−1 for discussion agents, n for a decider node."""
    role: str
    round: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    silent: bool = False
    """Empty reply or the pass word: relayed to nobody, its own tokens are charged."""
    truncated: bool = False
    """Cut at the cap before an end token was sampled."""
    heard: tuple[int, ...] = ()
    """Indices in `Episode.messages` of what this agent had heard."""
    sampled: bool = True
    """False for words that were put into the agent's mouth: `logprobs` then say nothing, and it is never trained on."""

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ValueError(
                f"message of agent {self.agent} in round {self.round} has no token; "
                "even silence is an action of one end token (1/|y| is undefined at |y| = 0)"
            )
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(
                f"message of agent {self.agent} in round {self.round}: {len(self.token_ids)} ids "
                f"but {len(self.logprobs)} log-probabilities"
            )

    @property
    def tokens(self) -> int:
        """Completion tokens, the end token included."""
        return len(self.token_ids)


@dataclass(frozen=True)
class Episode:
    """One problem talked through once by the team, with the answer that was read from the decider or the vote."""

    problem: Problem
    member: int
    """Which of the group's parallel episodes this is."""
    messages: tuple[Message, ...]
    prediction: str | None
    """The answer as read; `None` when nothing could be read (unparsed)."""
    correct: bool | None
    """`None` when the answer could not be scored (counted under its own name, advantage 0)."""
    forward_flops: float = 0.0
    """Forward FLOPs, counted as 2 · parameters · (tokens read + tokens said)."""

    @property
    def tokens(self) -> int:
        """Completion tokens said by everybody, decider included."""
        return sum(message.tokens for message in self.messages)

    @property
    def prompt_tokens(self) -> int:
        """Tokens read: what the listeners pay."""
        return sum(len(message.prompt_ids) for message in self.messages)

    @property
    def turns(self) -> int:
        """Messages that were not silent."""
        return sum(not message.silent for message in self.messages)

    def heard_by(self, message: Message) -> tuple[Message, ...]:
        """The messages that `message`'s author had heard before speaking."""
        return tuple(self.messages[index] for index in message.heard)


@dataclass(frozen=True)
class Row:
    """One trainable action: message `message` of episode `episode` (indices into a rollout)."""

    episode: int
    message: int


@dataclass(frozen=True)
class Group:
    """Actions that are compared with each other; `key` says by what they were grouped."""

    key: tuple[str | int, ...]
    rows: tuple[Row, ...] = field(default_factory=tuple)


def group_messages(episodes: Sequence[Episode]) -> list[Group]:
    """Group the actions of parallel episodes by (problem, agent, round); what was not sampled is in no group.

    Source: ours; members of a group share the query but, after the first turn, not the prompt (AT-GRPO,
    arXiv 2510.11062, names the alternative, see `rollout.sample_turn_groups`).
    """
    rows: dict[tuple[str | int, ...], list[Row]] = {}
    for e, episode in enumerate(episodes):
        for m, message in enumerate(episode.messages):
            if not message.sampled:
                continue
            rows.setdefault((episode.problem.id, message.agent, message.round), []).append(Row(e, m))
    return [Group(key, tuple(members)) for key, members in rows.items()]


def all_rows(groups: Iterable[Group]) -> list[Row]:
    """Every row of every group, group by group."""
    return [row for group in groups for row in group.rows]
