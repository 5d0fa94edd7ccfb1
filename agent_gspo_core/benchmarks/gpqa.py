"""GPQA-Diamond: 198 questions of graduate-level science with four options.

Its authors ask that no item appears in plain text where a crawler finds it. So there is no address to download it
from: it is read from the gated hub set (accept its terms, then `hf auth login`) or from the file that you supply
as `gpqa/gpqa_diamond.csv` in the local folder. Errors here name fields and rows, never their content; do not publish
transcripts either.

The source names the right answer and three wrong ones. Each item's options are shuffled in an order that depends on the
item alone (a hash of question and option), so it is the same everywhere and the right letter is not always A. Ids name
the row of the file: "gpqa/test/17" counts from 0.
"""

from __future__ import annotations

import csv
import io
from string import ascii_uppercase

from agent_gspo_core.benchmarks.choice_records import choice_problem
from agent_gspo_core.benchmarks.source import (
    Benchmark,
    DataFile,
    Hub,
    Record,
    digest,
    loader,
    text_value,
)
from agent_gspo_core.episode import Problem

HUB = Hub("Idavidrein/gpqa", "gpqa_diamond", ("test",), "633f5ee89ab8ad4522a9f850766b73f62147ffdd", {"test": "train"})
FILES = {"test": DataFile("gpqa/gpqa_diamond.csv", 198, None)}
ANSWERS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def csv_records(text: str, name: str) -> list[Record]:
    """Rows of a CSV with a header. Raises `ValueError` naming the file and the columns it lacks."""
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    missing = [column for column in ("Question", *ANSWERS) if column not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{name}: expected a CSV of GPQA with a header; it lacks the columns {', '.join(missing)}")
    try:
        return [dict(row) for row in reader]
    except csv.Error as error:
        raise ValueError(f"{name}, line {reader.line_num}: {error}; export the CSV again") from None


def problem(record: Record, id: str) -> Problem:
    """One record `{"Question", "Correct Answer", "Incorrect Answer 1" …}` as a problem, its options shuffled."""
    question = text_value(record, id, "Question")
    answers = [text_value(record, id, field) for field in ANSWERS]
    if len(set(answers)) != len(answers):
        raise ValueError(f"{id}: two of the four answers are equal, so no letter is right alone")
    choices = sorted(answers, key=lambda answer: digest(f"{question}\n{answer}"))
    domain = record.get("High-level domain")
    family = domain if isinstance(domain, str) and domain else "gpqa"
    return choice_problem(id, question, choices, ascii_uppercase[choices.index(answers[0])], family=family)


load = loader("gpqa", problem, files=FILES, hub=HUB, parse=csv_records)
"""Problems of "test" (the hub calls it "train"); arguments and errors as in `source.Load`."""

BENCHMARK = Benchmark(
    name="gpqa",
    kind="choice",
    licence="CC-BY-4.0",
    citation="Rein et al., GPQA: A Graduate-Level Google-Proof Q&A Benchmark, COLM 2024, arXiv 2311.12022",
    hub=HUB,
    files=FILES,
    splits={split: file.records for split, file in FILES.items()},
    load=load,
    evaluation_split="test",
    access=(
        f"gated: accept the terms of {HUB.id} on the hub and log in (`hf auth login`), or put your own "
        f"{FILES['test'].path} into the folder"
    ),
)
