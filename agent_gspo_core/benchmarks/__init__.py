"""Benchmarks: one file each, with the same `load` and the same card (`BENCHMARK`).

`BENCHMARKS["gsm8k"].load("test", limit=50)` gives problems from a checked local folder or the hub (see `source`).
"""

from __future__ import annotations

from agent_gspo_core.benchmarks import gsm8k, multiarith
from agent_gspo_core.benchmarks.source import DATA_VARIABLE, Benchmark, DataFile, Hub

__all__ = ["BENCHMARKS", "DATA_VARIABLE", "Benchmark", "DataFile", "Hub"]

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in (gsm8k.BENCHMARK, multiarith.BENCHMARK)}
