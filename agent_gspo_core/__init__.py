"""Communication-efficient multi-agent language models: reference implementation of Agent-GSPO (arXiv 2510.22477).

What is listed here is public. Names are resolved when they are first used, so `import agent_gspo_core` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "episode": ("Episode", "Group", "Message", "Problem", "Row", "group_messages"),
    "objective": (
        "Advantages",
        "ObjectiveSettings",
        "group_advantages",
        "grpo_loss",
        "gspo_loss",
        "gspo_token_loss",
        "kl_estimate",
        "noise_floor",
        "policy_loss",
        "sequence_log_ratio",
    ),
    "reward": ("CommunicationReward", "RewardSettings", "RewardTerms", "repetition"),
    "budget": ("BudgetSettings", "DualBudget", "round_caps"),
    "topology": ("TOPOLOGIES", "Topology", "build_topology"),
    "silence": (
        "CollapseAlarm",
        "CollapseError",
        "CollapseSettings",
        "SilenceReport",
        "communication_efficiency",
        "effective_efficiency",
        "silence_report",
    ),
    "policy": ("Policy", "PolicySettings", "load_policy"),
    "generation": ("Completion", "sample"),
    "logprobs": ("score",),
    "rollout": ("Role", "SamplingSettings", "Team", "TeamSettings", "sample_episodes", "sample_turn_groups"),
    "scoring": ("is_correct", "read_answer"),
    "evaluation": ("ItemRecord", "TeamScore", "evaluate_items", "evaluate_team", "score_episodes"),
    "methods": ("METHODS", "Method", "build_method"),
    "trainer": ("MismatchError", "NonFiniteError", "Trainer", "TrainerSettings"),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = ["__version__", *sorted(_HOME)]

if TYPE_CHECKING:
    from agent_gspo_core.budget import BudgetSettings, DualBudget, round_caps
    from agent_gspo_core.episode import Episode, Group, Message, Problem, Row, group_messages
    from agent_gspo_core.evaluation import ItemRecord, TeamScore, evaluate_items, evaluate_team, score_episodes
    from agent_gspo_core.generation import Completion, sample
    from agent_gspo_core.logprobs import score
    from agent_gspo_core.methods import METHODS, Method, build_method
    from agent_gspo_core.objective import (
        Advantages,
        ObjectiveSettings,
        group_advantages,
        grpo_loss,
        gspo_loss,
        gspo_token_loss,
        kl_estimate,
        noise_floor,
        policy_loss,
        sequence_log_ratio,
    )
    from agent_gspo_core.policy import Policy, PolicySettings, load_policy
    from agent_gspo_core.reward import CommunicationReward, RewardSettings, RewardTerms, repetition
    from agent_gspo_core.rollout import (
        Role,
        SamplingSettings,
        Team,
        TeamSettings,
        sample_episodes,
        sample_turn_groups,
    )
    from agent_gspo_core.scoring import is_correct, read_answer
    from agent_gspo_core.silence import (
        CollapseAlarm,
        CollapseError,
        CollapseSettings,
        SilenceReport,
        communication_efficiency,
        effective_efficiency,
        silence_report,
    )
    from agent_gspo_core.topology import TOPOLOGIES, Topology, build_topology
    from agent_gspo_core.trainer import MismatchError, NonFiniteError, Trainer, TrainerSettings


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agent_gspo_core' has no attribute {name!r}")
    return getattr(importlib.import_module(f"agent_gspo_core.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
