"""GSM8K: grade-school word problems, 7,473 for training and 1,319 for testing.

The gold answer is what follows the single `####`. It may hold thousands commas and a sign; the calculator annotations
`<<a=b>>` in the worked solution are not it. Problem ids name the row of the file: "gsm8k/test/17" counts from 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_gspo_core.benchmarks.source import (
    Benchmark,
    DataFile,
    Hub,
    check_count,
    check_split,
    data_root,
    json_lines,
    read_file,
    read_hub,
    take,
)
from agent_gspo_core.episode import Problem
from agent_gspo_core.scoring.numbers import canonical, parse_number

HUB = Hub("openai/gsm8k", "main", ("train", "test"))
FILES = {
    "train": DataFile("gsm8k/train.jsonl", 7473, "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465"),
    "test": DataFile("gsm8k/test.jsonl", 1319, "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"),
}


def load(
    split: str,
    *,
    root: str | Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    revision: str | None = None,
) -> list[Problem]:
    """Problems of "train" or "test".

    Args:
        split: "train" or "test".
        root: local folder with `gsm8k/train.jsonl` and `gsm8k/test.jsonl`; else `AGENT_GSPO_DATA`; else the hub.
        limit: at most so many problems, drawn by `seed`; `None` means all in file order.
        seed: of the subset.
        revision: commit or branch of the hub data set; `None` reads the card's, else "main". A local file is held to
            its SHA-256 and count, the hub to the count alone.

    Raises:
        FileNotFoundError: the local folder lacks the file.
        ConnectionError: the hub cannot be read.
        ValueError: unknown split, another file than expected, or a record without exactly one `####`.
    """
    check_split("gsm8k", split, tuple(FILES))
    folder = data_root(root)
    if folder is not None:
        name = str(folder / FILES[split].path)
        records = json_lines(read_file(folder, FILES[split], HUB.id), name)
    else:
        name = f"{HUB.id} ({split})"
        records = read_hub(HUB, split, revision)
    check_count(name, FILES[split].records, len(records))
    return take([problem(record, f"gsm8k/{split}/{row}") for row, record in enumerate(records)], limit, seed)


def problem(record: dict[str, Any], id: str) -> Problem:
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


BENCHMARK = Benchmark(
    name="gsm8k",
    kind="number",
    licence="MIT",
    citation="Cobbe et al., Training Verifiers to Solve Math Word Problems, 2021, arXiv 2110.14168",
    hub=HUB,
    files=FILES,
    splits={split: file.records for split, file in FILES.items()},
    load=load,
)
