"""HiddenBench: 65 group decisions in plain language, each with facts that only one participant knows.

The counterpart of `hidden_profile` for real language models. Everybody reads the description and the shared facts;
each participant has one private fact (`Problem.notes`). 58 tasks have four participants and 7 have three, and a team
must have as many agents as the task has notes: pass `agents` to keep the tasks that fit. Published: groups are right in
30.1 % of cases, one agent with all facts in 80.7 % (arXiv 2505.11556).

On the hub only (MIT); its single split "train" is a test set and called "test" here. The record's form is taken from
public code that reads it, no copy was at hand: a record that lacks a field is named. Options keep the source's order.
Ids name the row: "hiddenbench/test/17" counts from 0; the family is the number of participants.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase

from agent_gspo_core.benchmarks.choice_records import choice_problem
from agent_gspo_core.benchmarks.source import (
    Benchmark,
    DataFile,
    Hub,
    Record,
    check_count,
    json_list,
    numbered,
    read_split,
    take,
    text_value,
    value,
)
from agent_gspo_core.episode import Problem

HUB = Hub("YuxuanLi1225/HiddenBench", "default", ("test",), renamed={"test": "train"})
SPLITS = {"test": 65}
FILES: dict[str, DataFile] = {}


def load(
    split: str,
    *,
    root: str | Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    revision: str | None = None,
    agents: int | None = None,
) -> list[Problem]:
    """Problems of "test"; arguments and errors as in `source.Load`, and:

    Args:
        split: "test".
        root: has no effect, the hub alone has this set.
        limit: at most so many problems, drawn by `seed`.
        seed: of the subset.
        revision: commit or branch of the hub data set; `None` reads "main", no commit is pinned.
        agents: keep the tasks with so many participants (3 or 4); `None` keeps all.
    """
    records = read_split("hiddenbench", split, files=FILES, hub=HUB, parse=json_list, root=root, revision=revision)
    check_count(f"{HUB.id} ({split})", SPLITS[split], len(records))
    problems = [problem(record, id) for record, id in numbered(records, f"hiddenbench/{split}")]
    fitting = [problem for problem in problems if agents in (None, len(problem.notes))]
    if not fitting:
        sizes = sorted({len(problem.notes) for problem in problems})
        raise ValueError(f"hiddenbench: no task for {agents} agents; there are tasks for {sizes}")
    return take(fitting, limit, seed)


def problem(record: Record, id: str) -> Problem:
    """One record as a problem.

    Fields: `description`, `shared_information`, `hidden_information` (one text per participant), `possible_answers`,
    `correct_answer`. Raises `ValueError` naming the problem and the field.
    """
    shared, notes, choices = (
        _texts(record, id, field) for field in ("shared_information", "hidden_information", "possible_answers")
    )
    right = text_value(record, id, "correct_answer")
    if choices.count(right) != 1:
        raise ValueError(f"{id}: 'correct_answer' should be exactly one of the {len(choices)} 'possible_answers'")
    facts = "\n".join(f"- {fact}" for fact in shared)
    made = choice_problem(
        id,
        f"{text_value(record, id, 'description')}\n\nKnown to everybody:\n{facts}",
        choices,
        ascii_uppercase[choices.index(right)],
        family=f"{len(notes)} participants",
    )
    return replace(made, notes=tuple(notes))


def _texts(record: Record, id: str, field: str) -> list[str]:
    found = value(record, id, field)
    if not isinstance(found, list) or not found or not all(isinstance(text, str) and text.strip() for text in found):
        raise ValueError(f"{id}: field {field!r} should be a list of texts, none of them blank")
    return [text.strip() for text in found]


BENCHMARK = Benchmark(
    name="hiddenbench",
    kind="choice",
    licence="MIT",
    citation="Li et al., Assessing Collective Reasoning in Multi-Agent LLMs via Hidden Profile Tasks, arXiv 2505.11556",
    hub=HUB,
    files=FILES,
    splits=SPLITS,
    load=load,
    evaluation_split="test",
    access=f"hub only: {HUB.id}, also when a local folder is named",
)
