"""All settings of a run in one nested dataclass, and the profile files that fill it.

The same dataclasses serve code, command line, notebooks and profiles: a profile is checked against their fields and
types, so a misspelt or mistyped setting is an error and never a silent default.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from agent_gspo_core.benchmarks.hidden_profile import HiddenProfileSettings
from agent_gspo_core.budget import BudgetSettings
from agent_gspo_core.kit.latent_settings import LatentStudySettings
from agent_gspo_core.kit.suite import SuiteSettings
from agent_gspo_core.objective import ObjectiveSettings
from agent_gspo_core.policy import PolicySettings
from agent_gspo_core.reward import RewardSettings
from agent_gspo_core.rollout import TeamSettings
from agent_gspo_core.silence import CollapseSettings
from agent_gspo_core.trainer import TrainerSettings

PROFILES = Path(__file__).parent / "profiles"

T = TypeVar("T")


@dataclass(frozen=True)
class DataSettings:
    """Which problems are trained on and which are measured."""

    source: Literal["hidden_profile", "gsm8k", "multiarith", "mmlu"] = "hidden_profile"
    """Generated hidden profiles, or a real benchmark from the hub or a local folder."""
    train_split: str | None = None
    """Split of a benchmark to train on; `None`: the one its card names. MMLU: "dev", or "auxiliary_train" (hub)."""
    train_problems: int = 4000
    """Problems to draw training batches from."""
    test_problems: int = 200
    """Problems measured before and after training; disjoint from the others."""
    seed: int = 0
    """Seed of the draw."""
    root: str | None = None
    """Local folder with benchmark files; else the environment variable AGENT_GSPO_DATA, else the hub."""
    hidden_profile: HiddenProfileSettings = HiddenProfileSettings()
    """Hidden profile only."""

    def __post_init__(self) -> None:
        for name in ("train_problems", "test_problems"):
            if getattr(self, name) < 1:
                raise ValueError(f"data: {name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class EvaluationSettings:
    """How a team is measured before and after training."""

    temperature: float = 1.0
    """1 measures the policy as it is trained; greedy decoding is measured beside it."""
    members: int = 1
    """Episodes per problem."""


@dataclass(frozen=True)
class RunSettings:
    """Everything that a training run depends on."""

    policy: PolicySettings = field(default_factory=PolicySettings)
    team: TeamSettings = field(default_factory=TeamSettings)
    data: DataSettings = field(default_factory=DataSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    reward: RewardSettings = field(default_factory=RewardSettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    collapse: CollapseSettings = field(default_factory=CollapseSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)


@dataclass(frozen=True)
class AblationForm:
    """One size of the ablation (see `kit.ablation`). Every default is ours."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Training seeds, the same for every arm."""
    arms: tuple[str, ...] = ()
    """Arms of `kit.ablation.catalogue`, beside "full"; none takes all that differ from it."""
    changes: Mapping[str, object] = field(default_factory=dict)
    """What differs from the profile's run in every arm, by dotted name."""
    lambdas: tuple[float, ...] = ()
    """Fixed prices λ_tok of the sweep."""
    tied_lambdas: tuple[float, ...] = ()
    """Fixed prices of the sweep that shows what dividing by the deviation does to λ."""
    budgets: tuple[float, ...] = ()
    """Episode budgets of the sweep, in tokens."""
    problems: int = 100
    """Problems of replay, robustness and scaling."""
    topologies: tuple[str, ...] = ("free_for_all",)
    """Topologies in which the insider is tried."""
    train_topologies: bool = False
    """Train an arm in each of them, in place of carrying over the policy of "full"."""
    team_sizes: tuple[int, ...] = ()
    """Discussion agents of the scaling study."""
    also_on: tuple[str, ...] = ()
    """Benchmarks on which "full" is scored too, each under its own name ("mmlu_153")."""


@dataclass(frozen=True)
class AblationSettings:
    """The ablation of a profile."""

    short: AblationForm = field(default_factory=AblationForm)
    """The form that the notebook runs."""
    full: AblationForm = field(default_factory=AblationForm)
    """The form of the command `agent-gspo ablate`."""


@dataclass(frozen=True)
class Profile:
    """One size of the same run."""

    description: str
    """What it is for and how long it takes."""
    seeds: tuple[int, ...] = (0,)
    """Training seeds; each is one unit of every interval."""
    jobs: int = 1
    """Seeds trained side by side, each with cores ÷ jobs threads."""
    timeout_minutes: float = 60.0
    """Watchdog of one notebook."""
    settings: RunSettings = field(default_factory=RunSettings)
    """The run itself."""
    suite: SuiteSettings = field(default_factory=SuiteSettings)
    """The evaluation of several methods on several benchmarks."""
    ablation: AblationSettings = field(default_factory=AblationSettings)
    """The ablation: which arms, seeds and sweeps."""
    latent: LatentStudySettings = field(default_factory=LatentStudySettings)
    """The study of latent communication: DiffMAS, its arms and controls."""

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"profile: seeds must be given and distinct, got {self.seeds}")
        if self.jobs < 1:
            raise ValueError(f"profile: jobs must be at least 1, got {self.jobs}")


def profile_names() -> list[str]:
    """Names of the profiles that ship."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def load_profile(name: str | Path) -> Profile:
    """A shipped profile by name, or one from a .yaml file of your own."""
    path = Path(name) if str(name).endswith((".yaml", ".yml")) else PROFILES / f"{name}.yaml"
    if not path.is_file():
        raise FileNotFoundError(
            f"profile {str(name)!r} not found; choose from {', '.join(profile_names())} or give a .yaml file"
        )
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    return build(Profile, values, where=f"profile {path.stem}")


def build(kind: type[T], values: object, *, where: str) -> T:
    """Fill a settings dataclass from plain values (as YAML or JSON gives them), checking names and types.

    Raises:
        ValueError: unknown field, wrong type, or a value that the dataclass refuses; the message names the place.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}: expected a mapping of {kind.__name__} fields, got {values!r}")
    hints = typing.get_type_hints(kind)
    given = dataclasses.fields(kind)  # type: ignore[arg-type]
    fields = {f.name for f in given}
    required = {f.name for f in given if f.default is f.default_factory is dataclasses.MISSING}
    unknown = sorted(map(str, set(values) - fields))
    if unknown:
        raise ValueError(f"{where}: unknown field {unknown[0]!r}; {kind.__name__} has {', '.join(sorted(fields))}")
    missing = sorted(required - set(values))
    if missing:
        raise ValueError(f"{where}: field {missing[0]!r} is missing; {kind.__name__} has no default for it")
    filled = {name: _convert(hints[name], value, f"{where}.{name}") for name, value in values.items()}
    try:
        return kind(**filled)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _convert(hint: Any, value: object, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else build(hint, value, where=where)  # type: ignore[arg-type]
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        for option in (a for a in arguments if a is not type(None)):
            try:
                return _convert(option, value, where)
            except ValueError:
                continue
        raise ValueError(f"{where}: {value!r} fits none of {hint}")
    if origin is Literal:
        if value in arguments:
            return value
        raise ValueError(f"{where}: {value!r} is not one of {', '.join(map(repr, arguments))}")
    if origin is Mapping:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise ValueError(f"{where}: expected a mapping with names as keys, got {value!r}")
        return dict(value)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where}: expected a list, got {value!r}")
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        # YAML reads 1e-4 as text; say so instead of failing later.
        hint_text = " (write 1.0e-4, not 1e-4)" if hint is float and isinstance(value, str) else ""
        raise ValueError(f"{where}: expected {hint.__name__}, got {value!r}{hint_text}")
    return value


def override(settings: T, changes: Mapping[str, object], *, where: str = "settings") -> T:
    """Settings with some fields changed by dotted name, e.g. {"trainer.steps": 3}; checked like a profile.

    All changes of one dataclass are made at once, so their order does not matter (a floor and the value above it).
    """
    hints = typing.get_type_hints(type(settings)) if dataclasses.is_dataclass(settings) else {}
    changed: dict[str, Any] = {}
    inner: dict[str, dict[str, object]] = {}
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        if head not in hints:
            raise ValueError(f"{where}: unknown setting {name!r}")
        if rest:
            inner.setdefault(head, {})[rest] = value
        else:
            changed[head] = _convert(hints[head], value, f"{where}.{head}")
    for head, nested in inner.items():
        changed[head] = override(changed.get(head, getattr(settings, head)), nested, where=f"{where}.{head}")
    return dataclasses.replace(settings, **changed)  # type: ignore[type-var]
