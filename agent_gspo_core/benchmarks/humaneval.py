"""HumanEval: 164 Python functions to write from signature and docstring, each with hidden tests.

The set of 164 only. Repositories of this line of work carry a file of 161 tasks with other tests, whose figures are not
comparable with these; it is refused here by its digest and its count.

A problem's `answer` is prompt and canonical solution together; the test program is the published `check` and the call
that runs it. Ids name the row of the file, which is the task's own number: "humaneval/test/17" is HumanEval/17.
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
from agent_gspo_core.episode import CodeTests, Problem

HUB = Hub("openai/openai_humaneval", "openai_humaneval", ("test",), "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544")
FILES = {
    "test": DataFile(
        "humaneval/HumanEval.jsonl.gz",
        164,
        "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
        "https://raw.githubusercontent.com/openai/human-eval/6d43fb980f9fee3c892a914eda09951f772ad10d"
        "/data/HumanEval.jsonl.gz",
    )
}


def problem(record: Record, id: str) -> Problem:
    """One record `{"prompt", "canonical_solution", "test", "entry_point"}` as a problem."""
    entry_point = text_value(record, id, "entry_point")
    test = value(record, id, "test")
    if "def check(" not in str(test):
        raise ValueError(f"{id}: 'test' does not define check(candidate)")
    return completion_problem(record, id, f"{test}\n\ncheck({entry_point})\n", family="humaneval")


def completion_problem(record: Record, id: str, program: str, *, family: str) -> Problem:
    """A problem that asks to complete a function: `prompt`, `canonical_solution`, `entry_point`, and a test program."""
    prompt, body = (str(value(record, id, field)) for field in ("prompt", "canonical_solution"))
    return Problem(
        id=id,
        question=f"Complete this Python function:\n\n```python\n{prompt.strip()}\n```",
        answer=prompt + body,
        kind="code",
        family=family,
        tests=CodeTests(text_value(record, id, "entry_point"), program, prompt),
    )


load = loader("humaneval", problem, files=FILES, hub=HUB, parse=json_lines)
"""Problems of "test"; arguments and errors as in `source.Load`. Nothing is executed."""

BENCHMARK = Benchmark(
    name="humaneval",
    kind="code",
    licence="MIT",
    citation="Chen et al., Evaluating Large Language Models Trained on Code, 2021, arXiv 2107.03374",
    hub=HUB,
    files=FILES,
    splits={split: file.records for split, file in FILES.items()},
    load=load,
    evaluation_split="test",
)
