"""Where the records come from: a local folder that is checked, or the Hugging Face hub.

A local folder is named by an argument or by the environment variable `AGENT_GSPO_DATA`; without either the hub is
asked. There is no falling back from one to the other: a run must know which data it saw.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent_gspo_core.episode import AnswerKind, Problem

DATA_VARIABLE = "AGENT_GSPO_DATA"
"""Environment variable that names the local folder."""

DEFAULT_REVISION = "main"
"""Hub revision where neither caller nor card names one (ours). A branch moves: pass a commit hash to pin a run."""


@dataclass(frozen=True)
class DataFile:
    """One file of a local folder and what it must be."""

    path: str
    """Below the folder, with forward slashes: "gsm8k/test.jsonl"."""
    records: int
    sha256: str | None
    """Of the file's bytes, in hex; `None` for a file that has no single published form."""


@dataclass(frozen=True)
class Hub:
    """A data set on the Hugging Face hub."""

    id: str
    config: str
    splits: tuple[str, ...]
    revision: str | None = None
    """Commit hash whose content was checked; `None` while none was, then `DEFAULT_REVISION` is read."""


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
        """Problems of one split."""
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
    """The local file of each split."""
    splits: Mapping[str, int]
    """Problems in each split."""
    load: Load


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
    """The text of a local file after its SHA-256 was checked.

    Raises `FileNotFoundError` naming the path looked for and both remedies, `ValueError` if the bytes are others.
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
    return data.decode("utf-8")


def json_lines(text: str, name: str) -> list[dict[str, Any]]:
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


def read_hub(hub: Hub, split: str, revision: str | None) -> list[dict[str, Any]]:
    """The records of one hub split, in the hub's order; `revision=None` means the card's, else `DEFAULT_REVISION`.

    Raises `ConnectionError` naming the data set and the local remedy if it cannot be had, `ImportError` if the package
    `datasets` is missing.
    """
    revision = revision or hub.revision or DEFAULT_REVISION
    remedy = f"or set {DATA_VARIABLE} to a local folder with the benchmark files"
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
