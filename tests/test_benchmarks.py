from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_gspo_core.benchmarks import BENCHMARKS, DATA_VARIABLE, gsm8k, multiarith
from agent_gspo_core.benchmarks.source import DataFile, Hub, data_root, json_lines, read_file, read_hub, take
from agent_gspo_core.episode import Problem
from agent_gspo_core.scoring import score
from agent_gspo_core.scoring.numbers import parse_number

REAL = Path(os.environ.get(DATA_VARIABLE) or "-")
needs_gsm8k = pytest.mark.skipif(not (REAL / "gsm8k").is_dir(), reason=f"{DATA_VARIABLE} names no folder with gsm8k")
needs_multiarith = pytest.mark.skipif(
    not (REAL / "multiarith").is_dir(),
    reason=f"{DATA_VARIABLE} names no folder with multiarith",
)

GSM8K_ROWS = [
    {"question": "Tom has 1 box of 1,080 nails. How many nails?", "answer": "It is <<1*1080=1080>>1,080.\n#### 1,080"},
    {"question": " It is 3 degrees and falls by 10. How cold? ", "answer": "3-10 = <<3-10=-7>>-7\n#### -7"},
    {"question": "How many?", "answer": "<<1+1=2>>2, rounded up\n#### 3"},
]


@pytest.fixture(autouse=True)
def _no_data_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


def write_gsm8k(root: Path, rows: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up test file, and the benchmark told to expect it."""
    path = root / "gsm8k" / "test.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(gsm8k.FILES, "test", DataFile("gsm8k/test.jsonl", len(rows), digest))
    return path


def fake_hub(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))


def story_pairs() -> list[tuple[str, str]]:
    """Ten made-up stories, each told three times with other names and numbers; the last question stands twice."""
    things = ("pens", "books", "coins", "cups", "keys", "shells", "stamps", "stones", "nuts", "pins")
    pairs = [
        (f"{name} had {start} {thing} and lost {start - 1}. How many {thing} does {who} have?", "1")
        for thing in things
        for name, who, start in (("Ada", "she", 5), ("Ben", "he", 7), ("Cat", "she", 9))
    ]
    return [*pairs, pairs[-1]]


# -- what holds for every benchmark


@pytest.mark.parametrize("name", ["gsm8k", "multiarith"])
def test_every_benchmark_has_a_card(name: str) -> None:
    card = BENCHMARKS[name]
    assert card.name == name
    assert card.licence
    assert card.citation
    assert set(card.files) == set(card.splits)
    assert all(re.fullmatch("[0-9a-f]{64}", file.sha256 or "") for file in card.files.values())


@pytest.mark.parametrize("name", ["gsm8k", "multiarith"])
def test_unknown_split_names_those_there_are(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} has no split 'dev'; it has 'train', 'test'"):
        BENCHMARKS[name].load("dev")


@pytest.mark.parametrize("name", ["gsm8k", "multiarith"])
def test_missing_file_names_the_path_and_both_remedies(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        BENCHMARKS[name].load("test", root=tmp_path)
    message = str(caught.value)
    assert str(tmp_path / BENCHMARKS[name].files["test"].path) in message
    assert DATA_VARIABLE in message
    assert "Hugging Face hub" in message


def test_folder_comes_from_the_argument_then_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert data_root(None) is None
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert data_root(None) == tmp_path
    assert data_root("elsewhere") == Path("elsewhere")


def test_a_missing_local_file_is_not_replaced_by_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_hub(monkeypatch, lambda *args, **kwargs: pytest.fail("the hub was asked"))
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    with pytest.raises(FileNotFoundError):
        gsm8k.load("test")


def test_changed_bytes_are_refused_with_both_digests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write_gsm8k(tmp_path, GSM8K_ROWS, monkeypatch)
    path.write_bytes(path.read_bytes().replace(b"1,080", b"1,081"))
    with pytest.raises(ValueError, match="expected SHA-256") as caught:
        gsm8k.load("test", root=tmp_path)
    message = str(caught.value)
    assert str(path) in message
    assert str(gsm8k.FILES["test"].sha256) in message
    assert hashlib.sha256(path.read_bytes()).hexdigest() in message


def test_another_count_is_refused_with_both_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write_gsm8k(tmp_path, GSM8K_ROWS, monkeypatch)
    monkeypatch.setitem(gsm8k.FILES, "test", replace(gsm8k.FILES["test"], records=4))
    with pytest.raises(ValueError, match="expected 4 records, found 3") as caught:
        gsm8k.load("test", root=tmp_path)
    assert str(path) in str(caught.value)


def test_a_line_that_is_no_json_object_is_named() -> None:
    with pytest.raises(ValueError, match=r"x\.jsonl, line 3: expected a JSON object"):
        json_lines('{"a": 1}\n\n{"a": \n', "x.jsonl")
    with pytest.raises(ValueError, match=r"x\.jsonl, line 1: expected a JSON object, found list"):
        json_lines("[1]\n", "x.jsonl")


def test_line_separators_inside_a_string_do_not_end_a_record() -> None:
    assert json_lines('{"a": "x\u2028y"}\n', "x.jsonl") == [{"a": "x\u2028y"}]


def test_a_file_without_a_digest_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text("{}", encoding="utf-8")
    assert read_file(tmp_path, DataFile("own.jsonl", 1, None), "own/set") == "{}"


# -- subsets


def made_up(count: int) -> list[Problem]:
    return [Problem(id=f"x/test/{row}", question="?", answer="1") for row in range(count)]


def test_a_subset_depends_on_the_seed_and_nothing_else() -> None:
    problems = made_up(50)
    subset = take(problems, 10, seed=1)
    assert subset == take(list(reversed(problems)), 10, seed=1)
    assert subset != take(problems, 10, seed=2)
    assert len({problem.id for problem in subset}) == 10


def test_a_smaller_subset_begins_a_larger_one() -> None:
    assert take(made_up(50), 20, seed=3)[:5] == take(made_up(50), 5, seed=3)


def test_without_a_limit_file_order_is_kept_and_a_large_limit_takes_all() -> None:
    assert take(made_up(5), None, seed=3) == made_up(5)
    assert sorted(p.id for p in take(made_up(5), 99, seed=3)) == [p.id for p in made_up(5)]


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="limit=0: expected at least 1"):
        take(made_up(5), 0, seed=0)


# -- the hub


def test_hub_failure_names_the_data_set_and_the_local_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **kwargs: object) -> None:
        raise OSError("no route to host")

    fake_hub(monkeypatch, offline)
    with pytest.raises(ConnectionError, match="no route to host") as caught:
        gsm8k.load("test", revision="abc")
    message = str(caught.value)
    assert "'openai/gsm8k'" in message
    assert "revision 'abc'" in message
    assert DATA_VARIABLE in message
    assert isinstance(caught.value.__cause__, OSError)


def test_missing_datasets_package_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=rf"package `datasets`; install it, or set {DATA_VARIABLE}"):
        gsm8k.load("test")


@pytest.mark.parametrize(
    ("asked", "card", "used"), [(None, None, "main"), (None, "abc", "abc"), ("def", "abc", "def"), ("def", None, "def")]
)
def test_revision_is_the_callers_then_the_cards_then_main(
    asked: str | None, card: str | None, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def load(*args: str, **kwargs: str) -> list[dict[str, str]]:
        seen.update(kwargs, args=args)
        return []

    fake_hub(monkeypatch, load)
    assert read_hub(Hub("a/b", "c", ("test",), card), "test", asked) == []
    assert seen == {"args": ("a/b", "c"), "split": "test", "revision": used}


def test_hub_and_folder_give_the_same_problems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_gsm8k(tmp_path, GSM8K_ROWS, monkeypatch)
    fake_hub(monkeypatch, lambda *args, **kwargs: GSM8K_ROWS)
    assert gsm8k.load("test") == gsm8k.load("test", root=tmp_path)


def test_hub_count_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, lambda *args, **kwargs: GSM8K_ROWS)
    with pytest.raises(ValueError, match=r"openai/gsm8k \(test\): expected 1319 records, found 3"):
        gsm8k.load("test")


# -- GSM8K


def test_gsm8k_gold_is_after_the_marker_without_commas_and_with_its_sign(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_gsm8k(tmp_path, GSM8K_ROWS, monkeypatch)
    problems = gsm8k.load("test", root=tmp_path)
    assert [problem.answer for problem in problems] == ["1080", "-7", "3"]
    assert [problem.id for problem in problems] == ["gsm8k/test/0", "gsm8k/test/1", "gsm8k/test/2"]
    assert problems[1].question == "It is 3 degrees and falls by 10. How cold?"


@pytest.mark.parametrize("answer", ["5", "#### 5\n#### 6", "#### five", "####", "#### 5 or 6"])
def test_gsm8k_record_without_one_marked_number_is_named(answer: str) -> None:
    with pytest.raises(ValueError, match="gsm8k/test/9: expected a number after a single '####'"):
        gsm8k.problem({"question": "How many?", "answer": answer}, "gsm8k/test/9")


def test_gsm8k_record_without_a_field_is_named() -> None:
    with pytest.raises(ValueError, match="gsm8k/test/9: no field 'answer'"):
        gsm8k.problem({"question": "How many?"}, "gsm8k/test/9")


@needs_gsm8k
def test_gsm8k_real_files_load_and_every_solution_scores_right() -> None:
    for split, count in gsm8k.BENCHMARK.splits.items():
        problems = gsm8k.load(split, root=REAL)
        records = json_lines((REAL / gsm8k.FILES[split].path).read_text(encoding="utf-8"), split)
        assert len(problems) == count
        assert all(re.fullmatch("-?[0-9]+", problem.answer) for problem in problems)
        for strict in (True, False):
            assert all(
                score(record["answer"], problem, strict=strict).correct
                for record, problem in zip(records, problems, strict=True)
            )


@needs_gsm8k
def test_gsm8k_real_golds_with_commas_and_signs_are_read() -> None:
    problems = gsm8k.load("test", root=REAL)
    assert sum(problem.answer.startswith("-") for problem in problems) == 2
    for row in (146, 201, 230, 249, 505, 610, 611, 640, 642, 819, 829, 997, 1009, 1206):
        assert int(problems[row].answer) >= 1000


@needs_gsm8k
def test_gsm8k_real_wrong_answers_score_wrong() -> None:
    for problem in gsm8k.load("test", root=REAL, limit=200):
        for wrong in (-int(problem.answer) or 1, int(problem.answer) + 1, f"{problem.answer}.5", f"1{problem.answer}"):
            assert not score(f"#### {wrong}", problem).correct


# -- MultiArith


def test_multiarith_local_record_loses_blanks_and_the_float() -> None:
    record = {"sQuestion": " Ada had 5 pens.  How many? ", "lSolutions": [6.0]}
    assert multiarith.local_pair(record, "f", 0) == ("Ada had 5 pens. How many?", "6")


def test_multiarith_hub_record_gives_the_same_pair_as_the_local_one() -> None:
    local = multiarith.local_pair({"sQuestion": " How many pens? ", "lSolutions": [6.0]}, "f", 0)
    assert multiarith.hub_pair({"question": "How many pens?", "final_ans": "6"}, "f", 0) == local


@pytest.mark.parametrize(
    "record",
    [
        {"sQuestion": "How many?"},
        {"lSolutions": [6.0]},
        {"sQuestion": "How many?", "lSolutions": []},
        {"sQuestion": "How many?", "lSolutions": [1.0, 2.0]},
        {"sQuestion": "How many?", "lSolutions": ["six"]},
        {"sQuestion": "How many?", "lSolutions": [float("nan")]},
        [],
    ],
)
def test_multiarith_faulty_record_is_named(record: Any) -> None:
    with pytest.raises(ValueError, match="f, record 7:"):
        multiarith.local_pair(record, "f", 7)


def test_multiarith_split_keeps_a_story_on_one_side() -> None:
    problems = multiarith.split_problems(story_pairs(), 9)
    sides: dict[str, set[str]] = {}
    for problem in problems:
        sides.setdefault(multiarith.story(problem.question), set()).add(problem.id.split("/")[1])
    assert len(sides) == 10
    assert all(len(side) == 1 for side in sides.values())
    assert sum(problem.id.startswith("multiarith/test/") for problem in problems) == 9
    assert len(problems) == 30


def test_multiarith_split_does_not_depend_on_the_order_of_the_source() -> None:
    pairs = story_pairs()
    assert multiarith.split_problems(pairs, 9) == multiarith.split_problems(pairs[::-1], 9)


def test_multiarith_duplicates_stay_beside_their_first_when_asked_for() -> None:
    plain = multiarith.split_problems(story_pairs(), 9)
    kept = multiarith.split_problems(story_pairs(), 9, keep_duplicates=True)
    again = [problem for problem in kept if problem.id.endswith("/again")]
    assert [problem for problem in kept if problem not in again] == plain
    assert [problem.question for problem in again] == [story_pairs()[-1][0]]
    assert again[0].id.removesuffix("/again") in {problem.id for problem in plain}


def test_multiarith_two_answers_to_one_question_are_refused() -> None:
    with pytest.raises(ValueError, match="two answers, 1 and 2"):
        multiarith.split_problems([("How many?", "1"), ("How many?", "2")], 1)


def test_multiarith_stories_that_do_not_fill_the_test_side_are_refused() -> None:
    with pytest.raises(ValueError, match="add up to 9 test problems, expected 10"):
        multiarith.split_problems(story_pairs(), 10)


def test_multiarith_file_that_is_no_list_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiarith, "FILE", replace(multiarith.FILE, sha256=None))
    path = tmp_path / multiarith.FILE.path
    path.parent.mkdir()
    for content in ("{}", "[1,"):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match="expected a JSON list of objects"):
            multiarith.load("test", root=tmp_path)


@needs_multiarith
def test_multiarith_real_splits_have_their_counts_and_share_no_story() -> None:
    train, test, everything = (multiarith.load(split, root=REAL) for split in ("train", "test", "all"))
    assert (len(train), len(test), len(everything)) == (380, 200, 580)
    assert {p.id for p in train} | {p.id for p in test} == {p.id for p in everything}
    assert not {multiarith.story(p.question) for p in train} & {multiarith.story(p.question) for p in test}
    assert len({p.question for p in everything}) == 580
    assert all(p.question == p.question.strip() and "." not in p.answer for p in everything)


@needs_multiarith
def test_multiarith_real_duplicates_make_600_under_ids_of_their_own() -> None:
    problems = multiarith.load("all", root=REAL, keep_duplicates=True)
    assert len(problems) == len({problem.id for problem in problems}) == 600


@needs_multiarith
def test_multiarith_hub_layout_gives_the_same_problems_as_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"question": record["sQuestion"].strip(), "final_ans": str(parse_number(str(record["lSolutions"][0])))}
        for record in multiarith.read_records(REAL)
    ]
    parts = {"train": rows[180:], "test": rows[:180]}
    fake_hub(monkeypatch, lambda *args, split, revision: parts[split])
    assert multiarith.load("test") == multiarith.load("test", root=REAL)
