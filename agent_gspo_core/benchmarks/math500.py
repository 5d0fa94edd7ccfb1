r"""MATH-500: 500 competition problems with LaTeX answers; "train" is the rest of the MATH test set.

The seventh benchmark of ours: Agent-GSPO speaks of seven and names none, its line of work shares six.

The 500 are a subset of the 5,000 test problems of MATH. "train" is the other 4,500: the file is read, every problem of
the 500 is taken out, and a count other than 4,500 is refused, so nobody trains on the 500 unawares. Published figures
of models trained on the whole 12,000 are the same in this respect.

Answers are LaTeX: 320 of the 500 are plain numbers, the others fractions, tuples, intervals, words; compare them
symbolically (kind "latex"). The family is the subject. Ids name the row of the file: "math500/test/17" in the 500,
"math500/train/17" in the 5,000.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agent_gspo_core.benchmarks.source import (
    Benchmark,
    DataFile,
    Hub,
    Record,
    check_count,
    check_split,
    data_root,
    json_lines,
    numbered,
    read_file,
    read_hub,
    read_split,
    take,
    text_value,
)
from agent_gspo_core.episode import Problem
from agent_gspo_core.scoring.text import last_box

HUB = Hub("HuggingFaceH4/MATH-500", "default", ("test",), "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be")
MATH_HUB = Hub(
    "EleutherAI/hendrycks_math", "algebra", ("train",), "21a5633873b6a120296cce3e2df9d5550074f4a3", {"train": "test"}
)
MATH_CONFIGS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
"""The hub keeps the MATH subjects apart; they are joined in this order."""
FILES = {
    "train": DataFile("math/test.jsonl", 5000, "3371949f33dd702d04b43fddd7d53a028de0aaca0e76abb1b875a050297b3aa4"),
    "test": DataFile(
        "math500/test.jsonl",
        500,
        "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
        "https://media.githubusercontent.com/media/openai/prm800k/7ecc794703b2877f63226f2477a49b34f9b25163"
        "/prm800k/math_splits/test.jsonl",
    ),
}
SPLITS = {"train": 4500, "test": 500}


def load(
    split: str,
    *,
    root: str | Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    revision: str | None = None,
) -> list[Problem]:
    """Problems of "train" (4,500) or "test" (500); "train" reads both files.

    Arguments and errors as in `source.Load`; `revision` is that of the set "test" is read from, the copy of MATH is
    always read as the card pins it. Raises `ValueError` too if the 500 are not all among the 5,000.
    """
    check_split("math500", split, tuple(SPLITS))
    held_out = read_split("math500", "test", files=FILES, hub=HUB, parse=json_lines, root=root, revision=revision)
    if split == "test":
        return take([problem(record, id) for record, id in numbered(held_out, "math500/test")], limit, seed)
    folder = data_root(root)
    if folder is None:
        name = MATH_HUB.id
        records = [
            record for config in MATH_CONFIGS for record in read_hub(replace(MATH_HUB, config=config), "train", None)
        ]
    else:
        name = str(folder / FILES["train"].path)
        records = json_lines(read_file(folder, FILES["train"], MATH_HUB.id), name)
    check_count(name, FILES["train"].records, len(records))
    evaluated = {_key(text_value(record, f"math500/test/{row}", "problem")) for row, record in enumerate(held_out)}
    kept = [
        (record, id)
        for record, id in numbered(records, "math500/train")
        if _key(text_value(record, id, "problem")) not in evaluated
    ]
    check_count(f"{name} without the problems of MATH-500", SPLITS["train"], len(kept))
    return take([problem(record, id) for record, id in kept], limit, seed)


def _key(statement: str) -> str:
    """The statement without blanks: a copy that differs only in them is the same problem."""
    return "".join(statement.split())


def problem(record: Record, id: str) -> Problem:
    r"""One record as a problem; the answer is `answer`, or the last `\boxed{…}` of `solution`.

    Raises `ValueError` if there is neither.
    """
    if record.get("answer") is not None:
        answer = text_value(record, id, "answer")
    else:
        answer = last_box(text_value(record, id, "solution")) or ""
    if not answer:
        raise ValueError(rf"{id}: no field 'answer', and no \boxed{{…}} in 'solution'")
    return Problem(
        id=id,
        question=text_value(record, id, "problem"),
        answer=answer,
        kind="latex",
        family=text_value(record, id, "subject", "type"),
    )


BENCHMARK = Benchmark(
    name="math500",
    kind="latex",
    licence="MIT",
    citation=(
        "Lightman et al., Let's Verify Step by Step, ICLR 2024, arXiv 2305.20050; "
        "Hendrycks et al., Measuring Mathematical Problem Solving, NeurIPS 2021, arXiv 2103.03874"
    ),
    hub=HUB,
    files=FILES,
    splits=SPLITS,
    load=load,
    evaluation_split="test",
    training_split="train",
    access=(
        f"math/test.jsonl: no address of these bytes is known; the split 'train' is read from the hub "
        f"({MATH_HUB.id}) when no local folder is named"
    ),
)
