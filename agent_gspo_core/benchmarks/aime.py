"""AIME 2024 and 2025: thirty competition problems each, answers whole numbers from 0 to 999.

Two benchmarks, "aime24" and "aime25". The 2024 file writes answers with three digits ("025" is 25). One item is 3.3
points: draw several samples per item, and give an interval. Ids name the row of the file: "aime24/test/17" counts from
0. The problems are © Mathematical Association of America; no licence to copy them is known.
"""

from __future__ import annotations

import re

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

HUBS = {
    "aime24": Hub(
        "HuggingFaceH4/aime_2024",
        "default",
        ("test",),
        "2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        {"test": "train"},
    ),
    "aime25": Hub("math-ai/aime25", "default", ("test",), "563bb8404243c5f09de6ec262f2db674fe5bce9b"),
}
FILES = {
    "aime24": {
        "test": DataFile(
            "aime/aime24.jsonl",
            30,
            "af2b8bd2aa911b6333ad0df32f3ca05c7ae8ed10f1731f4372c8ae26990bf7ac",
            "https://raw.githubusercontent.com/QwenLM/Qwen2.5-Math/a45202bd16f1ec06f433442dc1152d0074773465"
            "/evaluation/data/aime24/test.jsonl",
        )
    },
    "aime25": {
        "test": DataFile(
            "aime/aime25.jsonl",
            30,
            "19a9f25a12e89abaeea9f7e214f8b6f6eae43285e9d8df7a3818ca0408df4b07",
            "https://raw.githubusercontent.com/armenjeddi/mcd/76771f969048ebd77a1b4261b0a3469192c6f92a"
            "/evaluation/data/aime25/test.jsonl",
        )
    },
}
_ANSWER = re.compile(r"\$?([0-9]{1,3})(?:\^\{?\\circ\}?)?\$?")  # one copy of a 2025 answer carries a degree sign


def problem(record: Record, id: str) -> Problem:
    """One record `{"problem", "answer"}` as a problem; the answer loses its leading zeros."""
    answer = value(record, id, "answer")
    match = _ANSWER.fullmatch(str(answer).strip()) if not isinstance(answer, bool) else None
    if match is None:
        raise ValueError(f"{id}: expected a whole number from 0 to 999 as 'answer', found {answer!r:.60}")
    question = text_value(record, id, "problem", "question")
    return Problem(id=id, question=question, answer=str(int(match[1])), family=id.partition("/")[0])


def _card(name: str, year: int) -> Benchmark:
    return Benchmark(
        name=name,
        kind="number",
        licence="unclear",
        citation=f"Mathematical Association of America, American Invitational Mathematics Examination {year}",
        hub=HUBS[name],
        files=FILES[name],
        splits={split: file.records for split, file in FILES[name].items()},
        load=loader(name, problem, files=FILES[name], hub=HUBS[name], parse=json_lines),
        evaluation_split="test",
    )


AIME24, AIME25 = _card("aime24", 2024), _card("aime25", 2025)
