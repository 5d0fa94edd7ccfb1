"""Where the records come from: a local folder that is checked, or the Hugging Face hub.

A local folder is named by an argument or by the environment variable `AGENT_GSPO_DATA`; without either the hub is
asked. There is no falling back from one to the other: a run must know which data it saw. What only the hub has (a card
without a file for that split) is read there in any case.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agent_gspo_core.episode import AnswerKind, Problem

DATA_VARIABLE = "AGENT_GSPO_DATA"
"""Environment variable that names the local folder."""

DEFAULT_REVISION = "main"
"""Hub revision where neither caller nor card names one (ours). A branch moves: pass a commit hash to pin a run."""


Record = dict[str, Any]
"""One row of a data set as it was read."""


@dataclass(frozen=True)
class DataFile:
    """One file of a local folder and what it must be."""

    path: str
    """Below the folder, with forward slashes: "gsm8k/test.jsonl"."""
    records: int
    sha256: str | None
    """Of the file's bytes, in hex; `None` for a file that only its user can supply, and for a folder."""
    url: str | None = None
    """Where the original lies; "archive.tar#member" for a file inside an archive, `None` where no address serves it."""
    parts: tuple[DataFile, ...] = ()
    """The files of a folder, in reading order; `path` is then the folder."""

    def leaves(self) -> tuple[DataFile, ...]:
        """The files themselves: the parts of a folder, else this one."""
        return self.parts or (self,)


@dataclass(frozen=True)
class Hub:
    """A data set on the Hugging Face hub."""

    id: str
    config: str
    splits: tuple[str, ...]
    """Splits that the hub serves, by the benchmark's own names."""
    revision: str | None = None
    """Commit hash that public code pins, not read by us (no hub was in reach); `None`: `DEFAULT_REVISION` is read."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The hub's name of a split, where it differs."""


class Load(Protocol):
    """The signature of every benchmark's `load`."""

    def __call__(
        self,
        split: str,
        *,
        root: str | Path | None = None,
        limit: int | None = None,
        seed: int = 0,
        revision: str | None = None,
    ) -> list[Problem]:
        """Problems of one split.

        Args:
            split: one of the benchmark's own.
            root: local folder with the benchmark's files; else `AGENT_GSPO_DATA`; else the hub.
            limit: at most so many problems, drawn by `seed`; `None` means all in file order.
            seed: of the subset.
            revision: commit or branch of the hub data set; `None` reads the card's, else "main". A local file is held
                to its SHA-256 and count, the hub to the count alone.

        Raises:
            FileNotFoundError: the local folder lacks the file.
            ConnectionError: the hub cannot be read.
            ValueError: unknown split, another file than expected, or a record that is not of the expected form.
        """
        ...


@dataclass(frozen=True)
class Benchmark:
    """What a benchmark is, where it comes from, and how it is loaded."""

    name: str
    kind: AnswerKind
    licence: str
    """SPDX identifier, or "unclear"."""
    citation: str
    hub: Hub
    files: Mapping[str, DataFile]
    """The local file of each split; a split without one is read from the hub alone."""
    splits: Mapping[str, int]
    """Problems in each split."""
    load: Load
    evaluation_split: str
    """The split that figures are reported on unless another is named."""
    training_split: str | None = None
    """A split that shares no problem with `evaluation_split`; `None` where the source has none."""
    extras: tuple[DataFile, ...] = ()
    """Files beside the splits: what else `load` reads, or annotations."""
    access: str = ""
    """How to get what no address serves."""

    def all_files(self) -> tuple[DataFile, ...]:
        """Every file once, folders opened, in the order of the splits."""
        named = [leaf for file in (*self.files.values(), *self.extras) for leaf in file.leaves()]
        return tuple(dict.fromkeys(named))


def data_root(root: str | Path | None) -> Path | None:
    """The local folder: the argument, else the environment variable, else `None`, which means the hub."""
    named = root if root is not None else os.environ.get(DATA_VARIABLE)
    return Path(named).expanduser() if named else None


def check_split(benchmark: str, split: str, splits: Sequence[str]) -> None:
    """Raise `ValueError` for a split that the benchmark does not have."""
    if split not in splits:
        raise ValueError(f"{benchmark} has no split {split!r}; it has {', '.join(map(repr, splits))}")


def check_count(what: str, expected: int, found: int) -> None:
    """Raise `ValueError` unless `found` records are the expected number."""
    if found != expected:
        raise ValueError(
            f"{what}: expected {expected} records, found {found}; fetch the original again (`limit` draws a subset)"
        )


def read_file(root: Path, file: DataFile, hub_id: str) -> str:
    """The text of a local file after its SHA-256 was checked; a `.gz` file is unpacked.

    Raises `FileNotFoundError` naming the path looked for and both remedies, `ValueError` if the bytes are others or no
    text.
    """
    path = root / file.path
    if not path.is_file():
        raise FileNotFoundError(
            f"no file {path}; set {DATA_VARIABLE} (or the argument `root`) to a folder that holds {file.path}, "
            f"or unset both to read {hub_id!r} from the Hugging Face hub"
        )
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if file.sha256 is not None and digest != file.sha256:
        raise ValueError(
            f"{path} is not the file this benchmark was defined on: expected SHA-256 {file.sha256} "
            f"({file.records} records), found {digest} ({len(data)} bytes); fetch the original again"
        )
    try:
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        form = "gzip of UTF-8 text" if path.suffix == ".gz" else "UTF-8 text"
        raise ValueError(f"{path}: expected {form}, {type(error).__name__}; save it in that form") from error


def json_lines(text: str, name: str) -> list[Record]:
    """One object a line. Raises `ValueError` naming the file and line of what is no JSON object."""
    records = []
    # Not splitlines(): it also breaks at U+2028 and the like, which JSON allows inside a string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{name}, line {number}: expected a JSON object, {error}") from error
            if not isinstance(record, dict):
                raise ValueError(f"{name}, line {number}: expected a JSON object, found {type(record).__name__}")
            records.append(record)
    return records


def json_list(text: str, name: str) -> list[Record]:
    """One JSON list of objects. Raises `ValueError` naming the file if it is something else."""
    try:
        records = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{name}: expected a JSON list of objects, {error}") from error
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError(f"{name}: expected a JSON list of objects, found {type(records).__name__}")
    return records


def read_hub(hub: Hub, split: str, revision: str | None, *, local: bool = True) -> list[Record]:
    """The records of one hub split, in the hub's order; `revision=None` means the card's, else `DEFAULT_REVISION`.

    `local` says whether a local folder could serve the split instead. Raises `ConnectionError` naming the data set and
    the remedy if it cannot be had, `ImportError` if the package `datasets` is missing.
    """
    revision = revision or hub.revision or DEFAULT_REVISION
    split = hub.renamed.get(split, split)
    remedy = (
        f"or set {DATA_VARIABLE} to a local folder with the benchmark files"
        if local
        else "no local file can replace it"
    )
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(
            f"reading {hub.id!r} from the hub needs the package `datasets`; install it, {remedy}"
        ) from error
    try:
        rows = load_dataset(hub.id, hub.config, split=split, revision=revision)
    except Exception as error:  # the hub client raises its own, httpx's and OS errors; the cause is kept
        raise ConnectionError(
            f"cannot read {hub.id!r} (config {hub.config!r}, split {split!r}, revision {revision!r}) from the Hugging "
            f"Face hub: {type(error).__name__}: {error}. Check the network and the revision, {remedy}"
        ) from error
    return [dict(row) for row in rows]


def read_split(
    benchmark: str,
    split: str,
    *,
    files: Mapping[str, DataFile],
    hub: Hub,
    parse: Callable[[str, str], list[Record]],
    root: str | Path | None,
    revision: str | None,
) -> list[Record]:
    """The counted records of one split, from the local folder if one is named, else from the hub.

    `parse` turns a file's text and name into records. Raises what `read_file` and `read_hub` raise, and `ValueError`
    for a split that the benchmark does not have or that the place asked does not hold.
    """
    check_split(benchmark, split, tuple(dict.fromkeys((*files, *hub.splits))))
    folder = data_root(root)
    if folder is None or split not in files:
        if split not in hub.splits:
            raise ValueError(
                f"{benchmark}: the hub does not serve split {split!r}; set {DATA_VARIABLE} (or the argument `root`) to "
                f"a folder that holds {files[split].path} (`agent-gspo data fetch {benchmark}` downloads it)"
            )
        records = read_hub(hub, split, revision, local=split in files)
        if split in files:
            check_count(f"{hub.id} ({split})", files[split].records, len(records))
        return records
    records = []
    for file in files[split].leaves():
        name = str(folder / file.path)
        part = parse(read_file(folder, file, hub.id), name)
        check_count(name, file.records, len(part))
        records += part
    return records


def loader(
    benchmark: str,
    problem: Callable[[Record, str], Problem],
    *,
    files: Mapping[str, DataFile],
    hub: Hub,
    parse: Callable[[str, str], list[Record]],
) -> Load:
    """The `load` of a benchmark whose splits are read as they are: each record becomes one problem, by `problem`.

    `parse` as in `read_split`. Ids name split and row: "gsm8k/test/17".
    """

    def load(
        split: str,
        *,
        root: str | Path | None = None,
        limit: int | None = None,
        seed: int = 0,
        revision: str | None = None,
    ) -> list[Problem]:
        records = read_split(benchmark, split, files=files, hub=hub, parse=parse, root=root, revision=revision)
        return take([problem(record, id) for record, id in numbered(records, f"{benchmark}/{split}")], limit, seed)

    return load


def value(record: Record, id: str, *names: str) -> Any:
    """The first of the named fields that the record has (files and hub copies name some differently).

    Raises `ValueError` naming problem and fields, and no content, if it has none of them.
    """
    for name in names:
        if record.get(name) is not None:
            return record[name]
    wanted = " or ".join(map(repr, names))
    raise ValueError(f"{id}: no field {wanted}; the record has {', '.join(map(repr, sorted(record)))}")


def text_value(record: Record, id: str, *names: str) -> str:
    """As `value`, but a text that is not blank, without blanks at its ends."""
    found = value(record, id, *names)
    if not isinstance(found, str) or not found.strip():
        raise ValueError(f"{id}: field {names[0]!r} should hold text, found {type(found).__name__} without any")
    return found.strip()


def numbered(records: Sequence[Record], stem: str) -> Iterator[tuple[Record, str]]:
    """Each record with its id: the stem and the row, counted from 0."""
    for row, record in enumerate(records):
        yield record, f"{stem}/{row}"


def take(problems: Sequence[Problem], limit: int | None, seed: int) -> list[Problem]:
    """All problems in file order, or the first `limit` of them in an order that depends on `seed` and the ids alone.

    The order comes from hashes, so that it is the same in every Python, and a smaller subset begins a larger one.
    """
    if limit is None:
        return list(problems)
    if limit < 1:
        raise ValueError(f"limit={limit}: expected at least 1, or None for all {len(problems)} problems")
    return sorted(problems, key=lambda problem: digest(f"{seed}:{problem.id}"))[:limit]


def digest(text: str) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
