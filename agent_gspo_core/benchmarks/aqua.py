"""AQuA-RAT: algebra word problems with five options, 254 for testing and 254 for development.

Seven test items offer one option twice, and in four of them (rows 117, 124, 126, 193) the key is one of the twins:
`scoring.choices.same_choice` compares what letters name, so either twin is right. Some options have a blank after
"A)"; it is dropped. Always-A scores 24.8 %.

The 97,467 training problems are not offered: no checked file was at hand. Ids name the row of the file:
"aqua/test/17" counts from 0.
"""

from __future__ import annotations

import re

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

_SOURCE = "https://raw.githubusercontent.com/google-deepmind/AQuA/26b64ed1f22208c6742f47df547dfd65088ec30d"
HUB = Hub(
    "deepmind/aqua_rat",
    "raw",
    ("dev", "test"),
    "33301c6a050c96af81f63cad5562cb5363e88971",
    {"dev": "validation"},
)
FILES = {
    "dev": DataFile(
        "aqua/dev.json",
        254,
        "4a52301d8a49ae0b286f8e697f9c5da1b109b247b825b47b4c6de34312dceec5",
        f"{_SOURCE}/dev.json",
    ),
    "test": DataFile(
        "aqua/test.json",
        254,
        "de41581881ef95c5588c44ddc701c77fd480839241dd422a0d181262af24520c",
        f"{_SOURCE}/test.json",
    ),
}
_OPTION = re.compile(r"\s*\(?([A-E])\)(.*)", re.S)


def problem(record: Record, id: str) -> Problem:
    """One record `{"question", "options": ["A)…", …], "correct"}` as a problem."""
    options = [_OPTION.fullmatch(str(option)) for option in value(record, id, "options")]
    letters = "".join(option[1] if option else "?" for option in options)
    if letters != "ABCDE":
        raise ValueError(f"{id}: expected the options A) to E) in order, found the letters {letters!r}")
    choices = [option[2] for option in options if option]
    return choice_problem(
        id, text_value(record, id, "question"), choices, text_value(record, id, "correct"), family="aqua"
    )


load = loader("aqua", problem, files=FILES, hub=HUB, parse=json_lines)
"""Problems of "dev" or "test"; arguments and errors as in `source.Load`."""

BENCHMARK = Benchmark(
    name="aqua",
    kind="choice",
    licence="Apache-2.0",
    citation="Ling et al., Program Induction by Rationale Generation, ACL 2017, arXiv 1705.04146",
    hub=HUB,
    files=FILES,
    splits={split: file.records for split, file in FILES.items()},
    load=load,
    evaluation_split="test",
)
