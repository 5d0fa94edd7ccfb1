"""Latent communication: agents talk in keys and values, and learn to (DiffMAS, arXiv 2604.21794).

    trace      the growing latent trace, and what the controls do to it
    team       roles, prompts, the two stages, saving and loading
    training   DiffMAS: the answer's loss through the whole trace
    arms       all arms and controls of the study in one table
    stability  perplexity, token entropy, self-consistency

`cache` alone knows the cache interface of transformers.
"""

from __future__ import annotations

from agent_gspo_core.latent.arms import ADAPTERS, ARMS, Arm, ArmSettings, run_arm, train_adapter
from agent_gspo_core.latent.cache import CacheInterfaceError, check_cache_interface
from agent_gspo_core.latent.decoding import Reply, answer_nll, decode
from agent_gspo_core.latent.embedding_map import EmbeddingMap, ridge_map
from agent_gspo_core.latent.examples import Example, hidden_profile_examples, problem_examples
from agent_gspo_core.latent.stability import (
    Stability,
    measure_stability,
    perplexity,
    self_consistency,
    token_entropy,
)
from agent_gspo_core.latent.team import (
    DIFFMAS_ROLES,
    Cost,
    LatentAnswer,
    LatentTeam,
    LatentTeamSettings,
    note_holders,
)
from agent_gspo_core.latent.trace import (
    Glimpse,
    LatentTrace,
    Segment,
    detached,
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
from agent_gspo_core.latent.training import (
    AnswerTrainer,
    DiffMASSettings,
    adapter_policy,
    row_loss,
    trace_loss,
    train_diffmas,
)

__all__ = [
    "ADAPTERS",
    "ARMS",
    "DIFFMAS_ROLES",
    "AnswerTrainer",
    "Arm",
    "ArmSettings",
    "CacheInterfaceError",
    "Cost",
    "DiffMASSettings",
    "EmbeddingMap",
    "Example",
    "Glimpse",
    "LatentAnswer",
    "LatentTeam",
    "LatentTeamSettings",
    "LatentTrace",
    "Reply",
    "Segment",
    "Stability",
    "adapter_policy",
    "answer_nll",
    "check_cache_interface",
    "decode",
    "detached",
    "dropped",
    "empty_trace",
    "extend",
    "foreign",
    "hidden_profile_examples",
    "inspect_trace",
    "joined",
    "measure_stability",
    "note_holders",
    "perplexity",
    "problem_examples",
    "rerotated",
    "ridge_map",
    "row_loss",
    "run_arm",
    "select",
    "self_consistency",
    "token_entropy",
    "trace_loss",
    "train_adapter",
    "train_diffmas",
    "zeroed",
]
