"""Run model-written code behind walls. Off unless asked for: nothing runs without a `SandboxSettings` in the call.

A solution and its tests run in **two processes**. The judge holds the tests and a nonce that is not in the solution's
memory; it calls the solution over a pipe, and only plain data (numbers, strings, lists, dicts, …) comes back. So a
solution can neither see nor patch what decides about it, and an object that claims to equal everything is refused.
A run passes only if the judge reached the end of the tests and the nonce came back with exit code 0. Values are passed,
not shared: a solution that works by changing its argument in place is not seen to have done so, and a value of more
than 64 MB as JSON is refused.

`run_program` runs one source in one process and says whether it reached its end; what is inside may say so falsely
(`__eq__`, patched `assert` helpers, the sandbox's own protocol replayed). Score with `run_solution`.

Walls at every level: own session, closed input, an empty folder as working, home and temporary folder that is removed,
an environment with no secret in it, limits of CPU and wall time, memory, file size, files, processes and output, and an
end by SIGKILL. On Linux, where the kernel offers them, Landlock (files) and seccomp (system calls), and, for root, an
unused user id without capabilities.

{table}

Source: ours; the traps are those of human-eval's and nanochat's runners.
"""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import secrets
import select
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from agent_gspo_core.episode import CodeTests

__all__ = [
    "Isolation",
    "Outcome",
    "SandboxError",
    "SandboxSettings",
    "Status",
    "check_solutions",
    "coverage_table",
    "isolation_level",
    "run_many",
    "run_program",
    "run_solution",
]

Level = Literal["bubblewrap", "namespaces", "process"]
Isolation = Literal["auto", "bubblewrap", "namespaces", "process"]
Status = Literal["passed", "failed", "syntax_error", "timeout", "memory", "exited_early", "killed", "output_flood"]
"""
- passed: the end of the tests was reached, the nonce came back, the exit code was 0.
- failed: an assertion or another exception; also an answer that is no plain value, a missing function.
- syntax_error: the source does not compile.
- timeout: the limit of CPU or wall time.
- memory: `MemoryError`.
- exited_early: left (`sys.exit`, `os._exit`) or closed its channel before the end, whatever the exit code.
- killed: ended by a signal (crash of the interpreter, out of memory, its own doing).
- output_flood: printed more than allowed.
"""

_LEVELS: tuple[Level, ...] = ("bubblewrap", "namespaces", "process")
_START_SECONDS = 60
"""Wall time that starting and ending may take beyond the limit before the whole run is given up."""
_END_SECONDS = 30
"""Wall time that the supervisor has to end everything and leave; then it is killed itself."""
_CHILD = "agent_gspo_core.scoring._sandbox_child"
_BOOT = (
    "import os,marshal\n"
    "def read(n):\n"
    "    b=b''\n"
    "    while len(b)<n:\n"
    "        p=os.read(0,n-len(b))\n"
    "        if not p: os._exit(1)\n"
    "        b+=p\n"
    "    return b\n"
    "exec(marshal.loads(read(int.from_bytes(read(4),'little'))))"
)


@dataclass(frozen=True)
class SandboxSettings:
    """The limits of one run. Making one is how a caller says that model-written code may run."""

    cpu_seconds: int = 5
    """CPU time of the solution's process, seconds; the judge's has the same. Source: ours (the slowest canonical
    solution of HumanEval+ and MBPP+ needs about one)."""
    wall_seconds: float = 20.0
    """Wall time of a run, seconds, start of the interpreter excluded. Wide, because a busy machine slows runs that are
    within their CPU time. Source: ours."""
    memory_mb: int = 1024
    """Address space of each process, MB. Source: ours (importing numpy takes about 200)."""
    file_mb: int = 16
    """Size of one file and, where the folder lies in memory (bubblewrap, namespaces), of the whole folder, MB.
    Source: ours."""
    processes: int = 32
    """Threads at once. With seccomp no further process can be started at all; without it this limits processes and
    threads together. Source: ours."""
    output_kb: int = 256
    """Printed output after which a run is ended, KB; what is printed is thrown away. Source: ours."""
    jobs: int | None = None
    """Runs at once; `None` is one per usable core. Source: ours."""
    isolation: Isolation = "auto"
    """"auto" takes the first of bubblewrap, namespaces, process that works here and warns when it is the last; a named
    level is used or refused, never replaced. Source: ours."""

    def __post_init__(self) -> None:
        for name in ("cpu_seconds", "wall_seconds", "memory_mb", "file_mb", "processes", "output_kb"):
            value = getattr(self, name)
            if not 0 < value < 1 << 31:
                raise ValueError(f"sandbox: {name}={value!r}; expected a positive, finite number")
        if self.cpu_seconds != int(self.cpu_seconds):
            raise ValueError(f"sandbox: cpu_seconds={self.cpu_seconds!r}; the system counts whole seconds")
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"sandbox: jobs={self.jobs!r}; expected at least 1, or None for one per core")
        if self.isolation not in ("auto", *_LEVELS):
            raise ValueError(f"sandbox: isolation={self.isolation!r}; expected 'auto' or one of {_LEVELS}")


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: Status
    detail: str
    """One line: the exception and where in the tests, the limit, the signal; empty when passed."""
    seconds: float
    """Wall time, seconds."""
    isolation: Level
    """The level that was in force."""
    walls: tuple[str, ...]
    """What stood beside it: limits, landlock, own user, seccomp."""

    @property
    def passed(self) -> bool:
        """Whether the solution is right."""
        return self.status == "passed"


class SandboxError(RuntimeError):
    """The sandbox itself does not work here; says nothing about the program."""


# --- public calls ---------------------------------------------------------------------------------------------------


def run_program(source: str, settings: SandboxSettings) -> Outcome:
    """Run `source` as `__main__` in one process: "passed" if it reached its end without an exception.

    For programs whose word may be taken. To hold a solution to tests use `run_solution`.
    Raises `SandboxError` if the sandbox does not work here.
    """
    return _run(_whole(source), settings, isolation_level(settings.isolation), threading.Event())


def run_many(
    sources: Sequence[str], settings: SandboxSettings, progress: Callable[[int, int], None] | None = None
) -> list[Outcome]:
    """`run_program` for each source, `settings.jobs` at once, in the order given.

    `progress(done, total)` is called after each run, from the calling thread. An interrupt ends the runs under way.
    """
    return _run_all([_whole(source) for source in sources], settings, progress)


def run_solution(solution: str, tests: CodeTests, settings: SandboxSettings) -> Outcome:
    """Hold the source `solution` to `tests`, in two processes: "passed" if the test program reached its end.

    Raises `SandboxError` if the sandbox does not work here.
    """
    return _run(_tested(solution, tests), settings, isolation_level(settings.isolation), threading.Event())


def check_solutions(
    pairs: Iterable[tuple[str, CodeTests]],
    settings: SandboxSettings,
    progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """`run_solution` for each (solution, tests), `settings.jobs` at once, in the order given; see `run_many`."""
    return _run_all([_tested(solution, tests) for solution, tests in pairs], settings, progress)


def isolation_level(isolation: Isolation = "auto") -> Level:
    """The level that `isolation` gives here, tried out once per process.

    Raises `SandboxError` if the named level (or, for "auto", any) does not work here, with the reason and the remedy.
    """
    reasons = {}
    for level in _LEVELS if isolation == "auto" else (isolation,):
        reasons[level] = _fault(level)
        if reasons[level] is None:
            if isolation == "auto" and level == "process":
                _warn_weak(tuple(f"{name}: {reason}" for name, reason in reasons.items() if reason))
            return level
    told = "; ".join(f"{level}: {reason}" for level, reason in reasons.items())
    raise SandboxError(
        f"isolation {isolation!r} does not work here ({told}). Install bubblewrap, allow user namespaces "
        "(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns), or name a level that works"
    )


_COVERAGE = (
    # what a program may try, (bubblewrap and namespaces), (process with Landlock and seccomp), (process without)
    ("leaves early, exit code 0", "fails", "fails", "fails"),
    ("object that equals everything, patched built-ins, stack and heap searched for the tests", *["fails"] * 3),
    ("endless loop, swallowed signals, input()", *["ended"] * 3),
    ("memory, recursion, flood of output, large file", *["limited"] * 3),
    ("new processes, daemons", "none", "none", "limited, ended"),
    ("files outside its folder: written", "no", "no", "**by the user's rights**"),
    ("files outside its folder: read", "interpreter and system libraries", *["same", "**by the user's rights**"]),
    ("names and sizes of files outside", "not visible", "**visible**", "**visible**"),
    ("network", "none", "no socket can be made", "**open**"),
    ("signals to, tracing of, other processes", "no", "no", "**of the same user**"),
    ("total size of its folder", "limited", "**CPU time bounds it**", "**CPU time bounds it**"),
    ("attack on the kernel, side channels, speed of the machine", *["**not covered**"] * 3),
)


def coverage_table() -> str:
    """What is and what is not covered at each level, as a Markdown table."""
    head = ("a program …", "bubblewrap, namespaces", "process (Linux 5.13+)", "process (other)")
    lines = [head, ("---",) * len(head), *_COVERAGE]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __doc__:
    __doc__ = __doc__.replace("{table}", coverage_table())


# --- one run --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """What to run: a whole program (`tests` is `None`), or a solution with its tests."""

    source: str
    tests: CodeTests | None


def _whole(source: str) -> _Job:
    return _Job(source, None)


def _tested(solution: str, tests: CodeTests) -> _Job:
    return _Job(solution, tests)


def _run_all(jobs: list[_Job], settings: SandboxSettings, progress: Callable[[int, int], None] | None) -> list[Outcome]:
    level = isolation_level(settings.isolation)
    stop = threading.Event()
    pool = ThreadPoolExecutor(settings.jobs or _usable_cores(), thread_name_prefix="sandbox")
    try:
        futures = [pool.submit(_run, job, settings, level, stop) for job in jobs]
        for done, future in enumerate(as_completed(futures), start=1):
            future.result()
            if progress is not None:
                progress(done, len(jobs))
        return [future.result() for future in futures]
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(job: _Job, settings: SandboxSettings, level: Level, stop: threading.Event) -> Outcome:
    nonce = secrets.token_hex(16)
    folder = tempfile.mkdtemp(prefix="agent-gspo-")
    try:
        spec, task = _frames(job, settings, level, folder, nonce)
        answer, complaint, code = _converse(
            _command(level, settings), (_child_code(), spec, task), settings.wall_seconds + _START_SECONDS, stop
        )
    finally:
        _remove(folder)
    if answer is None or "error" in answer:
        if stop.is_set():
            raise SandboxError("the run was broken off")
        reason = (answer or {}).get("error") or complaint.strip() or f"exit code {code}"
        raise SandboxError(f"isolation {level!r} could not run a program: {reason}")
    status = answer["status"]
    if status == "passed" and (answer["nonce"] != nonce or code != 0):
        raise SandboxError(f"isolation {level!r}: the supervisor's report does not hold (exit code {code})")
    return Outcome(status, answer["detail"], answer["seconds"], level, tuple(answer["walls"]))


def _frames(job: _Job, settings: SandboxSettings, level: Level, folder: str, nonce: str) -> tuple[bytes, bytes]:
    """The two messages to the child: the walls and the solution; then, after it was forked, the tests and the nonce."""
    uid = _spare_uid() if os.geteuid() == 0 and sys.platform == "linux" else None
    limits = {
        "cpu_seconds": int(settings.cpu_seconds),
        "wall_seconds": settings.wall_seconds,
        "memory_mb": settings.memory_mb,
        "file_mb": settings.file_mb,
        # The kernel counts by user: under our own id also what else this user runs.
        "processes": settings.processes + 4 + (_threads_of_user() if level == "process" and uid is None else 0),
        "output_kb": settings.output_kb,
    }
    spec = {
        "level": level,
        "folder": "/tmp" if level == "bubblewrap" else folder,
        "limits": limits,
        "readable": _readable(),
        "site": _site(),
        "uid": uid,
        "module": "solution" if job.tests else "__main__",
        "solution": job.source,
    }
    task: dict[str, Any] = {"nonce": nonce, "whole": job.tests is None, "program": "", "entry_point": "", "prompt": ""}
    if job.tests is not None:
        task |= {"program": job.tests.program, "entry_point": job.tests.entry_point, "prompt": job.tests.prompt}
    return json.dumps(spec).encode(), json.dumps(task).encode()


def _converse(
    command: list[str], frames: tuple[bytes, ...], seconds: float, stop: threading.Event
) -> tuple[dict[str, Any] | None, str, int]:
    """Start the child, hand it the frames, and read its report; (report or `None`, its complaints, exit code)."""
    deadline = time.monotonic() + seconds
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
        cwd="/",
        start_new_session=True,
        bufsize=0,
    )
    assert process.stdin is not None  # for the type checker: all three are pipes
    assert process.stdout is not None
    assert process.stderr is not None
    unsent = memoryview(b"".join(struct.pack("<I", len(frame)) + frame for frame in frames))
    told = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    os.set_blocking(process.stdin.fileno(), False)
    try:
        waiting = set(told)
        while waiting and not stop.is_set() and time.monotonic() < deadline:
            # Input stays open to the end: that it closes is how the child learns that we are gone.
            ready, writable, _ = select.select(list(waiting), [process.stdin] if unsent else [], [], 0.5)
            if writable:
                try:
                    unsent = unsent[os.write(process.stdin.fileno(), unsent[: 1 << 16]) :]
                except BrokenPipeError:
                    unsent = unsent[:0]
            for fd in ready:
                part = os.read(fd, 1 << 16)
                told[fd] += part
                if not part:
                    waiting.discard(fd)
    finally:
        process.stdin.close()
        try:
            # Given up, the supervisor still ends what it started before it goes; only then is nothing left.
            code = process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            _kill_tree(process.pid)
            code = process.wait()
        process.stdout.close()
        process.stderr.close()
    report, complaints = told.values()
    answer = (
        json.loads(report[4:]) if len(report) > 4 and len(report) == 4 + struct.unpack("<I", report[:4])[0] else None
    )
    return answer, complaints.decode(errors="replace")[-500:], code


def _kill_tree(pid: int) -> None:
    """Kill a process and all below it, the lowest first: bubblewrap's inner process can outlive its outer one."""
    import psutil  # type: ignore[import-untyped]

    top = psutil.Process(pid)
    for process in [*reversed(top.children(recursive=True)), top]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _command(level: Level, settings: SandboxSettings) -> list[str]:
    python = [os.path.realpath(sys.executable), "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _BOOT]
    if level != "bubblewrap":
        return python
    from agent_gspo_core.scoring._sandbox_child import DEVICES

    program = shutil.which("bwrap")
    if program is None:
        raise SandboxError("isolation 'bubblewrap': no program `bwrap` was found; install the package bubblewrap")
    binds: list[str] = []
    for path in _readable():
        binds += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    for path in DEVICES:
        binds += ["--dev-bind", path, path]
    spaces = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() == 0:
        # The supervisor gives these up in each process that it forks, when it has become another user.
        spaces += ["--cap-drop", "ALL"]
        for name in ("SETUID", "SETGID", "KILL", "DAC_READ_SEARCH"):
            spaces += ["--cap-add", f"CAP_{name}"]
    else:
        spaces.insert(0, "--unshare-user")
    folder = ["--perms", "0777", "--size", str(settings.file_mb << 20), "--tmpfs", "/tmp"]
    # /tmp comes first: an environment that lies below it (a clone made there) is then bound into it, and not hidden.
    # No --die-with-parent: killed while it starts, bubblewrap would leave its inner process waiting for ever. The
    # supervisor learns from its closed input that we are gone.
    return [program, *spaces, "--new-session", *folder, *binds, "--chdir", "/tmp", "--", *python]


def _environment() -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


# --- what the machine offers ----------------------------------------------------------------------------------------


@cache
def _fault(level: Level) -> str | None:
    """Why `level` does not work here; `None` if it does."""
    if os.name != "posix":
        return f"the sandbox needs a POSIX system, this is {sys.platform} (on Windows use WSL)"
    if level != "process" and sys.platform != "linux":
        return f"needs Linux, this is {sys.platform}"
    try:
        outcome = _run(_whole("import json"), SandboxSettings(isolation=level), level, threading.Event())
    except SandboxError as error:
        return str(error)
    return None if outcome.passed else f"a trivial program did not pass: {outcome.status} {outcome.detail}"


@cache
def _warn_weak(reasons: tuple[str, ...]) -> None:
    warnings.warn(
        "model-written code runs at isolation 'process', the weakest level; see "
        f"agent_gspo_core.scoring.sandbox.coverage_table(). {'; '.join(reasons)}",
        stacklevel=3,
    )


@cache
def _child_code() -> bytes:
    spec = importlib.util.find_spec(_CHILD)
    assert spec is not None  # it lies beside this file
    assert spec.loader is not None
    return marshal.dumps(spec.loader.get_code(_CHILD))  # type: ignore[attr-defined]


@cache
def _site() -> list[str]:
    """Folders of installed packages: a solution may import numpy."""
    paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path]
    kept = [p for p in paths if os.path.basename(p) in ("site-packages", "dist-packages") and os.path.isdir(p)]
    return list(dict.fromkeys(os.path.realpath(p) for p in kept))


@cache
def _readable() -> list[str]:
    """Folders and files that a program may read: the interpreter, installed packages, the system's libraries."""
    own = [os.path.dirname(os.path.realpath(sys.executable)), sys.base_prefix, sysconfig.get_path("stdlib"), *_site()]
    system = ["/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"]
    system += ["/nix/store", "/gnu/store"]
    paths = [path for path in system if os.path.lexists(path)] + [os.path.realpath(path) for path in own]
    paths = [path for path in dict.fromkeys(paths) if path != "/"]
    kept: list[str] = []
    for path in sorted(paths, key=len):
        if not any(Path(path).is_relative_to(parent) for parent in kept if not os.path.islink(parent)):
            kept.append(path)
    return kept


def _spare_uid() -> int:
    """A user id that nobody has, so that the limit of processes counts this run alone."""
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    first, _, count = max(ranges, key=lambda each: each[2])
    low, high = max(first, 1 << 20 if first + count > 1 << 21 else 1000), min(first + count, 1 << 31)
    return low + secrets.randbelow(high - low) if high > low else 65534


def _threads_of_user() -> int:
    """Threads that run under our user id; 0 where there is no /proc."""
    own, count = os.getuid(), 0
    for task in Path("/proc").glob("[0-9]*/task"):
        with suppress(OSError):
            if task.stat().st_uid == own:
                count += len(os.listdir(task))
    return count


# --- afterwards -----------------------------------------------------------------------------------------------------


def _remove(folder: str) -> None:
    """Remove `folder` however deep and unreadable its contents are; without recursion, and following no link.

    Subfolders are moved up to the top before their parent is removed, so no path grows long.
    """
    serial = 0
    for _ in range(100):  # what a killed process still writes may come in between
        try:
            os.chmod(folder, 0o700)
            while entries := list(os.scandir(folder)):
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)
                        continue
                    os.chmod(entry.path, 0o700)
                    for inner in os.scandir(entry.path):
                        if inner.is_dir(follow_symlinks=False):
                            os.chmod(inner.path, 0o700)
                            serial += 1
                            os.rename(inner.path, os.path.join(folder, f".{secrets.token_hex(4)}{serial}"))
                        else:
                            os.unlink(inner.path)
                    os.rmdir(entry.path)
            os.rmdir(folder)
            return
        except FileNotFoundError:
            if not os.path.lexists(folder):
                return
        except OSError:
            time.sleep(0.02)
    raise SandboxError(f"the folder {folder!r} of an ended run could not be removed; remove it by hand")
