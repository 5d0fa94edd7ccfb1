"""MultiArith: 600 arithmetic word problems of two steps, 580 of them distinct.

There is no official split. Ours (380 train, 200 test) never puts one wording on both sides: the 580 questions are 120
stories told with other names and numbers, so a split by question would train on nearly every story of the test. The
hub copy comes in two parts (420 + 180); they are joined, and split as the file is. "all" is the whole set, on which
zero-shot figures are usually published: never report it for a policy that was trained on "train".

Ids tell the side in every split ("multiarith/test/17"), count in the order of question hashes, and do not depend on
the order of the source.
"""

from __future__ import annotations

import re
from pathlib import Path

from agent_gspo_core.benchmarks.source import (
    Benchmark,
    DataFile,
    Hub,
    Record,
    check_count,
    check_split,
    data_root,
    digest,
    json_list,
    read_file,
    read_hub,
    take,
)
from agent_gspo_core.episode import Problem
from agent_gspo_core.scoring.numbers import canonical, parse_number

HUB = Hub("ChilleD/MultiArith", "default", ("train", "test"))
FILE = DataFile(
    "multiarith/MultiArith.json",
    600,
    "dc9db1b6cc68b1ecc2dec830d15aaf8c9a0932aa31d5ffce88ef3628179d36f4",
    "https://raw.githubusercontent.com/kojima-takeshi188/zero_shot_cot/5ef330fcdeec0cd26aee27943504f91f8ec1c33c"
    "/dataset/MultiArith/MultiArith.json",
)
SPLITS = {"train": 380, "test": 200, "all": 580}

# What differs between two tellings of one story: names and other capitalised words, numbers, pronouns.
_TOLD = re.compile(r"\b(?:[A-Z]\w*|[0-9]+|he|she|his|hers?|him)\b")


def load(
    split: str,
    *,
    root: str | Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    revision: str | None = None,
    keep_duplicates: bool = False,
) -> list[Problem]:
    """Problems of "train", "test" or "all".

    Args:
        split: "train" (380), "test" (200) or "all" (580).
        root: local folder with `multiarith/MultiArith.json`; else `AGENT_GSPO_DATA`; else the hub.
        limit: at most so many problems, drawn by `seed`; `None` means all.
        seed: of the subset.
        revision: commit or branch of the hub data set; `None` reads the card's, else "main". The local file is held
            to its SHA-256 and count, the hub to the count alone.
        keep_duplicates: also give the 20 questions that stand twice their second time, under an id ending in "/again"
            and on the same side; for comparison with figures on 600 items.

    Raises:
        FileNotFoundError: the local folder lacks the file.
        ConnectionError: the hub cannot be read.
        ValueError: unknown split, another file than expected, or a record without a question and a number.
    """
    check_split("multiarith", split, tuple(SPLITS))
    folder = data_root(root)
    if folder is not None:
        name = str(folder / FILE.path)
        pairs = [local_pair(record, name, row) for row, record in enumerate(read_records(folder))]
    else:
        name = HUB.id
        records = [record for part in HUB.splits for record in read_hub(HUB, part, revision)]
        pairs = [hub_pair(record, name, row) for row, record in enumerate(records)]
    check_count(name, FILE.records, len(pairs))
    problems = split_problems(pairs, SPLITS["test"], keep_duplicates=keep_duplicates)
    check_count(f"{name}, distinct questions", SPLITS["all"], sum(not p.id.endswith("/again") for p in problems))
    return take([p for p in problems if split in ("all", p.id.split("/")[1])], limit, seed)


def read_records(folder: Path) -> list[Record]:
    """The records of the local file."""
    return json_list(read_file(folder, FILE, HUB.id), str(folder / FILE.path))


def local_pair(record: Record, name: str, row: int) -> tuple[str, str]:
    """Question and answer of a record of the original file: `sQuestion`, `lSolutions`."""
    try:
        question, solutions = record["sQuestion"], record["lSolutions"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{name}, record {row}: no 'sQuestion' or no 'lSolutions' in {record!r:.200}") from error
    if len(solutions) != 1:
        raise ValueError(f"{name}, record {row}: expected one solution, found {solutions!r}")
    return _pair(question, solutions[0], name, row)


def hub_pair(record: Record, name: str, row: int) -> tuple[str, str]:
    """Question and answer of a record of the hub copy: `question`, `final_ans`."""
    try:
        return _pair(record["question"], record["final_ans"], name, row)
    except KeyError as error:
        raise ValueError(f"{name}, record {row}: no 'question' or no 'final_ans' in {record!r:.200}") from error


def _pair(question: str, answer: float | str, name: str, row: int) -> tuple[str, str]:
    gold = parse_number(str(answer))
    if gold is None:
        raise ValueError(f"{name}, record {row}: expected a number, found {answer!r}")
    return " ".join(question.split()), canonical(gold)  # blanks stand at an end of every question; 6.0 is "6"


def story(question: str) -> str:
    """The question without what differs between two tellings of one story (names, numbers, pronouns)."""
    return _TOLD.sub("_", question.replace("’", "'"))


def split_problems(pairs: list[tuple[str, str]], test: int, *, keep_duplicates: bool = False) -> list[Problem]:
    """Split (question, answer) pairs into `test` test problems and the rest, whole stories at a time.

    Stories come in the order of their hashes; each goes to the test side if it still fits there. The result holds the
    train side, then the test side, each in the order of question hashes.

    Raises `ValueError` if the stories do not add up to `test`, or one question has two answers.
    """
    answers: dict[str, str] = {}
    twice: set[str] = set()
    for question, answer in pairs:
        if answers.setdefault(question, answer) != answer:
            raise ValueError(f"multiarith: two answers, {answers[question]} and {answer}, to {question!r:.120}")
    seen: set[str] = set()
    for question, _ in pairs:
        (twice if question in seen else seen).add(question)
    stories: dict[str, list[str]] = {}
    for question in sorted(answers, key=digest):
        stories.setdefault(story(question), []).append(question)
    chosen: set[str] = set()
    for key in sorted(stories, key=digest):
        if len(chosen) + len(stories[key]) <= test:
            chosen.update(stories[key])
    if len(chosen) != test:
        raise ValueError(f"multiarith: stories add up to {len(chosen)} test problems, expected {test}: other data?")
    problems = []
    for side, inside in (("train", False), ("test", True)):
        questions = [question for question in sorted(answers, key=digest) if (question in chosen) == inside]
        for number, question in enumerate(questions):
            ids = [f"multiarith/{side}/{number}"]
            if keep_duplicates and question in twice:
                ids.append(f"{ids[0]}/again")
            problems += [
                Problem(id=id, question=question, answer=answers[question], kind="number", family="multiarith")
                for id in ids
            ]
    return problems


BENCHMARK = Benchmark(
    name="multiarith",
    kind="number",
    licence="unclear",
    citation="Roy and Roth, Solving General Arithmetic Word Problems, EMNLP 2015, doi 10.18653/v1/D15-1202",
    hub=HUB,
    files=dict.fromkeys(SPLITS, FILE),
    splits=SPLITS,
    load=load,
    evaluation_split="test",
    training_split="train",
)
