"""What a run leaves behind: run folders, JSON records that are whole or absent, intervals, provenance.

Every record is written beside its place and moved there in one step, so a reader never sees half of one, and no record
holds NaN or infinities, which are not JSON.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import platform
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

Interval = dict[str, float | None]
"""{"mean", "low", "high"}; low and high are None where one unit alone gives no interval."""

SUMMARY = "summary.json"

PACKAGES = (
    "agent-gspo",
    "torch",
    "transformers",
    "peft",
    "tokenizers",
    "datasets",
    "numpy",
    "scipy",
    "pandas",
    "matplotlib",
    "papermill",
    "ipykernel",
    "unsloth",
    "trl",
)
"""Packages whose versions a record names when they are installed."""

# -------------------------------------------------------------------------------------------------------------- places


def project_root() -> Path:
    """The checkout that the package runs from (see `agent_gspo_core.policy.project_root`)."""
    from agent_gspo_core.policy import project_root as find  # imports torch, which a `--help` need not wait for

    return find()


def project_path(path: Path | str) -> Path:
    """A recorded path made usable: relative ones count from the project root, never from the working folder."""
    path = Path(path)
    return path if path.is_absolute() else project_root() / path


def relative_to_project(path: Path | str) -> str:
    """A path as records name it: relative to the project root where it lies inside, as it is elsewhere."""
    path = Path(path).absolute()
    root = project_root()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def new_run_folder(profile: str) -> Path:
    """Make `runs/<UTC time>-<profile>` under the project root and let `runs/latest` point at it.

    `profile` may be a path to a profile file; its stem is used.
    """
    runs = project_root() / "runs"
    stem = Path(profile).stem if profile.endswith((".yaml", ".yml")) else profile
    if not re.fullmatch(r"[\w.-]+", stem):
        raise ValueError(
            f"run folder: profile {profile!r} cannot be part of a folder's name; use letters, digits, - _ ."
        )
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{stem}"
    runs.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 100):
        folder = runs / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            folder.mkdir()
        except FileExistsError:  # another run began in the same second
            continue
        point_latest(folder)
        return folder
    raise FileExistsError(f"run folder: {runs / name} and 98 more like it exist; remove some")


def open_run_folder(run_folder: Path | str | None, profile: str) -> Path:
    """The run folder that a notebook was given, made if need be; a new one under `runs/` when it was given none."""
    if run_folder is None or not str(run_folder):
        return new_run_folder(profile)
    folder = project_path(run_folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"run folder {str(folder)!r} is a file; name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if folder.parent == project_root() / "runs":
        point_latest(folder)
    return folder


def point_latest(folder: Path) -> Path:
    """Let the link `latest` beside `folder` point at it, without a moment in which there is no link."""
    link = folder.parent / "latest"
    if link.exists() and not link.is_symlink():
        raise FileExistsError(f"run folder: {link} is not a link; move it away so that it can point at the newest run")
    part = folder.parent / f".latest.{uuid.uuid4().hex}"
    part.symlink_to(folder.name, target_is_directory=True)
    os.replace(part, link)
    return link


# ------------------------------------------------------------------------------------------------------------- records


def check_json(value: object, where: str = "value") -> None:
    """Refuse what JSON cannot hold, naming the key path.

    Raises:
        ValueError: NaN, an infinity, a key that is not text, or a value that is no plain Python value.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where}: key {key!r} is {_kind(key)}; JSON keys are text, write str(...)")
            check_json(inner, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            check_json(inner, f"{where}[{index}]")
    elif type(value) is float:  # numpy.float64 is a float by inheritance and is caught below
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}; JSON has no such number, record None where nothing was measured")
    elif type(value) not in (str, int, bool, type(None)):
        raise ValueError(
            f"{where} is {value!r} ({_kind(value)}); give a plain str, int, float, bool, None, list or mapping"
        )


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def write_text(path: Path | str, text: str) -> Path:
    """Write a text file that is whole or absent; the old one stays whole until then."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # else the name may outlive the content when the machine stops
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def write_json(path: Path | str, data: object) -> Path:
    """Write `data` as JSON that is whole or absent. ValueError, before anything is touched, as in `check_json`."""
    check_json(data, Path(path).name)
    return write_text(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path | str) -> Any:
    """Read a JSON record. ValueError naming the file when it is none."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON record: {error}") from error


def append_jsonl(path: Path | str, record: Mapping[str, object]) -> None:
    """Add one line to a JSON Lines file, in a single write. A line torn by a crash is closed off first."""
    check_json(record, Path(path).name)
    line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = "\n" + line
        file.write(line.encode())


def read_jsonl(path: Path | str) -> list[dict[str, Any]]:
    """Lines of a JSON Lines file. A last line without its end is still being written and is left out.

    Raises:
        ValueError: a whole line is no JSON object; the message names file and line.
    """
    records = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            break
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number}: expected an object, got {record!r}")
        records.append(record)
    return records


def read_summary(run_folder: Path | str) -> dict[str, Any]:
    """`summary.json` of a run folder; empty when there is none yet."""
    path = Path(run_folder) / SUMMARY
    return dict(read_json(path)) if path.is_file() else {}


def merge_summary(run_folder: Path | str, **keys: object) -> dict[str, Any]:
    """Put `keys` into the run folder's `summary.json` and return the whole.

    Mappings are merged into what is there, everything else replaces it, and keys of other writers stay. Writers wait
    for each other, so none loses what another wrote.
    """
    with _locked(Path(run_folder)):
        summary = _merged(read_summary(run_folder), keys)
        write_json(Path(run_folder) / SUMMARY, summary)
    return summary


def drop_from_summary(run_folder: Path | str, keys: Sequence[str]) -> None:
    """Take top-level keys out of the run folder's `summary.json`; those that are not there are no error."""
    with _locked(Path(run_folder)):
        summary = read_summary(run_folder)
        kept = {key: value for key, value in summary.items() if key not in keys}
        if kept != summary:
            write_json(Path(run_folder) / SUMMARY, kept)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in new.items():
        before = merged.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(before, value) if both else value  # type: ignore[arg-type]
    return merged


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder itself as the lock: no lock file to be left behind."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# ----------------------------------------------------------------------------------------------------------- intervals


def interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean over independent units (training seeds) with Student's t interval, as records hold it.

    See `agent_gspo_core.statistics.t_interval`, errors included. One unit has no interval: low and high are None.
    """
    from agent_gspo_core.statistics import t_interval  # imports scipy, which a `--help` need not wait for

    found = t_interval(values, confidence)
    return {"mean": found.mean, "low": found.low, "high": found.high}


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Share of `n` independent items with Wilson's score interval; `mean` is the plain share.

    See `agent_gspo_core.statistics.wilson`, errors included.
    """
    from agent_gspo_core.statistics import wilson as share  # imports scipy, which a `--help` need not wait for

    found = share(successes, n, confidence)
    return {"mean": found.mean, "low": found.low, "high": found.high}


# ---------------------------------------------------------------------------------------------------------- provenance


def usable_cores() -> int:
    """Cores that this process may use, which a container or `taskset` makes fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


SECRET_VARIABLE = re.compile(r"(^|_)(TOKEN|SECRET|CREDENTIALS?|KEY|PASS)(_|$)|PASSW|APIKEY", re.IGNORECASE)
"""Environment variables whose values are taken for secrets."""

SECRETS = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|\bsk-[A-Za-z0-9_-]{20,}"  # OpenAI, Anthropic
    r"|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}|\bglpat-[A-Za-z0-9_-]{20,}"
    r"|\bAKIA[0-9A-Z]{16}\b"  # AWS
    r"|\bAIza[0-9A-Za-z_-]{35}"  # Google
    r"|\bxox[abprs]-[A-Za-z0-9-]{10,}"  # Slack
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-]|-(?!----))*(?:-----END [A-Z ]*PRIVATE KEY-----)?"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"  # user and password in an address
)
"""Texts that are secrets by their form."""

SECRET = "[secret]"
"""What stands in place of a secret."""


def scrub(text: str) -> str:
    """Text without the places of this machine and without secrets.

    The checkout becomes ".", the home folder "~". Values of environment variables that are named like secrets (eight
    characters or more), keys of well-known forms and passwords in addresses become "[secret]". Anything else that is
    secret is not recognised.
    """
    for name, value in os.environ.items():
        if len(value) >= 8 and SECRET_VARIABLE.search(name):
            text = text.replace(value, SECRET)
    text = SECRETS.sub(SECRET, text)
    for place, name in ((Path(__file__).resolve().parents[2], "."), (Path.home(), "~")):
        if place != Path(place.anchor):
            text = re.sub(r"(?<![\w.-])" + re.escape(str(place)) + r"(?![\w.-])", name, text)
    return text


def scrub_all(value: Any) -> Any:
    """`scrub` for every text in nested lists and mappings; keys too."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        return {scrub(key) if isinstance(key, str) else key: scrub_all(inner) for key, inner in value.items()}
    return [scrub_all(inner) for inner in value] if isinstance(value, list | tuple) else value


def provenance(**more: Any) -> dict[str, Any]:
    """What a run ran on: commit, versions, hardware, cores and threads, start in UTC, then `more` (JSON values).

    Holds no path of this machine and no secret (see `scrub`).
    """
    record: dict[str, Any] = {
        "started": utc_now(),
        "git": _git_state(Path(__file__).resolve().parents[2]),
        "python": platform.python_version(),
        "packages": _versions(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": _processor(),
        "memory_gib": _memory(),
        "cpu_count": usable_cores(),
        "threads": {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
    }
    torch = sys.modules.get("torch")  # loaded already, or not asked about: importing it takes seconds
    if torch is not None:
        record["threads"]["torch"] = torch.get_num_threads()
        record["accelerator"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return dict(scrub_all(record | more))


def _processor() -> str:
    """The processor's name where the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()


def _memory() -> float:
    """Memory of the machine in GiB, one decimal."""
    import psutil  # type: ignore[import-untyped]

    return round(float(psutil.virtual_memory().total) / 2**30, 1)


THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Environment variables by which the number libraries take their number of threads."""


def utc_now() -> str:
    """Now, as records write it: 2026-01-31T09:30:00Z."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _git_state(root: Path) -> dict[str, object] | None:
    """Commit and whether anything differs from it; None outside a checkout of this project."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=30
        )
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None  # installed into somebody else's repository: its commit is not ours
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None
