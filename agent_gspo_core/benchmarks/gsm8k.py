"""GSM8K: grade-school word problems, 7,473 for training and 1,319 for testing.

The gold answer is what follows the single `####`. It may hold thousands commas and a sign; the calculator annotations
`<<a=b>>` in the worked solution are not it. Problem ids name the row of the file: "gsm8k/test/17" counts from 0.
"""

from __future__ import annotations

from agent_gspo_core.benchmarks.source import (
    Benchmark,
    DataFile,
    Hub,
    Record,
    json_lines,
    loader,
)
from agent_gspo_core.episode import Problem
from agent_gspo_core.scoring.numbers import canonical, parse_number

_SOURCE = (
    "https://raw.githubusercontent.com/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c"
    "/grade_school_math/data"
)
HUB = Hub("openai/gsm8k", "main", ("train", "test"), "740312add88f781978c0658806c59bc2815b9866")
FILES = {
    "train": DataFile(
        "gsm8k/train.jsonl",
        7473,
        "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
        f"{_SOURCE}/train.jsonl",
    ),
    "test": DataFile(
        "gsm8k/test.jsonl",
        1319,
        "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
        f"{_SOURCE}/test.jsonl",
    ),
}


def problem(record: Record, id: str) -> Problem:
    """One record `{"question", "answer"}` as a problem; the answer is written plainly ("1,080" becomes "1080")."""
    try:
        question, solution = str(record["question"]), str(record["answer"])
    except KeyError as error:
        raise ValueError(f"{id}: no field {error}; a GSM8K record has 'question' and 'answer'") from error
    parts = solution.split("####")
    gold = parse_number(parts[1]) if len(parts) == 2 else None
    if gold is None:
        raise ValueError(f"{id}: expected a number after a single '####', found {solution[-60:]!r}")
    return Problem(id=id, question=question.strip(), answer=canonical(gold), kind="number", family="gsm8k")


load = loader("gsm8k", problem, files=FILES, hub=HUB, parse=json_lines)
"""Problems of "train" or "test"; arguments and errors as in `source.Load`."""

BENCHMARK = Benchmark(
    name="gsm8k",
    kind="number",
    licence="MIT",
    citation="Cobbe et al., Training Verifiers to Solve Math Word Problems, 2021, arXiv 2110.14168",
    hub=HUB,
    files=FILES,
    splits={split: file.records for split, file in FILES.items()},
    load=load,
    evaluation_split="test",
    training_split="train",
)
