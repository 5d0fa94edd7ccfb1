"""ARC: science questions of grade school with three to five options, Easy (2,376) and Challenge (1,172).

Test sets only. Two benchmarks, "arc_easy" and "arc_challenge". Options numbered 1 to 4 in the source become letters.
Ids name the row of the file: "arc_easy/test/17" counts from 0.
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
_REVISION = "210d026faf9955653af8916fad021475a3f00453"
HUBS = {
    "arc_easy": Hub("allenai/ai2_arc", "ARC-Easy", ("test",), _REVISION),
    "arc_challenge": Hub("allenai/ai2_arc", "ARC-Challenge", ("test",), _REVISION),
}
FILES = {
    "arc_easy": {
        "test": DataFile(
            "arc/ARC-Easy_test.json",
            2376,
            "3f32a84716ca6d57d38728bf80cc8117aecd17445c2cf29a68b571b810eb82dc",
            f"{_SOURCE}/ARC-Easy/test.json",
        )
    },
    "arc_challenge": {
        "test": DataFile(
            "arc/ARC-Challenge_test.json",
            1172,
            "4a89ce368ae01a71d268d9851686738b2a0a1d84271116bab49a1dd2b48ecad7",
            f"{_SOURCE}/ARC-Challenge/test.json",
        )
    },
}


def problem(record: Record, id: str) -> Problem:
    """One record as a problem; the family is the benchmark's name. Errors as in `science_problem`."""
    return science_problem(record, id, family=id.partition("/")[0])


def _card(name: str) -> Benchmark:
    return Benchmark(
        name=name,
        kind="choice",
        licence="CC-BY-SA-4.0",
        citation="Clark et al., Think you have Solved Question Answering? Try ARC, 2018, arXiv 1803.05457",
        hub=HUBS[name],
        files=FILES[name],
        splits={split: file.records for split, file in FILES[name].items()},
        load=loader(name, problem, files=FILES[name], hub=HUBS[name], parse=json_list),
        evaluation_split="test",
    )


ARC_EASY, ARC_CHALLENGE = _card("arc_easy"), _card("arc_challenge")
