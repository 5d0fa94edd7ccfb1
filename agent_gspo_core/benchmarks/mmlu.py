"""MMLU: 57 subjects, four options; dev 285, val 1,531, test 14,042, and the protocol of 153 validation questions.

The family is the subject. professional_law alone is 10.9 % of the test, so the mean over items (micro) and the mean
over subjects (macro) differ: name which. Subjects are clusters: bootstrap by family. "auxiliary_train" (99,842
questions from other sets, subject not recorded) is on the hub only.

"mmlu_153" is a benchmark of its own and never mixed with the others: the line of work (AgentPrune, G-Designer,
AgentDropout) shuffles the 1,531 validation questions with a seed of its own and scores 153 of them (standard error
about 3 points). Which 153 is ours: the first 153 in the order of `take` with seed 0, so the items are not those of the
papers.

Faults of the data that stay as published, since a repair would make figures incomparable
    - spreadsheet damage: some options were fractions, ratios or currents before a spreadsheet made them dates and
      times ("3/7" is "7-Mar"). `damaged_options` lists them.
    - 28 validation questions are also in the test: `shared_questions`.
    - wrong or ambiguous keys: `mmlu_redux` gives the error types of 370 test items (MMLU-Redux 2.0, 5,700 looked at).
    - some items offer one option twice; `scoring.choices.same_choice` takes either.
An option "None" or "NA" is text here, never a missing value.

Ids name subject and row of the file: "mmlu/test/anatomy/17" counts from 0 within the subject. Problems come by subject
in alphabetical order, from file and hub alike.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase

from agent_gspo_core.benchmarks.choice_records import choice_problem
from agent_gspo_core.benchmarks.mmlu_digests import COUNTED
from agent_gspo_core.benchmarks.source import (
    Benchmark,
    DataFile,
    Hub,
    Record,
    check_count,
    check_split,
    data_root,
    read_file,
    read_split,
    take,
    text_value,
    value,
)
from agent_gspo_core.episode import Problem

ARCHIVE = "https://people.eecs.berkeley.edu/~hendrycks/data.tar"
HUB = Hub(
    "cais/mmlu",
    "all",
    ("dev", "val", "test", "auxiliary_train"),
    "c30699e8356da336a370243923dbaf21066bb9fe",
    {"val": "validation"},
)


def _folder(position: int, split: str) -> DataFile:
    parts = tuple(
        DataFile(
            f"mmlu/{split}/{subject}_{split}.csv", *counted[position], f"{ARCHIVE}#data/{split}/{subject}_{split}.csv"
        )
        for subject, counted in COUNTED.items()
    )
    return DataFile(f"mmlu/{split}", sum(part.records for part in parts), None, parts=parts)


FILES = {split: _folder(position, split) for position, split in enumerate(("dev", "val", "test"))}
REDUX = DataFile(
    "mmlu/mmlu_redux_2_error_types.csv", 5700, "a8148c2dfe14b2d7713c6cb9763ecdeb1132bc907b1136e1fe232c1a8e1312c7"
)
SPLITS = {**{split: file.records for split, file in FILES.items()}, "auxiliary_train": 99842}
SMALL = 153
"""Questions of the family's protocol."""

_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_SPREADSHEET = re.compile(
    rf"[0-9]{{1,2}}-{_MONTH}|{_MONTH}-[0-9]{{2,4}}|[0-9]{{1,2}}:[0-9]{{2}}(?::[0-9]{{2}})?(?: [AP]M)?|#[A-Z/0]+[!?]?"
)
_REAL_TIMES = frozenset({"mmlu/test/miscellaneous/245", "mmlu/test/miscellaneous/293"})
"""Questions about clock times, read by us: their options are meant."""


def load(
    split: str,
    *,
    root: str | Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    revision: str | None = None,
) -> list[Problem]:
    """Problems of "dev", "val", "test" or, from the hub, "auxiliary_train"; all else as in `source.Load`."""
    records = read_split("mmlu", split, files=FILES, hub=HUB, parse=csv_records, root=root, revision=revision)
    if split not in FILES:
        check_count(f"{HUB.id} ({split})", SPLITS[split], len(records))
    return take(_problems(records, f"mmlu/{split}"), limit, seed)


def load_153(
    split: str,
    *,
    root: str | Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    revision: str | None = None,
) -> list[Problem]:
    """The 153 validation questions under ids of their own ("mmlu_153/val/…"); arguments and errors as in `load`."""
    check_split("mmlu_153", split, ("val",))
    drawn = take(load(split, root=root, revision=revision), SMALL, 0)
    renamed = [replace(problem, id=problem.id.replace("mmlu/", "mmlu_153/", 1)) for problem in drawn]
    return take(renamed, limit, seed)


def csv_records(text: str, name: str) -> list[Record]:
    """Rows of a subject's CSV (question, four options, key; no header). The subject is read from the file's name.

    Raises `ValueError` naming file and row of one that has not six fields.
    """
    subject = Path(name).name.rpartition("_")[0]
    records = []
    for row, fields in enumerate(csv.reader(io.StringIO(text, newline=""))):
        if len(fields) != 6:
            raise ValueError(f"{name}, row {row}: expected 6 fields (question, four options, key), found {len(fields)}")
        records.append({"question": fields[0], "subject": subject, "choices": fields[1:5], "answer": fields[5]})
    return records


def problem(record: Record, id: str) -> Problem:
    """One record `{"question", "subject", "choices", "answer"}` as a problem; the hub counts its keys from 0."""
    answer = value(record, id, "answer")
    if isinstance(answer, int) and 0 <= answer < len(ascii_uppercase):
        answer = ascii_uppercase[answer]
    choices = list(value(record, id, "choices"))
    if len(choices) != 4:
        raise ValueError(f"{id}: expected four options, found {len(choices)}")
    return choice_problem(id, text_value(record, id, "question"), choices, str(answer).strip(), family=_subject(record))


def _subject(record: Record) -> str:
    return record.get("subject") or "auxiliary"


def _problems(records: Iterable[Record], stem: str) -> list[Problem]:
    seen: dict[str, int] = {}
    problems = []
    for record in sorted(records, key=_subject):  # stable: the order within a subject stays
        subject = _subject(record)
        row = seen.get(subject, 0)
        seen[subject] = row + 1
        problems.append(problem(record, f"{stem}/{subject}/{row}"))
    return problems


def damaged_options(problems: Iterable[Problem]) -> dict[str, tuple[str, ...]]:
    """Ids of the problems with options that look like a spreadsheet's dates, times or errors, and those options.

    Judged by form, except for two questions that are about clock times. What stood there before is not known for all of
    them, so nothing is repaired.
    """
    found = {
        problem.id: tuple(choice for choice in problem.choices if _SPREADSHEET.fullmatch(choice))
        for problem in problems
        if problem.id not in _REAL_TIMES
    }
    return {id: options for id, options in found.items() if options}


def shared_questions(problems: Iterable[Problem], others: Iterable[Problem]) -> list[str]:
    """Ids of the problems that stand among the others too: same words in question and options, options in any order."""
    known = {_words(problem) for problem in others}
    return [problem.id for problem in problems if _words(problem) in known]


def _words(problem: Problem) -> tuple[str, ...]:
    plain = [re.sub(r"\W+", " ", text).strip().lower() for text in (problem.question, *problem.choices)]
    return (plain[0], *sorted(plain[1:]))


def mmlu_redux(root: str | Path | None = None) -> dict[str, str]:
    """Error type of each test item that MMLU-Redux 2.0 found faulty, by problem id; what it does not list is unknown.

    Types: bad_question_clarity, bad_options_clarity, no_correct_answer, multiple_correct_answers, wrong_groundtruth,
    expert. An annotation without a row number stands for a question that its subject asks more than once; a faulty one
    marks every test item with that question. Scores without these items are another protocol: name it.

    Raises `ValueError` without a local folder (the annotations are not on the hub in this form), and as `load` does.
    """
    folder = data_root(root)
    if folder is None:
        raise ValueError(f"mmlu_redux reads {REDUX.path} from a local folder; name one with the argument `root`")
    name = str(folder / REDUX.path)
    rows = list(csv.DictReader(io.StringIO(read_file(folder, REDUX, HUB.id), newline="")))
    check_count(name, REDUX.records, len(rows))
    faulty = [row for row in rows if row["error_type"] != "ok"]
    errors = {
        f"mmlu/test/{row['subject']}/{int(row['test_row_0based'])}": row["error_type"]
        for row in faulty
        if row["test_row_0based"]
    }
    unplaced = {
        (row["subject"], _plain(row["question"])): row["error_type"] for row in faulty if not row["test_row_0based"]
    }
    for problem in load("test", root=folder):
        error = unplaced.get((problem.family, _plain(problem.question)))
        if error is not None:
            errors.setdefault(problem.id, error)
    return errors


def _plain(question: str) -> str:
    return re.sub(r"\W+", "", question).lower()


def without(problems: Sequence[Problem], ids: Iterable[str]) -> list[Problem]:
    """The problems whose id is not among `ids`, for example `without(test, mmlu_redux())`."""
    left_out = set(ids)
    return [problem for problem in problems if problem.id not in left_out]


_CITATION = "Hendrycks et al., Measuring Massive Multitask Language Understanding, ICLR 2021, arXiv 2009.03300"

BENCHMARK = Benchmark(
    name="mmlu",
    kind="choice",
    licence="MIT",
    citation=_CITATION,
    hub=HUB,
    files=FILES,
    splits=SPLITS,
    load=load,
    evaluation_split="test",
    training_split="auxiliary_train",
    extras=(REDUX,),
    access=(
        f"{REDUX.path} (annotations, CC-BY-4.0) was put together from aryopg/mmlu-redux and has no address; "
        f"{HUB.id} is read when no local folder is named"
    ),
)

BENCHMARK_153 = Benchmark(
    name="mmlu_153",
    kind="choice",
    licence="MIT",
    citation=_CITATION,
    hub=Hub(HUB.id, HUB.config, ("val",), HUB.revision, HUB.renamed),
    files={"val": FILES["val"]},
    splits={"val": SMALL},
    load=load_153,
    evaluation_split="val",
    access=f"{HUB.id} is read when no local folder is named",
)
