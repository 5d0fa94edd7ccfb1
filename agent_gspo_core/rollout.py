"""Teams, and many episodes at once: turn by turn, all agents of all episodes in one batch.

A team talks for some rounds along a topology; then either a decider node, the last agent, reads what it is told and
answers, or the agents' own last answers are put to the vote. What an agent reads is written anew for every turn from
what it has heard; the ids that it sampled are kept as they are and never tokenised again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Literal, get_args

from agent_gspo_core.budget import round_caps
from agent_gspo_core.episode import Episode, Group, Message, Problem, Row
from agent_gspo_core.generation import Completion, sample
from agent_gspo_core.policy import Policy
from agent_gspo_core.prompts import PromptStyle, Working, build_chat
from agent_gspo_core.scoring import is_correct, read_answer
from agent_gspo_core.topology import Topology, build_topology

AnswerReader = Callable[[str, Problem], str | None]


@dataclass(frozen=True)
class Role:
    """A part that an agent plays."""

    name: str
    instruction: str = ""
    """Added to the system prompt (instruct style only)."""


@dataclass(frozen=True)
class TeamSettings:
    """Who talks, for how long, to whom, and who answers."""

    agents: int = 3
    """Discussion agents. The embedded default has 3 (ours); the closest open-weights sibling has 5 (AgentDropout)."""
    rounds: int = 1
    """Discussion rounds; 0 = the decider answers alone. AgentDropout has 2; 1 in the embedded default (ours)."""
    topology: str = "free_for_all"
    """See `topology.build_topology`. Free-for-all is the paper's starting point."""
    topology_seed: int = 0
    """Seed of the random topology."""
    edge_probability: float = 0.5
    """Random topology: chance of an edge."""
    layer_width: int = 2
    """Layered topology: agents in a layer."""
    decider: Literal["last", "vote"] = "last"
    """"last": one more agent, after the rounds, answers for the team (AgentDropout's decision node). "vote": every
    agent ends its last message with an answer and the most frequent one counts, the earliest among equals."""
    message_tokens: int = 48
    """Most tokens of one discussion message, end token included."""
    answer_tokens: int = 64
    """Most tokens of an answering message."""
    pass_word: str = "[pass]"
    """A reply that is only this word counts as silence, as an empty reply does."""
    prompt_style: PromptStyle = "compact"
    """"compact" for the tiny policy, "instruct" for instruct models."""
    working: Working = "brief"
    """Working that an answer shows: "none", "brief" (one line) or "steps" (instruct style only)."""
    roles: tuple[Role, ...] = ()
    """One per discussion agent, or none for "Agent 1", "Agent 2", …"""
    decider_role: Role = Role("Judge", "You decide for the team from what it tells you.")
    """The decider node's role."""

    def __post_init__(self) -> None:
        if self.roles and len(self.roles) != self.agents:
            raise ValueError(f"team: {len(self.roles)} roles for {self.agents} agents; give one each, or none")
        if self.decider not in ("last", "vote"):
            raise ValueError(f"team: unknown decider {self.decider!r}; choose last or vote")
        if self.prompt_style not in get_args(PromptStyle):
            raise ValueError(f"team: unknown prompt_style {self.prompt_style!r}; choose compact or instruct")
        if self.working not in get_args(Working):
            raise ValueError(f"team: unknown working {self.working!r}; choose {', '.join(get_args(Working))}")
        if self.decider == "vote" and self.rounds < 1:
            raise ValueError("team: a vote needs at least one round in which the agents answer; rounds is 0")
        if not self.pass_word.strip():
            raise ValueError("team: the pass word is blank; an empty reply is silence anyway, name a word")
        for name in ("message_tokens", "answer_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"team: {name} is {getattr(self, name)}; a message needs at least its end token")


@dataclass(frozen=True)
class Team:
    """Settings with the graphs that follow from them. Raises ValueError if its decider would hear nobody."""

    settings: TeamSettings = field(default_factory=TeamSettings)

    def __post_init__(self) -> None:
        topology = self.topology  # built now, so that a team that cannot be is refused here
        if self.settings.decider == "last":
            topology.check_decider()

    @cached_property
    def topology(self) -> Topology:
        """Who hears whom."""
        s = self.settings
        return build_topology(
            s.topology,
            s.agents,
            s.rounds,
            seed=s.topology_seed,
            edge_probability=s.edge_probability,
            layer_width=s.layer_width,
        )

    @property
    def decider(self) -> int | None:
        """Agent index of the decider node; `None` when the team votes."""
        return self.settings.agents if self.settings.decider == "last" else None

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """The whole schedule: stages of all rounds, then the decider."""
        talk = [Turn(r, stage) for r in range(self.settings.rounds) for stage in self.topology.stages(r)]
        if self.decider is not None:
            talk.append(Turn(self.settings.rounds, (self.decider,)))
        return tuple(talk)

    def role(self, agent: int) -> Role:
        """Role of a discussion agent or of the decider."""
        if agent == self.decider:
            return self.settings.decider_role
        return self.settings.roles[agent] if self.settings.roles else Role(f"Agent {agent + 1}")

    def answering(self, turn: Turn) -> bool:
        """Whether messages of this turn must end in an answer."""
        if self.decider is not None:
            return turn.round == self.settings.rounds
        return turn.round == self.settings.rounds - 1

    def is_silent(self, text: str) -> bool:
        """Empty, or nothing but the pass word (case, blanks and a final stop aside)."""
        bare = text.strip().rstrip(".!").strip().casefold()
        return bare in ("", self.settings.pass_word.strip().rstrip(".!").casefold())


@dataclass(frozen=True)
class Turn:
    """Agents who speak at once: they hear nothing of each other in this turn."""

    round: int
    agents: tuple[int, ...]


@dataclass(frozen=True)
class SamplingSettings:
    """How replies are drawn."""

    seed: int = 0
    """Run seed. Every row's own seed is derived from (seed, step, problem, member, agent, round)."""
    step: int = 0
    """Training step, so that the same problem is answered anew at another step."""
    temperature: float = 1.0
    """1 is the policy itself; 0 decodes greedily."""
    round_tokens: int | tuple[int, ...] | None = None
    """Hard cap B(t) on what all agents of a discussion round may say together."""
    batch_rows: int = 256
    """Most rows decoded at once; bounds memory, does not change what is said."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:  # also catches NaN
            raise ValueError(f"sampling: temperature must be 0 (greedy) or positive, got {self.temperature}")
        if self.batch_rows < 1:
            raise ValueError(f"sampling: batch_rows must be at least 1, got {self.batch_rows}")


@dataclass(frozen=True)
class _Talk:
    """An episode in the making. `branch` tells apart the candidates of one turn-wise group."""

    problem: Problem
    member: int
    branch: str = ""
    messages: tuple[Message, ...] = ()


def derive_seed(*parts: object) -> int:
    """A 64-bit seed from anything printable; the same in every process."""
    return int.from_bytes(blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest(), "big")


def sample_episodes(
    policy: Policy,
    team: Team,
    problems: Sequence[Problem],
    *,
    members: int = 1,
    settings: SamplingSettings | None = None,
    read: AnswerReader = read_answer,
) -> list[Episode]:
    """Talk every problem through `members` times, in parallel.

    Args:
        policy: speaks for every agent (shared weights).
        team: who talks to whom.
        problems: what is asked; each needs one note per agent, or none at all.
        members: parallel episodes of a problem (the group size G).
        settings: sampling.
        read: reads an answer from the answering message.

    Returns:
        Episodes, the members of a problem side by side.

    Raises:
        ValueError: no problems or one twice, members below 1, notes that do not fit the team, a row longer than the
            context.
    """
    settings = settings or SamplingSettings()
    _check(team, problems, members)
    talks = [_Talk(problem, member) for problem in problems for member in range(members)]
    for turn in team.turns:
        talks = _speak(policy, team, talks, turn, settings)
    return [_finish(policy, team, talk, read) for talk in talks]


def sample_turn_groups(
    policy: Policy,
    team: Team,
    problems: Sequence[Problem],
    *,
    members: int,
    settings: SamplingSettings | None = None,
    read: AnswerReader = read_answer,
) -> tuple[list[Episode], list[Group]]:
    """Turn-wise groups: from one state, `members` candidates for one message; the first goes on.

    Members of such a group share their prompt to the token, in every round (AT-GRPO, arXiv 2510.11062). What a
    candidate is worth is learned by playing its episode to the end with one sample per remaining turn, the other
    messages of its turn held fixed.

    Returns:
        Episodes (one for each candidate) and groups whose rows point at the candidates only.
    """
    settings = settings or SamplingSettings()
    _check(team, problems, members)
    states = [_Talk(problem, 0) for problem in problems]
    episodes: list[Episode] = []
    groups: list[Group] = []
    for t, turn in enumerate(team.turns):
        width = len(turn.agents)
        drawn = _speak(policy, team, [replace(s, member=m) for s in states for m in range(members)], turn, settings)
        fans = [drawn[i * members : (i + 1) * members] for i in range(len(states))]
        branches = [
            replace(
                fan[0],
                member=m,
                branch=f"{turn.round}.{agent}",
                messages=_swap(fan[0].messages, fan[m].messages, len(fan[0].messages) - width + seat),
            )
            for fan in fans
            for seat, agent in enumerate(turn.agents)
            for m in range(members)
        ]
        place = len(fans[0][0].messages) - width
        for later in team.turns[t + 1 :]:
            branches = _speak(policy, team, branches, later, settings)
        for i, problem in enumerate(problems):
            for seat, agent in enumerate(turn.agents):
                first = len(episodes) + (i * width + seat) * members
                rows = tuple(Row(first + m, place + seat) for m in range(members))
                groups.append(Group((problem.id, agent, turn.round), rows))
        episodes += [_finish(policy, team, branch, read) for branch in branches]
        states = [fan[0] for fan in fans]
    return episodes, groups


def _swap(mine: tuple[Message, ...], other: tuple[Message, ...], place: int) -> tuple[Message, ...]:
    return (*mine[:place], other[place], *mine[place + 1 :])


def _check(team: Team, problems: Sequence[Problem], members: int) -> None:
    if not problems:
        raise ValueError("rollout: no problems given; load some, see agent_gspo_core.benchmarks")
    if members < 1:
        raise ValueError(f"rollout: members is {members}; an episode is sampled at least once")
    twice = [name for name, times in Counter(problem.id for problem in problems).items() if times > 1]
    if twice:
        raise ValueError(
            f"rollout: problem id {twice[0]!r} is given more than once; ids seed the sampling and name the groups, so "
            "they must differ. For several episodes of one problem set members"
        )
    for problem in problems:
        if problem.notes and len(problem.notes) != team.settings.agents:
            raise ValueError(
                f"rollout: problem {problem.id!r} has {len(problem.notes)} private notes but the team has "
                f"{team.settings.agents} discussion agents; generate it for that many agents"
            )


def _speak(policy: Policy, team: Team, talks: Sequence[_Talk], turn: Turn, settings: SamplingSettings) -> list[_Talk]:
    """One turn of every talk, sampled in one batch (in slices of `batch_rows`)."""
    answering = team.answering(turn)
    cap = team.settings.answer_tokens if answering else team.settings.message_tokens
    if turn.round < team.settings.rounds:
        share = round_caps(settings.round_tokens, turn.round, team.settings.agents)
        cap = cap if share is None else min(cap, share)
    prompts, ears, seeds = [], [], []
    written: dict[str, tuple[int, ...]] = {}
    for talk in talks:
        for agent in turn.agents:
            heard = _ears(team, agent, turn, talk.messages)
            prompt = _prompt(policy, team, talk, agent, heard, answering, written)
            if len(prompt) + cap > policy.context:
                raise ValueError(
                    f"rollout: {team.role(agent).name} of problem {talk.problem.id!r} would read {len(prompt)} tokens "
                    f"and may say {cap}, but the policy's context is {policy.context}; lower the round cap, "
                    "message_tokens or the number of rounds"
                )
            prompts.append(prompt)
            ears.append(heard)
            seeds.append(
                derive_seed(settings.seed, settings.step, talk.problem.id, talk.member, talk.branch, agent, turn.round)
            )
    replies: list[Completion] = []
    for start in range(0, len(prompts), settings.batch_rows):
        part = slice(start, start + settings.batch_rows)
        replies += sample(
            policy,
            prompts[part],
            caps=[cap] * len(prompts[part]),
            seeds=seeds[part],
            temperature=settings.temperature,
        )
    width = len(turn.agents)
    return [
        replace(
            talk,
            messages=talk.messages
            + tuple(
                _message(policy, team, agent, turn, prompts[k], ears[k], replies[k])
                for agent, k in zip(turn.agents, range(i * width, (i + 1) * width), strict=True)
            ),
        )
        for i, talk in enumerate(talks)
    ]


def _ears(team: Team, agent: int, turn: Turn, messages: Sequence[Message]) -> tuple[int, ...]:
    if agent == team.decider:
        return team.topology.decider_ears(messages)
    return team.topology.hears(agent, turn.round, messages)


def _prompt(
    policy: Policy,
    team: Team,
    talk: _Talk,
    agent: int,
    heard: tuple[int, ...],
    answering: bool,
    written: dict[str, tuple[int, ...]],
) -> tuple[int, ...]:
    role = team.role(agent)
    chat = build_chat(
        talk.problem,
        style=team.settings.prompt_style,
        name=role.name,
        heard=[(talk.messages[i].role, talk.messages[i].text) for i in heard],
        note=talk.problem.notes[agent] if talk.problem.notes and agent != team.decider else None,
        answering=answering,
        instruction=role.instruction,
        pass_word=team.settings.pass_word,
        working=team.settings.working,
    )
    # Members of a group often read the same words: each wording is tokenised once a turn.
    key = repr(chat)
    if key not in written:
        written[key] = policy.encode_chat(chat)
    return written[key]


def _message(
    policy: Policy,
    team: Team,
    agent: int,
    turn: Turn,
    prompt: tuple[int, ...],
    heard: tuple[int, ...],
    reply: Completion,
) -> Message:
    text = policy.decode(reply.token_ids)
    return Message(
        agent=agent,
        role=team.role(agent).name,
        round=turn.round,
        prompt_ids=prompt,
        token_ids=reply.token_ids,
        logprobs=reply.logprobs,
        text=text,
        silent=team.is_silent(text),
        truncated=reply.truncated,
        heard=heard,
    )


def vote(answers: Iterable[str | None]) -> str | None:
    """The most frequent answer, the earliest among equals; those that could not be read do not vote."""
    votes = Counter(answer for answer in answers if answer is not None)
    return votes.most_common(1)[0][0] if votes else None  # Counter keeps the order of first appearance


def answering_messages(team: Team, messages: Sequence[Message]) -> list[Message]:
    """The decider's message, or the last round's of a team that votes."""
    if team.decider is not None:
        return [messages[-1]]
    return [message for message in messages if message.round == team.settings.rounds - 1]


def _finish(policy: Policy, team: Team, talk: _Talk, read: AnswerReader) -> Episode:
    prediction = vote(read(message.text, talk.problem) for message in answering_messages(team, talk.messages))
    read_and_said = sum(len(m.prompt_ids) + m.tokens for m in talk.messages)
    return Episode(
        problem=talk.problem,
        member=talk.member,
        messages=talk.messages,
        prediction=prediction,
        correct=is_correct(prediction, talk.problem),
        forward_flops=2.0 * policy.parameters * read_and_said,
    )
