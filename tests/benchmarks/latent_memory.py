"""Peak memory of DiffMAS training, with and without checkpointing, against the length of the latent trace.

    python -m tests.benchmarks.latent_memory [--steps 2 10 40] [--rows 8] [--hidden 128] [--layers 4]

Every cell is one forward and backward pass of a randomly initialised team in a process of its own. The figure is by how
much the pass raises the highest resident size that the kernel recorded for the process, in MB, so the interpreter and
the weights do not count. Checkpointing trades memory for time, which is printed beside it and depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 64
"""Tokens that each agent reads, besides what it is told by the template."""


def measure(steps: int, checkpointing: bool, rows: int, hidden: int, layers: int) -> dict[str, float]:
    """One cell, in this process."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from agent_gspo_core.latent.decoding import answer_nll
    from agent_gspo_core.latent.embedding_map import EmbeddingMap
    from agent_gspo_core.latent.trace import empty_trace, extend
    from agent_gspo_core.policy import Policy, PolicySettings

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen3Config(
        vocab_size=1024,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=hidden // 8,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    policy = lora_policy(Policy(Qwen3ForCausalLM(config).eval(), None, PolicySettings(model="random"), context=4096))
    embed = EmbeddingMap.fit(policy.model)
    ids = torch.randint(1, 1024, (rows, PROMPT_TOKENS))
    before = high_water_mb()
    started = time.process_time()
    trace = empty_trace(rows)
    for agent in ("Planner", "Critic", "Refiner"):
        trace = extend(
            policy.model,
            trace,
            ids,
            torch.ones_like(ids),
            agent=agent,
            steps=steps,
            embed=embed,
            checkpointing=checkpointing,
        )
    loss, _ = answer_nll(policy, trace, ids.tolist(), ids[:, :16].tolist())
    loss.backward()  # type: ignore[no-untyped-call]
    seconds = time.process_time() - started
    return {
        "columns": trace.mask.shape[1],
        "kv_mb": float(trace.kv_bytes.sum()) / 2**20,
        "peak_mb": high_water_mb() - before,
        "seconds": seconds,
    }


def high_water_mb() -> float:
    """Highest resident size of this process so far. POSIX only."""
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts in bytes, Linux in KB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def lora_policy(policy: Any) -> Any:
    """The policy with DiffMAS's default adapter."""
    from peft import LoraConfig, get_peft_model

    from agent_gspo_core.latent.training import DiffMASSettings

    s = DiffMASSettings()
    adapter = LoraConfig(
        r=s.lora_rank, lora_alpha=s.lora_alpha, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    return replace(policy, model=get_peft_model(policy.model, adapter))


def in_own_process(arguments: Sequence[str]) -> dict[str, float]:
    """One cell in a fresh interpreter: memory that an earlier cell's allocator kept would hide the next one's."""
    command = [sys.executable, "-m", "tests.benchmarks.latent_memory", *arguments]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    if done.returncode:
        raise RuntimeError(f"latent memory benchmark: {' '.join(command)} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Peak memory of DiffMAS training.")
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 10, 20, 40], help="latent steps of each writer")
    parser.add_argument("--rows", type=int, default=8, help="examples in the micro-batch")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--cell", choices=("plain", "checkpointed"), help="measure one cell in this process")
    parsed = parser.parse_args(arguments)
    size = (parsed.rows, parsed.hidden, parsed.layers)
    if parsed.cell:
        print(json.dumps(measure(parsed.steps[0], parsed.cell == "checkpointed", *size)))
        return 0
    print("| steps | columns | KV MB | peak MB: plain | checkpointed | CPU s: plain | checkpointed |")
    print("|---|---|---|---|---|---|---|")
    shape = ["--rows", str(size[0]), "--hidden", str(size[1]), "--layers", str(size[2])]
    for steps in parsed.steps:
        plain, saved = (
            in_own_process(["--steps", str(steps), *shape, "--cell", cell]) for cell in ("plain", "checkpointed")
        )
        print(
            f"| {steps} | {plain['columns']:.0f} | {plain['kv_mb']:.1f} | {plain['peak_mb']:.0f} | "
            f"{saved['peak_mb']:.0f} | {plain['seconds']:.1f} | {saved['seconds']:.1f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
