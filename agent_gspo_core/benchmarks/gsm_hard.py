"""GSM-Hard: the 1,319 test problems of GSM8K with one number made large.

The answers were computed by programs: 303 of them are not whole, the largest is 9.3e12 and the smallest 3.5e-7. An
answer that is not whole is compared with a relative tolerance (`scoring.numbers.RELATIVE_TOLERANCE`). Some stories no
longer make sense with the large number (a family that eats 4,933,828 eggs a day, a negative income); the published
target is kept. Ids name the row of the file, the same as in GSM8K's test set: "gsm_hard/test/17" counts from 0.
"""

from __future__ import annotations

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
from agent_gspo_core.scoring.numbers import canonical, parse_number

HUB = Hub("reasoning-machines/gsm-hard", "default", ("test",), renamed={"test": "train"})
FILES = {
    "test": DataFile(
        "gsm_hard/gsmhardv2.jsonl",
        1319,
        "2032b0188a49ac0ec38cbe1e695e7d62d6dddc44bbb64f920728aca710e9ddef",
        "https://raw.githubusercontent.com/reasoning-machines/pal/f81ca2a9777f002f98a6b4d0f10b61bd5c8feb02"
        "/datasets/gsmhardv2.jsonl",
    )
}


def problem(record: Record, id: str) -> Problem:
    """One record `{"input", "target"}` as a problem; -9867630.0 is written "-9867630"."""
    target = value(record, id, "target")
    gold = parse_number(str(target)) if isinstance(target, int | float) and not isinstance(target, bool) else None
    if gold is None:
        raise ValueError(f"{id}: expected a finite number as 'target', found {target!r:.60}")
    return Problem(id=id, question=text_value(record, id, "input"), answer=canonical(gold), family="gsm_hard")


load = loader("gsm_hard", problem, files=FILES, hub=HUB, parse=json_lines)
"""Problems of "test" (the hub calls it "train"); arguments and errors as in `source.Load`."""

BENCHMARK = Benchmark(
    name="gsm_hard",
    kind="number",
    licence="Apache-2.0",
    citation="Gao et al., PAL: Program-aided Language Models, ICML 2023, arXiv 2211.10435",
    hub=HUB,
    files=FILES,
    splits={split: file.records for split, file in FILES.items()},
    load=load,
    evaluation_split="test",
)
