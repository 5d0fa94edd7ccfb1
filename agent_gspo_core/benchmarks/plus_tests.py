"""The test program of HumanEval+ and MBPP+: many inputs, compared with what the canonical solution returns.

The published files come in two forms. "OriginFmt" holds ready tests with expected outputs, but HumanEval/32 cannot be
passed in it (it unpacks a float), three MBPP+ tests (737, 787, 794) check nothing, some inputs are huge, and inputs
were dropped. "NoExtreme" holds inputs only, the huge ones left out. So the program is built from NoExtreme: it
carries the inputs and the canonical solution, and computes what is expected where it runs (ours; EvalPlus does the same
ahead of time). It needs no numpy.

The program keeps everything in a namespace of its own and takes from the solution's module only the function under
test: a solution that defines `len` or a helper of the same name as the reference's does not change the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Oracle = Literal["same", "as sets", "found or not", "root of polynomial"]
"""How an output is compared; all but "same" are EvalPlus's exceptions for single tasks."""

_PROGRAM = """\
import copy

inf, nan = float("inf"), float("nan")
reference_space = {{"__name__": "reference"}}
exec({reference!r}, reference_space)
reference = reference_space[{entry_point!r}]
inputs = {inputs!r}
atol = {atol!r}


def all_floats(value):
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, float) for item in value)
    return isinstance(value, float)


def is_number(value):
    return isinstance(value, (int, float, complex)) and not isinstance(value, bool)


def close(found, expected, atol):
    if found == expected:
        return True
    if is_number(found) and is_number(expected):
        if found != found or expected != expected:
            return found != found and expected != expected
        if abs(expected) == inf:
            return False
        return abs(found - expected) <= atol + 1e-7 * abs(expected)
    if isinstance(expected, (list, tuple)) and type(found) is type(expected) and len(found) == len(expected):
        return all(close(one, other, atol) for one, other in zip(found, expected))
    return False


def same(found, expected, arguments):
    tolerance = 1e-6 if atol == 0 and all_floats(expected) else atol
    return close(found, expected, tolerance) if tolerance else bool(found == expected)

{oracle}
for number, arguments in enumerate(inputs):
    expected = reference(*copy.deepcopy(arguments))
    found = candidate(*copy.deepcopy(arguments))
    assert right(found, expected, arguments), f"wrong output for input {{number}} of {{len(inputs)}}"
"""

_ORACLES: dict[Oracle, str] = {
    "same": "right = same\n",
    "as sets": """
def right(found, expected, arguments):
    return set(found) == set(expected)

""",
    "found or not": """
def answer(value):
    return value if isinstance(value, bool) else value is not None


def right(found, expected, arguments):
    return answer(found) == answer(expected)

""",
    "root of polynomial": """
def right(found, expected, arguments):
    return abs(sum(factor * found**power for power, factor in enumerate(arguments[0]))) <= atol

""",
}


def plus_program(
    entry_point: str, reference: str, inputs: Sequence[Sequence[object]], *, atol: float, oracle: Oracle = "same"
) -> str:
    """The program that runs after a solution, in its module, and raises at the first output that is wrong.

    Comparison as in EvalPlus: exact, or within `atol` + 1e-7 · |expected| where `atol` is not 0; outputs that are
    floats, or a flat list of them, within 1e-6 at least. NaN equals NaN (ours).

    Args:
        entry_point: name of the function under test, in the solution and in the reference.
        reference: source that defines it rightly.
        inputs: one list of arguments per call.
        atol: absolute tolerance, the benchmark's own.
        oracle: how the outputs are compared.
    """
    source = _PROGRAM.format(
        reference=reference,
        entry_point=entry_point,
        inputs=[list(arguments) for arguments in inputs],
        atol=atol,
        oracle=_ORACLES[oracle],
    )
    return (
        "import builtins as _builtins\n\n"
        f'_tests = {{"__name__": "tests", "candidate": {entry_point}}}\n'
        f"_builtins.exec({source!r}, _tests)\n"
    )
