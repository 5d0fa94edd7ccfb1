from __future__ import annotations

import functools
import hashlib
import http.server
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_gspo_core.benchmarks import BENCHMARKS, DATA_VARIABLE, Benchmark, DataFile, Hub
from agent_gspo_core.episode import Problem
from agent_gspo_core.kit import data_command
from agent_gspo_core.kit.cli import main

REAL = Path(os.environ.get(DATA_VARIABLE) or "-")
needs_data = pytest.mark.skipif(not (REAL / "mmlu").is_dir(), reason=f"{DATA_VARIABLE} names no benchmark folder")
README = Path(__file__).parents[1] / "data" / "README.md"


@pytest.fixture(autouse=True)
def _wide_and_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setenv("COLUMNS", "300")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the local address that serves it."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            return

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    thread.join()
    running.server_close()


def made_up(name: str, files: dict[str, DataFile], monkeypatch: pytest.MonkeyPatch, *, access: str = "") -> None:
    """A benchmark whose splits are files of lines, one problem a line; "bad" is a line that does not parse."""

    def load(split: str, *, root: str | Path | None = None, **kwargs: Any) -> list[Problem]:
        lines = [line for leaf in files[split].leaves() for line in (Path(root or "") / leaf.path).read_text().split()]
        if "bad" in lines:
            raise ValueError(f"{name}/{split}/{lines.index('bad')}: expected a number")
        return [Problem(id=f"{name}/{split}/{row}", question=line, answer="1") for row, line in enumerate(lines)]

    card = Benchmark(
        name=name,
        kind="number",
        licence="MIT",
        citation="Nobody, 2000",
        hub=Hub("no/where", "default", ("test",)),
        files=files,
        splits={split: file.records for split, file in files.items()},
        load=load,
        evaluation_split="test",
        access=access,
    )
    monkeypatch.setitem(BENCHMARKS, name, card)


def data_file(path: str, content: bytes, url: str | None) -> DataFile:
    return DataFile(path, len(content.split()), hashlib.sha256(content).hexdigest(), url)


# -- fetch


def test_fetch_puts_checked_files_in_place_and_keeps_what_is_right(
    server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served, address = server
    (served / "a.txt").write_bytes(b"1 2 3")
    made_up("small", {"test": data_file("small/test.txt", b"1 2 3", f"{address}/a.txt")}, monkeypatch)
    root = tmp_path / "root"
    assert main(["data", "fetch", "small", "--root", str(root)]) == 0
    assert [path.name for path in (root / "small").iterdir()] == ["test.txt"]
    assert (root / "small/test.txt").read_bytes() == b"1 2 3"
    assert main(["data", "verify", "small", "--root", str(root)]) == 0
    (served / "a.txt").unlink()
    before = (root / "small/test.txt").stat().st_mtime_ns
    assert main(["data", "fetch", "small", "--root", str(root)]) == 0
    assert (root / "small/test.txt").stat().st_mtime_ns == before
    assert "is there" in capsys.readouterr().out


def test_a_failed_download_names_the_address_and_changes_nothing(
    server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served, address = server
    (served / "b.txt").write_bytes(b"4 5")
    files = {
        "test": data_file("small/test.txt", b"1 2 3", f"{address}/gone.txt"),
        "train": data_file("small/train.txt", b"4 5", f"{address}/b.txt"),
    }
    made_up("small", files, monkeypatch)
    (tmp_path / "root/small").mkdir(parents=True)
    (tmp_path / "root/small/test.txt").write_bytes(b"own")
    assert main(["data", "fetch", "small", "--root", str(tmp_path / "root")]) == 1
    assert f"{address}/gone.txt" in capsys.readouterr().out
    assert (tmp_path / "root/small/test.txt").read_bytes() == b"own"
    assert sorted(path.name for path in (tmp_path / "root/small").iterdir()) == ["test.txt", "train.txt"]


def test_other_bytes_are_refused_with_both_digests_and_not_kept(
    server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served, address = server
    (served / "a.txt").write_bytes(b"1 2 4")
    made_up("small", {"test": data_file("small/test.txt", b"1 2 3", f"{address}/a.txt")}, monkeypatch)
    assert main(["data", "fetch", "small", "--root", str(tmp_path / "root")]) == 1
    printed = capsys.readouterr().out
    assert hashlib.sha256(b"1 2 3").hexdigest() in printed
    assert hashlib.sha256(b"1 2 4").hexdigest() in printed
    assert list((tmp_path / "root/small").iterdir()) == []


def test_files_of_an_archive_come_from_one_download(
    server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served, address = server
    with tarfile.open(served / "x.tar", "w") as tar:
        for name, content in (("data/a.txt", b"1"), ("data/b.txt", b"2")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    parts = tuple(
        data_file(f"small/{name}.txt", content, f"{address}/x.tar#data/{name}.txt")
        for name, content in (("a", b"1"), ("b", b"2"), ("c", b"3"))
    )
    made_up("small", {"test": DataFile("small", 3, None, parts=parts)}, monkeypatch)
    asked: list[str] = []
    download = data_command._download
    monkeypatch.setattr(data_command, "_download", lambda url, path: (asked.append(url), download(url, path))[1])
    assert main(["data", "fetch", "small", "--root", str(tmp_path / "root")]) == 1
    assert asked == [f"{address}/x.tar"]
    assert "the archive holds no file data/c.txt" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "root/small").iterdir()) == ["a.txt", "b.txt"]


def test_what_has_no_address_says_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "fetch", "gpqa", "hiddenbench", "--root", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "gpqa: gated: accept the terms of Idavidrein/gpqa" in printed
    assert "hiddenbench: hub only: YuxuanLi1225/HiddenBench" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fetch", "nonsense", "--root", "x"], "unknown benchmark 'nonsense'; known are mmlu, gsm8k"),
        (["fetch", "gsm8k"], "name the folder with --root FOLDER or the variable AGENT_GSPO_DATA"),
        (["verify"], "name the folder with --root FOLDER"),
        (["verify", "--root", "/no/such/folder"], "no folder /no/such/folder"),
        (["fetch", "gsm8k", "--root", __file__], "is a file; --root takes a folder"),
    ],
)
def test_bad_input_ends_with_two(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *arguments]) == 2
    assert message in capsys.readouterr().err


# -- verify


def test_verify_names_the_missing_the_flipped_and_the_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        split: data_file(f"small/{split}.txt", b"1 2 3", "https://x/y") for split in ("test", "train", "dev", "all")
    }
    made_up("small", files, monkeypatch)
    (tmp_path / "small").mkdir()
    (tmp_path / "small/test.txt").write_bytes(b"1 2 3")
    (tmp_path / "small/train.txt").write_bytes(b"1 2 2")
    (tmp_path / "small/all.txt").mkdir()
    assert main(["data", "verify", "small", "--root", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert f"{tmp_path / 'small/dev.txt'} is missing" in printed
    assert f"{tmp_path / 'small/all.txt'} cannot be read" in printed
    expected, found = (hashlib.sha256(content).hexdigest() for content in (b"1 2 3", b"1 2 2"))
    assert f"{tmp_path / 'small/train.txt'} has other bytes: expected SHA-256 {expected}, found {found}" in printed
    assert "test 3" in printed


def test_verify_sees_a_fault_beyond_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up("small", {"test": data_file("test.txt", b"1 bad", None)}, monkeypatch)
    (tmp_path / "test.txt").write_bytes(b"1 bad")
    assert main(["data", "verify", "small", "--root", str(tmp_path)]) == 1
    assert "small: split test: small/test/1: expected a number" in capsys.readouterr().out
    card = BENCHMARKS["small"]
    monkeypatch.setitem(BENCHMARKS, "small", replace(card, splits={"test": 3}))
    (tmp_path / "test.txt").write_bytes(b"1 2")
    monkeypatch.setitem(card.files, "test", data_file("test.txt", b"1 2", None))  # type: ignore[arg-type]
    assert main(["data", "verify", "small", "--root", str(tmp_path)]) == 1
    assert "expected 3 problems, found 2" in capsys.readouterr().out


def test_verify_does_not_miss_what_only_users_or_the_hub_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "verify", "gpqa", "hiddenbench", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("not expected here") == 2


@needs_data
def test_verify_finds_the_real_folder_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "verify", "--root", str(REAL)]) == 0
    printed = capsys.readouterr().out
    assert printed.count(" right ") == len(BENCHMARKS) - 2
    assert "FAULTY" not in printed


@needs_data
def test_verify_names_a_flipped_byte_of_one_subject(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mmlu/val"
    folder.mkdir(parents=True)
    for source in (REAL / "mmlu/val").iterdir():
        (folder / source.name).write_bytes(source.read_bytes())
    assert main(["data", "verify", "mmlu_153", "--root", str(tmp_path)]) == 0
    path = folder / "virology_val.csv"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    assert main(["data", "verify", "mmlu_153", "--root", str(tmp_path)]) == 1
    assert f"{path} has other bytes" in capsys.readouterr().out


# -- list and the table


def test_list_shows_every_benchmark_and_what_lies_in_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed and card.hub.id in printed for name, card in BENCHMARKS.items())
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k/test.jsonl").write_text("")
    assert main(["data", "list", "--root", str(tmp_path)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if " gsm8k " in line)
    assert "1 of 2 files" in line
    assert "MIT" in line


def test_the_readmes_table_agrees_with_the_cards() -> None:
    section = README.read_text(encoding="utf-8").partition("\n## Benchmarks\n")[2].partition("\n## ")[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in section.splitlines() if "|" in line]
    expected = [
        (
            card.name,
            card.kind,
            card.licence,
            f"{card.evaluation_split} ({card.splits[card.evaluation_split]:,})",
            f"{card.training_split} ({card.splits[card.training_split]:,})" if card.training_split else "-",
            card.citation,
        )
        for card in BENCHMARKS.values()
    ]
    assert rows[2:] == expected
