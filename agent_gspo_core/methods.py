"""Ways to spend tokens on a problem, all run by the same rollout and counted alike.

A method is a team (one agent is a team of a decider alone) and how many whole episodes of a problem are put to the
vote. A trained adapter is no method of its own: it is a policy that any method can be run with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agent_gspo_core.rollout import Role, Team, TeamSettings

SOLVER = Role("Solver")
"""The one agent of the methods without a team."""


@dataclass(frozen=True)
class Method:
    """One way to answer."""

    name: str
    team: TeamSettings
    samples: int = 1
    """Whole episodes per problem; the most frequent answer counts, the earliest among equals."""
    temperature: float | None = None
    """Temperature that the method itself prescribes; `None` takes the run's."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"method {self.name!r}: samples must be at least 1, got {self.samples}")
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"method {self.name!r}: {self.samples} samples at temperature 0 are one and the same; "
                "give a temperature above 0"
            )

    @property
    def messages(self) -> int:
        """Messages of one problem, all samples together."""
        return self.samples * sum(len(turn.agents) for turn in Team(self.team).turns)

    @property
    def most_tokens(self) -> int:
        """The most that one problem can cost in completion tokens; no reply passes its cap."""
        team = Team(self.team)
        return self.samples * sum(
            len(turn.agents) * (self.team.answer_tokens if team.answering(turn) else self.team.message_tokens)
            for turn in team.turns
        )


def _alone(name: str, base: TeamSettings, **changes: object) -> Method:
    alone = replace(base, rounds=0, decider="last", decider_role=SOLVER, topology="free_for_all")
    return Method(name, replace(alone, **changes))  # type: ignore[arg-type]


def _single(base: TeamSettings) -> Method:
    """One agent that gives its answer at once."""
    return _alone("single", base, working="none")


def _chain_of_thought(base: TeamSettings) -> Method:
    """One agent that thinks step by step (Kojima et al. 2022, arXiv 2205.11916)."""
    return _alone("chain_of_thought", base, working="steps")


def _self_consistency(base: TeamSettings) -> Method:
    """Several samples of `chain_of_thought` at temperature 0.7, put to the vote (Wang et al. 2023, arXiv 2203.11171).

    Five samples (ours; the paper draws 40).
    """
    return replace(_chain_of_thought(base), name="self_consistency", samples=5, temperature=0.7)


def _debate(base: TeamSettings) -> Method:
    """Agents answer, read each other's last answers and answer again; then a vote (Du et al., arXiv 2305.14325).

    At least two rounds: with one nobody reads anything.
    """
    # In every round a debater gives a whole answer, so its messages may be as long as answers are.
    team = replace(
        base, topology="debate", decider="vote", rounds=max(2, base.rounds), message_tokens=base.answer_tokens
    )
    return Method("debate", team)


def _teams(topology: str) -> Callable[[TeamSettings], Method]:
    def make(base: TeamSettings) -> Method:
        return Method(topology, replace(base, topology=topology, decider="last"))

    make.__doc__ = f"Agents talk along the topology `{topology}`, then a decider answers."
    return make


def _free_for_all_capped(base: TeamSettings) -> Method:
    """Free-for-all whose discussion messages are cut at a quarter of the usual cap (ours): brevity by force."""
    return Method(
        "free_for_all_capped",
        replace(base, topology="free_for_all", decider="last", message_tokens=max(1, base.message_tokens // 4)),
    )


METHODS: dict[str, Callable[[TeamSettings], Method]] = {
    "single": _single,
    "chain_of_thought": _chain_of_thought,
    "self_consistency": _self_consistency,
    "debate": _debate,
    "chain": _teams("chain"),
    "star": _teams("star"),
    "tree": _teams("tree"),
    "layered": _teams("layered"),
    "random": _teams("random"),
    "free_for_all": _teams("free_for_all"),
    "free_for_all_capped": _free_for_all_capped,
}
"""Every method by name, made from the settings that they share (agents, rounds, caps, prompt style)."""


def build_method(name: str, base: TeamSettings, *, cap: int | None = None) -> Method:
    """The method `name` over the shared settings `base`; with `cap`, one problem never costs more tokens than that.

    Raises:
        ValueError: unknown name, or a cap that leaves some message without a token.
    """
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; known are {', '.join(METHODS)}")
    method = METHODS[name](base)
    return method if cap is None else under_cap(method, cap)


def under_cap(method: Method, cap: int) -> Method:
    """The same method with the cap shared out: no problem costs more than `cap` completion tokens (ours).

    Samples and messages get equal shares, and the answering messages what is left over; caps that are lower already
    stay. So methods can be set side by side at one budget: a team pays for talking with shorter messages, a vote with
    shorter samples.
    """
    messages = method.messages // method.samples
    answers = sum(len(turn.agents) for turn in Team(method.team).turns if Team(method.team).answering(turn))
    each = cap // method.samples
    share = each // messages
    if share < 1:
        raise ValueError(
            f"method {method.name!r} sends {method.messages} messages a problem; a cap of {cap} tokens leaves some "
            f"without any: give at least {method.messages}"
        )
    message_tokens = min(method.team.message_tokens, share)
    left = (each - (messages - answers) * message_tokens) // answers
    return replace(
        method,
        team=replace(method.team, message_tokens=message_tokens, answer_tokens=min(method.team.answer_tokens, left)),
    )
