"""The training loop: sample → reward → advantages → mini-batches → update → dual step → record → checkpoint."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm.auto import tqdm

from agent_gspo_core.budget import BudgetSettings, DualBudget
from agent_gspo_core.episode import Episode, Group, Message, Problem, all_rows, group_messages
from agent_gspo_core.logprobs import micro_batches, right_pad, score
from agent_gspo_core.objective import (
    Metrics,
    ObjectiveSettings,
    combine_metrics,
    group_advantages,
    loss_normaliser,
    noise_floor,
    policy_loss,
)
from agent_gspo_core.policy import Policy
from agent_gspo_core.reward import CommunicationReward, RewardSettings, reward_summary
from agent_gspo_core.rollout import (
    AnswerReader,
    SamplingSettings,
    Team,
    derive_seed,
    sample_episodes,
    sample_turn_groups,
)
from agent_gspo_core.scoring import read_answer
from agent_gspo_core.silence import (
    CollapseAlarm,
    CollapseError,
    CollapseSettings,
    communication_efficiency,
    silence_report,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainerSettings:
    """Size and pace of training."""

    steps: int = 60
    """Rollout batches."""
    problems_per_step: int = 8
    """Problems in a rollout batch (ours; the paper's is unknown)."""
    members: int = 8
    """Group size G (ours; neither paper prints it)."""
    grouping: Literal["episode", "turn"] = "episode"
    """"episode": G parallel episodes, compared by (problem, agent, round). "turn": G candidates from one state."""
    mini_batches: int = 4
    """Optimiser steps per rollout batch. GSPO §5.1: 4. With 1 the ratio is 1 throughout and nothing is ever clipped."""
    learning_rate: float = 2e-4
    """Adam's step (ours). 5e-4 collapsed a prototype into silence within ten steps."""
    gradient_clip: float = 1.0
    """Largest gradient norm (ours)."""
    temperature: float = 1.0
    """Sampling temperature, used in scoring too."""
    micro_batch_tokens: int = 8192
    """Tokens of a forward-backward pass: distinct ones where rows share prefixes, else with padding (see
    `logprobs.micro_batches`); changes memory and speed, not the step."""
    first_pass_tolerance: float = 1e-3
    """Largest |log s| that sampler and scorer may differ by before the first update of a batch; beyond it temperature,
    dropout or masks disagree between the two. bf16 needs about 5e-2 (ours)."""
    checkpoint_every: int = 10
    """Steps between checkpoints."""
    seed: int = 0
    """Seeds data order, sampling and mini-batches."""

    def __post_init__(self) -> None:
        if self.members < 2:
            raise ValueError(
                f"trainer: members is {self.members}; an advantage compares members of a group, so it must be at "
                "least 2"
            )
        for name in ("steps", "problems_per_step", "mini_batches", "micro_batch_tokens", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"trainer: {name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "gradient_clip", "temperature", "first_pass_tolerance"):
            if not getattr(self, name) > 0:  # also catches NaN
                raise ValueError(f"trainer: {name} must be positive, got {getattr(self, name)}")
        for name in ("learning_rate", "temperature"):  # an infinite clip or tolerance switches the check off
            if math.isinf(getattr(self, name)):
                raise ValueError(f"trainer: {name} must be positive and finite, got {getattr(self, name)}")
        if self.grouping not in ("episode", "turn"):
            raise ValueError(f"trainer: unknown grouping {self.grouping!r}; choose episode or turn")


class NonFiniteError(RuntimeError):
    """Something became NaN or infinite; the offending batch was saved and its update not made."""


class MismatchError(RuntimeError):
    """Sampler and scorer disagree although the weights are the same."""


@dataclass(frozen=True)
class _Batch:
    """Rows of a mini-batch: what was read, what was said, under which log-probabilities, with which advantage."""

    prompts: list[tuple[int, ...]]
    replies: list[tuple[int, ...]]
    old_logprobs: list[tuple[float, ...]]
    advantages: Tensor  # [N]

    def __len__(self) -> int:
        return len(self.replies)

    def take(self, indices: Sequence[int]) -> _Batch:
        return _Batch(
            [self.prompts[i] for i in indices],
            [self.replies[i] for i in indices],
            [self.old_logprobs[i] for i in indices],
            self.advantages[list(indices)],
        )


@dataclass(frozen=True)
class _Update:
    """What one optimiser step reports."""

    metrics: Metrics
    loss: float
    gradient_norm: float
    floor: tuple[float, float] | None
    """Noise floor (root mean square, largest); known only before the first update of a batch."""


@dataclass
class Trainer:
    """Trains one policy that speaks for a whole team.

    `folder` receives `metrics.jsonl` (a line per step), `checkpoints/` and, should it come to that, the offending
    batch. Everything random is derived from the seed and the step, so a resumed run repeats an uninterrupted one to
    the bit on a CPU.
    """

    policy: Policy
    team: Team
    problems: Sequence[Problem]
    folder: Path
    settings: TrainerSettings = field(default_factory=TrainerSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    reward: RewardSettings = field(default_factory=RewardSettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    collapse: CollapseSettings = field(default_factory=CollapseSettings)
    read: AnswerReader = read_answer

    def __post_init__(self) -> None:
        if not self.problems:
            raise ValueError("trainer: no problems given; load some, see agent_gspo_core.benchmarks")
        if self.settings.problems_per_step > len(self.problems):
            raise ValueError(
                f"trainer: problems_per_step is {self.settings.problems_per_step} but there are {len(self.problems)} "
                "problems; give more problems or take fewer a step"
            )
        parameters = self.policy.trainable()
        if not parameters:
            raise ValueError("trainer: the policy has no trainable weights; load it with train='full' or 'lora'")
        if self.objective.kl_coefficient > 0 and self.policy.settings.train != "lora":
            raise ValueError(
                "trainer: kl_coefficient needs train='lora' (the reference is the policy with its adapters off); "
                "set train='lora' or kl_coefficient=0"
            )
        self.optimiser = torch.optim.Adam(parameters.values(), lr=self.settings.learning_rate, betas=(0.9, 0.99))
        self.dual = DualBudget(self.budget)
        self.alarm = CollapseAlarm(self.collapse)
        self.done = 0
        """Steps taken so far."""
        self._saved: int | None = None  # steps taken when the newest checkpoint was written
        self.folder = Path(self.folder)
        (self.folder / "checkpoints").mkdir(parents=True, exist_ok=True)

    # ------------------------------------------------------------------------------------------------------- the loop

    def run(self, steps: int | None = None, *, progress: bool = True) -> list[dict[str, Any]]:
        """Train until `steps` (by default `settings.steps`) are done; returns the metrics of the steps taken now.

        Raises:
            FileExistsError: a fresh run in a folder that holds another run's metrics.
            CollapseError: silence spread while accuracy fell; names the last good checkpoint.
            NonFiniteError: NaN or infinity; names the file with the batch.
            MismatchError: sampler and scorer disagree.
        """
        target = self.settings.steps if steps is None else steps
        records: list[dict[str, Any]] = []
        if self.done == 0:
            metrics = self.folder / "metrics.jsonl"
            if metrics.is_file() and metrics.stat().st_size:
                raise FileExistsError(
                    f"trainer: {metrics} holds the steps of another run; call resume() to go on with it, "
                    "or give a new folder"
                )
            self.save()
        with tqdm(total=target, initial=self.done, desc="train", unit="step", disable=not progress) as bar:
            while self.done < target:
                record = self.step()
                records.append(record)
                bar.update()
                bar.set_postfix(
                    accuracy=f"{record['accuracy'] or 0.0:.2f}",
                    tokens=f"{record['tokens_per_episode']:.0f}",
                    silent=f"{record['silence_rate'] or 0.0:.2f}",
                    λ=f"{record['lambda_token']:.2f}",
                    clip=f"{record.get('clip_share', 0.0):.2f}",
                )
        if records and self._saved != self.done:
            self.save()
        return records

    def step(self) -> dict[str, Any]:
        """One rollout batch and its updates; returns (and writes) the step's metrics."""
        started = time.monotonic()
        episodes, groups = self._sample()
        sampled = time.monotonic()
        batch, advantage_metrics, reward_metrics = self._judge(episodes, groups)
        update_metrics = self._update(batch)
        silence = silence_report(episodes, decider=self.team.decider)
        record: dict[str, Any] = {
            "step": self.done,
            **reward_metrics,
            "communication_efficiency": communication_efficiency(episodes),
            "silence_rate": silence.rate,
            "silence_right": silence.silence_right,
            **advantage_metrics,
            **update_metrics,
            **self.dual.metrics(),
            "lambda_token": self.price,  # the one that priced this batch
            "seconds_sampling": sampled - started,
            "seconds_update": time.monotonic() - sampled,
        }
        self.dual.update(sum(e.tokens for e in episodes) / len(episodes))
        self.done += 1
        self._write(record)
        self._watch(record)
        if self.done % self.settings.checkpoint_every == 0 or self.done == self.settings.steps:
            self.save()
        return record

    @property
    def price(self) -> float:
        """λ_tok in force: the dual variable under an episode budget, else the fixed price of the reward's settings."""
        return self.reward.lambda_token if self.budget.episode_tokens is None else self.dual.value

    def _sample(self) -> tuple[list[Episode], list[Group]]:
        s = self.settings
        sampling = SamplingSettings(
            seed=s.seed, step=self.done, temperature=s.temperature, round_tokens=self.budget.round_tokens
        )
        problems = self._problems_of_step(self.done)
        if s.grouping == "turn":
            return sample_turn_groups(
                self.policy, self.team, problems, members=s.members, settings=sampling, read=self.read
            )
        episodes = sample_episodes(
            self.policy, self.team, problems, members=s.members, settings=sampling, read=self.read
        )
        return episodes, group_messages(episodes)

    def _problems_of_step(self, step: int) -> list[Problem]:
        """Problems in a fresh seeded order every epoch; depends on nothing but seed and step, so resuming is exact.

        A step never reaches into the next epoch, because it could meet the same problem twice: what an epoch has left
        over is not used in it.
        """
        size = self.settings.problems_per_step
        epoch, place = divmod(step, len(self.problems) // size)
        order = list(range(len(self.problems)))
        random.Random(derive_seed(self.settings.seed, "order", epoch)).shuffle(order)
        return [self.problems[index] for index in order[place * size : (place + 1) * size]]

    def _judge(
        self, episodes: Sequence[Episode], groups: Sequence[Group]
    ) -> tuple[_Batch, dict[str, float], dict[str, float | None]]:
        """Rewards and advantages of every row; rows that would add nothing to the gradient are left out."""
        terms = CommunicationReward(self.reward)(episodes, lambda_token=self.price)
        rows = all_rows(groups)
        owner = torch.tensor([g for g, group in enumerate(groups) for _ in group.rows])
        priced = [terms[row.episode][row.message] for row in rows]
        valid = torch.tensor([term.valid for term in priced])
        advantages = group_advantages(
            torch.tensor([term.total if term.valid else 0.0 for term in priced]),
            owner,
            scale=self.objective.advantage_scale,
            std_floor=self.objective.std_floor,
            valid=valid,
        )
        messages: list[Message] = [episodes[row.episode].messages[row.message] for row in rows]
        batch = _Batch(
            [m.prompt_ids for m in messages],
            [m.token_ids for m in messages],
            [m.logprobs for m in messages],
            advantages.values,
        )
        metrics = {
            "advantage_std": advantages.values.std(correction=0).item(),
            "zero_variance_groups": float(advantages.zero_variance_groups),
            "groups": float(advantages.groups),
        }
        return batch, metrics, reward_summary(episodes, terms)

    # ----------------------------------------------------------------------------------------------------- the update

    def _update(self, batch: _Batch) -> dict[str, float]:
        """`mini_batches` optimiser steps over the rollout batch."""
        order = torch.randperm(
            len(batch), generator=torch.Generator().manual_seed(derive_seed(self.settings.seed, self.done) % 2**63)
        ).tolist()
        size = math.ceil(len(order) / self.settings.mini_batches)
        taken: list[_Update] = []
        for start in range(0, len(order), size):
            step = self._optimise(batch.take(order[start : start + size]), first=not taken)
            if step is not None:
                taken.append(step)
        if not taken:  # every group tied: nothing to learn from this batch
            return {"sequences": 0.0, "tokens": 0.0}
        metrics = combine_metrics([step.metrics for step in taken])
        metrics["loss"] = sum(step.loss for step in taken) / len(taken)
        metrics["gradient_norm"] = sum(step.gradient_norm for step in taken) / len(taken)
        if taken[0].floor is not None:
            metrics["noise_floor_rms"], metrics["noise_floor_max"] = taken[0].floor
        return metrics

    def _optimise(self, mini: _Batch, *, first: bool) -> _Update | None:
        """One optimiser step on a mini-batch, in micro-batches with the mini-batch's own normaliser.

        Rows of zero advantage add nothing to the gradient and are skipped, but they stay in the normaliser: leaving
        them out of the mean as well would make the other groups' steps larger (trl#6369).
        """
        _, full_mask = right_pad(mini.old_logprobs, 0.0, torch.float32)
        normaliser = loss_normaliser(full_mask, self.objective.sequence_weighting)
        needs_all = self.objective.kl_coefficient > 0
        kept = [i for i in range(len(mini)) if needs_all or mini.advantages[i] != 0]
        if not kept:
            return None
        work = mini.take(kept)
        parts: list[Metrics] = []
        floors: list[tuple[float, float, int]] = []
        loss_total = 0.0
        self.optimiser.zero_grad(set_to_none=True)
        for indices in micro_batches(self.policy, work.prompts, work.replies, self.settings.micro_batch_tokens):
            micro = work.take(indices)
            loss, metrics, floor = self._loss(micro, normaliser, measure_floor=first)
            if not math.isfinite(loss.item()):
                raise self._non_finite(f"loss is {loss.item()}", micro)
            loss.backward()
            parts.append(metrics)
            loss_total += loss.item()
            if floor is not None:
                floors.append((*floor, len(micro)))
        parameters = list(self.policy.trainable().values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.settings.gradient_clip).item()
        if not math.isfinite(norm):
            raise self._non_finite(f"gradient norm is {norm}", work)
        floor = self._check_first_pass(floors) if first else None
        self.optimiser.step()
        return _Update(combine_metrics(parts), loss_total, norm, floor)

    def _loss(
        self, micro: _Batch, normaliser: float, *, measure_floor: bool
    ) -> tuple[Tensor, Metrics, tuple[float, float] | None]:
        device = self.policy.device
        logprobs, mask = score(self.policy, micro.prompts, micro.replies, temperature=self.settings.temperature)
        old, _ = right_pad(micro.old_logprobs, 0.0, torch.float32)
        old = old.to(device)
        for name, values in (("log-probabilities", logprobs[mask]), ("advantages", micro.advantages)):
            if not bool(values.isfinite().all()):  # the loss would refuse them without saving anything
                raise self._non_finite(f"{name} hold NaN or infinity", micro)
        reference = None
        if self.objective.kl_coefficient > 0:
            with torch.no_grad(), self.policy.reference():
                reference, _ = score(self.policy, micro.prompts, micro.replies, temperature=self.settings.temperature)
        loss, metrics = policy_loss(
            self.objective,
            logprobs,
            old,
            mask,
            micro.advantages.to(device),
            reference_logprobs=reference,
            normaliser=normaliser,
        )
        floor = noise_floor(logprobs.detach(), old, mask) if measure_floor else None
        return loss, metrics, None if floor is None else (floor.rms, floor.largest)

    def _check_first_pass(self, floors: Sequence[tuple[float, float, int]]) -> tuple[float, float]:
        """Before the first update of a batch every ratio is 1 but for rounding: the floor under the clip band."""
        rows = sum(count for _, _, count in floors)
        rms = math.sqrt(sum(r * r * count for r, _, count in floors) / rows)
        largest = max(value for _, value, _ in floors)
        if largest > self.settings.first_pass_tolerance:
            raise MismatchError(
                f"trainer: at step {self.done}, before any update, the sampler's and the scorer's sequence log-ratio "
                f"differ by up to {largest:.2e} (tolerance first_pass_tolerance = "
                f"{self.settings.first_pass_tolerance:.0e}). Check temperature, dropout and dtype; raise the tolerance "
                "only if the dtype explains it (bf16: about 5e-2)"
            )
        return rms, largest

    def _non_finite(self, what: str, batch: _Batch) -> NonFiniteError:
        path = self.folder / f"non-finite-step-{self.done:06d}.pt"
        torch.save(asdict(batch), path)
        self.optimiser.zero_grad(set_to_none=True)
        return NonFiniteError(
            f"trainer: {what} at step {self.done}; this update was not made and its batch was saved to {path}. Look "
            f"into the batch, or start a new folder from the weights of {self.latest_checkpoint()} with a smaller "
            "learning rate"
        )

    # ---------------------------------------------------------------------------------------- record, alarm, checkpoint

    def _watch(self, record: dict[str, Any]) -> None:
        if record["silence_rate"] is None or record["accuracy"] is None:
            return
        try:
            self.alarm.observe(record["step"], record["silence_rate"], record["accuracy"])
        except CollapseError as error:
            good = self._checkpoint_at_or_before(error.last_good) if error.last_good is not None else None
            where = f"the last good checkpoint is {good}" if good else "no good checkpoint was written yet"
            raise CollapseError(f"{error}; {where}", step=error.step, last_good=error.last_good) from None

    def _write(self, record: dict[str, Any]) -> None:
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def save(self) -> Path:
        """Write a checkpoint from which training resumes exactly; an interrupted write leaves the old ones whole."""
        path = self.folder / "checkpoints" / f"step-{self.done:06d}.pt"
        part = path.with_suffix(".part")
        torch.save(
            {
                "done": self.done,
                "policy": self.policy.state(),
                "optimiser": self.optimiser.state_dict(),
                "dual": self.dual.state_dict(),
                "alarm": self.alarm.state_dict(),
                "torch_rng": torch.get_rng_state(),
                "settings": self._described(),
            },
            part,
        )
        os.replace(part, path)
        self._saved = self.done
        return path

    def resume(self, path: Path | str | None = None) -> int:
        """Go on from a checkpoint (the newest by default); returns the number of steps done.

        Metrics of later steps are cut off, so that the record holds every step once.

        Raises:
            FileNotFoundError: there is no checkpoint.
            ValueError: it was written under other settings (the number of steps may differ).
        """
        path = Path(path) if path is not None else self.latest_checkpoint()
        if path is None or not path.is_file():
            raise FileNotFoundError(f"trainer: no checkpoint in {self.folder / 'checkpoints'}; start with run()")
        saved = torch.load(path, map_location=self.policy.device, weights_only=False)
        mine = self._described()
        odd = [key for key in mine if saved["settings"].get(key) != mine[key]]
        if odd:
            raise ValueError(
                f"trainer: checkpoint {path} was written with other settings; they differ in {', '.join(odd)}. "
                "Resume with the settings of the run; to go on from its weights under other settings, start a new "
                "folder after policy.load_state(torch.load(path, weights_only=False)['policy'])"
            )
        self.policy.load_state(saved["policy"])
        self.optimiser.load_state_dict(saved["optimiser"])
        self.dual.load_state_dict(saved["dual"])
        self.alarm.load_state_dict(saved["alarm"])
        torch.set_rng_state(saved["torch_rng"].cpu())
        self.done = self._saved = int(saved["done"])
        self._cut_metrics()
        return self.done

    def _described(self) -> dict[str, Any]:
        """Settings that a resumed run must share; how long it runs may change."""
        pace = asdict(self.settings)
        del pace["steps"], pace["checkpoint_every"]
        named = {"trainer": pace, "team": asdict(self.team.settings), "problems": [p.id for p in self.problems]}
        # What the weights mean and how they round; where they came from, and on which device, does not matter.
        named["policy"] = {
            name: getattr(self.policy.settings, name) for name in ("train", "lora_rank", "lora_alpha", "dtype")
        }
        for name in ("objective", "reward", "budget", "collapse"):
            named[name] = asdict(getattr(self, name))
        return named

    def _cut_metrics(self) -> None:
        path = self.folder / "metrics.jsonl"
        if not path.is_file():
            return
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] < self.done]
        part = path.with_suffix(".part")
        part.write_text("".join(kept), encoding="utf-8")
        os.replace(part, path)

    def checkpoints(self) -> list[Path]:
        """Checkpoints on disk, oldest first."""
        return sorted((self.folder / "checkpoints").glob("step-*.pt"))

    def latest_checkpoint(self) -> Path | None:
        """The newest checkpoint, if any."""
        return self.checkpoints()[-1] if self.checkpoints() else None

    def _checkpoint_at_or_before(self, step: int) -> Path | None:
        known = [path for path in self.checkpoints() if int(path.stem.split("-")[1]) <= step]
        return known[-1] if known else None
