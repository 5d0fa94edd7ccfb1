"""`agent-gspo data`: list the benchmarks, fetch their files, verify a folder of them.

The files are never part of the project: `fetch` takes each original from its own source and keeps it only if its
SHA-256 is the one the benchmark was defined on.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from agent_gspo_core.benchmarks import BENCHMARKS, DATA_VARIABLE, SEVEN, Benchmark, DataFile
from agent_gspo_core.benchmarks.source import data_root

TIMEOUT_SECONDS = 60
"""Longest silence of a server before a download is given up (ours)."""

State = Literal["right", "missing", "other bytes", "unreadable", "not expected here", "supplied"]


@dataclass(frozen=True)
class FileCheck:
    """What was found where a file should lie."""

    file: DataFile
    state: State
    detail: str = ""
    """What is wrong, with path and digests; empty if nothing is."""


def run(action: str, names: Sequence[str], folder: Path | None) -> int:
    """Run "list", "fetch" or "verify"; returns the exit code: 0 well, 1 a file is missing, wrong or cannot be had.

    Raises `ValueError` or `FileNotFoundError` for bad input: an unknown benchmark, no folder named, no such folder.
    """
    console = Console()
    root = data_root(folder)
    if action == "list":
        return list_benchmarks(console, root=root)
    if root is None:
        raise ValueError(f"data {action}: name the folder with --root FOLDER or the variable {DATA_VARIABLE}")
    if root.exists() and not root.is_dir():
        raise ValueError(f"data {action}: {root} is a file; --root takes a folder")
    benchmarks = chosen(names)
    if action == "fetch":
        return fetch(benchmarks, root, console)
    if not root.is_dir():
        raise FileNotFoundError(f"data verify: no folder {root}; `agent-gspo data fetch` makes one")
    return verify(benchmarks, root, console)


def chosen(names: Sequence[str]) -> list[Benchmark]:
    """The benchmarks of these names, each once; all for no name. Raises `ValueError` for a name that is not known."""
    wanted = [name for given in names for name in (SEVEN if given == "seven" else (given,))] or list(BENCHMARKS)
    unknown = [name for name in wanted if name not in BENCHMARKS]
    if unknown:
        raise ValueError(f"unknown benchmark {', '.join(map(repr, unknown))}; known are {', '.join(BENCHMARKS)}")
    return [BENCHMARKS[name] for name in dict.fromkeys(wanted)]


def list_benchmarks(console: Console, *, root: Path | None) -> int:
    """Print every benchmark; returns 0. Presence is whether the files are there, not whether they are right."""
    table = Table(title=f"Benchmarks (folder: {root})" if root else "Benchmarks (no folder named: read from the hub)")
    for column in ("name", "kind", "splits", "licence", "read from", "in the folder"):
        table.add_column(column, overflow="fold")
    for card in BENCHMARKS.values():
        splits = ", ".join(f"{split} {count:,}" for split, count in card.splits.items())
        local = root is not None and bool(card.files)
        table.add_row(
            card.name, card.kind, splits, card.licence, str(root) if local else card.hub.id, _there(card, root)
        )
    console.print(table)
    return 0


def _there(card: Benchmark, root: Path | None) -> str:
    files = card.all_files()
    if not files:
        return "hub only"
    if root is None:
        return "-"
    there = sum((root / file.path).is_file() for file in files)
    return "yes" if there == len(files) else "no" if there == 0 else f"{there} of {len(files)} files"


# -- verify


def verify(benchmarks: Sequence[Benchmark], root: Path, console: Console) -> int:
    """Check digest and count of every file and load every split; returns 0 only if all that is due is right.

    A file without a published digest is the user's to supply: absent it is reported, not counted as missing.
    """
    table = Table(title=f"Benchmark files in {root}")
    for column in ("name", "files", "splits", "verdict"):
        table.add_column(column, overflow="fold")
    checked: dict[DataFile, FileCheck] = {}
    complaints: list[str] = []
    for card in benchmarks:
        for file in card.all_files():
            if file not in checked:
                checked[file] = check_file(root, file)
        mine = [checked[file] for file in card.all_files()]
        faults = [check.detail for check in mine if check.state in ("missing", "other bytes", "unreadable")]
        loaded, load_faults = _load_splits(card, root, checked)
        complaints += [f"{card.name}: {fault}" for fault in faults + load_faults]
        absent = [check for check in mine if check.state == "not expected here"]
        if faults or load_faults:
            verdict = "FAULTY"
        elif not mine or absent:
            verdict = f"not expected here ({card.access or 'hub only'})"
        else:
            verdict = "right"
        right = sum(check.state in ("right", "supplied") for check in mine)
        table.add_row(card.name, f"{right} of {len(mine)}", ", ".join(loaded) or "-", verdict)
    console.print(table)
    for complaint in dict.fromkeys(complaints):
        console.print(complaint, style="red", soft_wrap=True, markup=False, highlight=False)
    return 1 if complaints else 0


def check_file(root: Path, file: DataFile) -> FileCheck:
    """Compare the file in the folder with what it must be; nothing is raised for a file that is not well."""
    path = root / file.path
    if not path.exists():
        if file.sha256 is None:
            return FileCheck(file, "not expected here")
        return FileCheck(file, "missing", f"{path} is missing (expected SHA-256 {file.sha256})")
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        return FileCheck(file, "unreadable", f"{path} cannot be read: {error.strerror or error}")
    if file.sha256 is None:
        return FileCheck(file, "supplied")
    if found != file.sha256:
        return FileCheck(file, "other bytes", f"{path} has other bytes: expected SHA-256 {file.sha256}, found {found}")
    return FileCheck(file, "right")


def _load_splits(card: Benchmark, root: Path, checked: dict[DataFile, FileCheck]) -> tuple[list[str], list[str]]:
    """Splits that loaded, with their counts, and what is wrong with the others; only splits whose files are right."""
    loaded, faults = [], []
    for split, file in card.files.items():
        if any(checked[leaf].state not in ("right", "supplied") for leaf in file.leaves()):
            continue
        try:
            problems = card.load(split, root=root)
        except (ValueError, FileNotFoundError) as error:
            faults.append(f"split {split}: {error}")
            continue
        if len(problems) != card.splits[split] or len({problem.id for problem in problems}) != len(problems):
            faults.append(
                f"split {split}: expected {card.splits[split]} problems, found {len(problems)}, or one id twice"
            )
        else:
            loaded.append(f"{split} {len(problems):,}")
    return loaded, faults


# -- fetch


def fetch(benchmarks: Sequence[Benchmark], root: Path, console: Console) -> int:
    """Download what the folder lacks; returns 0 if every file with an address is there and right, else 1.

    A file that is right stays untouched. Another is written beside its place, checked, and only then put there, so that
    a broken download leaves what was there before. One failure does not end the others.
    """
    failed = 0
    with _archives() as archives:
        for card in benchmarks:
            for file in card.all_files():
                if check_file(root, file).state in ("right", "supplied"):
                    _say(console, f"{card.name}: {file.path} is there")
                    continue
                if file.url is None:
                    continue
                try:
                    fetch_file(root, file, archives)
                except (OSError, ValueError, http.client.HTTPException, tarfile.TarError) as error:
                    failed += 1
                    _say(console, f"{card.name}: {file.path} FAILED: {error}", style="red")
                else:
                    _say(console, f"{card.name}: {file.path} fetched from {file.url}")
            if (
                any(file.url is None and not (root / file.path).is_file() for file in card.all_files())
                or not card.files
            ):
                _say(console, f"{card.name}: {card.access or f'{card.hub.id} is read when no local folder is named'}")
    return 1 if failed else 0


def _say(console: Console, text: str, *, style: str | None = None) -> None:
    console.print(text, style=style, soft_wrap=True, markup=False, highlight=False)


class _Archives:
    """Archives that hold several files, downloaded once each into a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failed: dict[str, str] = {}

    def get(self, url: str) -> Path:
        """The downloaded archive. Raises `OSError` naming the address, at once if it failed before."""
        if url in self.failed:
            raise OSError(self.failed[url])
        path = self.folder / hashlib.sha256(url.encode()).hexdigest()
        if not path.exists():
            try:
                _download(url, path)
            except OSError as error:
                path.unlink(missing_ok=True)
                self.failed[url] = str(error)
                raise
        return path


@contextmanager
def _archives() -> Iterator[_Archives]:
    with tempfile.TemporaryDirectory(prefix="agent-gspo-data-") as folder:
        yield _Archives(Path(folder))


def fetch_file(root: Path, file: DataFile, archives: _Archives) -> None:
    """Download one file to its place in the folder.

    Raises `OSError` naming the address if it cannot be had or written, `ValueError` if the bytes are not the expected.
    """
    assert file.url is not None
    path = root / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    part = Path(name)
    try:
        address, _, member = file.url.partition("#")
        if member:
            _extract(archives.get(address), member, part, file.url)
        else:
            _download(address, part)
        with part.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != file.sha256:
            raise ValueError(f"{file.url} gave other bytes: expected SHA-256 {file.sha256}, found {found}")
        part.chmod(0o644)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _download(url: str, path: Path) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "agent-gspo"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer, path.open("wb") as stream:
            shutil.copyfileobj(answer, stream)
            announced = answer.headers.get("Content-Length")
            if announced is not None and announced.isdigit() and int(announced) != stream.tell():
                raise OSError(f"broken off after {stream.tell()} of {announced} bytes")
    except (OSError, http.client.HTTPException) as error:
        raise OSError(f"cannot download {url}: {error}; check the network, or put the file there yourself") from error


def _extract(archive: Path, member: str, path: Path, url: str) -> None:
    with tarfile.open(archive) as tar:
        try:
            stream = tar.extractfile(member)
        except KeyError:
            stream = None
        if stream is None:
            raise ValueError(f"{url}: the archive holds no file {member}")
        with path.open("wb") as out:
            shutil.copyfileobj(stream, out)
