"""What `tests.benchmarks.speed` measures, each in a process of its own: `python -m tests.benchmarks.cells CELL MODEL`.

A cell prints one JSON object per result. Variants of one cell alternate within it, so that a busy machine slows all of
them; what is reported is the median over pairs. Seconds are those of the process's CPU clock with `--clock cpu`, which
other work on the machine disturbs less, else of the wall clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import agent_gspo_core.generation as generation
from agent_gspo_core.benchmarks import hidden_profile
from agent_gspo_core.decoder import LeanDecoder
from agent_gspo_core.episode import Episode
from agent_gspo_core.generation import sample
from agent_gspo_core.logprobs import micro_batches, right_pad, score
from agent_gspo_core.objective import gspo_loss
from agent_gspo_core.policy import Policy, PolicySettings, load_policy
from agent_gspo_core.prefixes import build_tree
from agent_gspo_core.prompts import build_chat
from agent_gspo_core.rollout import Team, TeamSettings, sample_episodes
from agent_gspo_core.trainer import Trainer, TrainerSettings
from tests.benchmarks.latent_memory import high_water_mb

BAND = {"epsilon_low": 0.05, "epsilon_high": 0.05}
Rows = list[tuple[int, ...]]


@dataclass(frozen=True)
class Size:
    """How much a model is given to do."""

    problems: int
    members: int
    tokens: int
    """Cap of a message."""
    alone: int
    """Rows of per-agent `generate`: enough for its tokens per second, which do not depend on their number."""


SIZES = {"tiny": Size(problems=4, members=8, tokens=48, alone=6), "smollm2": Size(1, 8, 24, 2)}
SMOKE = Size(problems=1, members=2, tokens=4, alone=1)


@dataclass(frozen=True)
class Bench:
    """One process's share of the suite."""

    model: str
    size: Size
    pairs: int
    clock: Callable[[], float]
    smoke: bool = False

    def policy(self, **settings: Any) -> Policy:
        """The model on the CPU; SmolLM2 trains adapters, as the profile `cpu-llm` does."""
        train = "full" if self.model == "tiny" else "lora"
        return load_policy(PolicySettings(**{"model": self.model, "device": "cpu", "train": train, **settings}))

    @property
    def style(self) -> str:
        """Prompt style that the model knows."""
        return "compact" if self.model == "tiny" else "instruct"

    def seconds(self, run: Callable[[], Any]) -> float:
        """Duration of one run."""
        started = self.clock()
        run()
        return self.clock() - started

    def medians(self, variants: dict[str, Callable[[], float]]) -> dict[str, float]:
        """Median of what each variant returns, in turns."""
        found: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(self.pairs):
            for name, run in variants.items():
                found[name].append(run())
        return {name: statistics.median(values) for name, values in found.items()}


def first_prompts(bench: Bench, policy: Policy, size: Size | None = None) -> Rows:
    """What three agents of every problem read first, each as often as its group has members."""
    size = size or bench.size
    return [
        policy.encode_chat(build_chat(p, style=bench.style, name=f"Agent {a + 1}", heard=[], note=p.notes[a]))
        for p in hidden_profile.load("train", limit=size.problems)
        for a in range(3)
        for _ in range(size.members)
    ]


@contextmanager
def library_path() -> Iterator[None]:
    """Inside, sampling and scoring go through the library's own forward, on padded rows."""
    kept = LeanDecoder.of
    LeanDecoder.of = staticmethod(lambda policy: None)
    try:
        yield
    finally:
        LeanDecoder.of = kept


# ------------------------------------------------------------------------------------------------------------- limits


def limits(bench: Bench) -> dict[str, float]:
    """What the machine can do: bytes a second through a matrix–vector product, FLOPs a second in a matrix product."""
    side = 512 if bench.smoke else 8192  # 256 MiB, far beyond the caches
    matrix, vector = torch.randn(side, side), torch.randn(side)
    square, other = torch.randn(1024, 1024), torch.randn(1024, 1024)
    found = bench.medians(
        {
            "stream": lambda: bench.seconds(lambda: torch.mv(matrix, vector)),
            "product": lambda: bench.seconds(lambda: [square @ other for _ in range(4)]),
        }
    )
    return {
        "bytes_per_second": matrix.numel() * 4 / found["stream"],
        "flops_per_second": 4 * 2 * 1024**3 / found["product"],
    }


# ----------------------------------------------------------------------------------------------------------- rollouts


def generated(policy: Policy, prompts: Rows, cap: int) -> int:
    """Tokens that transformers' own `generate` says in one call."""
    ids, mask = generation.left_pad(prompts, policy.pad_id)
    out = policy.model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=cap,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=sorted(policy.end_ids),
        pad_token_id=policy.pad_id,
    )[:, ids.shape[1] :]
    ends = torch.isin(out, torch.tensor(sorted(policy.end_ids))).int()
    return int((ends.cumsum(-1) - ends == 0).sum())  # up to and with the first end token


def rollouts(bench: Bench) -> dict[str, float]:
    """Tokens a second of a round: one call of `generate` per agent, one call for all, and `sample`."""
    policy, cap = bench.policy(), bench.size.tokens
    prompts = first_prompts(bench, policy)
    torch.manual_seed(0)

    def rate(run: Callable[[], int]) -> float:
        started = bench.clock()
        return run() / (bench.clock() - started)

    def ours() -> int:
        replies = sample(policy, prompts, caps=[cap] * len(prompts), seeds=list(range(len(prompts))))
        return sum(len(reply.token_ids) for reply in replies)

    apart = prompts[:: max(1, len(prompts) // bench.size.alone)][: bench.size.alone]
    return {
        "rows": len(prompts),
        **bench.medians(
            {
                "generate_alone": lambda: rate(lambda: sum(generated(policy, [prompt], cap) for prompt in apart)),
                "generate_batched": lambda: rate(lambda: generated(policy, prompts, cap)),
                "ours": lambda: rate(ours),
            }
        ),
    }


def decoding(bench: Bench) -> list[dict[str, float]]:
    """Seconds of a decode step at growing batch sizes, and the bytes and FLOPs that it cannot do without."""
    policy = bench.policy(train="full")
    lean = LeanDecoder.of(policy)
    assert lean is not None
    prompt = first_prompts(bench, policy, SMOKE)[0]
    found = []
    for rows in (1, 2) if bench.smoke else (1, 8, 32, 64):
        batch = generation._open_batch(policy, rows, [prompt] * rows, [4 * bench.pairs + 8] * rows)
        with torch.no_grad():
            batch.admit([prompt] * rows)
            tokens = torch.full((rows,), policy.pad_id)
            batch.step(tokens)
            seconds = statistics.median(bench.seconds(lambda: batch.step(tokens)) for _ in range(4 * bench.pairs))  # noqa: B023
        used = policy.parameters  # tied weights count once: the head reads the table that the embedding looks up
        # One prompt, read by all rows together; what they have said is a few tokens.
        kv = 2 * len(lean.layers) * lean.kv_heads * lean.size * 4 * len(prompt)
        found.append({"rows": rows, "seconds": seconds, "bytes": used * 4 + kv, "flops": 2.0 * used * rows})
    return found


# ------------------------------------------------------------------------------------------------------------ updates


@dataclass(frozen=True)
class Replies:
    """Rows of an update."""

    prompts: Rows
    replies: Rows
    old: list[tuple[float, ...]]
    advantages: Tensor


def sampled_rows(bench: Bench, policy: Policy) -> Replies:
    """Groups with advantages of either sign."""
    prompts = first_prompts(bench, policy)
    said = sample(policy, prompts, caps=[bench.size.tokens] * len(prompts), seeds=list(range(len(prompts))))
    advantages = torch.randn(len(prompts), generator=torch.Generator().manual_seed(0))
    return Replies(prompts, [r.token_ids for r in said], [r.logprobs for r in said], advantages)


def our_gradient(policy: Policy, rows: Replies) -> None:
    """Forward and backward pass of `Trainer`'s update: the mean over rows, in micro-batches."""
    for part in micro_batches(policy, rows.prompts, rows.replies, TrainerSettings().micro_batch_tokens):
        new, mask = score(policy, [rows.prompts[i] for i in part], [rows.replies[i] for i in part])
        old, _ = right_pad([rows.old[i] for i in part], 0.0, torch.float32)
        loss, _ = gspo_loss(new, old, mask, rows.advantages[part], normaliser=len(rows.replies), **BAND)
        loss.backward()


def trl_gradient(policy: Policy, rows: Replies, *, checkpointing: bool = False) -> Callable[[], None]:
    """The same by TRL's GRPOTrainer: its own `training_step` on these rows, in the form that its generation makes.

    TRL 1.15 computes the head in a Triton kernel, which a CPU build of torch lacks; its own `selective_log_softmax` on
    the model's logits, which it used before, stands in.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer.utils import selective_log_softmax

    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        fp16=False,
        report_to=[],
        gradient_checkpointing=checkpointing,
        per_device_train_batch_size=len(rows.replies),
        num_generations=len(rows.replies),
        importance_sampling_level="sequence",
        loss_type="grpo",
        epsilon=BAND["epsilon_low"],
        epsilon_high=BAND["epsilon_high"],
        beta=0.0,
        temperature=1.0,
        disable_dropout=True,
    )
    trainer = GRPOTrainer(
        model=policy.model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "-"}]),
        processing_class=policy.tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1
    prompt_ids, prompt_mask = generation.left_pad(rows.prompts, policy.pad_id)
    ids, mask = right_pad(rows.replies, policy.pad_id, torch.long)
    old, _ = right_pad(rows.old, 0.0, torch.float32)
    inputs = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": ids,
        "completion_mask": mask.int(),
        "advantages": rows.advantages,
        "old_per_token_logps": old,
    }
    trainer._prepare_inputs = lambda inputs: inputs  # they are prepared

    def per_token(model: Any, ids: Tensor, mask: Tensor, keep: int, **_: Any) -> tuple[Tensor, Tensor, None]:
        logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=keep + 1).logits[:, :-1]
        found = selective_log_softmax(logits, ids[:, -keep:])
        return found, torch.zeros_like(found), None  # its entropies are only logged

    trainer._get_per_token_logps_and_entropies = per_token

    def run() -> None:
        trainer.model.train()
        trainer.training_step(trainer.model, dict(inputs), None)

    return run


def gradients(policy: Policy, run: Callable[[], None]) -> Tensor:
    """All gradients in one vector."""
    policy.model.zero_grad(set_to_none=True)
    run()
    return torch.cat([p.grad.flatten() for p in policy.trainable().values() if p.grad is not None])


def adapters_that_do_something(policy: Policy) -> None:
    """Fresh adapters have B = 0, and then no gradient reaches A."""
    with torch.no_grad():
        for name, parameter in policy.trainable().items():
            if "lora_B" in name:
                parameter.normal_(std=0.02, generator=torch.Generator().manual_seed(0))


def updates(bench: Bench) -> dict[str, float]:
    """Seconds of one update (forward, backward, clip, Adam) of the same rows, by TRL and by this project."""
    policy = bench.policy()
    adapters_that_do_something(policy)
    rows = sampled_rows(bench, policy)
    theirs, ours = trl_gradient(policy, rows), lambda: our_gradient(policy, rows)
    a, b = gradients(policy, theirs), gradients(policy, ours)
    optimiser = torch.optim.Adam(policy.trainable().values(), lr=0.0)  # every pair starts from the same weights

    def step(run: Callable[[], None]) -> float:
        def once() -> None:
            optimiser.zero_grad(set_to_none=True)
            run()
            torch.nn.utils.clip_grad_norm_(policy.trainable().values(), 1.0)
            optimiser.step()

        return bench.seconds(once)

    def padded() -> None:
        with library_path():
            ours()

    tree = build_tree([(*p, *r) for p, r in zip(rows.prompts, rows.replies, strict=True)])
    body = policy.parameters - policy.model.get_input_embeddings().weight.numel()
    head = policy.model.get_output_embeddings().weight.numel()
    factor = 6 if policy.settings.train == "full" else 4  # no gradients of frozen weights
    said = sum(map(len, rows.replies))
    return {
        "rows": len(rows.replies),
        "tokens_plain": sum(map(len, rows.prompts)) + said,
        "tokens_distinct": len(tree.ids),
        "flops": float(factor * (body * len(tree.ids) + head * said)),
        "gradient_difference": float((a - b).norm() / a.norm()),
        **bench.medians({"trl": lambda: step(theirs), "library": lambda: step(padded), "ours": lambda: step(ours)}),
    }


def memory(bench: Bench, who: str) -> dict[str, float]:
    """By how much one update raises the highest resident size of a process, in MB."""
    policy = bench.policy()
    adapters_that_do_something(policy)
    rows = sampled_rows(bench, policy)
    if who == "ours":
        run: Callable[[], None] = lambda: our_gradient(policy, rows)  # noqa: E731
    else:
        run = trl_gradient(policy, rows, checkpointing=who == "trl_checkpointed")
    before = high_water_mb()
    run()
    return {"peak_mb": high_water_mb() - before}


def unsloth(bench: Bench) -> dict[str, Any]:
    """One update through Unsloth's own path, where it is installed."""
    import importlib.util

    if importlib.util.find_spec("unsloth") is None:
        return {"not_run": "the package unsloth is not installed (make test-unsloth builds an environment with it)"}
    policy = bench.policy(backend="unsloth", train="lora")
    rows = sampled_rows(bench, policy)
    return bench.medians({"unsloth": lambda: bench.seconds(lambda: our_gradient(policy, rows))})


# --------------------------------------------------------------------------------------------------- steps and growth


def training_step(bench: Bench) -> dict[str, float]:
    """Seconds of a training step as the embedded default takes it: through the library's forward, and lean."""
    size = replace(SMOKE, members=2) if bench.smoke else Size(8, 8, 48, 0)

    def step() -> float:
        policy = load_policy(PolicySettings(device="cpu"))
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                policy,
                Team(TeamSettings(message_tokens=size.tokens)),
                hidden_profile.load("train", limit=size.problems, count=policy.count),
                Path(folder),
                TrainerSettings(problems_per_step=size.problems, members=size.members, learning_rate=3e-4),
            )
            return bench.seconds(trainer.step)

    def before() -> float:
        with library_path():
            return step()

    return bench.medians({"library": before, "ours": step})


GROWTH: dict[str, Sequence[int]] = {
    "agents": (2, 4, 6, 8),
    "rounds": (1, 2, 3, 4),
    "group size": (2, 4, 8, 16, 32),
    "message tokens": (6, 12, 24, 48),
    "vocabulary": (1000, 4000, 16000, 64000),
}


BASE = {"agents": 3, "rounds": 1, "group size": 8, "message tokens": 24, "vocabulary": 0}
"""Where every curve but its own axis stays; vocabulary 0 is the tiny policy's own."""


def growth(bench: Bench) -> list[dict[str, Any]]:
    """Seconds of a rollout of one problem and of its update, when one thing grows and the rest stays."""
    return [
        {"axis": axis, "value": value, **growth_point(bench, {**BASE, axis: value})}
        for axis, values in GROWTH.items()
        for value in (values[:1] if bench.smoke else values)
    ]


def growth_point(bench: Bench, at: dict[str, int]) -> dict[str, float]:
    """One team of this size, with the tokens that it reads and says, each message counted in full."""
    policy = load_policy(PolicySettings(device="cpu"))
    if at["vocabulary"]:
        torch.manual_seed(0)
        policy.model.resize_token_embeddings(at["vocabulary"], mean_resizing=False)
    settings = hidden_profile.HiddenProfileSettings(agents=at["agents"])
    problems = hidden_profile.load("train", limit=1, settings=settings)
    team = Team(TeamSettings(agents=at["agents"], rounds=at["rounds"], message_tokens=at["message tokens"]))

    def talk() -> list[Episode]:
        return sample_episodes(policy, team, problems, members=at["group size"])

    messages = [m for episode in talk() for m in episode.messages]
    rows = Replies(
        [m.prompt_ids for m in messages],
        [m.token_ids for m in messages],
        [m.logprobs for m in messages],
        torch.ones(len(messages)),
    )

    def update() -> None:
        policy.model.zero_grad(set_to_none=True)
        our_gradient(policy, rows)

    medians = bench.medians({"rollout": lambda: bench.seconds(talk), "update": lambda: bench.seconds(update)})
    return {"tokens": sum(map(len, rows.prompts)) + sum(map(len, rows.replies)), **medians}


CELLS: dict[str, Callable[..., Any]] = {
    "limits": limits,
    "rollouts": rollouts,
    "decoding": decoding,
    "updates": updates,
    "memory_ours": lambda bench: memory(bench, "ours"),
    "memory_trl": lambda bench: memory(bench, "trl"),
    "memory_trl_checkpointed": lambda bench: memory(bench, "trl_checkpointed"),
    "unsloth": unsloth,
    "training_step": training_step,
    "growth": growth,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one cell and print it as a line of JSON."""
    parser = argparse.ArgumentParser(description="One cell of the speed benchmark.")
    parser.add_argument("cell", choices=CELLS)
    parser.add_argument("model", choices=tuple(SIZES))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--smoke", action="store_true", help="the smallest sizes: shows that it runs, measures nothing")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    clock = time.process_time if chosen.clock == "cpu" else time.perf_counter
    size = SMOKE if chosen.smoke else SIZES[chosen.model]
    bench = Bench(chosen.model, size, 1 if chosen.smoke else chosen.pairs, clock, chosen.smoke)
    print(json.dumps(CELLS[chosen.cell](bench)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
