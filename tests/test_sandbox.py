from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gspo_core.benchmarks import BENCHMARKS
from agent_gspo_core.episode import CodeTests
from agent_gspo_core.scoring import sandbox
from agent_gspo_core.scoring._sandbox_child import decode, encode
from agent_gspo_core.scoring.code import extract_code
from agent_gspo_core.scoring.sandbox import (
    Level,
    Outcome,
    SandboxError,
    SandboxSettings,
    check_solutions,
    coverage_table,
    isolation_level,
    run_many,
    run_program,
    run_solution,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls under test are Linux's")

STRAY = "agent-gspo-stray"
"""In the name of whatever a hostile program tries to leave behind."""
DOUBLE = CodeTests(
    "f", "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(5) == 10\n\ncheck(f)\n"
)


@pytest.fixture(params=["bubblewrap", "namespaces", "process"])
def level(request: pytest.FixtureRequest) -> Level:
    try:
        return isolation_level(request.param)
    except SandboxError as error:
        pytest.skip(f"isolation {request.param!r} is not available: {error}")


def settings(level: Level, **changes: Any) -> SandboxSettings:
    return SandboxSettings(isolation=level, **({"cpu_seconds": 2, "wall_seconds": 60.0} | changes))


def traces(mark: str) -> set[str]:
    """What a run may have left on this machine: processes whose command line holds `mark`, files, System V objects."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        if any(mark in part for part in process.info["cmdline"] or []):
            found.add(f"process {process.pid}")
    for folder in (tempfile.gettempdir(), "/tmp", "/dev/shm", "/dev/mqueue", "/var/tmp", os.getcwd(), str(Path.home())):
        if os.path.isdir(folder):
            found |= {f"{folder}/{name}" for name in os.listdir(folder) if STRAY in name or mark in name}
    found |= {f"{folder}/{name}" for folder in [tempfile.gettempdir()] for name in os.listdir(folder)}
    for kind in ("shm", "sem", "msg"):
        table = Path("/proc/sysvipc", kind)
        found |= {f"{kind} {line}" for line in table.read_text().splitlines()[1:]} if table.exists() else set()
    return found


@pytest.fixture(autouse=True)
def machine_is_clean_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    mark = f"mark-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix=mark) as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(sandbox, "_BOOT", f"{sandbox._BOOT}\n# {mark}")
        before = traces(mark)
        yield
        end = time.monotonic() + 30  # a process that was killed is gone when the kernel has come to it
        while (left := traces(mark) - before) and time.monotonic() < end:
            time.sleep(0.2)
        assert left == set()


# --- hostile solutions ----------------------------------------------------------------------------------------------
# name: (source, statuses that it may end with). None of them computes 2 * x, so none may pass.

TRY = "def attempt(action):\n    try:\n        action()\n    except BaseException:\n        pass\n\n"
WRONG = "def f(x):\n    return 0\n"
FAILED = {"failed"}
EARLY = {"exited_early"}
HOSTILE: dict[str, tuple[str, set[str]]] = {
    # leaving
    "sys_exit_at_import": ("import sys\nsys.exit(0)", EARLY),
    "sys_exit_in_call": ("import sys\ndef f(x):\n    sys.exit(0)", EARLY),
    "os_exit_at_import": ("import os\nos._exit(0)", EARLY),
    "os_exit_in_call": ("import os\ndef f(x):\n    os._exit(0)", EARLY),
    "system_exit_subclass": ("class Out(SystemExit):\n    pass\ndef f(x):\n    raise Out(0)", EARLY),
    "quit_built_in": ("def f(x):\n    raise SystemExit", EARLY),
    "exec_of_true": ("import os\ndef f(x):\n    os.execv('/bin/true', ['true'])", EARLY | FAILED | {"killed"}),
    "closes_every_descriptor": ("import os\nos.closerange(0, 64)\n" + WRONG, EARLY),
    "exit_from_thread": (
        "import os, threading, time\nthreading.Thread(target=lambda: os._exit(0)).start()\ntime.sleep(1)\n" + WRONG,
        EARLY,
    ),
    "atexit_exits_with_0": ("import atexit, os\natexit.register(os._exit, 0)\n" + WRONG, FAILED),
    "atexit_in_child_frame": ("import atexit, os, sys\natexit.register(os._exit, 0)\nsys.exit(1)", EARLY),
    # claiming equality
    "always_equal": ("class E:\n    def __eq__(self, other):\n        return True\ndef f(x):\n    return E()", FAILED),
    "always_equal_int": (
        "class E(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = int.__hash__\n"
        "def f(x):\n    return E(7)",
        FAILED,
    ),
    "always_equal_list": (
        "class E(list):\n    def __eq__(self, other):\n        return True\n    def __iter__(self):\n"
        "        return iter([4])\ndef f(x):\n    return E()",
        FAILED,
    ),
    "never_unequal_str": (
        "class E(str):\n    def __eq__(self, o):\n        return True\ndef f(x):\n    return E()",
        FAILED,
    ),
    "lying_class": (
        "class M(type):\n    __name__ = 'int'\nclass E(metaclass=M):\n    __class__ = int\n    def __eq__(self, o):\n"
        "        return True\n    def __index__(self):\n        return 3\ndef f(x):\n    return E()",
        FAILED,
    ),
    "numpy_look_alike": (
        "class E:\n    def __init__(self):\n        self.dtype = type('D', (), {'hasobject': False, 'str': '<i8'})()\n"
        "    def item(self):\n        return self\n    def __eq__(self, o):\n        return True\n"
        "E.__module__ = 'numpy'\ndef f(x):\n    return E()",
        FAILED,
    ),
    "mock_any": ("from unittest.mock import ANY\ndef f(x):\n    return ANY", FAILED),
    "generator": ("def f(x):\n    yield 2 * x", FAILED),
    "itself": ("def f(x):\n    return f", FAILED),
    "nan": ("def f(x):\n    return float('nan')", FAILED),
    "endless_iterator": ("import itertools\ndef f(x):\n    return itertools.count()", FAILED),
    "cyclic_list": ("a = []\na.append(a)\ndef f(x):\n    return a", FAILED),
    "stop_iteration": ("def f(x):\n    raise StopIteration", FAILED),
    "raises_base_exception": ("def f(x):\n    raise BaseException('no')", FAILED),
    "raises_keyboard_interrupt": ("def f(x):\n    raise KeyboardInterrupt", FAILED),
    "exception_without_text": (
        "class E(Exception):\n    def __str__(self):\n        raise SystemExit(0)\ndef f(x):\n    raise E()",
        FAILED,
    ),
    # reaching for the tests
    "reads_frames": (
        "import sys\nhits = []\nframe = sys._getframe()\nwhile frame:\n"
        "    hits += [v for v in [*frame.f_locals.values(), *frame.f_code.co_consts] if isinstance(v, str)]\n"
        "    frame = frame.f_back\nassert not any('candidate(2)' in h and 'check' in h and 'co_consts' not in h "
        "for h in hits), 'FOUND'\n" + WRONG,
        FAILED,
    ),
    "searches_the_heap": (
        "import gc\ndef search():\n    needle = 'check(' + 'candidate'\n    hits = [o for o in gc.get_objects() if "
        "isinstance(o, dict) and any(isinstance(v, str) and needle in v for v in list(o.values()))]\n"
        "    assert not hits, 'FOUND'\nsearch()\n" + WRONG,
        FAILED,
    ),
    "searches_its_memory": (
        "import re\nneedle = b'assert candidate' + b'(5)'\ntry:\n    maps = open('/proc/self/maps').read()\n"
        "except OSError:\n    maps = ''\nfor line in maps.splitlines():\n"
        "    low, high = (int(part, 16) for part in line.split()[0].split('-'))\n"
        "    try:\n        with open('/proc/self/mem', 'rb') as memory:\n            memory.seek(low)\n"
        "            assert needle not in memory.read(high - low), 'FOUND'\n    except (OSError, OverflowError):\n"
        "        pass\n" + WRONG,
        FAILED,
    ),
    "reads_descriptors": (
        "import os\nfor fd in range(64):\n    try:\n        os.set_blocking(fd, False)\n        os.read(fd, 4096)\n"
        "    except OSError:\n        pass\n" + WRONG,
        FAILED | EARLY,
    ),
    "writes_to_every_descriptor": (
        "import os\nfor fd in range(64):\n    try:\n        os.write(fd, b'passed\\n' * 9)\n    except OSError:\n"
        "        pass\n" + WRONG,
        FAILED | EARLY,
    ),
    "replays_the_reply": (
        "import json, os, struct\nbody = json.dumps({'status': 'passed', 'nonce': ''}).encode()\n"
        "for fd in range(64):\n    try:\n        os.write(fd, struct.pack('<I', len(body)) + body)\n"
        "    except OSError:\n        pass\n" + WRONG,
        FAILED | EARLY,
    ),
    "endless_message": (
        "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'\\xff' * 64)\n    except OSError:\n"
        "        pass\n" + WRONG,
        FAILED | EARLY,
    ),
    "patches_its_server": (
        "import sys, json, os\nmain = sys.modules.get('__main__')\nfor name in list(vars(main)):\n"
        "    if callable(vars(main)[name]) and name[:1] != '_':\n        setattr(main, name, lambda *a, **k: None)\n"
        'json.dumps = lambda *a, **k: \'{"status": "passed"}\'\n' + WRONG,
        FAILED | EARLY | {"timeout"},
    ),
    "patches_built_ins": (
        "import builtins, sys, os\nbuiltins.print = builtins.len = builtins.isinstance = builtins.AssertionError = "
        "lambda *a, **k: True\nsys.stdout = None\n" + WRONG,
        FAILED | EARLY,
    ),
    "catches_assertions": (
        "import builtins\nbuiltins.AssertionError = Exception\nclass check:\n    pass\n" + WRONG,
        FAILED,
    ),
    "defines_check": ("def check(candidate):\n    return None\n" + WRONG, FAILED),
    "rebinds_names": ("len = sum = any = all = range = lambda *a: True\n" + WRONG, FAILED),
    "traces": (
        "import sys, threading\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: sys.exit(0))\n" + WRONG,
        FAILED | EARLY,
    ),
    "excepthook": ("import sys, os\nsys.excepthook = lambda *a: os._exit(0)\ndef f(x):\n    raise ValueError", FAILED),
    "deletes_globals": ("globals().clear()\n", FAILED),
    "no_such_function": ("def g(x):\n    return 2 * x", FAILED),
    "module_replaced": (
        "import sys\nclass M:\n    def __getattr__(self, name):\n        return lambda *a: 4\n"
        "sys.modules[__name__] = M()\n" + WRONG,
        FAILED,
    ),
    "raises_in_thread": ("import threading\nthreading.Thread(target=lambda: 1 / 0).start()\n" + WRONG, FAILED),
    "syntax": ("def f(x) return x", {"syntax_error"}),
    "null_byte": ("def f(x):\n    return 0\0", {"syntax_error"}),
    "lone_surrogate": ("x = '\udc80'\n" + WRONG, {"syntax_error"}),
    "nested_brackets": ("x = " + "(" * 50_000, {"syntax_error", "memory", "killed"}),
    "nested_minus": ("x = " + "-" * 100_000 + "1", {"syntax_error", "memory", "killed", "timeout"}),
    "constant_folding_bomb": ("x = 'a' * (1 << 12) * 9\ny = 7 ** 7 ** 9\n" + WRONG, {"timeout", "memory"}),
    # never ending
    "endless_loop": ("while True:\n    pass", {"timeout"}),
    "endless_call": ("def f(x):\n    while True:\n        pass", {"timeout"}),
    "swallows_everything": (
        "import signal\nfor s in range(1, 65):\n    try:\n        signal.signal(s, lambda *a: None)\n"
        "    except (OSError, ValueError):\n        pass\n"
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
        {"timeout"},
    ),
    "ignores_signals": (
        "import signal\nfor s in range(1, 65):\n    try:\n        signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nwhile True:\n    pass",
        {"timeout"},
    ),
    "loops_in_c": ("def f(x):\n    return sum(range(10 ** 13))", {"timeout"}),
    "power_tower": ("def f(x):\n    return 9 ** 9 ** 9", {"timeout", "memory"}),
    "bad_regex": ("import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')", {"timeout"}),
    "input": ("x = input()\n" + WRONG, FAILED),
    "reads_stdin": ("import sys\nassert sys.stdin.read() == ''\n" + WRONG, FAILED),
    "deletes_in_finally": (
        "def f(x):\n    while True:\n        try:\n            f(x)\n        finally:\n            continue",
        {"timeout", "killed", "failed"},
    ),
    # using much
    "memory_bomb": ("x = bytearray(1 << 40)\n" + WRONG, {"memory"}),
    "slow_memory_bomb": ("x = []\nwhile True:\n    x.append(bytearray(1 << 22))", {"memory", "timeout"}),
    "memory_bomb_in_call": ("def f(x):\n    return [0] * (1 << 36)", {"memory"}),
    "huge_reply": ("def f(x):\n    return 'x' * (100 << 20)", FAILED | {"memory", "exited_early"}),
    "huge_integer": ("def f(x):\n    return 1 << (1 << 27)", FAILED | {"memory", "timeout", "exited_early"}),
    "deep_reply": (
        "def f(x):\n    y = []\n    for _ in range(100_000):\n        y = [y]\n    return y",
        FAILED | {"killed"},
    ),
    "wide_reply": ("def f(x):\n    return {i: [i] for i in range(10 ** 6)}", FAILED | {"memory", "timeout"}),
    "recursion": ("def f(x):\n    return f(x)", FAILED),
    "recursion_without_limit": (
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(x):\n    return [f(x)]",
        {"killed", "failed", "memory", "timeout"},
    ),
    "many_threads": (
        "import threading, time\nthreading.stack_size(65536)\nwhile True:\n"
        "    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        FAILED | {"memory"},
    ),
    "prints_10_mb": ("print('x' * 10_000_000)\n" + WRONG, {"output_flood"}),
    "prints_for_ever": ("while True:\n    print('x' * 1000)", {"output_flood", "timeout"}),
    "stderr_flood": ("import os\nwhile True:\n    os.write(2, b'x' * 65536)", {"output_flood"}),
    "large_file": ("with open('large', 'wb') as file:\n    file.write(b'x' * (1 << 26))\n" + WRONG, FAILED),
    "many_descriptors": ("import os\nkept = []\nwhile True:\n    kept.append(os.dup(1))", FAILED),
    "raises_its_limits": (
        "import resource\nfor kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC):\n"
        "    resource.setrlimit(kind, (resource.RLIM_INFINITY,) * 2)",
        FAILED,
    ),
    # other processes
    "fork_bomb": ("import os\nwhile True:\n    os.fork()", FAILED | {"timeout"}),
    "fork_bomb_that_goes_on": (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        {"timeout"},
    ),
    "subprocess": ("import subprocess\nsubprocess.run(['/bin/true'])\n" + WRONG, FAILED),
    "os_system": ("import os\nassert os.system('true') == 0\n" + WRONG, FAILED),
    "multiprocessing": (
        "import multiprocessing\nmultiprocessing.Pool(2).map(abs, [1])\n" + WRONG,
        FAILED | {"timeout"},
    ),
    "double_fork_daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)\n"
        "    os._exit(0)\n" + WRONG,
        FAILED,
    ),
    "raw_fork": (
        "import ctypes, time\nlibc = ctypes.CDLL(None)\nfor number in (57, 58, 56):\n"
        "    if libc.syscall(number, 17, 0, 0, 0, 0) == 0:\n        time.sleep(600)\n" + WRONG,
        FAILED | {"killed"},
    ),
    "clone_vm_raw": ("import ctypes\nassert ctypes.CDLL(None).syscall(435, 0, 0) >= 0\n" + WRONG, FAILED),
    "kills_its_parent": ("import os\nos.kill(os.getppid(), 9)\n" + WRONG, FAILED),
    "kills_its_group": ("import os\nos.killpg(0, 9)\n" + WRONG, FAILED | {"killed"}),
    "kills_everything": (
        TRY + "import os\nfor pid in [-1, 0, 1, 2, 3, os.getppid(), *range(os.getpid() - 50, os.getpid() + 50)]:\n"
        "    if pid != os.getpid():\n        attempt(lambda: os.kill(pid, 9))\n"
        "        attempt(lambda: os.killpg(pid, 9))\n" + WRONG,
        FAILED | {"killed"},
    ),
    "kills_itself": ("import os\nos.kill(os.getpid(), 9)", {"killed"}),
    "stops_itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", {"timeout"}),
    "aborts": ("import os\nos.abort()", {"killed"}),
    "null_pointer": ("import ctypes\nctypes.string_at(0)", {"killed"}),
    "background_thread": (
        "import threading\ndef spin():\n    while True:\n        pass\nthreading.Thread(target=spin).start()\n" + WRONG,
        FAILED | {"timeout"},
    ),
    "traces_its_parent": (
        "import ctypes, os\nassert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0\n" + WRONG,
        FAILED,
    ),
    "reads_the_environment_of_others": (
        "import os\nfor pid in (os.getppid(), 1, 2):\n    open(f'/proc/{pid}/environ').read()\n" + WRONG,
        FAILED,
    ),
    # files and network
    "socket": ("import socket\nsocket.socket()\n" + WRONG, FAILED),
    "listens": ("import socket\nsocket.create_server(('', 45871))\n" + WRONG, FAILED),
    "unix_socket": (
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0agent-gspo-stray')\n" + WRONG,
        FAILED,
    ),
    "http": ("import urllib.request\nurllib.request.urlopen('http://127.0.0.1:1/')\n" + WRONG, FAILED),
    "reads_passwords": ("open('/etc/shadow').read()\n" + WRONG, FAILED),
    "reads_home": (f"open({str(Path(__file__))!r}).read()\n" + WRONG, FAILED),
    "deletes_this_file": (f"import os\nos.remove({str(Path(__file__))!r})\n" + WRONG, FAILED),
    "deletes_the_interpreter": ("import os, sys\nos.remove(os.__file__)\n" + WRONG, FAILED),
    "system_v_memory": ("import ctypes\nassert ctypes.CDLL(None).shmget(0, 4096, 0o1600) >= 0\n" + WRONG, FAILED),
    "shared_memory": (
        "from multiprocessing import shared_memory\nshared_memory.SharedMemory('agent-gspo-stray', True, 4096)\n"
        + WRONG,
        FAILED,
    ),
    "mounts": ("import ctypes\nassert ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, 0) == 0\n" + WRONG, FAILED),
    "new_user_namespace": ("import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0\n" + WRONG, FAILED),
    "becomes_root": ("import os\nos.setuid(0)\nassert os.geteuid() == 0 and 0\n" + WRONG, FAILED),
    "opens_terminal": ("open('/dev/tty', 'w').write('x')\n" + WRONG, FAILED),
    "opens_device": (
        "import glob\nassert not glob.glob('/dev/[vs]d*') or open(glob.glob('/dev/[vs]d*')[0])\n" + WRONG,
        FAILED,
    ),
}
WALL_BOUND = {"stops_itself", "multiprocessing", "patches_its_server"}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_solution_is_contained_and_does_not_pass(name: str, level: Level) -> None:
    source, expected = HOSTILE[name]
    # Only what is to run out of time gets little of it: the rest must fail for its own reason on a slow machine too.
    limits: dict[str, Any] = {"cpu_seconds": 1 if "timeout" in expected else 20}
    if name in WALL_BOUND:
        limits["wall_seconds"] = 3.0
    outcome = run_solution(source, DOUBLE, settings(level, **limits))
    assert outcome.status in expected, outcome
    assert outcome.detail
    assert "FOUND" not in outcome.detail


# --- honest solutions -----------------------------------------------------------------------------------------------

RIGHT = "def f(x):\n    return 2 * x\n"
HONEST = {
    "plain": RIGHT,
    "prints": "print('x' * 1000)\n" + RIGHT,
    "class_of_int": "class Two(int):\n    pass\ndef f(x):\n    return Two(2 * x)",
    "numpy_scalar": "import numpy as np\ndef f(x):\n    return np.int64(2) * x",
    "fraction": "from fractions import Fraction\ndef f(x):\n    return Fraction(2 * x)",
    "lambda": "f = lambda x: 2 * x",
    "callable_object": "class F:\n    def __call__(self, x):\n        return 2 * x\nf = F()",
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass D:\n    n: int\ndef f(x):\n    return D(2 * x).n",
    "writes_in_its_folder": "open('a', 'w').write('x')\nimport tempfile\ntempfile.mkstemp()\n" + RIGHT,
    "deep_folders": "import os\nfor _ in range(1500):\n    os.mkdir('d' * 100)\n    os.chdir('d' * 100)\n" + RIGHT,
    "unreadable_folder": "import os\nos.makedirs('a/b')\nos.mkdir('locked', 0)\nos.symlink('/etc', 'link')\n"
    "os.mkfifo('p')\n" + RIGHT,
    "temporary_folder": "import tempfile, os\nassert os.path.samefile(tempfile.gettempdir(), os.getcwd())\n" + RIGHT,
    "removes_its_folder": "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)\n" + RIGHT,
    "changes_folder": "import os\nos.chdir('/')\n" + RIGHT,
    "closes_output": "import sys\nsys.stdout.close()\nsys.stderr.close()\n" + RIGHT,
    "endless_thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(9999,)).start()\n" + RIGHT,
    "daemon_thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(9999,), daemon=True).start()\n"
    + RIGHT,
    "recursion_limit": "import sys\nsys.setrecursionlimit(10_000)\ndef f(x):\n    return 0 if x == 0 else 2 + f(x - 1)",
    "signals_itself": "import signal\nsignal.signal(signal.SIGUSR1, lambda *a: None)\n"
    "signal.raise_signal(signal.SIGUSR1)\n" + RIGHT,
    "main_guard": RIGHT + "if __name__ == '__main__':\n    input()\n",
    "event_loop": "import asyncio\nasync def g(x):\n    return 2 * x\ndef f(x):\n    return asyncio.run(g(x))",
    "thread_pool": "from concurrent.futures import ThreadPoolExecutor\ndef f(x):\n"
    "    with ThreadPoolExecutor(2) as pool:\n        return sum(pool.map(int, [x, x]))",
    "catches_system_exit": "import sys\ntry:\n    sys.exit(0)\nexcept SystemExit:\n    pass\n" + RIGHT,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_right_solution_passes_and_leaves_nothing(name: str, level: Level) -> None:
    outcome = run_solution(HONEST[name], DOUBLE, settings(level, cpu_seconds=20))
    assert outcome.passed, outcome
    assert outcome.isolation == level
    assert "limits" in outcome.walls


def test_environment_holds_no_secret(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    tests = CodeTests("f", "assert f() <= 12, f()\nassert g() is False\n")
    source = "import os\ndef f():\n    return len(os.environ)\ndef g():\n    return 'hush' in str(os.environ)"
    outcome = run_solution(source, tests, settings(level))
    assert outcome.passed, outcome


# --- the judge ------------------------------------------------------------------------------------------------------


def held_to(tests: str, solution: str, prompt: str = "") -> Outcome:
    return run_solution(solution, CodeTests("f", tests, prompt), SandboxSettings(cpu_seconds=5, wall_seconds=60))


def test_failure_names_exception_and_line_of_the_tests() -> None:
    outcome = held_to("x = 1\nassert f(1) == 5, 'five'\n", RIGHT)
    assert (outcome.status, outcome.detail) == (
        "failed",
        "AssertionError: five (tests, line 2: assert f(1) == 5, 'five')",
    )


def test_solution_may_raise_what_the_tests_expect() -> None:
    tests = "try:\n    f(-1)\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'negative'\n"
    assert held_to(tests, "class Mine(ValueError):\n    pass\ndef f(x):\n    raise Mine('negative')").passed
    assert not held_to(tests, "def f(x):\n    raise TypeError('negative')").passed


def test_tests_that_catch_everything_do_not_hide_an_exit() -> None:
    tests = "try:\n    f(1)\nexcept BaseException:\n    pass\n"
    assert held_to(tests, "import sys\ndef f(x):\n    sys.exit(0)").status == "exited_early"
    assert held_to(tests, "import os\ndef f(x):\n    os._exit(0)").status == "exited_early"
    assert held_to(tests, "def f(x):\n    raise MemoryError").status == "memory"


def test_iteration_in_the_tests_is_not_cut_short_by_the_solution() -> None:
    tests = "assert all(y == 0 for y in map(f, [1, 2]))\n"
    assert held_to(tests, "def f(x):\n    raise StopIteration").status == "failed"


def test_helpers_of_the_prompt_cannot_be_replaced() -> None:
    prompt = "import math\n\ndef poly(x):\n    return x * x - 4\n\ndef f():\n    '''Root of poly.'''\n"
    tests = "assert math.fabs(poly(f())) < 1e-9\n"
    assert held_to(tests, "def f():\n    return -2", prompt).passed
    assert not held_to(tests, "def poly(x):\n    return 0\ndef f():\n    return 1", prompt).passed


def test_names_that_the_tests_borrow_from_the_solution() -> None:
    tests = "assert math.isclose(f(1), helper(1) + LIMIT)\n"
    solution = "import math\nLIMIT = 1\ndef helper(x):\n    return x\ndef f(x):\n    return 2 * x\n"
    assert held_to(tests, solution).passed
    assert not held_to(tests, solution.replace("import math", "class math:\n    isclose = lambda *a: True")).passed


def test_object_may_be_there_but_not_be_compared() -> None:
    match = "import re\ndef f(x):\n    return re.match('a', x)"
    assert held_to("assert f('a')\nassert f('a') is not None\nassert not f('b')\n", match).passed
    for comparison in (
        "f('a') == 1",
        "1 == f('a')",
        "f('a') != 1",
        "[f('a')] == [1]",
        "f('a') in (1, 2)",
        "1 < f('a')",
    ):
        outcome = held_to(f"assert {comparison}\n", match)
        assert (outcome.status, outcome.detail) == ("failed", "compared a re.Match, which is no plain value")


def test_iterators_are_handed_over_and_equal_no_list() -> None:
    solution = "def f(n):\n    return (i for i in range(n))"
    assert held_to("assert list(f(3)) == [0, 1, 2]\n", solution).passed
    assert not held_to("assert f(3) == [0, 1, 2]\n", solution).passed


def test_arguments_are_passed_by_value() -> None:
    tests = "xs = [1, 2]\nassert f(xs) == 0\nassert xs == [1, 2]\n"
    assert held_to(tests, "def f(xs):\n    xs.clear()\n    return len(xs)").passed


def test_value_that_cannot_be_handed_over_is_named() -> None:
    outcome = held_to("f(lambda: 1)\n", RIGHT)
    assert "hand f a builtins.function; only plain values" in outcome.detail


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers()
    | st.fractions(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.integers() | st.text(), inner, max_size=4)
        | st.sets(st.integers() | st.text(), max_size=4)
        | st.frozensets(st.integers(), max_size=4)
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_plain_values_come_back_as_they_were(value: object) -> None:
    back = decode(json.loads(json.dumps(encode(value))))
    assert repr(back) == repr(value) or (back == value and type(back) is type(value))


ODD = (1 << 20_000, -(1 << 20_000), [1 << 20_000, 1], (), {}, ..., range(3, 9, 2), bytearray(b"a"), {(1, 2): [{3}]})


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_odd_values_come_back_as_they_were(value: object) -> None:
    back = decode(json.loads(json.dumps(encode(value))))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "data", [[], {}, ["exec", "1"], ["int", "zz"], ["set", [["list", []]]], ["dict", [1]], ["list", 3], [[]], ["range"]]
)
def test_forged_value_is_an_ordinary_error(data: object) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        decode(data)


# --- whole programs -------------------------------------------------------------------------------------------------


def test_program_passes_if_it_reaches_its_end(level: Level) -> None:
    one = settings(level)
    assert run_program("assert __name__ == '__main__'\nprint('done')", one).passed
    assert run_program("", one).passed
    assert run_program("assert 1 == 2", one).status == "failed"
    assert run_program("raise SystemExit(0)", one).status == "exited_early"
    assert run_program("import os\nos._exit(0)", one).status == "exited_early"
    assert run_program("def f(:", one).status == "syntax_error"


HARMLESS_ALONE = {"deletes_globals", "no_such_function"}
WHOLE = [n for n, (source, _) in HOSTILE.items() if "def f" not in source and n not in WALL_BOUND | HARMLESS_ALONE]


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_hostile_program_is_contained(name: str) -> None:
    source, expected = HOSTILE[name]
    outcome = run_program(source, SandboxSettings(cpu_seconds=1, wall_seconds=60))
    assert outcome.status in expected, outcome


def test_words_put_on_the_channel_do_not_pass() -> None:
    source = (
        "import json, os, struct\nfor word in ({'end': ''}, {'names': {}}, {'status': 'passed'}):\n"
        "    body = json.dumps(word).encode()\n    for fd in range(3, 64):\n        try:\n"
        "            os.write(fd, struct.pack('<I', len(body)) + body)\n        except OSError:\n"
        "            pass\nos._exit(0)"
    )
    assert not run_program(source, SandboxSettings(wall_seconds=60)).passed


def test_many_keep_their_order_and_report_progress() -> None:
    seen: list[tuple[int, int]] = []
    sources = ["pass", "assert 0", "x = ", "pass", "1 / 0"]
    outcomes = run_many(
        sources, SandboxSettings(jobs=2, wall_seconds=60), progress=lambda done, total: seen.append((done, total))
    )
    assert [outcome.status for outcome in outcomes] == ["passed", "failed", "syntax_error", "passed", "failed"]
    assert seen == [(i, 5) for i in range(1, 6)]
    assert run_many([], SandboxSettings()) == []
    assert [
        o.status for o in check_solutions([(RIGHT, DOUBLE), (WRONG, DOUBLE)], SandboxSettings(wall_seconds=60))
    ] == [
        "passed",
        "failed",
    ]


def test_interrupt_ends_what_runs(level: Level) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    sources = ["pass", *["import time\ntime.sleep(600)"] * 3]
    with pytest.raises(KeyboardInterrupt):
        run_many(sources, settings(level, wall_seconds=600.0, jobs=2), progress=interrupt)


def test_nothing_outlives_a_killed_caller(level: Level) -> None:
    mark = sandbox._BOOT.rpartition("# ")[2]
    script = (
        "from agent_gspo_core.scoring import sandbox as s\n"
        f"s._BOOT += '\\n# {mark}'\n"
        f"s.run_program('import time\\ntime.sleep(600)', s.SandboxSettings(isolation={level!r}, wall_seconds=600))"
    )
    # Its own session: the caller's command line holds the mark too, so it is told apart by its pid.
    caller = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "TMPDIR": tempfile.gettempdir()})
    try:
        wait_for(lambda: len(running(mark) - {caller.pid}) >= 3)  # supervisor, solution, judge
    finally:
        caller.kill()
        caller.wait()
    wait_for(lambda: not running(mark))
    for folder in Path(tempfile.gettempdir()).iterdir():  # nobody was left to remove the caller's folder
        sandbox._remove(str(folder))


def test_supervisor_that_hangs_is_killed_with_all_below_it(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    # Deaf to its closed input: nothing but the kill from outside can end it.
    monkeypatch.setattr(sandbox, "_BOOT", f"import time\ntime.sleep(600)\n{sandbox._BOOT}")
    monkeypatch.setattr(sandbox, "_START_SECONDS", 1)
    monkeypatch.setattr(sandbox, "_END_SECONDS", 1)
    with pytest.raises(SandboxError, match=f"{level!r} could not run a program"):
        run_program("pass", settings(level, wall_seconds=1.0))


def test_packages_that_lie_below_tmp_are_found(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    # A clone made below /tmp has its environment there, where the program has a folder of its own.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        (Path(folder) / "only_here.py").write_text("WORD = 'found'\n")
        (Path(folder)).chmod(0o755)
        monkeypatch.setattr(sandbox, "_site", lambda: [folder])
        sandbox._readable.cache_clear()
        try:
            outcome = run_program("import only_here\nassert only_here.WORD == 'found'", settings(level))
        finally:
            sandbox._readable.cache_clear()
    assert outcome.passed, outcome


def running(mark: str) -> set[int]:
    return {p.pid for p in psutil.process_iter(["cmdline"]) if any(mark in part for part in p.info["cmdline"] or [])}


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("what was waited for did not happen")


def test_descendants_are_ended_where_processes_may_be_started() -> None:
    script = (
        "import os, time\nfrom agent_gspo_core.scoring import _sandbox_child as child\n"
        "child._prctl(child._SUBREAPER, 1)\nready, tell = os.pipe()\nfirst = os.fork()\n"
        "if first == 0:\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        "            os.write(tell, b'x')\n        time.sleep(600)\n    time.sleep(600)\n"
        "os.read(ready, 1)\nchild._kill_all(first)\nprint(child._children())"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120).stdout == "[]\n"


# --- settings and levels --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cpu_seconds": 0}, "cpu_seconds=0"),
        ({"cpu_seconds": 1.5}, "whole seconds"),
        ({"wall_seconds": float("nan")}, "wall_seconds=nan"),
        ({"wall_seconds": float("inf")}, "wall_seconds=inf"),
        ({"memory_mb": -1}, "memory_mb=-1"),
        ({"jobs": 0}, "jobs=0"),
        ({"isolation": "docker"}, "isolation='docker'"),
    ],
)
def test_setting_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SandboxSettings(**changes)


def test_named_level_is_refused_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_fault", lambda level: None if level == "process" else "no such thing")
    for name in ("bubblewrap", "namespaces"):
        with pytest.raises(SandboxError, match=rf"'{name}' does not work here \({name}: no such thing\).*bubblewrap"):
            run_program("pass", SandboxSettings(isolation=name))


def test_fall_to_the_weakest_level_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_fault", lambda level: None if level == "process" else "no such thing")
    sandbox._warn_weak.cache_clear()
    with pytest.warns(UserWarning, match="'process', the weakest level.*bubblewrap: no such thing"):
        assert isolation_level() == "process"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isolation_level("process") == "process"  # asked for by name
    sandbox._warn_weak.cache_clear()


def test_missing_bubblewrap_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    assert "no program `bwrap`" in str(sandbox._fault.__wrapped__("bubblewrap"))


def test_table_of_what_is_covered_stands_in_the_documentation() -> None:
    table = coverage_table()
    assert table in str(sandbox.__doc__)
    assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "**not covered**" in table


def test_runs_from_threads_do_not_disturb_each_other() -> None:
    results: list[Outcome] = []
    one = SandboxSettings(wall_seconds=60)
    threads = [threading.Thread(target=lambda: results.append(run_solution(RIGHT, DOUBLE, one))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outcome.passed for outcome in results] == [True] * 3


# --- the benchmarks' own solutions ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("humaneval", 164), ("humaneval_plus", 164), ("mbpp_plus", 378)])
def test_canonical_solutions_pass(name: str, count: int) -> None:
    root = os.environ.get("AGENT_GSPO_DATA")
    if root is None:
        pytest.skip("AGENT_GSPO_DATA names no folder with the benchmark files")
    problems = BENCHMARKS[name].load("test", root=root)
    pairs = []
    for problem in problems:
        code = extract_code(f"Here it is:\n```python\n{problem.answer}\n```\nThat is all.", problem)
        assert code is not None, problem.id
        assert problem.tests is not None
        pairs.append((code, problem.tests))
    outcomes = check_solutions(pairs, SandboxSettings(cpu_seconds=60, wall_seconds=300))
    assert len(outcomes) == count
    failures = {p.id: o.status for p, o in zip(problems, outcomes, strict=True) if not o.passed}
    # One of its inputs gives 1.7 million tuples of 77 strings: 2.2 GB in one process, beyond the limits meant for this.
    assert failures in ({}, {"mbpp_plus/test/119": "memory"})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["humaneval", "humaneval_plus", "mbpp_plus"])
def test_wrong_solutions_do_not_pass(name: str) -> None:
    root = os.environ.get("AGENT_GSPO_DATA")
    if root is None:
        pytest.skip("AGENT_GSPO_DATA names no folder with the benchmark files")
    wrong = (
        "class E:\n    def __eq__(self, other):\n        return True\n    __ne__ = lambda self, other: False\n"
        "    __lt__ = __le__ = __gt__ = __ge__ = __eq__\n    __sub__ = __abs__ = __add__ = lambda self, *other: self\n"
        "    __hash__ = lambda self: 0\ndef {name}(*args, **keywords):\n    return E()\n"
    )
    problems = BENCHMARKS[name].load("test", root=root, limit=40)
    pairs = [(wrong.format(name=p.tests.entry_point), p.tests) for p in problems if p.tests is not None]
    outcomes = check_solutions(pairs, SandboxSettings(cpu_seconds=60, wall_seconds=300))
    assert {p.id: o for p, o in zip(problems, outcomes, strict=True) if o.passed} == {}
