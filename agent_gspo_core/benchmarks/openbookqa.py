"""OpenBookQA: 500 test and 4,957 training questions of elementary science, four options each.

Asked without the "open book" of facts. Ids name the row of the file: "openbookqa/test/17" counts from 0.
"""

from __future__ import annotations

from agent_gspo_core.benchmarks.choice_records import science_problem
from agent_gspo_core.benchmarks.source import (
    Benchmark,
    DataFile,
    Hub,
    Record,
    json_list,
    loader,
)
from agent_gspo_core.episode import Problem

_SOURCE = (
    "https://raw.githubusercontent.com/AGI-Edgerunners/LLM-Adapters/816657208af4db747803f87ba40a4c71383fed7a/dataset"
)
HUB = Hub("allenai/openbookqa", "main", ("train", "test"), "388097ea7776314e93a529163e0fea805b8a6454")
FILES = {
    "train": DataFile(
        "openbookqa/train.json",
        4957,
        "a1e094eeea01f70c0baa880f37497b26700ae99b243927b9c529984de9b1fe90",
        f"{_SOURCE}/openbookqa/train.json",
    ),
    "test": DataFile(
        "openbookqa/test.json",
        500,
        "8479930f7b8a26052c78250280b5465a4016ca7fc806af440d0f37e243f3099e",
        f"{_SOURCE}/openbookqa/test.json",
    ),
}


def problem(record: Record, id: str) -> Problem:
    """One record as a problem. Errors as in `science_problem`."""
    return science_problem(record, id, family="openbookqa")


load = loader("openbookqa", problem, files=FILES, hub=HUB, parse=json_list)
"""Problems of "train" or "test"; arguments and errors as in `source.Load`."""

BENCHMARK = Benchmark(
    name="openbookqa",
    kind="choice",
    licence="Apache-2.0",
    citation="Mihaylov et al., Can a Suit of Armor Conduct Electricity?, EMNLP 2018, arXiv 1809.02789",
    hub=HUB,
    files=FILES,
    splits={split: file.records for split, file in FILES.items()},
    load=load,
    evaluation_split="test",
    training_split="train",
)
