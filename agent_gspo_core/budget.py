"""The dual budget: a hard cap on what a round may say, and an expected budget for an episode with its dual variable.

The paper says "dual budget constraint" and not what it is. Two readings are both served (ours): two levels, as in the
sibling DALA (arXiv 2511.13193), and a Lagrange multiplier on the expected one.

    Σ_i L(m_i(t)) ≤ B(t)                 in every round, for certain: `round_caps`
    E[Σ_t Σ_i L(m_i(t))] ≤ B_episode     on average: `DualBudget` moves λ_tok
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class BudgetSettings:
    """Both budgets and the rule by which λ_tok moves."""

    episode_tokens: float | None = None
    """B_episode: completion tokens, decider's included, that an episode may use on average. `None`: no dual variable,
    λ stays at `lambda_initial`. Source: level from the sibling; multiplier ours."""
    round_tokens: int | tuple[int, ...] | None = None
    """B(t): most completion tokens of all agents together in one discussion round; one value for every round, or one
    per round. `None`: no cap. A decider is outside the rounds. Source: sibling."""
    lambda_initial: float = 0.0
    """λ_tok before the first update. Source: ours: starting free and rising avoids a collapse into silence."""
    lambda_floor: float = 0.0
    """Least λ_tok. Source: ours; the projection of a dual variable onto λ ≥ 0."""
    lambda_ceiling: float = 2.0
    """Most λ_tok. Source: ours: with a budget that cannot be met the multiplier would grow for ever."""
    step_size: float = 0.1
    """η: change of λ per update at a relative violation of 1 (twice the budget). Source: ours."""
    proportional: float = 0.0
    """Gain of the violation itself, added to the integrated λ; damps the swing that integration alone has. 0 is plain
    dual ascent. Source: Stooke et al. 2020 (arXiv 2007.03964), the PI part."""

    def __post_init__(self) -> None:
        if self.episode_tokens is not None and not (math.isfinite(self.episode_tokens) and self.episode_tokens > 0):
            raise ValueError(
                f"episode_tokens is {self.episode_tokens}; a budget is a finite number of tokens above 0, "
                "or None to run without an episode budget"
            )
        caps = self.round_tokens if isinstance(self.round_tokens, tuple) else (self.round_tokens,)
        if not caps:
            raise ValueError("round_tokens is (); give one budget per round, one number for all, or None for no cap")
        for cap in caps:
            if cap is None and not isinstance(self.round_tokens, tuple):
                continue
            if not isinstance(cap, int) or isinstance(cap, bool) or cap <= 0:
                raise ValueError(
                    f"round_tokens holds {cap!r}; a round's budget is a whole number of tokens above 0, "
                    "or round_tokens=None for no cap at all"
                )
        for name in ("lambda_initial", "lambda_floor", "lambda_ceiling", "step_size", "proportional"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; it must be a finite number of at least 0")
        if not self.lambda_floor <= self.lambda_initial <= self.lambda_ceiling:
            raise ValueError(
                f"lambda_floor {self.lambda_floor} ≤ lambda_initial {self.lambda_initial} ≤ lambda_ceiling "
                f"{self.lambda_ceiling} does not hold; set lambda_initial between the two"
            )
        if self.episode_tokens is not None and self.step_size == 0 and self.proportional == 0:
            raise ValueError(
                "episode_tokens is set but step_size and proportional are 0, so λ could never move; "
                "raise step_size (0.1 is the default) or set episode_tokens=None"
            )


def round_caps(round_tokens: int | tuple[int, ...] | None, round: int, speakers: int) -> int | None:
    """Most tokens (end token included) that each of `speakers` messages of a round may have; `None`: no cap.

    An equal share, floor(B(t) / speakers), because all speak in one batch and nobody's unused share can be handed on:
    only so does Σ_i L(m_i(t)) ≤ B(t) hold for certain. `speakers` counts every agent of the round. ValueError when the
    round has no budget or a share is below one token. Source: budget from the sibling, equal shares ours.
    """
    if speakers < 1:
        raise ValueError(f"speakers is {speakers}; a round needs at least one agent to share its budget")
    if round < 0:
        raise ValueError(f"round is {round}; rounds are counted from 0")
    if round_tokens is None:
        return None
    if isinstance(round_tokens, tuple):
        if round >= len(round_tokens):
            raise ValueError(
                f"round {round} has no budget: round_tokens {round_tokens} covers {len(round_tokens)} rounds; "
                "give one number per round, or a single number for all"
            )
        budget = round_tokens[round]
    else:
        budget = round_tokens
    share = budget // speakers
    if share < 1:
        raise ValueError(
            f"a budget of {budget} tokens for {speakers} speakers in round {round} leaves {share} tokens each, but a "
            f"message holds at least its end token; raise round_tokens to {speakers} or more"
        )
    return share


@dataclass
class DualBudget:
    """λ_tok as the dual variable of E[tokens per episode] ≤ B_episode, by projected dual ascent.

    λ ← clip(λ + η · (mean − B) / B, floor, ceiling). The violation is relative, so that η means the same at any budget,
    and plain ascent is used because Adam on one scalar moves by about ±lr whatever the violation. With
    `proportional` > 0 the value in force is clip(λ + k_p · (mean − B) / B). Source: ours; PI form Stooke et al. 2020.
    """

    settings: BudgetSettings = field(default_factory=BudgetSettings)
    _integral: float = field(init=False)
    _violation: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._integral = self.settings.lambda_initial

    @property
    def value(self) -> float:
        """λ_tok in force, in units of task reward per reference length; `lambda_initial` before the first update."""
        return self._clip(self._integral + self.settings.proportional * (self._violation or 0.0))

    @property
    def at_floor(self) -> bool:
        """The budget is kept with λ at its least: it does not bind."""
        return self._violation is not None and self._violation <= 0 and self.value <= self.settings.lambda_floor

    @property
    def at_ceiling(self) -> bool:
        """The budget is exceeded with λ at its most: it will not be met; raise the budget or `lambda_ceiling`."""
        return self._violation is not None and self._violation > 0 and self.value >= self.settings.lambda_ceiling

    def update(self, mean_episode_tokens: float) -> float:
        """One dual step after a batch whose episodes used `mean_episode_tokens` on average; returns the new λ.

        Without `episode_tokens` λ stays. ValueError on NaN, infinite or negative tokens; the state is then unchanged.
        """
        if not (math.isfinite(mean_episode_tokens) and mean_episode_tokens >= 0):
            raise ValueError(
                f"mean_episode_tokens is {mean_episode_tokens}; the dual step needs a finite mean of at least 0 tokens "
                "(is the batch empty?)"
            )
        budget = self.settings.episode_tokens
        if budget is not None:
            self._violation = (mean_episode_tokens - budget) / budget
            self._integral = self._clip(self._integral + self.settings.step_size * self._violation)
        return self.value

    def metrics(self) -> dict[str, float]:
        """For the log: λ in force and, once a batch was seen under a budget, the relative violation and both flags."""
        logged = {"lambda_token": self.value}
        if self._violation is not None:
            logged["budget_violation"] = self._violation
            logged["lambda_at_floor"] = float(self.at_floor)
            logged["lambda_at_ceiling"] = float(self.at_ceiling)
        return logged

    def state_dict(self) -> dict[str, float | None]:
        """All that moves, ready for JSON; floats survive it bit for bit."""
        return {"integral": self._integral, "violation": self._violation}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Take up a saved state. ValueError when it is incomplete, not finite or outside the settings' range."""
        integral, violation = state.get("integral"), state.get("violation")
        if integral is None or "violation" not in state:
            raise ValueError(
                f"dual budget state has keys {sorted(state)}; it needs a number 'integral' and 'violation', "
                "as state_dict() returns them"
            )
        if not self.settings.lambda_floor <= integral <= self.settings.lambda_ceiling:
            raise ValueError(
                f"saved λ {integral} lies outside [{self.settings.lambda_floor}, {self.settings.lambda_ceiling}]; "
                "resume with the floor and ceiling of the saved run"
            )
        if violation is not None and not math.isfinite(violation):
            raise ValueError(f"saved violation is {violation}; the checkpoint is damaged, resume from another one")
        self._integral, self._violation = integral, violation

    def _clip(self, value: float) -> float:
        return min(max(value, self.settings.lambda_floor), self.settings.lambda_ceiling)
