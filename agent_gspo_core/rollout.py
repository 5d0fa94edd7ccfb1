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
Script = Callable[[Problem, int, int, Sequence[str]], str | None]
"""Words put into an agent's mouth: (problem, agent, round, texts heard) → text; `None`: it speaks for itself."""
Change = Callable[[Episode, Message], Literal["mute", "speak"] | None]
"""What to do to a recorded message: take it back, make its author speak, or nothing."""

_TRIES = 8
"""Draws of a message that must not pass, before the pass is left standing."""


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
    allow_silence: bool = True
    """False forbids it, for the ablation (ours): a discussion message may not begin with an end token, nobody is told
    of the pass word, and whatever is said, the pass word too, counts as said. The decider is not concerned."""
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
    script: Script | None = None,
) -> list[Episode]:
    """Talk every problem through `members` times, in parallel.

    Args:
        policy: speaks for every agent (shared weights).
        team: who talks to whom.
        problems: what is asked; each needs one note per agent, or none at all.
        members: parallel episodes of a problem (the group size G).
        settings: sampling.
        read: reads an answer from the answering message.
        script: asked for every message but a decider's; what it puts into an agent's mouth is not sampled, has no
            log-probability, and is in no group that is trained on.

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
        talks = _speak(policy, team, talks, turn, settings, script)
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


@dataclass(frozen=True)
class _Seat:
    """An agent about to speak: what it has heard, what it reads, and the seed of its words."""

    agent: int
    prompt: tuple[int, ...]
    heard: tuple[int, ...]
    seed: int


def _seats(
    policy: Policy, team: Team, talks: Sequence[_Talk], turn: Turn, settings: SamplingSettings
) -> tuple[list[_Seat], int]:
    """Who speaks in this turn, talk by talk, and the most tokens that each may say."""
    answering = team.answering(turn)
    cap = team.settings.answer_tokens if answering else team.settings.message_tokens
    if turn.round < team.settings.rounds:
        share = round_caps(settings.round_tokens, turn.round, team.settings.agents)
        cap = cap if share is None else min(cap, share)
    seats = []
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
            seed = derive_seed(
                settings.seed, settings.step, talk.problem.id, talk.member, talk.branch, agent, turn.round
            )
            seats.append(_Seat(agent, prompt, heard, seed))
    return seats, cap


def _draw(
    policy: Policy, seats: Sequence[_Seat], cap: int, settings: SamplingSettings, must_speak: Sequence[bool]
) -> list[Completion]:
    """Replies of these seats; at most `batch_rows` are decoded at once."""
    if not seats:
        return []
    return sample(
        policy,
        [seat.prompt for seat in seats],
        caps=[cap] * len(seats),
        seeds=[seat.seed for seat in seats],
        temperature=settings.temperature,
        must_speak=must_speak if any(must_speak) else None,
        batch_rows=settings.batch_rows,
    )


def _speak(
    policy: Policy,
    team: Team,
    talks: Sequence[_Talk],
    turn: Turn,
    settings: SamplingSettings,
    script: Script | None = None,
) -> list[_Talk]:
    """One turn of every talk, sampled in one batch."""
    seats, cap = _seats(policy, team, talks, turn, settings)
    width = len(turn.agents)
    said: list[Message | None] = [None] * len(seats)
    if script is not None:
        for k, seat in enumerate(seats):
            talk = talks[k // width]
            texts = [talk.messages[i].text for i in seat.heard]
            words = None if seat.agent == team.decider else script(talk.problem, seat.agent, turn.round, texts)
            if words is not None:
                said[k] = _unsampled(policy, team, seat, turn, words, cap)
    own = [k for k, message in enumerate(said) if message is None]
    forced = not team.settings.allow_silence
    must_speak = [forced and seats[k].agent != team.decider for k in own]
    for k, reply in zip(own, _draw(policy, [seats[k] for k in own], cap, settings, must_speak), strict=True):
        said[k] = _message(policy, team, seats[k], turn, reply)
    return _continued(talks, said, width)


def _continued(talks: Sequence[_Talk], said: Sequence[Message | None], width: int) -> list[_Talk]:
    """Each talk with its `width` new messages."""
    known = [message for message in said if message is not None]
    return [
        replace(talk, messages=talk.messages + tuple(known[i * width : (i + 1) * width]))
        for i, talk in enumerate(talks)
    ]


def resample_episodes(
    policy: Policy,
    team: Team,
    episodes: Sequence[Episode],
    change: Change,
    *,
    settings: SamplingSettings | None = None,
    read: AnswerReader = read_answer,
) -> list[Episode]:
    """Tell recorded episodes again with some discussion messages changed, and everything else held fixed.

    A message whose author still reads what it read stays as recorded; one whose author reads something else is sampled
    anew, with the seed that it had. "mute" takes a message back: its end token alone stands in its place. "speak"
    samples what a silent agent would have said: end tokens are masked at the first position, and a pass is drawn again,
    up to 8 times in all (not in greedy decoding, where every draw is the same).

    Args:
        policy: who spoke.
        team: the team that the episodes are of.
        episodes: as `sample_episodes` returned them.
        change: asked for every message of a turn that must not answer.
        settings: those that the episodes were sampled with, so that seeds agree.
        read: reads an answer from the answering message.

    Returns:
        The episodes in their order; those that nothing was done to are equal to what was given.

    Raises:
        ValueError: an episode of another team, or a row longer than the context.
    """
    settings = settings or SamplingSettings()
    schedule = [(turn.round, agent) for turn in team.turns for agent in turn.agents]
    for episode in episodes:
        if [(m.round, m.agent) for m in episode.messages] != schedule:
            raise ValueError(
                f"replay: the episode of problem {episode.problem.id!r} has {len(episode.messages)} messages that do "
                f"not follow this team's turns ({len(schedule)} messages); give the team that it was sampled with"
            )
    talks = [_Talk(episode.problem, episode.member) for episode in episodes]
    for turn in team.turns:
        seats, cap = _seats(policy, team, talks, turn, settings)
        width = len(turn.agents)
        place = len(talks[0].messages) if talks else 0
        said: list[Message | None] = [None] * len(seats)
        forced: list[int] = []
        for k, seat in enumerate(seats):
            episode = episodes[k // width]
            recorded = episode.messages[place + k % width]
            wish = None if team.answering(turn) else change(episode, recorded)
            if wish == "mute" and not recorded.silent:
                said[k] = _unsampled(policy, team, seat, turn, "", cap)
            elif wish == "speak" and recorded.silent:
                forced.append(k)
            elif (seat.prompt, seat.heard) == (recorded.prompt_ids, recorded.heard):
                said[k] = recorded
        open_seats = [k for k, message in enumerate(said) if message is None]
        for attempt in range(_TRIES if settings.temperature else 1):
            drawn = [seats[k] if not attempt else _again(seats[k], attempt) for k in open_seats]
            held = not team.settings.allow_silence
            must = [k in forced or (held and seats[k].agent != team.decider) for k in open_seats]
            for k, reply in zip(open_seats, _draw(policy, drawn, cap, settings, must), strict=True):
                said[k] = _message(policy, team, seats[k], turn, reply)
            open_seats = [k for k in forced if _is_silent(said[k])]
            if not open_seats:
                break
        talks = _continued(talks, said, width)
    return [_finish(policy, team, talk, read) for talk in talks]


def _again(seat: _Seat, attempt: int) -> _Seat:
    return replace(seat, seed=derive_seed(seat.seed, "again", attempt))


def _is_silent(message: Message | None) -> bool:
    return message is not None and message.silent


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
        pass_word=team.settings.pass_word if team.settings.allow_silence else "",
        working=team.settings.working,
    )
    # Members of a group often read the same words: each wording is tokenised once a turn.
    key = repr(chat)
    if key not in written:
        written[key] = policy.encode_chat(chat)
    return written[key]


def _message(policy: Policy, team: Team, seat: _Seat, turn: Turn, reply: Completion) -> Message:
    text = policy.decode(reply.token_ids)
    may_be_silent = team.settings.allow_silence or seat.agent == team.decider
    return Message(
        agent=seat.agent,
        role=team.role(seat.agent).name,
        round=turn.round,
        prompt_ids=seat.prompt,
        token_ids=reply.token_ids,
        logprobs=reply.logprobs,
        text=text,
        silent=may_be_silent and team.is_silent(text),
        truncated=reply.truncated,
        heard=seat.heard,
    )


def _unsampled(policy: Policy, team: Team, seat: _Seat, turn: Turn, text: str, cap: int) -> Message:
    """A message that the policy did not choose: `text` and an end token, cut at the cap, with log-probabilities 0."""
    ids = [*policy.tokenizer(text, add_special_tokens=False)["input_ids"], min(policy.end_ids)]
    kept = tuple(ids[:cap])
    reply = Completion(kept, (0.0,) * len(kept), truncated=len(ids) > cap)
    return replace(_message(policy, team, seat, turn, reply), sampled=False)


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
