from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gspo_core.episode import Problem
from agent_gspo_core.scoring import Scored, is_correct, read_answer, score
from agent_gspo_core.scoring.choices import read_choice, same_choice
from agent_gspo_core.scoring.numbers import canonical, parse_number, read_number, same_number
from agent_gspo_core.scoring.text import normalise_text, own_part, read_text

OPTIONS = ("12", "15", "Ben", "None of the above")


def number(answer: str) -> Problem:
    return Problem(id="p", question="How many?", answer=answer)


def choice(answer: str, options: tuple[str, ...] = OPTIONS) -> Problem:
    return Problem(id="p", question="Which?", answer=answer, kind="choice", choices=options)


def text(answer: str) -> Problem:
    return Problem(id="p", question="Who?", answer=answer, kind="text")


# (reply, read strictly, read leniently)
MARKED_NUMBERS = [
    ("#### 18", "18", "18"),
    ("She sells 9 eggs at $2.\n#### 18", "18", "18"),
    ("####18", "18", "18"),
    ("#### 18.", "18", "18"),
    ("#### 18.0", "18", "18"),
    ("#### $18.00", "18", "18"),
    ("#### 18 dollars", "18", "18"),
    ("#### 18 dollars per day", "18", "18"),
    ("#### **18**", "18", "18"),
    ("#### `18`", "18", "18"),
    ("#### $18$", "18", "18"),
    ("#### €18", "18", "18"),
    ("#### 18km", "18", "18"),
    ("#### 18 m^2", "18", "18"),
    ("#### 18. She sells 9 eggs at 2 dollars each.", "18", "18"),
    ("#### 18 (9 eggs at 2 dollars)", "18", "18"),
    ("#### 18 because 9 * 2 = 18", "18", "18"),
    ("#### 007", "7", "7"),
    ("#### -5", "-5", "-5"),
    ("#### −5", "-5", "-5"),
    ("#### – 5", "-5", "-5"),
    ("#### -$5", "-5", "-5"),
    ("#### $-5", "-5", "-5"),
    ("#### minus 7", "-7", "-7"),
    ("#### -0", "0", "0"),
    ("#### +5", "5", "5"),
    ("#### 1,234", "1234", "1234"),
    ("#### -1,234,567.50", "-1234567.5", "-1234567.5"),
    ("#### 1 234", "1234", "1234"),
    ("#### 1\u202f234", "1234", "1234"),
    ("#### 1\u00a0234\u00a0567", "1234567", "1234567"),
    ("#### 10,\\!080", "10080", "10080"),
    ("#### 1{,}234", "1234", "1234"),
    ("#### 3.75", "3.75", "3.75"),
    ("#### .5", "0.5", "0.5"),
    ("#### 1/2", "0.5", "0.5"),
    ("#### -1/3", "-1/3", "-1/3"),
    ("#### 6/3", "2", "2"),
    ("#### 1 1/2", "1.5", "1.5"),
    ("#### -1 1/2", "-1.5", "-1.5"),
    ("#### 1½", "1.5", "1.5"),
    ("#### ½", "0.5", "0.5"),
    ("#### \\frac{1}{2}", "0.5", "0.5"),
    ("#### 1\\frac{1}{2}", "1.5", "1.5"),
    ("#### 5%", "5", "5"),
    ("#### 25 \\%", "25", "25"),
    ("#### 1e5", "100000", "100000"),
    ("#### 3 \\times 10^{5}", "300000", "300000"),
    ("#### 18k", "18000", "18000"),
    ("#### 1.5 million", "1500000", "1500000"),
    ("#### ５", "5", "5"),
    ("#### x = 5", "5", "5"),
    ("#### 16 - 3 = 13", "13", "13"),
    ("#### x = <<9*2=18>>18", "18", "18"),
    ("#### 5 #### 6", "5", "5"),
    # nothing that can be read: never a part of it
    ("#### 3,75", None, None),
    ("#### 12,34,56", None, None),
    ("#### 1'234", None, None),
    ("#### 1.234.567", None, None),
    ("#### 3:45", None, None),
    ("#### 5x", None, None),
    ("#### 5^2", None, None),
    ("#### 5²", None, None),
    ("#### 2**3", None, None),
    ("#### 9 * 2", None, None),
    ("#### 3-5", None, None),
    ("#### \\sqrt{2}", None, None),
    ("#### 5\\pi", None, None),
    ("#### 1/0", None, None),
    ("#### 2 3/2", None, None),
    ("#### 5 and a half", None, None),
    ("#### 1e9999", None, None),
    ("#### 5 or 6", None, None),
    ("#### x = 5, y = 6", None, None),
    ("#### 3 hours 20 minutes", None, None),
    ("#### eighteen", None, "18"),
    ("#### ", None, None),
    ("9 * 2 = 18\n####", None, None),
    ("#### I do not know.", None, None),
    ("It may be 5.\n#### I don't know", None, None),
    ("I counted 3.\n#### none", None, None),
    # the agreed form is one line that begins with the number; lenient forgives more
    ("####\n18", None, "18"),
    ("#### The answer is 18.", None, "18"),
    ("#### Final Answer\n\n18", None, "18"),
    ("#### USD 18", None, "18"),
    ("#### Step 1: count 3 eggs\n9 * 2\n#### 18", None, "18"),
    ("#### Solution\nThe answer is 18.", None, "18"),
    # what follows is not the model's own answer
    ("#### 18\nQuestion: Tom has 3.\n#### 3", "18", "18"),
    ("so 18\n\nQ: Tom has 3.\nA: 3", None, "18"),
    ("so 18\nProblem 2: Tom has 3.\n#### 3", None, "18"),
    ("so 18 Question: Tom has 3. #### 3", None, "18"),
    ("so 18<|im_end|>\n<|im_start|>user\n#### 3", None, "18"),
    ("Question: Tom has 3.\n#### 4\nQuestion: 5", "4", "4"),
]

UNMARKED_NUMBERS = [
    ("\\boxed{18}", "18"),
    ("\\boxed{\\$18.00}", "18"),
    ("\\boxed{18\\text{ dollars}}", "18"),
    ("\\boxed{\\text{\\textbf{18}}}", "18"),
    ("\\boxed{\\frac{1}{2}}", "0.5"),
    ("\\boxed{-\\dfrac{3}{4}}", "-0.75"),
    ("\\boxed{1,234}", "1234"),
    ("\\boxed{x = 5}", "5"),
    ("\\boxed 18", "18"),
    ("$\\boxed{18}$ and then 20 more words", "18"),
    ("\\boxed{17}, no: \\boxed{18}", "18"),
    ("The answer is 17, \\boxed{18}", "18"),
    ("9 * 2 = 18, \\boxed{}", None),
    ("9 * 2 = 18, \\boxed{18", None),
    ("\\boxed{17} \\boxed{", None),
    ("\\boxed", None),
    ("\\boxed{(1, 2)}", None),
    ("\\boxed{\\frac{\\pi}{2}}", None),
    ("The answer is 18.", "18"),
    ("The answer is 18", "18"),
    ("The final answer is: **$18.00**", "18"),
    ("**Answer:** 18 eggs", "18"),
    ("The answer is:\n\n18", "18"),
    ("The answer to the question is 18.", "18"),
    ("The answer is 18. She started with 16.", "18"),
    ("The answer is approx. 3.5", "3.5"),
    ("The answer is 5. Wait. The answer is 6.", "6"),
    ("The answer is 18. This answer is correct: 9 * 2.", "18"),
    ("La respuesta es 9.", "9"),
    ("Die Antwort lautet 7.", "7"),
    ("答案是5个", "5"),
    ("The answer is not 5.", None),
    ("The answer isn't 5.", None),
    ("The answer is 5 or 6.", None),
    ("The answer is unclear, 3 eggs are left", None),
    ("The answer is eighteen, from 9 twice.", None),
    ("9 * 2 = 18", "18"),
    ("She makes $18 every day.", "18"),
    ("She makes -$18", "-18"),
    ("her income - $18", "18"),
    ("1. Count 9 eggs.\n2. Double.\n3. Get 18 eggs.", "18"),
    ("Steps:\n- 18 eggs\n", "18"),
    ("1. Count the eggs.\n2. Double them.", None),
    ("so 9 * 2", None),
    ("between 3 - 5", None),
    ("it is 1,23", None),
    ("COVID-19", None),
    ("eggs", None),
    ("", None),
    ("   \n", None),
    ("I do not know.", None),
    ("I don’t know. There were 3 eggs.", None),
    ("With 3 eggs it cannot be determined.", None),
    ("Not enough information, only 3 eggs.", None),
]

MARKED_CHOICES = [
    ("#### B", "B", "B"),
    ("#### b", "B", "B"),
    ("#### (B)", "B", "B"),
    ("#### (b).", "B", "B"),
    ("#### **B**", "B", "B"),
    ("#### $B$", "B", "B"),
    ("#### Option B", "B", "B"),
    ("#### B) 15", "B", "B"),
    ("#### B: 15", "B", "B"),
    ("#### 15 (B)", "B", "B"),
    ("#### B because A is wrong", "B", "B"),
    ("#### B, not A", "B", "B"),
    ("#### not A but C", "C", "C"),
    ("#### Ben", "C", "C"),
    ("#### ben.", "C", "C"),
    ("#### 15", "B", "B"),
    ("#### D. None of the above", "D", "D"),
    ("#### None of the above", "D", "D"),
    ("#### B\nQuestion: another?\n#### C", "B", "B"),
    ("#### A", "A", "A"),
    ("#### a", "A", "A"),
    ("#### E", None, None),
    ("#### Bend", None, None),
    ("#### Ben is the tallest", None, None),
    ("#### 1", None, None),
    ("#### none", None, None),
    ("#### a dog", None, None),
    ("#### A dog", None, None),
    ("#### A or B", None, None),
    ("#### B and C", None, None),
    ("#### B/C", None, None),
    ("#### 15 (A)", None, None),
    ("#### not A", None, None),
    ("#### I do not know", None, None),
    ("#### ", None, None),
    ("The answer is B.\n#### I do not know", None, None),
]

UNMARKED_CHOICES = [
    ("B", "B"),
    ("b", "B"),
    ("B.", "B"),
    ("**B**", "B"),
    ("$B$", "B"),
    ("(B)", "B"),
    ("B) 15", "B"),
    ("Ben", "C"),
    ("I weighed it.\nB", "B"),
    ("\\boxed{B}", "B"),
    ("\\boxed{\\text{C}}", "C"),
    ("\\boxed{A} no, \\boxed{B}", "B"),
    ("\\boxed{}", None),
    ("The answer is B", "B"),
    ("The answer is (B).", "B"),
    ("The answer is b", "B"),
    ("the answer is b because 15", "B"),
    ("The answer is a", "A"),
    ("The answer is A because 12 fits", "A"),
    ("Answer: **B** 15", "B"),
    ("The correct option is 'B'", "B"),
    ("I choose option (C) now", "C"),
    ("I'd go with D.", "D"),
    ("答案是B", "B"),
    ("Antwort: C", "C"),
    ("I think A is wrong, so the answer is B", "B"),
    ("Answer: C\nAnswer: D", "D"),
    ("The answer is B. This answer is correct.", "B"),
    ("The answer is Ben.", "C"),
    ("The answer is a dog", None),
    ("The answer is not A", None),
    ("The answer is C or maybe D", None),
    ("The answer is F", None),
    ("A dog ate it", None),
    ("A man and a dog", None),
    ("I think A is wrong", None),
    ("B is my pick", None),
    ("A) 12\nB) 15\nC) Ben", None),
    ("A\nB", None),
    ("None", None),
    ("Because Ben is taller", None),
    ("", None),
]

TEXTS = [
    ("#### Ben", "ben"),
    ("#### Ben.", "ben"),
    ("#### **Ben**", "ben"),
    ("#### the Ben", "ben"),
    ("Ada has 3.\n####  BEN \nQuestion: who?\n#### Ada", "ben"),
    ("#### Ben's dog", "bens dog"),
    ("#### -5", "-5"),
    ("#### 3.75", "3.75"),
    ("#### A", "a"),
    ("#### Zoë", "zoë"),
    ("#### Ben or Ada", "ben or ada"),
    ("Ben", None),
    ("The answer is Ben", None),
    ("####", None),
    ("#### !?", None),
    ("", None),
]


def test_the_tables_hold_at_least_120_replies() -> None:
    numbers, choices = len(MARKED_NUMBERS) + len(UNMARKED_NUMBERS), len(MARKED_CHOICES) + len(UNMARKED_CHOICES)
    assert numbers + choices + len(TEXTS) >= 120


@pytest.mark.parametrize(("reply", "strict", "lenient"), MARKED_NUMBERS)
def test_a_marked_number_is_read_whole_or_not_at_all(reply: str, strict: str | None, lenient: str | None) -> None:
    assert (read_number(reply, strict=True), read_number(reply)) == (strict, lenient)


@pytest.mark.parametrize(("reply", "lenient"), UNMARKED_NUMBERS)
def test_an_unmarked_number_is_read_only_leniently(reply: str, lenient: str | None) -> None:
    assert (read_number(reply, strict=True), read_number(reply)) == (None, lenient)


@pytest.mark.parametrize(("reply", "strict", "lenient"), MARKED_CHOICES)
def test_a_marked_choice_is_an_offered_letter_or_a_whole_option(
    reply: str, strict: str | None, lenient: str | None
) -> None:
    assert (read_choice(reply, OPTIONS, strict=True), read_choice(reply, OPTIONS)) == (strict, lenient)


@pytest.mark.parametrize(("reply", "lenient"), UNMARKED_CHOICES)
def test_an_unmarked_choice_needs_a_box_a_cue_or_a_line_of_its_own(reply: str, lenient: str | None) -> None:
    assert (read_choice(reply, OPTIONS, strict=True), read_choice(reply, OPTIONS)) == (None, lenient)


@pytest.mark.parametrize(("reply", "read"), TEXTS)
def test_free_text_is_read_after_the_marker_only(reply: str, read: str | None) -> None:
    assert read_text(reply) == read


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("18", "18"),
        ("18.0", "18"),
        ("$18.00", "18"),
        ("1234", "1,234"),
        ("1/2", "0.5"),
        ("0.5", "1/2"),
        ("1.5", "1 1/2"),
        ("5%", "5"),
        ("0.3333333", "1/3"),
        ("-10", "-10"),
        ("9300000000000", "9.3e12"),
    ],
)
def test_equal_values_are_equal_however_written(prediction: str, gold: str) -> None:
    assert is_correct(prediction, number(gold))


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("-5", "5"),  # each of the first five is credited by published scorers
        ("1,234", "234"),
        ("3.75", "75"),
        ("1/2", "2"),
        ("I do not know.", "0"),
        ("5%", "0.05"),
        ("18", "1"),
        ("18", "8"),
        ("18.000001", "18"),
        ("1000001", "1000000"),
        ("0.333", "1/3"),
        ("0.50001", "0.5"),
        ("", "0"),
    ],
)
def test_a_part_of_a_number_or_a_near_whole_number_is_wrong(prediction: str, gold: str) -> None:
    assert not is_correct(prediction, number(gold))
    assert not score(f"#### {prediction}", number(gold)).correct


def test_tolerance_holds_for_golds_that_are_not_whole_and_only_there() -> None:
    assert same_number("2.5000024", "2.5")
    assert not same_number("2.500003", "2.5")
    assert not same_number("1000000.5", "1000000")


def test_whole_numbers_beyond_float_precision_are_told_apart() -> None:
    assert not same_number("9007199254740993", "9007199254740992")


def test_unparsed_is_never_correct() -> None:
    assert score("I do not know.", number("0")) == Scored(None, False)
    assert score("", choice("A")) == Scored(None, False)
    assert score("Ben", text("Ben")) == Scored(None, False)


def test_read_answer_goes_by_the_kind_of_problem() -> None:
    assert read_answer("#### 18.0", number("18")) == "18"
    assert read_answer("#### b", choice("B")) == "B"
    assert read_answer("#### The Ben!", text("Ben")) == "ben"


def test_strict_is_passed_on() -> None:
    assert read_answer("The answer is 18", number("18"), strict=True) is None
    assert score("The answer is B", choice("B"), strict=True) == Scored(None, False)
    assert score("The answer is B", choice("B")) == Scored("B", True)


@pytest.mark.parametrize("problem", [number("eighteen"), choice("E"), choice("15"), choice("b"), text("!?")])
def test_a_gold_answer_that_does_not_fit_its_kind_is_named(problem: Problem) -> None:
    with pytest.raises(ValueError, match=r"problem 'p': the gold answer"):
        is_correct("18", problem)


def test_an_option_that_is_offered_twice_is_right_under_both_letters() -> None:
    twins = ("3/7", "4/7", "3/7", "5/7")
    assert same_choice("C", "A", twins)
    assert not same_choice("B", "A", twins)
    assert read_choice("#### 3/7", twins) == "A"


def test_options_that_differ_only_in_case_are_ambiguous_by_text() -> None:
    options = ("Polish", "polish", "Danish")
    assert read_choice("#### POLISH", options) is None
    assert read_choice("#### polish", options) == "B"


def test_signs_and_decimals_of_options_are_kept() -> None:
    options = ("5", "-5", ".5", "$5")
    assert [read_choice(f"#### {option}", options) for option in options] == ["A", "B", "C", "D"]
    assert read_choice("#### 0.5", options) is None


def test_a_prediction_that_was_not_offered_is_wrong() -> None:
    assert not is_correct("E", choice("A"))
    assert not is_correct("AB", choice("A"))


def test_more_options_than_letters_are_refused() -> None:
    with pytest.raises(ValueError, match="27 choices"):
        read_choice("#### A", tuple(map(str, range(27))))


def test_text_of_numbers_is_not_blurred_by_dropping_punctuation() -> None:
    assert normalise_text("-5") != normalise_text("5")
    assert normalise_text("3.75") != normalise_text("375")
    assert is_correct("the  BEN.", text("Ben"))
    assert not is_correct("Benjamin", text("Ben"))


def test_a_question_restated_at_the_start_is_kept() -> None:
    assert own_part("Question: how many?\nIt is 5.\nQuestion: again?") == "Question: how many?\nIt is 5.\n"


@given(st.fractions(max_denominator=10**6))
def test_canonical_spelling_reads_back_as_the_same_number(value: Fraction) -> None:
    assert parse_number(canonical(value)) == value
    assert read_number(f"#### {canonical(value)}", strict=True) == canonical(value)


@given(st.integers(-(10**12), 10**12))
def test_thousands_commas_change_nothing(value: int) -> None:
    assert read_number(f"#### {value:,}", strict=True) == str(value)
    assert read_number(f"The answer is ${abs(value):,}.00.") == str(abs(value))


@given(st.text(max_size=200), st.booleans())
def test_any_reply_is_read_without_an_exception(reply: str, strict: bool) -> None:
    for marked in (reply, f"#### {reply}", f"\\boxed{{{reply}}}", f"The answer is {reply}"):
        for problem in (number("5"), choice("B"), text("Ben")):
            prediction = read_answer(marked, problem, strict=strict)
            assert prediction is None or prediction
            is_correct(prediction, problem)


HOSTILE = (
    "9", "(", "{", "####", "#### ", "\\boxed{", "\\boxed{}", "\\frac{", "1,", "1 ", "111 ", "1/", "- ", "$", "* ", " ",
    "\n", "\nQ", "answer is ", "the answer to ", "answer is clear ", "A ", "or B ", "and x =", "<<", "\nA", "\n1. ",
)  # fmt: skip
READ_HOSTILE = """
import sys
from agent_gspo_core.episode import Problem
from agent_gspo_core.scoring import read_answer

number = Problem(id="p", question="?", answer="5")
choice = Problem(id="p", question="?", answer="B", kind="choice", choices=("12", "15", "Ben"))
text = Problem(id="p", question="?", answer="Ben", kind="text")
for unit in sys.argv[1:]:
    print(repr(unit), flush=True)
    bare = unit * (100_000 // len(unit))
    for reply, problem in ((bare, number), (bare, choice), (f"#### {bare}/", number), (f"#### {bare}/", text)):
        read_answer(reply, problem)
"""


def test_a_hundred_thousand_characters_of_anything_are_read() -> None:
    # In a process of its own, because a backtracking pattern holds the interpreter and could not be stopped here. The
    # limit only ends a hang: quadratic time would be minutes for each unit, linear time is a tenth of a second.
    try:
        subprocess.run(
            [sys.executable, "-c", READ_HOSTILE, *HOSTILE],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            timeout=600,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"still reading 100,000 characters of {(error.stdout or b'').decode().split()[-1:]}")


def test_a_number_of_a_hundred_thousand_digits_is_unparsed() -> None:
    assert read_number("#### " + "9" * 100_000) is None
    assert not same_number("9" * 100_000, "9")
