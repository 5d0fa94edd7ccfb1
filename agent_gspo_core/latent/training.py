"""DiffMAS stage II: cross-entropy on the last agent's answer, through the whole latent trace into one shared adapter.

`AnswerTrainer` is the loop, the same for every trained arm: only the loss differs. `trace_loss` is DiffMAS's,
`row_loss` that of the arms that use words.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from agent_gspo_core.latent.decoding import answer_nll
from agent_gspo_core.latent.examples import Example, encode_target
from agent_gspo_core.latent.team import GradientMode, LatentTeam
from agent_gspo_core.latent.trace import empty_trace
from agent_gspo_core.policy import TINY, Policy, PolicySettings, load_policy
from agent_gspo_core.rollout import derive_seed
from agent_gspo_core.trainer import NonFiniteError


@dataclass(frozen=True)
class DiffMASSettings:
    """The adapter, and the pace of its training."""

    lora_rank: int = 8
    """Rank r. DiffMAS (note): 8. Adapters sit on every linear layer (ours; its targets are unknown)."""
    lora_alpha: int = 16
    """Scale numerator α. DiffMAS (note): 16. Dropout is 0, or a writer's passes would be stochastic (ours)."""
    updates: int = 60
    """Optimiser steps (ours; its epochs are unknown)."""
    micro_batch: int = 1
    """Examples of one forward-backward pass (ours)."""
    accumulation: int = 64
    """Micro-batches per optimiser step. DiffMAS (note): 64."""
    learning_rate: float = 5e-5
    """AdamW's peak step. DiffMAS (note): 5e-5, decayed by a cosine to 0 over `updates`."""
    warmup: int = 0
    """Steps of linear warm-up (ours)."""
    weight_decay: float = 0.0
    """AdamW's decay (ours; unknown)."""
    gradient_clip: float = 1.0
    """Largest gradient norm (ours)."""
    gradient: GradientMode = "full"
    """How far the loss reaches, see `LatentTeam.write`. The paper contradicts itself: §3.3 says full, Fig. 1's caption
    last agent only (note)."""
    checkpointing: bool = True
    """Recompute prefills and latent steps in the backward pass: the same gradient, less memory, more time (ours)."""
    checkpoint_every: int = 20
    """Optimiser steps between checkpoints on disk (ours)."""
    seed: int = 0
    """Seeds the adapter's first weights and the order of the examples."""

    def __post_init__(self) -> None:
        for name in ("lora_rank", "lora_alpha", "updates", "micro_batch", "accumulation", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"DiffMAS: {name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "gradient_clip"):
            if not getattr(self, name) > 0:  # also catches NaN
                raise ValueError(f"DiffMAS: {name} must be positive, got {getattr(self, name)}")
        if self.warmup < 0 or not self.weight_decay >= 0:
            raise ValueError(f"DiffMAS: warmup {self.warmup} and weight_decay {self.weight_decay} must be 0 or more")

    def rate(self, step: int) -> float:
        """Learning rate of optimiser step `step`, counted from 0."""
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return self.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.updates)))


def adapter_policy(model: str = TINY, settings: DiffMASSettings | None = None, **policy: Any) -> Policy:
    """A frozen model with a fresh adapter as `settings` has it; `policy` are further `PolicySettings`."""
    settings = settings or DiffMASSettings()
    return load_policy(
        PolicySettings(
            model=model,
            train="lora",
            lora_rank=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            seed=settings.seed,
            **policy,
        )
    )


Loss = Callable[[Sequence[Example]], tuple[Tensor, int]]
"""Examples of one micro-batch → summed negative log-likelihood, number of tokens."""


def trace_loss(team: LatentTeam, *, gradient: GradientMode = "full", checkpointing: bool = False) -> Loss:
    """DiffMAS: the last agent's answers on the traces that the writers have just written."""
    last = len(team.settings.roles) - 1

    def loss(examples: Sequence[Example]) -> tuple[Tensor, int]:
        problems = [example.problem for example in examples]
        trace = team.write(problems, gradient=gradient, checkpointing=checkpointing)
        prompts = [team.prompt(problem, last) for problem in problems]
        answers = [encode_target(team.policy, team.chat(e.problem, last), e.target) for e in examples]
        return answer_nll(team.policy, trace, prompts, answers)

    return loss


@dataclass(frozen=True)
class Row:
    """Something said in words: what was read before it, and its tokens."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


def row_loss(policy: Policy, rows: Mapping[str, Sequence[Row]]) -> Loss:
    """Supervised fine-tuning on words: every row of the examples' traces (problem id → rows), with no cache before."""

    def loss(examples: Sequence[Example]) -> tuple[Tensor, int]:
        said = [row for example in examples for row in rows[example.problem.id]]
        trace = empty_trace(len(said), device=policy.device)
        return answer_nll(policy, trace, [row.prompt_ids for row in said], [row.token_ids for row in said])

    return loss


@dataclass
class AnswerTrainer:
    """Trains adapter (and learned map) on answers.

    `folder` receives `metrics.jsonl` (a line per optimiser step) and `checkpoint.pt`. Which examples a step sees
    depends on nothing but seed and step, so a resumed run repeats an uninterrupted one to the bit on a CPU.
    """

    parameters: dict[str, nn.Parameter]
    """What is trained, by name: `LatentTeam.trainable()` or `Policy.trainable()`."""
    loss: Loss
    examples: Sequence[Example]
    folder: Path
    settings: DiffMASSettings = field(default_factory=DiffMASSettings)

    def __post_init__(self) -> None:
        if not self.examples:
            raise ValueError("DiffMAS: no examples given; see latent.examples")
        if not self.parameters:
            raise ValueError("DiffMAS: nothing to train; load the policy with train='lora' (adapter_policy does)")
        self.optimiser = torch.optim.AdamW(
            self.parameters.values(), lr=self.settings.learning_rate, weight_decay=self.settings.weight_decay
        )
        self.done = 0
        """Optimiser steps taken so far."""
        self.folder = Path(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def run(self, updates: int | None = None, *, progress: bool = True) -> list[dict[str, float]]:
        """Train until `updates` (by default `settings.updates`) steps are done; returns the metrics of those taken now.

        Raises:
            FileExistsError: a fresh run in a folder that holds another run's metrics.
            NonFiniteError: NaN or infinity; the update was not made.
        """
        target = self.settings.updates if updates is None else updates
        metrics = self.folder / "metrics.jsonl"
        if self.done == 0 and metrics.is_file() and metrics.stat().st_size:
            raise FileExistsError(
                f"DiffMAS: {metrics} holds the steps of another run; call resume() to go on with it, or give a new "
                "folder"
            )
        records: list[dict[str, float]] = []
        with tqdm(total=target, initial=self.done, desc="DiffMAS", unit="step", disable=not progress) as bar:
            while self.done < target:
                records.append(self.step())
                bar.update()
                bar.set_postfix(loss=f"{records[-1]['loss']:.3f}")
                if self.done % self.settings.checkpoint_every == 0 or self.done == target:
                    self.save()
        return records

    def step(self) -> dict[str, float]:
        """One optimiser step over `accumulation` micro-batches; the loss is the mean over all their answer tokens."""
        started, s = time.monotonic(), self.settings
        batch = self._examples_of_step(self.done)
        self.optimiser.zero_grad(set_to_none=True)
        total, tokens = 0.0, 0
        for start in range(0, len(batch), s.micro_batch):
            micro = batch[start : start + s.micro_batch]
            summed, count = self.loss(micro)
            if not bool(summed.isfinite()):
                raise self._non_finite(f"loss is {summed.item()}", micro)
            summed.backward()
            total, tokens = total + summed.item(), tokens + count
        # Divided here, when the number of tokens is known, so that micro-batches of any size make the same step.
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad /= tokens
        norm = torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), s.gradient_clip).item()
        if not math.isfinite(norm):
            raise self._non_finite(f"gradient norm is {norm}", batch)
        for group in self.optimiser.param_groups:
            group["lr"] = s.rate(self.done)
        self.optimiser.step()
        record = {
            "step": self.done,
            "loss": total / tokens,
            "tokens": tokens,
            "gradient_norm": norm,
            "learning_rate": s.rate(self.done),
            "seconds": time.monotonic() - started,
        }
        self.done += 1
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
        return record

    def _examples_of_step(self, step: int) -> list[Example]:
        """Examples in a fresh seeded order every epoch; a step may reach into the next one."""
        size = self.settings.micro_batch * self.settings.accumulation
        picked: list[Example] = []
        for place in range(step * size, (step + 1) * size):
            epoch, index = divmod(place, len(self.examples))
            picked.append(self.examples[self._order(epoch)[index]])
        return picked

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self.examples)))
        random.Random(derive_seed(self.settings.seed, "order", epoch)).shuffle(order)
        return order

    def _non_finite(self, what: str, examples: Sequence[Example]) -> NonFiniteError:
        self.optimiser.zero_grad(set_to_none=True)
        named = ", ".join(example.problem.id for example in examples[:4])
        return NonFiniteError(
            f"DiffMAS: {what} at step {self.done} (examples {named}{', …' if len(examples) > 4 else ''}); this update "
            f"was not made. Resume from {self.folder / 'checkpoint.pt'} in a new folder with a smaller learning_rate, "
            "or look into those examples"
        )

    # ------------------------------------------------------------------------------------------------ checkpoints

    def save(self) -> Path:
        """Write a checkpoint from which training resumes exactly; an interrupted write leaves the old one whole."""
        path = self.folder / "checkpoint.pt"
        part = path.with_suffix(".part")
        torch.save(
            {
                "done": self.done,
                "weights": {name: p.detach().clone() for name, p in self.parameters.items()},
                "optimiser": self.optimiser.state_dict(),
                "settings": self._described(),
            },
            part,
        )
        os.replace(part, path)
        return path

    def resume(self) -> int:
        """Go on from the folder's checkpoint; returns the number of steps done. Metrics of later steps are cut off.

        Raises:
            FileNotFoundError: there is no checkpoint.
            ValueError: it was written under other settings, examples or weights.
        """
        path = self.folder / "checkpoint.pt"
        if not path.is_file():
            raise FileNotFoundError(f"DiffMAS: no checkpoint at {path}; start with run()")
        device = next(iter(self.parameters.values())).device
        saved = torch.load(path, map_location=device, weights_only=True)
        mine = self._described()
        odd = [key for key in mine if saved["settings"].get(key) != mine[key]]
        if odd:
            raise ValueError(
                f"DiffMAS: {path} was written with other settings; they differ in {', '.join(odd)}. Resume with the "
                "settings of the run, or start a new folder"
            )
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(saved["weights"][name])
        self.optimiser.load_state_dict(saved["optimiser"])
        self.done = int(saved["done"])
        self._cut_metrics()
        return self.done

    def _described(self) -> dict[str, Any]:
        """What a resumed run must share."""
        pace = asdict(self.settings)
        del pace["checkpoint_every"]
        return {
            **pace,
            "weights": {name: list(p.shape) for name, p in self.parameters.items()},
            "examples": derive_seed(*((e.problem.id, e.target) for e in self.examples)) % 2**63,
        }

    def _cut_metrics(self) -> None:
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] < self.done]
        part = path.with_suffix(".part")
        part.write_text("".join(kept), encoding="utf-8")
        os.replace(part, path)


def train_diffmas(
    team: LatentTeam,
    examples: Sequence[Example],
    folder: Path | str,
    settings: DiffMASSettings | None = None,
    *,
    progress: bool = True,
) -> list[dict[str, float]]:
    """Train a team and save it to `folder`, from where `LatentTeam.load` reads it; goes on if it was interrupted."""
    settings = settings or DiffMASSettings()
    loss = trace_loss(team, gradient=settings.gradient, checkpointing=settings.checkpointing)
    trainer = AnswerTrainer(team.trainable(), loss, examples, Path(folder), settings)
    if (Path(folder) / "checkpoint.pt").is_file():
        trainer.resume()
    records = trainer.run(progress=progress)
    team.save(folder)
    return records
