"""MBPP+: 378 short Python tasks in a sentence and an example, with about thirty-five times as many tests as MBPP.

    test      NoExtreme v0.2.0: huge inputs left out; the program is built here (see `plus_tests`). Local file only
    origin    OriginFmt: the ready tests as published; needs numpy. Tasks 737, 787 and 794 check nothing in it: any
              program that runs passes. The hub serves this form only

Figures on the two splits are not comparable. NoExtreme writes inputs as JSON, where tuples are lists and complex
numbers are texts; `_ARGUMENTS` gives them back (found by comparing both files, input by input). Seven tasks compare
outputs as sets, three ask only whether something was found: `_ORACLES`, as EvalPlus has them.

Ids name the row of the file, not the task's number: "mbpp_plus/test/0" is Mbpp/2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from agent_gspo_core.benchmarks.plus_tests import Oracle, plus_program
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

_SOURCE = "https://raw.githubusercontent.com/evalplus/mbppplus_release/dadf43da556a00f7bacd71cb154f2932757d9144"
HUB = Hub(
    "evalplus/mbppplus",
    "default",
    ("origin",),
    "b2d74c91837c3f2a20c1299ae98133cbe7cfa077",
    {"origin": "test"},
)
FILES = {
    "test": DataFile(
        "mbpp_plus/MbppPlus-NoExtreme.jsonl.gz",
        378,
        "72d32acaea73d5606cb97041b30d45bbda9435a675369d3e31965513ee94e564",
        f"{_SOURCE}/MbppPlus-NoExtreme.jsonl.gz",
    ),
    "origin": DataFile(
        "mbpp_plus/MbppPlus-OriginFmt.jsonl.gz",
        378,
        "7a5aec547b134fa297ee6c45f829298aa3f58de02547b8d8a5c3d85d9cb10efc",
        f"{_SOURCE}/MbppPlus-OriginFmt.jsonl.gz",
    ),
}

_ORACLES: dict[str, Oracle] = {
    **dict.fromkeys(
        ("Mbpp/2", "Mbpp/7", "Mbpp/111", "Mbpp/140", "Mbpp/232", "Mbpp/579", "Mbpp/769"), "as sets"
    ),
    **dict.fromkeys(("Mbpp/737", "Mbpp/787", "Mbpp/794"), "found or not"),
}  # fmt: skip


def _tuple(item: object) -> object:
    return tuple(item) if isinstance(item, list) else item


def _list_of_tuples(item: object) -> object:
    return [_tuple(inner) for inner in item] if isinstance(item, list) else item


def _tuple_of_tuples(item: object) -> object:
    return _tuple(_list_of_tuples(item))


def _tuples_throughout(item: object) -> object:
    if isinstance(item, dict):
        return {key: _tuples_throughout(inner) for key, inner in item.items()}
    return tuple(map(_tuples_throughout, item)) if isinstance(item, list) else item


def _number(item: object) -> object:
    return float(str(item))


def _complex(item: object) -> object:
    return complex(str(item))


def _as_is(item: object) -> object:
    return item


_FORMS: dict[str, tuple[Callable[[object], object], ...]] = {
    "116 132 222 394 421 424 470 596 630 726 740 744": (_tuple,),
    "2 261 273 429 560 579 616 809": (_tuple, _tuple),
    "250 405 446 720 763 808": (_tuple, _as_is),
    "106 750": (_as_is, _tuple),
    "63 64 70 94 120 237 272 299 409 614 780": (_list_of_tuples,),
    "75 413 753": (_list_of_tuples, _as_is),
    "473": (_list_of_tuples, _list_of_tuples),
    "278 615": (_tuple_of_tuples,),
    "259 445": (_tuple_of_tuples, _tuple_of_tuples),
    "580 791": (_tuples_throughout,),
    "722": (_tuples_throughout, _as_is, _as_is),
    "124": (_number, _complex),
    "252": (_complex,),
}
_ARGUMENTS = {f"Mbpp/{task}": forms for tasks, forms in _FORMS.items() for task in tasks.split()}
"""How the arguments of a task are given back the type that JSON took from them."""

_CALLED = re.compile(r"^\s*assertion\(([A-Za-z_]\w*)\(", re.M)


def problem(record: Record, id: str) -> Problem:
    """One record of either form as a problem: with inputs if it has `base_input`, else with its ready `test`."""
    if "base_input" not in record:
        return _ready_problem(record, id)
    task, entry_point = (text_value(record, id, field) for field in ("task_id", "entry_point"))
    solution = str(value(record, id, "canonical_solution"))
    inputs = [*value(record, id, "base_input"), *(record.get("plus_input") or [])]
    program = plus_program(
        entry_point,
        solution,
        [typed(task, arguments, id) for arguments in inputs],
        atol=value(record, id, "atol"),
        oracle=_ORACLES.get(task, "same"),
    )
    statement = text_value(record, id, "prompt").strip('"').strip()
    return _made(id, statement, solution, entry_point, program)


def typed(task: str, arguments: Sequence[object], id: str) -> list[object]:
    """The arguments of one call with the tuples and complex numbers that JSON cannot write."""
    forms = _ARGUMENTS.get(task)
    if forms is None:
        return list(arguments)
    if len(forms) != len(arguments):
        raise ValueError(f"{id}: a call of {task} has {len(arguments)} arguments, expected {len(forms)}")
    return [form(argument) for form, argument in zip(forms, arguments, strict=True)]


def _ready_problem(record: Record, id: str) -> Problem:
    test = text_value(record, id, "test")
    called = _CALLED.findall(test)
    if not called:
        raise ValueError(f"{id}: 'test' does not call assertion(function(…)), so the function's name is not known")
    examples = value(record, id, "test_list")
    example = examples[0] if isinstance(examples, list) and examples else str(examples)
    statement = f"{text_value(record, id, 'prompt')}\n{example}"
    return _made(id, statement, str(value(record, id, "code")), called[-1], test + "\n")


def _made(id: str, statement: str, solution: str, entry_point: str, program: str) -> Problem:
    return Problem(
        id=id,
        question=f"{statement}\n\nThe function must be named `{entry_point}`.",
        answer=solution,
        kind="code",
        family="mbpp_plus",
        tests=CodeTests(entry_point, program),
    )


load = loader("mbpp_plus", problem, files=FILES, hub=HUB, parse=json_lines)
"""Problems of "test" or "origin"; arguments and errors as in `source.Load`. Nothing is executed."""

BENCHMARK = Benchmark(
    name="mbpp_plus",
    kind="code",
    licence="Apache-2.0",
    citation="Liu et al., Is Your Code Generated by ChatGPT Really Correct?, NeurIPS 2023, arXiv 2305.01210",
    hub=HUB,
    files=FILES,
    splits={split: file.records for split, file in FILES.items()},
    load=load,
    evaluation_split="test",
)
