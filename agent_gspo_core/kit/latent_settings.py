"""Settings of the study of latent communication (see `latent_study`): on what, under which seeds, with which arms."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from agent_gspo_core.benchmarks import BENCHMARKS
from agent_gspo_core.benchmarks.hidden_profile import HiddenProfileSettings
from agent_gspo_core.kit.suite import HIDDEN_PROFILE
from agent_gspo_core.latent.arms import ARMS, ArmSettings
from agent_gspo_core.latent.examples import Target

SUBJECT = "diffmas"
"""The arm that the others are compared with."""


@dataclass(frozen=True)
class LatentTaskSettings:
    """One family of problems: what an adapter is trained on, and what it is measured on."""

    train_on: str = HIDDEN_PROFILE
    """Benchmark to learn from, or "hidden_profile". DiffMAS (note): MATH, HumanEval or CommonsenseQA."""
    test_on: tuple[str, ...] = (HIDDEN_PROFILE,)
    """Benchmarks to be measured on. Test problems whose question was trained on are left out."""
    train_problems: int = 2000
    """Examples to draw from. DiffMAS (note): 210 of MATH, 50 of HumanEval, 700 of CommonsenseQA."""
    test_problems: int | None = 100
    """Problems of each benchmark; `None` takes all (hidden profiles: 200)."""
    target: Target = "bare"
    """Form of the supervised answers in every trained arm: "bare" is the marked answer alone, "brief" and "worked"
    (hidden profile only) show how it comes about. Ours: with the same bare answer for all, no arm learns more than
    another does from its targets."""
    hidden_profile: HiddenProfileSettings = HiddenProfileSettings()
    """Hidden profile only."""

    def __post_init__(self) -> None:
        if not self.test_on or len(set(self.test_on)) != len(self.test_on):
            raise ValueError(f"latent study: test_on must be given and distinct, got {self.test_on}")
        for name in (self.train_on, *self.test_on):
            if name != HIDDEN_PROFILE and name not in BENCHMARKS:
                known = ", ".join((HIDDEN_PROFILE, *BENCHMARKS))
                raise ValueError(f"latent study: unknown benchmark {name!r}; known are {known}")
        if self.train_problems < 1 or (self.test_problems is not None and self.test_problems < 2):
            raise ValueError(
                f"latent study: train_problems {self.train_problems} must be 1 or more, test_problems "
                f"{self.test_problems} 2 or more (a foreign trace is another problem's)"
            )
        if self.target != "bare" and self.train_on != HIDDEN_PROFILE:
            raise ValueError(
                f"latent study: target {self.target!r} is known for hidden profiles only; {self.train_on} needs 'bare'"
            )


@dataclass(frozen=True)
class LatentStudySettings:
    """A study: which arms, on what, under which seeds. Every default is ours unless it says otherwise."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Training seeds, the same for every arm."""
    arms: tuple[str, ...] = tuple(ARMS)
    """Of `latent.arms.ARMS`; "diffmas", with which they are compared, must be among them."""
    tasks: tuple[LatentTaskSettings, ...] = (LatentTaskSettings(),)
    """Families, each with adapters of its own (DiffMAS: one adapter per family)."""
    shared: ArmSettings = field(default_factory=ArmSettings)
    """Model, team, training and decoding, the same for every arm."""
    samples: int = 4
    """Answers per problem; accuracy is their mean, and self-consistency needs two or more."""
    batch_rows: int = 64
    """Most problems answered at once; bounds memory."""
    data_seed: int = 0
    """Seed of the draw of problems."""
    root: str | None = None
    """Local folder with benchmark files; else the environment variable AGENT_GSPO_DATA, else the hub."""
    run_code: bool = False
    """Run model-written programs in the sandbox. Off: answers of kind "code" stay unscored."""

    def __post_init__(self) -> None:
        for name in ("seeds", "arms", "tasks"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"latent study: {name} must be given and distinct, got {values}")
        unknown = [name for name in self.arms if name not in ARMS]
        if unknown:
            raise ValueError(f"latent study: unknown arm {unknown[0]!r}; choose {', '.join(ARMS)}")
        if SUBJECT not in self.arms:
            raise ValueError(f"latent study: arm {SUBJECT!r} is missing; every arm is compared with it")
        if self.samples < 1 or self.batch_rows < 2:
            raise ValueError(
                f"latent study: samples {self.samples} must be 1 or more, batch_rows {self.batch_rows} 2 or more"
            )
        tested = [name for task in self.tasks for name in task.test_on]
        if len(set(tested)) != len(tested):
            raise ValueError(
                f"latent study: a benchmark is measured by two tasks ({', '.join(tested)}); once is enough"
            )
        writers = len(self.shared.team.writers)
        for task in self.tasks:
            if HIDDEN_PROFILE in (task.train_on, *task.test_on) and task.hidden_profile.agents != writers:
                raise ValueError(
                    f"latent study: hidden profiles for {task.hidden_profile.agents} agents, but the team has "
                    f"{writers} writers; each holds one note, so make the numbers equal"
                )

    def under(self, seed: int) -> ArmSettings:
        """What the arms share under one seed."""
        return replace(self.shared, training=replace(self.shared.training, seed=seed))
