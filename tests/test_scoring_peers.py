"""Our reading of numbers against customary ones, on the rows of `test_scoring_numbers`.

The two patterns are those that GSM8K is customarily scored with: the last number anywhere, and the first marked one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

import pytest
from test_scoring_numbers import TABLES

from agent_gspo_core.scoring.numbers import parse_number, read_number

ROWS = [(reply, lenient) for rows in TABLES.values() for reply, lenient, _ in rows]
Reader = Callable[[str], Fraction | None]


def last_number(reply: str) -> Fraction | None:
    found = [whole or digits for whole, digits in re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", reply)]
    return _plain_value(found[-1]) if found else None


def first_marked_number(reply: str) -> Fraction | None:
    found = re.search(r"#### (-?[0-9.,]+)", reply)
    return _plain_value(found[1]) if found else None


def _plain_value(text: str) -> Fraction | None:
    try:
        return Fraction(text.replace("$", "").replace(",", "").rstrip("."))
    except (ValueError, ZeroDivisionError):
        return None


def ours(reply: str) -> Fraction | None:
    read = read_number(reply)
    return None if read is None else Fraction(read)


def math_verify(reply: str) -> Fraction | None:
    from math_verify import parse

    for found in parse(reply, parsing_timeout=None)[:1]:
        try:
            value = found.doit()
            return Fraction(str(value)) if value.is_number and value.is_finite else None
        except (AttributeError, ValueError, TypeError, ZeroDivisionError):
            return None
    return None


def tally(reader: Reader) -> tuple[int, int]:
    """(read right, false positives: a number read where none or another one is given)."""
    right = wrong = 0
    for reply, lenient in ROWS:
        read, expected = reader(reply), None if lenient is None else parse_number(lenient)
        same = read == expected or (
            read is not None and expected is not None and abs(read - expected) < abs(expected) / 10**6
        )
        right += same
        wrong += read is not None and not same
    return right, wrong


def test_ours_reads_every_row_and_credits_none_falsely() -> None:
    assert tally(ours) == (len(ROWS), 0)


@pytest.mark.parametrize("reader", [last_number, first_marked_number], ids=["last number", "first marked"])
def test_customary_patterns_read_less_and_credit_falsely(reader: Reader) -> None:
    right, wrong = tally(reader)
    assert right < 0.7 * len(ROWS)
    assert wrong > 0


@pytest.mark.slow
def test_math_verify_reads_less_and_credits_falsely() -> None:
    right, wrong = tally(math_verify)
    assert right < 0.9 * len(ROWS)
    assert wrong > 0
