"""Every benchmark beyond GSM8K and MultiArith: made-up records for the rules, the real files for the known faults."""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_gspo_core.benchmarks import (
    BENCHMARKS,
    DATA_VARIABLE,
    SEVEN,
    aime,
    aqua,
    arc,
    choice_records,
    commonsenseqa,
    gpqa,
    gsm_hard,
    hiddenbench,
    humaneval,
    humaneval_plus,
    math500,
    mbpp_plus,
    medqa,
    mmlu,
    openbookqa,
    svamp,
)
from agent_gspo_core.benchmarks.plus_tests import Oracle, plus_program
from agent_gspo_core.benchmarks.source import DataFile, read_file
from agent_gspo_core.episode import Problem
from agent_gspo_core.scoring.choices import same_choice
from agent_gspo_core.scoring.numbers import same_number

REAL = Path(os.environ.get(DATA_VARIABLE) or "-")
needs_data = pytest.mark.skipif(not (REAL / "mmlu").is_dir(), reason=f"{DATA_VARIABLE} names no benchmark folder")


@pytest.fixture(autouse=True)
def _no_data_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


def fake_hub(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))


def run(solution: str, program: str) -> None:
    """Run trusted, made-up code as the contract has it: solution and tests in one module."""
    exec(compile(solution + "\n" + program, "<test>", "exec"), {"__name__": "__main__"})


# -- the cards


def test_the_seven_come_first_in_their_order() -> None:
    assert tuple(BENCHMARKS)[:7] == SEVEN == ("mmlu", "gsm8k", "multiarith", "svamp", "aqua", "humaneval", "math500")


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_every_card_is_complete(name: str) -> None:
    card = BENCHMARKS[name]
    assert card.name == name
    assert card.licence
    assert re.search(r"[0-9]{4}", card.citation)
    assert card.evaluation_split in card.splits
    assert card.training_split is None or card.training_split in card.splits
    assert card.training_split != card.evaluation_split
    assert set(card.files) | set(card.hub.splits) >= set(card.splits)
    assert card.hub.revision is None or re.fullmatch("[0-9a-f]{40}", card.hub.revision)
    assert set(card.hub.renamed) <= set(card.hub.splits)
    for file in card.all_files():
        assert file.sha256 is None or re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert file.url is None or file.url.startswith("https://")
        assert file.url is not None or card.access
    assert card.files or card.access


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_an_unknown_split_names_those_there_are(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has no split 'nonsense'; it has '"):
        BENCHMARKS[name].load("nonsense")


@needs_data
@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_every_real_split_loads_with_its_count_and_unique_ids(name: str) -> None:
    card = BENCHMARKS[name]
    due = [split for split, file in card.files.items() if all((REAL / leaf.path).is_file() for leaf in file.leaves())]
    if not due:
        pytest.skip(f"no file of {name} in the folder")
    for split in due:
        problems = card.load(split, root=REAL)
        assert len(problems) == len({problem.id for problem in problems}) == card.splits[split]
        assert {problem.kind for problem in problems} == {card.kind}
        assert all(problem.family for problem in problems)


@needs_data
@pytest.mark.parametrize("name", [name for name, card in BENCHMARKS.items() if card.training_split in card.files])
def test_training_shares_no_question_with_evaluation(name: str) -> None:
    card = BENCHMARKS[name]
    asked = {(p.question, p.choices) for p in card.load(card.evaluation_split, root=REAL)}
    shared = [p.id for p in card.load(str(card.training_split), root=REAL) if (p.question, p.choices) in asked]
    assert shared == []


@needs_data
def test_limit_draws_the_same_problems_again() -> None:
    first = BENCHMARKS["arc_easy"].load("test", root=REAL, limit=5, seed=3)
    assert first == BENCHMARKS["arc_easy"].load("test", root=REAL, limit=5, seed=3)
    assert first != BENCHMARKS["arc_easy"].load("test", root=REAL, limit=5, seed=4)


# -- places


def test_what_only_the_hub_has_is_read_there_and_said_to_be_without_a_local_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def offline(*args: object, **kwargs: object) -> None:
        raise OSError("no route to host")

    fake_hub(monkeypatch, offline)
    with pytest.raises(ConnectionError, match="no local file can replace it"):
        BENCHMARKS["mmlu"].load("auxiliary_train", root=tmp_path)


def test_a_split_that_the_hub_lacks_names_the_file_and_the_command() -> None:
    with pytest.raises(
        ValueError, match=r"hub does not serve split 'test'.*NoExtreme.*agent-gspo data fetch mbpp_plus"
    ):
        mbpp_plus.load("test")


def test_the_hub_is_asked_by_its_own_name_of_the_split(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def load(*args: str, **kwargs: str) -> list[dict[str, Any]]:
        seen.update(kwargs, args=args)
        return [{"problem": "How many?", "answer": "025"}] * 30

    fake_hub(monkeypatch, load)
    assert {problem.answer for problem in BENCHMARKS["aime24"].load("test")} == {"25"}
    assert seen["args"] == ("HuggingFaceH4/aime_2024", "default")
    assert (seen["split"], seen["revision"]) == ("train", aime.HUBS["aime24"].revision)


def test_a_broken_gzip_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 100)[:-20])
    with pytest.raises(ValueError, match=r"x\.jsonl\.gz: expected gzip of UTF-8 text"):
        read_file(tmp_path, DataFile("x.jsonl.gz", 1, None), "own/set")


def test_text_in_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes("naïve".encode("cp1252"))
    with pytest.raises(ValueError, match=r"x\.csv: expected UTF-8 text"):
        read_file(tmp_path, DataFile("x.csv", 1, None), "own/set")


# -- multiple choice


@pytest.mark.parametrize(
    ("choices", "letter", "message"),
    [
        (["a"], "A", "at least two options"),
        (["a", " "], "A", "one or more blank"),
        (["a", None], "A", "one or more blank"),
        (["a", float("nan")], "A", "one or more blank"),
        (["a", "b"], "C", "expected one of A, B"),
        (["a", "b"], "AB", "expected one of A, B"),
        (["a", "b"], "", "expected one of A, B"),
        (["a", "b"], "a", "expected one of A, B"),
    ],
)
def test_a_choice_that_makes_no_sense_is_named(choices: list[object], letter: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"x/test/1: .*{message}"):
        choice_records.choice_problem("x/test/1", "Which?", choices, letter, family="x")


PROMPT = "Please choose the correct answer to the question: {q}\n\n{a}\n\nAnswer format: {f}"


@pytest.mark.parametrize("count", [3, 4, 5])
def test_a_prompt_record_gives_question_options_and_letter(count: int) -> None:
    answers = " ".join(f"Answer{i}: it says Answer2: {i}" if i > 2 else f"Answer{i}: {i}" for i in range(1, count + 1))
    form = "/".join(f"answer{i}" for i in range(1, count + 1))
    record = {"instruction": PROMPT.format(q="Why?\n\nSay why.", a=answers, f=form), "answer": f"answer{count}"}
    problem = openbookqa.problem(record, "openbookqa/test/0")
    assert problem.question == "Why?\n\nSay why."
    assert len(problem.choices) == count
    assert problem.answer == "ABCDE"[count - 1]
    assert problem.choices[-1] == f"it says Answer2: {count}"


@pytest.mark.parametrize("answer", ["answer4", "answer0", "answer", "4", "answer²", ""])
def test_a_prompt_record_with_another_key_is_named(answer: str) -> None:
    record = {
        "instruction": PROMPT.format(q="Why?", a="Answer1: a Answer2: b Answer3: c", f="answer1/answer2/answer3"),
        "answer": answer,
    }
    with pytest.raises(ValueError, match="arc_easy/test/0: "):
        arc.problem(record, "arc_easy/test/0")


def test_numbered_labels_of_the_hub_become_letters() -> None:
    record = {"question": "Why?", "choices": {"text": ["x", "y", "z"], "label": ["1", "2", "3"]}, "answerKey": "3"}
    problem = arc.problem(record, "arc_challenge/test/0")
    assert (problem.answer, problem.choices, problem.family) == ("C", ("x", "y", "z"), "arc_challenge")


def test_commonsenseqa_file_and_hub_give_the_same_problem() -> None:
    texts = ["a", "b", "c", "d", "e"]
    choices = [{"label": label, "text": text} for label, text in zip("ABCDE", texts, strict=True)]
    file = {"answerKey": "B", "question": {"stem": "Where?", "choices": choices}}
    hub = {"answerKey": "B", "question": "Where?", "choices": {"label": list("ABCDE"), "text": texts}}
    assert commonsenseqa.problem(file, "i") == commonsenseqa.problem(hub, "i")
    with pytest.raises(ValueError, match=r"no field 'answerKey'|field 'answerKey' should hold text"):
        commonsenseqa.problem({**hub, "answerKey": ""}, "i")


@needs_data
def test_arc_has_three_to_five_options() -> None:
    counts = Counter(
        len(p.choices) for name in ("arc_easy", "arc_challenge") for p in BENCHMARKS[name].load("test", root=REAL)
    )
    assert counts == {4: 3530, 3: 11, 5: 7}


def test_medqa_key_and_text_must_agree() -> None:
    record = {"question": "Which?", "options": dict(zip("ABCD", "wxyz", strict=True)), "answer_idx": "B", "answer": "x"}
    assert medqa.problem(record, "i").answer == "B"
    with pytest.raises(ValueError, match="i: the key 'B' and the answer text"):
        medqa.problem({**record, "answer": "w"}, "i")
    with pytest.raises(ValueError, match="should map A to D"):
        medqa.problem({**record, "options": {"A": "w", "B": "x"}}, "i")


# -- AQuA


def test_aqua_options_lose_letter_and_blank() -> None:
    record = {"question": "x?", "options": ["A) 1", "B)2", "C)(3)", "D)D)4", "E)None"], "correct": "D"}
    assert aqua.problem(record, "i").choices == ("1", "2", "(3)", "D)4", "None")
    with pytest.raises(ValueError, match=r"expected the options A\) to E\) in order"):
        aqua.problem({**record, "options": record["options"][::-1]}, "i")


@needs_data
def test_aqua_twin_options_are_both_right() -> None:
    problems = aqua.load("test", root=REAL)
    keyed = {}
    for row, problem in enumerate(problems):
        right = [letter for letter in "ABCDE" if same_choice(letter, problem.answer, problem.choices)]
        if len(right) > 1:
            keyed[row] = "".join(right)
    assert keyed == {117: "AC", 124: "BE", 126: "BD", 193: "CD"}
    assert sum(len(set(problem.choices)) < 5 for problem in problems) == 7
    assert Counter(problem.answer for problem in problems) == {"A": 63, "B": 58, "C": 46, "D": 53, "E": 34}
    assert all(choice == choice.strip() for problem in problems for choice in problem.choices)


# -- SVAMP


def test_svamp_joins_body_and_question_by_the_bodys_own_end() -> None:
    record = {"ID": "chal-1", "Body": "He has 3 pens ", "Question": "How many?", "Answer": "3.0"}
    assert svamp.problem(record, "i").question == "He has 3 pens. How many?"
    assert svamp.problem({**record, "Body": "He has 3."}, "i").question == "He has 3. How many?"
    assert svamp.problem(record, "i").answer == "3"
    for faulty in ({"Answer": True}, {"Answer": "three"}, {"Answer": float("nan")}, {"Body": ""}, {"ID": None}):
        with pytest.raises(ValueError, match="i"):
            svamp.problem({**record, **faulty}, "i")


@needs_data
def test_svamp_faults_and_the_three_tests() -> None:
    everything = {p.id: p for p in svamp.load("all", root=REAL)}
    assert everything["svamp/chal-680"].answer == "5"
    records = json.loads((REAL / "svamp/SVAMP.json").read_text(encoding="utf-8"))
    wrong = [r["ID"] for r in records if str(eval(r["Equation"])) != str(float(everything[f"svamp/{r['ID']}"].answer))]
    assert wrong == []
    assert sum(". " + r["Question"] in everything[f"svamp/{r['ID']}"].question for r in records) >= 358
    sides = {split: {p.id for p in svamp.load(split, root=REAL)} for split in ("train", "dev", "test", "test_300")}
    assert sides["test_300"] == sides["dev"] | sides["test"]
    assert sides["train"] | sides["test_300"] == set(everything)
    assert len(sides["train"] | sides["test_300"]) == 1000


# -- GSM-Hard and AIME


@pytest.mark.parametrize(
    ("target", "answer"), [(-9867630.0, "-9867630"), (3.509e-07, "0.0000003509"), (9284017268534.4, "9284017268534.4")]
)
def test_gsm_hard_targets_are_written_exactly(target: float, answer: str) -> None:
    problem = gsm_hard.problem({"input": "How many?", "target": target}, "i")
    assert problem.answer == answer
    assert same_number(repr(target), problem.answer)


@pytest.mark.parametrize("target", [float("nan"), float("inf"), True, "12", None])
def test_gsm_hard_target_that_is_no_number_is_named(target: object) -> None:
    with pytest.raises(ValueError, match=r"i: .*'target'"):
        gsm_hard.problem({"input": "How many?", "target": target}, "i")


@needs_data
def test_gsm_hard_real_targets_tolerate_rounding_and_refuse_another_number() -> None:
    problems = gsm_hard.load("test", root=REAL)
    fractional = [problem for problem in problems if "." in problem.answer]
    assert len(fractional) == 303
    for problem in problems:
        assert same_number(problem.answer, problem.answer)
        assert not same_number(f"{float(problem.answer) * 1.01 + 1:f}", problem.answer)
    assert all(same_number(f"{float(p.answer):.9g}", p.answer) for p in fractional)


@pytest.mark.parametrize(
    ("answer", "plain"), [("025", "25"), ("0", "0"), (7, "7"), ("999", "999"), ("336^\\circ", "336")]
)
def test_aime_answers_lose_zeros_and_degrees(answer: object, plain: str) -> None:
    assert aime.problem({"problem": "Find it.", "answer": answer}, "aime24/test/0").answer == plain


@pytest.mark.parametrize("answer", ["1000", "-1", "2.5", "", True, 25.0, "२५"])
def test_aime_answer_out_of_range_is_named(answer: object) -> None:
    with pytest.raises(ValueError, match="aime24/test/0: expected a whole number from 0 to 999"):
        aime.problem({"problem": "Find it.", "answer": answer}, "aime24/test/0")


@needs_data
def test_aime_real_answers_are_plain_whole_numbers() -> None:
    for name in ("aime24", "aime25"):
        problems = BENCHMARKS[name].load("test", root=REAL)
        assert all(re.fullmatch("0|[1-9][0-9]{0,2}", problem.answer) for problem in problems)
    assert BENCHMARKS["aime24"].load("test", root=REAL)[7].answer == "25"


# -- MATH


def test_math_answer_is_the_last_box() -> None:
    record = {"problem": "x?", "type": "Algebra", "solution": r"First \boxed{1}, then $\boxed{\frac{1}{\sqrt{2}}}$."}
    assert math500.problem(record, "i").answer == r"\frac{1}{\sqrt{2}}"
    with pytest.raises(ValueError, match="no field 'answer', and no"):
        math500.problem({**record, "solution": "It is 5."}, "i")


@needs_data
def test_math_training_problems_hold_none_of_the_500_and_boxes_give_their_answers() -> None:
    test = {"".join(p.question.split()): p.answer for p in math500.load("test", root=REAL)}
    train = math500.load("train", root=REAL)
    assert len(train) == 4500
    assert not {"".join(p.question.split()) for p in train} & set(test)
    lines = (REAL / "math/test.jsonl").read_text(encoding="utf-8").split("\n")
    boxed = [math500.problem(json.loads(line), "i") for line in lines if line]
    of_the_500 = [(p.answer, test["".join(p.question.split())]) for p in boxed if "".join(p.question.split()) in test]
    assert len(of_the_500) == 500
    assert sum("".join(box.split()) == "".join(gold.split()) for box, gold in of_the_500) >= 490


def test_math_training_split_with_an_evaluated_problem_too_few_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(id: str, config: str, *, split: str, revision: str) -> list[dict[str, Any]]:
        if id == math500.HUB.id:
            return [{"problem": f"{i}?", "answer": "1", "subject": "s"} for i in range(500)]
        first = math500.MATH_CONFIGS.index(config) * 715
        return [{"problem": f"{i + 1}?", "type": "s", "solution": r"\boxed{1}"} for i in range(first, first + 715)][
            :-1
        ] + (
            [{"problem": f"{-i}?", "type": "s", "solution": r"\boxed{1}"} for i in range(1, 3)]
            if config == "precalculus"
            else []
        )

    fake_hub(monkeypatch, load)
    with pytest.raises(
        ValueError, match=r"without the problems of MATH-500: expected 4500 records, found 45|expected 5000"
    ):
        math500.load("train")


# -- MMLU


def test_mmlu_options_that_look_missing_stay_text() -> None:
    records = mmlu.csv_records('"Q, then?",None,NA,nan,null,B\n', "mmlu/test/anatomy_test.csv")
    problem = mmlu.problem(records[0], "mmlu/test/anatomy/0")
    assert problem.choices == ("None", "NA", "nan", "null")
    assert (problem.answer, problem.family, problem.question) == ("B", "anatomy", "Q, then?")


def test_mmlu_row_of_another_width_is_named() -> None:
    with pytest.raises(ValueError, match=r"x_test\.csv, row 1: expected 6 fields"):
        mmlu.csv_records("q,a,b,c,d,A\nq,a,b,c,A\n", "x_test.csv")


def test_mmlu_hub_keys_count_from_zero() -> None:
    record = {"question": "Q?", "subject": "anatomy", "choices": ["w", "x", "y", "z"], "answer": 3}
    assert mmlu.problem(record, "i").answer == "D"
    for answer in (4, -1, "E", None):
        with pytest.raises(ValueError, match="i: "):
            mmlu.problem({**record, "answer": answer}, "i")


@needs_data
def test_mmlu_hub_and_files_give_the_same_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    local = mmlu.load("dev", root=REAL)
    rows = [
        {"question": p.question, "subject": p.family, "choices": list(p.choices), "answer": "ABCD".index(p.answer)}
        for p in local
    ]
    half = len(rows) // 2
    mixed = [row for row in rows if row["subject"] > rows[half]["subject"]]
    fake_hub(monkeypatch, lambda *args, **kwargs: mixed + [row for row in rows if row not in mixed])
    assert mmlu.load("dev") == local


@needs_data
def test_mmlu_none_options_survive_and_keys_have_their_shares() -> None:
    test, val = mmlu.load("test", root=REAL), mmlu.load("val", root=REAL)
    assert sum("None" in problem.choices for problem in test) == 10
    assert sum("None" in problem.choices for problem in val) == 2
    assert len({problem.family for problem in test}) == 57
    shares = {key: round(100 * count / len(test), 1) for key, count in Counter(p.answer for p in test).items()}
    assert shares == {"A": 22.9, "B": 24.7, "C": 25.5, "D": 26.9}
    assert round(100 * sum(p.family == "professional_law" for p in test) / len(test), 1) == 10.9


@needs_data
def test_mmlu_spreadsheet_damage_is_listed_and_not_repaired() -> None:
    damaged = mmlu.damaged_options(mmlu.load("test", root=REAL))
    assert damaged["mmlu/test/elementary_mathematics/327"] == ("7-Mar", "5-Mar", "10-Jul", "10-Sep")
    assert damaged["mmlu/test/professional_psychology/356"] == ("#NAME?",)
    assert damaged["mmlu/test/high_school_physics/133"] == ("2:00 AM", "4:00 AM")
    assert "mmlu/test/miscellaneous/293" not in damaged
    assert len(damaged) == 13


@needs_data
def test_mmlu_validation_questions_that_are_in_the_test_are_found() -> None:
    shared = mmlu.shared_questions(mmlu.load("val", root=REAL), mmlu.load("test", root=REAL))
    assert len(shared) == 28
    assert all(id.startswith("mmlu/val/") for id in shared)


@needs_data
def test_mmlu_redux_lists_the_faulty_items_and_leaves_the_others() -> None:
    errors = mmlu.mmlu_redux(REAL)
    assert len(errors) == 370
    assert "ok" not in errors.values()
    assert errors["mmlu/test/abstract_algebra/34"] == "bad_question_clarity"
    assert errors["mmlu/test/college_chemistry/5"] == errors["mmlu/test/college_chemistry/92"] == "wrong_groundtruth"
    test = mmlu.load("test", root=REAL)
    assert len(mmlu.without(test, errors)) == 14042 - 370


def test_mmlu_redux_without_a_folder_says_so() -> None:
    with pytest.raises(ValueError, match=r"mmlu_redux reads mmlu/mmlu_redux_2_error_types\.csv from a local folder"):
        mmlu.mmlu_redux()


@needs_data
def test_the_153_have_a_name_of_their_own_and_do_not_depend_on_the_seed() -> None:
    card = BENCHMARKS["mmlu_153"]
    problems = card.load("val", root=REAL)
    assert len(problems) == 153
    assert all(problem.id.startswith("mmlu_153/val/") for problem in problems)
    assert {p.id for p in card.load("val", root=REAL, seed=9)} == {p.id for p in problems}
    val = {p.id: p for p in mmlu.load("val", root=REAL)}
    assert all(val[p.id.replace("mmlu_153", "mmlu")].question == p.question for p in problems)


# -- GPQA

GPQA_ROW = {
    "Question": "SECRET question?",
    "Correct Answer": "SECRET right",
    "Incorrect Answer 1": "SECRET w1",
    "Incorrect Answer 2": "SECRET w2",
    "Incorrect Answer 3": "SECRET w3",
    "High-level domain": "Physics",
}


def test_gpqa_options_are_shuffled_by_the_item_alone() -> None:
    rows = [{**GPQA_ROW, "Question": f"question {i}?"} for i in range(200)]
    problems = [gpqa.problem(row, f"gpqa/test/{i}") for i, row in enumerate(rows)]
    assert all(p.choices["ABCD".index(p.answer)] == "SECRET right" for p in problems)
    assert problems[5].choices == gpqa.problem(rows[5], "other").choices
    assert all(30 < count < 70 for count in Counter(p.answer for p in problems).values())
    assert problems[0].family == "Physics"


@pytest.mark.parametrize(
    "change",
    [{"Question": ""}, {"Correct Answer": None}, {"Incorrect Answer 2": " "}, {"Incorrect Answer 1": "SECRET right"}],
)
def test_gpqa_errors_hold_no_content(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="gpqa/test/3: ") as caught:
        gpqa.problem({**GPQA_ROW, **change}, "gpqa/test/3")
    assert "SECRET" not in str(caught.value)


def test_gpqa_file_is_the_users_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gpqa_diamond\.csv"):
        gpqa.load("test", root=tmp_path)
    path = tmp_path / gpqa.FILES["test"].path
    path.parent.mkdir()
    header = ",".join(f'"{column}"' for column in GPQA_ROW)
    lines = [header, *(",".join(f'"{text} {i}"' for text in GPQA_ROW.values()) for i in range(198))]
    path.write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8")
    assert len(gpqa.load("test", root=tmp_path)) == 198
    path.write_text("\r\n".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(ValueError, match="expected 198 records, found 197"):
        gpqa.load("test", root=tmp_path)
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="lacks the columns Question, Correct Answer"):
        gpqa.load("test", root=tmp_path)


# -- HiddenBench

HIDDEN_ROW = {
    "id": 1,
    "name": "flight",
    "description": "Choose a flight.",
    "shared_information": ["East is cheap.", "West is near."],
    "hidden_information": ["East is full.", "West is late.", "North is free."],
    "possible_answers": ["East", "West", "North"],
    "correct_answer": "North",
}


def test_hiddenbench_gives_each_agent_its_note() -> None:
    problem = hiddenbench.problem(HIDDEN_ROW, "hiddenbench/test/0")
    assert problem.notes == ("East is full.", "West is late.", "North is free.")
    assert (problem.answer, problem.choices) == ("C", ("East", "West", "North"))
    assert "East is cheap." in problem.question
    assert "East is full." not in problem.question


@pytest.mark.parametrize("field", ["description", "shared_information", "hidden_information", "possible_answers"])
def test_hiddenbench_names_the_field_that_is_missing(field: str) -> None:
    record = {key: value for key, value in HIDDEN_ROW.items() if key != field}
    with pytest.raises(ValueError, match=f"hiddenbench/test/0: no field '{field}'"):
        hiddenbench.problem(record, "hiddenbench/test/0")
    with pytest.raises(ValueError, match=f"hiddenbench/test/0: .*'{field}'"):
        hiddenbench.problem({**HIDDEN_ROW, field: []}, "hiddenbench/test/0")


def test_hiddenbench_answer_must_be_offered() -> None:
    with pytest.raises(ValueError, match="exactly one of the 3"):
        hiddenbench.problem({**HIDDEN_ROW, "correct_answer": "South"}, "i")


def test_hiddenbench_keeps_the_tasks_that_fit_the_team(monkeypatch: pytest.MonkeyPatch) -> None:
    four = {**HIDDEN_ROW, "hidden_information": ["a", "b", "c", "d"]}
    fake_hub(monkeypatch, lambda *args, **kwargs: [HIDDEN_ROW] * 7 + [four] * 58)
    assert len(hiddenbench.load("test")) == 65
    assert {len(p.notes) for p in hiddenbench.load("test", agents=4)} == {4}
    assert len(hiddenbench.load("test", agents=3)) == 7
    with pytest.raises(ValueError, match=r"no task for 5 agents; there are tasks for \[3, 4\]"):
        hiddenbench.load("test", agents=5)


# -- code


def test_humaneval_program_runs_the_published_check() -> None:
    record = {
        "prompt": "def double(x):\n    '''Twice x.'''\n",
        "canonical_solution": "    return 2 * x\n",
        "entry_point": "double",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n",
    }
    problem = humaneval.problem(record, "humaneval/test/0")
    assert problem.tests is not None
    run(problem.answer, problem.tests.program)
    with pytest.raises(AssertionError):
        run("def double(x):\n    return x", problem.tests.program)
    with pytest.raises(ValueError, match="does not define check"):
        humaneval.problem({**record, "test": "pass"}, "humaneval/test/0")


def test_a_humaneval_file_of_161_tasks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / humaneval.FILES["test"].path
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"{}\n" * 161))
    with pytest.raises(ValueError, match="expected SHA-256"):
        humaneval.load("test", root=tmp_path)


@pytest.mark.parametrize(
    ("oracle", "reference", "right", "wrong"),
    [
        ("same", "def f(x):\n    return (x, x)", "def f(x):\n    return x, x", "def f(x):\n    return [x, x]"),
        ("as sets", "def f(x):\n    return [x, 1]", "def f(x):\n    return (1, x, x)", "def f(x):\n    return [x]"),
        (
            "found or not",
            "def f(x):\n    return x > 1",
            "def f(x):\n    return 'yes' if x > 1 else None",
            "def f(x): 0",
        ),
        ("found or not", "def f(x):\n    return 5", "def f(x):\n    return True", "def f(x):\n    return False"),
    ],
)
def test_plus_program_compares_as_its_oracle_says(oracle: Oracle, reference: str, right: str, wrong: str) -> None:
    program = plus_program("f", reference, [[2], [3]], atol=0, oracle=oracle)
    run(right, program)
    with pytest.raises(AssertionError, match="wrong output for input 0 of 2"):
        run(wrong, program)


@pytest.mark.parametrize(
    ("expected", "found", "atol", "same"),
    [
        ("0.1 + 0.2", "0.3", 0, True),
        ("1.0", "1.001", 0, False),
        ("1.0", "1.00005", 1e-4, True),
        ("[1.0, 2.0]", "[1.0, 2.0 + 1e-9]", 0, True),
        ("[1.0, 2.0]", "[1.0]", 0, False),
        ("[1.0]", "(1.0 + 1e-9,)", 0, False),
        ("[[1.0]]", "[[1.0 + 1e-9]]", 0, False),
        ("float('nan')", "float('nan')", 0, True),
        ("float('nan')", "1.0", 0, False),
        ("float('inf')", "1e308", 0, False),
        ("[]", "None", 0, False),
        ("3", "'3'", 1e-4, False),
        ("True", "1.00001", 1e-4, False),
    ],
)
def test_plus_program_tolerates_rounding_and_nothing_else(expected: str, found: str, atol: float, same: bool) -> None:
    program = plus_program("f", f"def f():\n    return {expected}", [[]], atol=atol)
    if same:
        run(f"def f():\n    return {found}", program)
    else:
        with pytest.raises(AssertionError):
            run(f"def f():\n    return {found}", program)


def test_plus_program_is_not_changed_by_the_solutions_own_names() -> None:
    program = plus_program("f", "def helper(x):\n    return x + 1\ndef f(x):\n    return helper(x)", [[1], [2]], atol=0)
    clash = "def len(x): return 0\ndef sum(x): return 0\nisinstance = all = zip = None\ncopy = same = reference = 5\n"
    run(clash + "def helper(x): return x\ndef f(x): return x + 1", program)
    with pytest.raises(AssertionError):
        run(clash + "def helper(x): return x\ndef f(x): return helper(x)", program)
    with pytest.raises(NameError):
        run("def g(x): return x + 1", program)


def test_plus_program_gives_each_call_fresh_arguments() -> None:
    program = plus_program("f", "def f(x):\n    return sorted(x)", [[[2, 1]]], atol=0)
    with pytest.raises(AssertionError):
        run("def f(x):\n    x.clear()\n    return x", program)
    run("def f(x):\n    x.sort()\n    return x", program)


def test_plus_program_carries_infinity_and_odd_texts() -> None:
    program = plus_program(
        "f", "def f(x, y):\n    return y", [[float("inf"), "'''\n\"\\"], [float("nan"), "{}"]], atol=0
    )
    run("def f(x, y):\n    return y", program)


def test_mbpp_plus_arguments_get_their_types_back() -> None:
    assert mbpp_plus.typed("Mbpp/2", [[1], [2]], "i") == [(1,), (2,)]
    assert mbpp_plus.typed("Mbpp/63", [[[1, 2]]], "i") == [[(1, 2)]]
    assert mbpp_plus.typed("Mbpp/722", [{"a": [1.0, 2]}, 1, 2], "i") == [{"a": (1.0, 2)}, 1, 2]
    assert mbpp_plus.typed("Mbpp/124", ["0", "1j"], "i") == [0.0, 1j]
    assert mbpp_plus.typed("Mbpp/3", [[1]], "i") == [[1]]
    with pytest.raises(ValueError, match="i: a call of Mbpp/2 has 1 arguments, expected 2"):
        mbpp_plus.typed("Mbpp/2", [[1]], "i")


@needs_data
def test_mbpp_plus_arguments_equal_those_of_the_ready_tests() -> None:
    read = {
        split: [
            json.loads(line)
            for line in gzip.decompress((REAL / mbpp_plus.FILES[split].path).read_bytes()).decode().split("\n")
            if line
        ]
        for split in ("test", "origin")
    }
    checked = 0
    for record, ready in zip(read["test"], read["origin"], strict=True):
        task = record["task_id"]
        assert task == f"Mbpp/{ready['task_id']}"
        if task not in mbpp_plus._ARGUMENTS:
            continue
        literal = re.search(r"^inputs = (.*)$", ready["test"], re.M)
        assert literal is not None
        published = {repr(list(arguments)) for arguments in ast.literal_eval(_without_inf(literal[1]))}
        ours = [repr(mbpp_plus.typed(task, arguments, task)) for arguments in record["base_input"]]
        checked += all(arguments in published for arguments in ours)
    assert checked == len(mbpp_plus._ARGUMENTS)


def _without_inf(literal: str) -> str:
    return re.sub(r"\binf\b", "1e999", literal)


@needs_data
@pytest.mark.parametrize("name", ["humaneval", "humaneval_plus", "mbpp_plus"])
def test_every_program_compiles_and_names_its_function(name: str) -> None:
    for split in BENCHMARKS[name].files:
        for problem in BENCHMARKS[name].load(split, root=REAL):
            assert problem.tests is not None
            ast.parse(problem.tests.program)
            assert re.search(rf"\b{problem.tests.entry_point}\b", problem.tests.program)
            assert f"def {problem.tests.entry_point}" in problem.answer


CHEAP = {"humaneval": range(0, 164, 8), "humaneval_plus": (0, 2, 4, 32), "mbpp_plus": (0, 3, 20, 318, 358, 364)}
"""Rows whose canonical solution is run here: every eighth, and those with a tolerance or a comparison of their own."""


@needs_data
@pytest.mark.parametrize("name", list(CHEAP))
def test_canonical_solutions_pass_and_an_empty_one_fails(name: str) -> None:
    problems = BENCHMARKS[name].load("test", root=REAL)
    for row in CHEAP[name]:
        problem: Problem = problems[row]
        assert problem.tests is not None
        run(problem.answer, problem.tests.program)
        with pytest.raises((AssertionError, TypeError, AttributeError, NameError)):  # some tests call a helper
            run(f"def {problem.tests.entry_point}(*a, **k):\n    return None\n", problem.tests.program)


def test_origin_problems_run_the_ready_test() -> None:
    record = {
        "task_id": 2,
        "code": "def twice(x):\n    return 2 * x\n",
        "prompt": "Write a function to double.",
        "test_list": ["assert twice(1) == 2"],
        "test": "def assertion(out, exp, atol):\n    assert out == exp\nfor i in [1]:\n    assertion(twice(i), 2, 0)",
    }
    problem = mbpp_plus.problem(record, "mbpp_plus/origin/0")
    assert problem.tests is not None
    assert problem.tests.entry_point == "twice"
    run(problem.answer, problem.tests.program)
    plus = humaneval_plus.problem(
        {
            "prompt": "def f():\n",
            "canonical_solution": "    return 1\n",
            "entry_point": "f",
            "test": "def check(c):\n    c()",
        },
        "humaneval_plus/origin/0",
    )
    assert plus.tests is not None
    run(plus.answer, plus.tests.program)
