"""How much batching over problems is worth, as a ratio in one run: `python -m tests.benchmarks.batched_evaluation`.

The same model answers the same problems twice, side by side and one at a time, in fp32 and greedily; the answers must
be the same. Pairs alternate, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from agent_gspo_core.benchmarks import hidden_profile
from agent_gspo_core.evaluation import ItemRecord, evaluate_items
from agent_gspo_core.methods import build_method
from agent_gspo_core.policy import PolicySettings, load_policy
from agent_gspo_core.rollout import TeamSettings


def main() -> int:
    """Print the median ratio over pairs; exit code 1 if an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny", help="tiny, smollm2, a folder or a hub id")
    parser.add_argument("--method", default="free_for_all")
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48, help="cap of a message")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    policy = load_policy(PolicySettings(model=options.model, device="cpu"))
    style = "compact" if options.model == "tiny" else "instruct"
    team = TeamSettings(message_tokens=options.tokens, answer_tokens=options.tokens, prompt_style=style)
    method = build_method(options.method, team)
    problems = hidden_profile.load("test", limit=options.problems, count=policy.count)

    def timed(batches: list[list[hidden_profile.Problem]]) -> tuple[float, list[ItemRecord]]:
        started = time.perf_counter()
        found = [record for batch in batches for record in evaluate_items(policy, method, batch)]
        return time.perf_counter() - started, found

    ratios, same = [], True
    for pair in range(options.pairs):
        alone, one_by_one = timed([[problem] for problem in problems])
        batched, together = timed([problems])
        ratios.append(alone / batched)
        same &= one_by_one == together
        print(f"pair {pair + 1}: one at a time {alone:.2f} s, batched {batched:.2f} s, ratio {ratios[-1]:.2f}")
    print(f"median ratio {statistics.median(ratios):.2f}; answers {'the same' if same else 'DIFFER'}")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
