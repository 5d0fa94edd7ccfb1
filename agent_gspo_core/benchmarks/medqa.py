"""MedQA (USMLE, four options): 1,273 test questions of medical board examinations.

The keys are uneven (A 27.7 %, D 20.8 %): a policy that prefers a letter is not at 25 %. Ids name the row of the file:
"medqa/test/17" counts from 0.
"""

from __future__ import annotations

from agent_gspo_core.benchmarks.choice_records import choice_problem
from agent_gspo_core.benchmarks.source import (
    Benchmark,
    DataFile,
    Hub,
    Record,
    json_lines,
    loader,
    text_value,
    value,
)
from agent_gspo_core.episode import Problem

HUB = Hub("GBaker/MedQA-USMLE-4-options", "default", ("test",), "0fb93dd23a7339b6dcd27e241cb9b5eca62d4d18")
FILES = {
    "test": DataFile(
        "medqa/test.jsonl",
        1273,
        "b0536be0ff396be91eb0cf61a42056b0abef06a23e7e8be491d62fd959b77b72",
        "https://raw.githubusercontent.com/gersteinlab/medagents-benchmark/f5e50b69be/data/medqa/test.jsonl",
    )
}


def problem(record: Record, id: str) -> Problem:
    """One record `{"question", "options", "answer_idx"}` as a problem; if `answer` is there it must be that option."""
    options = value(record, id, "options")
    letters = sorted(options) if isinstance(options, dict) else []
    if letters != list("ABCD"):
        raise ValueError(f"{id}: 'options' should map A to D to texts, found {letters or type(options).__name__}")
    key = text_value(record, id, "answer_idx")
    if "answer" in record and options.get(key) != record["answer"]:
        raise ValueError(f"{id}: the key {key!r} and the answer text name different options")
    choices = [options[letter] for letter in letters]
    return choice_problem(id, text_value(record, id, "question"), choices, key, family="medqa")


load = loader("medqa", problem, files=FILES, hub=HUB, parse=json_lines)
"""Problems of "test"; arguments and errors as in `source.Load`."""

BENCHMARK = Benchmark(
    name="medqa",
    kind="choice",
    licence="MIT",
    citation="Jin et al., What Disease does this Patient Have?, Applied Sciences 2021, arXiv 2009.13081",
    hub=HUB,
    files=FILES,
    splits={split: file.records for split, file in FILES.items()},
    load=load,
    evaluation_split="test",
)
