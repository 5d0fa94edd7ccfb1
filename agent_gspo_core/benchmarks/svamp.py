"""SVAMP: 1,000 elementary word problems that vary the wording of older ones.

Three "SVAMP tests" are in use, and figures on them are not comparable. Here they have names of their own:

    all        the whole challenge set, 1,000: what zero-shot papers report. Never for a policy trained on "train"
    test_300   the 300 that are not in "train": "dev" and "test" together (the hub copy splits 700 to 300 as well)
    test       200, beside "train" (700) and "dev" (100): the split of the divergent-CoT paper

The hub serves "train", "test_300" and, joined, "all". That its 700 are the file's 700 was not checked, so keep to one
source.

The statement comes in two parts, body and question; 358 bodies end without punctuation and are joined with ". ".
In chal-680 the equation gives 5 (four apples, two picked, three grown) but the published answer is 1: it is 5 here
(`CORRECTED`), a departure of one item in a thousand. Ids carry the source's own number, "svamp/chal-680", in every
split.
"""

from __future__ import annotations

from pathlib import Path

from agent_gspo_core.benchmarks.source import (
    Benchmark,
    DataFile,
    Hub,
    Record,
    check_count,
    data_root,
    json_list,
    read_hub,
    read_split,
    take,
    text_value,
    value,
)
from agent_gspo_core.episode import Problem
from agent_gspo_core.scoring.numbers import canonical, parse_number

_SPLITS = "https://raw.githubusercontent.com/UKPLab/arxiv2024-divergent-cot/272a88a1ed/data/svamp"
HUB = Hub(
    "ChilleD/SVAMP",
    "default",
    ("train", "test_300"),
    "5e0bf1e5e7c0e9c4bc39180d224f41f3f801b7ef",
    {"test_300": "test"},
)
_TRAIN = DataFile(
    "svamp/split_train.json",
    700,
    "b4b6d7ac8fdc7977e342fc159ce50873d5420a8ea034923875c485ff3a887e5b",
    f"{_SPLITS}/train.json",
)
_DEV = DataFile(
    "svamp/split_dev.json",
    100,
    "3b0c3d736247683aa6a399d962a347161a30426dd2f382c91236a0148e98b50a",
    f"{_SPLITS}/dev.json",
)
_TEST = DataFile(
    "svamp/split_test.json",
    200,
    "b93e0c03d1cb18603d74d7f4e760faa2e1b95af5bad0bc37c1a368564905cf1f",
    f"{_SPLITS}/test.json",
)
FILES = {
    "train": _TRAIN,
    "dev": _DEV,
    "test": _TEST,
    "test_300": DataFile("svamp", 300, None, parts=(_DEV, _TEST)),
    "all": DataFile(
        "svamp/SVAMP.json",
        1000,
        "5be77703a6d891ae476d7c082787ad361392aa02453b132516cdd5f4e7934e3e",
        "https://raw.githubusercontent.com/arkilpatel/SVAMP/689d7ccac74b9983a2ac7cc3b264f441b99e7c53/SVAMP.json",
    ),
}
CORRECTED = {"chal-680": "5"}
"""Answers that differ from the published ones, by the source's number (ours)."""


def load(
    split: str,
    *,
    root: str | Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    revision: str | None = None,
) -> list[Problem]:
    """Problems of "all" (1,000), "test_300", "test" (200), "dev" (100) or "train" (700).

    The other arguments and the errors are those of `source.Load`.
    """
    if split == "all" and data_root(root) is None:
        records = [record for part in HUB.splits for record in read_hub(HUB, part, revision)]
        check_count(f"{HUB.id} ({' and '.join(HUB.splits)})", FILES["all"].records, len(records))
    else:
        records = read_split("svamp", split, files=FILES, hub=HUB, parse=json_list, root=root, revision=revision)
    return take([problem(record, f"svamp record {row}") for row, record in enumerate(records)], limit, seed)


def problem(record: Record, id: str) -> Problem:
    """One record `{"ID", "Body", "Question", "Answer"}` as a problem; its own number replaces `id`."""
    number = text_value(record, id, "ID")
    body, question = text_value(record, id, "Body"), text_value(record, id, "Question")
    answer = value(record, id, "Answer")
    gold = None if isinstance(answer, bool) else parse_number(str(answer))
    if gold is None:
        raise ValueError(f"{id} ({number}): expected a number as 'Answer', found {answer!r:.60}")
    return Problem(
        id=f"svamp/{number}",
        question=f"{body}{' ' if body[-1] in '.?!' else '. '}{question}",
        answer=CORRECTED.get(number, canonical(gold)),
        family="svamp",
    )


BENCHMARK = Benchmark(
    name="svamp",
    kind="number",
    licence="MIT",
    citation="Patel et al., Are NLP Models really able to Solve Simple Math Word Problems?, 2021, arXiv 2103.07191",
    hub=HUB,
    files=FILES,
    splits={split: file.records for split, file in FILES.items()},
    load=load,
    evaluation_split="test_300",
    training_split="train",
)
