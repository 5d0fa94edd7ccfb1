"""CommonsenseQA: 9,741 training and 1,221 development questions, five options each.

The answers of the official test set are not public, so figures are reported on "dev" (the hub calls it "validation").
Ids name the row of the file: "commonsenseqa/dev/17" counts from 0.
"""

from __future__ import annotations

from agent_gspo_core.benchmarks.choice_records import science_problem
from agent_gspo_core.benchmarks.source import (
    Benchmark,
    DataFile,
    Hub,
    Record,
    json_lines,
    loader,
)
from agent_gspo_core.episode import Problem

_SOURCE = (
    "https://raw.githubusercontent.com/kojima-takeshi188/zero_shot_cot/5ef330fcdeec0cd26aee27943504f91f8ec1c33c"
    "/dataset/CommonsenseQA"
)
HUB = Hub(
    "tau/commonsense_qa",
    "default",
    ("train", "dev"),
    "94630fe30dad47192a8546eb75f094926d47e155",
    {"dev": "validation"},
)
FILES = {
    "train": DataFile(
        "commonsenseqa/train.jsonl",
        9741,
        "58ffa3c8472410e24b8c43f423d89c8a003d8284698a6ed7874355dedd09a2fb",
        f"{_SOURCE}/train_rand_split.jsonl",
    ),
    "dev": DataFile(
        "commonsenseqa/dev.jsonl",
        1221,
        "3210497fdaae614ac085d9eb873dd7f4d49b6f965a93adadc803e1229fd8a02a",
        f"{_SOURCE}/dev_rand_split.jsonl",
    ),
}


def problem(record: Record, id: str) -> Problem:
    """One record as a problem. Errors as in `science_problem`."""
    return science_problem(record, id, family="commonsenseqa")


load = loader("commonsenseqa", problem, files=FILES, hub=HUB, parse=json_lines)
"""Problems of "train" or "dev"; arguments and errors as in `source.Load`."""

BENCHMARK = Benchmark(
    name="commonsenseqa",
    kind="choice",
    licence="MIT",
    citation="Talmor et al., CommonsenseQA, NAACL 2019, arXiv 1811.00937",
    hub=HUB,
    files=FILES,
    splits={split: file.records for split, file in FILES.items()},
    load=load,
    evaluation_split="dev",
    training_split="train",
)
