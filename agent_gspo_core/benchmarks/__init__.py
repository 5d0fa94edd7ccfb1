"""Benchmarks: one file each, with the same `load` and the same card (`BENCHMARK`).

`BENCHMARKS["gsm8k"].load("test", limit=50)` gives problems from a checked local folder or the hub (see `source`).
"""

from __future__ import annotations

from agent_gspo_core.benchmarks import (
    aime,
    aqua,
    arc,
    commonsenseqa,
    gpqa,
    gsm8k,
    gsm_hard,
    hiddenbench,
    humaneval,
    humaneval_plus,
    math500,
    mbpp_plus,
    medqa,
    mmlu,
    multiarith,
    openbookqa,
    svamp,
)
from agent_gspo_core.benchmarks.source import DATA_VARIABLE, Benchmark, DataFile, Hub

__all__ = ["BENCHMARKS", "DATA_VARIABLE", "SEVEN", "Benchmark", "DataFile", "Hub"]

SEVEN = ("mmlu", "gsm8k", "multiarith", "svamp", "aqua", "humaneval", "math500")
"""The seven reasoning benchmarks. Agent-GSPO does not name its seven: six are those its line of work shares, the
seventh, MATH-500, is our choice."""

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        mmlu.BENCHMARK,
        gsm8k.BENCHMARK,
        multiarith.BENCHMARK,
        svamp.BENCHMARK,
        aqua.BENCHMARK,
        humaneval.BENCHMARK,
        math500.BENCHMARK,
        mmlu.BENCHMARK_153,
        aime.AIME24,
        aime.AIME25,
        gpqa.BENCHMARK,
        openbookqa.BENCHMARK,
        humaneval_plus.BENCHMARK,
        mbpp_plus.BENCHMARK,
        gsm_hard.BENCHMARK,
        arc.ARC_EASY,
        arc.ARC_CHALLENGE,
        medqa.BENCHMARK,
        commonsenseqa.BENCHMARK,
        hiddenbench.BENCHMARK,
    )
}
