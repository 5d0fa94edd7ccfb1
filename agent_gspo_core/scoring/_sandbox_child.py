"""The other side of `sandbox`: three processes, started from one interpreter with nothing of the package in it.

The supervisor sets the walls up, forks the solution's process and then the judge's, and watches both. The judge alone
holds the tests and the nonce. The solution's process was forked before the supervisor read them, so neither is in its
memory; what it returns reaches the judge as plain data, so that no class of its own takes part in a comparison.

Runs as `__main__`, sent over standard input by `sandbox`; it must import without the package.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import json
import os
import platform
import resource
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

_MB = 1 << 20
_LONGEST_FRAME = 64 * _MB
_LONGEST_DETAIL = 300
"""Characters of a reason."""

_libc = ctypes.CDLL(None, use_errno=True)


# --- frames ---------------------------------------------------------------------------------------------------------


def _read(fd: int, count: int) -> bytes:
    parts, left = [], count
    while left:
        part = os.read(fd, min(left, _MB))
        if not part:
            raise EOFError
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _receive(fd: int) -> Any:
    (length,) = struct.unpack("<I", _read(fd, 4))
    if length > _LONGEST_FRAME:
        raise ValueError(f"a message of {length} bytes; expected at most {_LONGEST_FRAME}")
    return json.loads(_read(fd, length))


def _send(fd: int, message: Any) -> None:
    body = json.dumps(message).encode()
    if len(body) > _LONGEST_FRAME:
        raise ValueError(f"a message of {len(body)} bytes; expected at most {_LONGEST_FRAME}")
    left = memoryview(struct.pack("<I", len(body)) + body)
    while left:
        left = left[os.write(fd, left) :]


# --- values as plain data -------------------------------------------------------------------------------------------


class _NotPlain(Exception):
    """A value that cannot be rebuilt from plain data."""


_JSON_TYPES = frozenset({int, float, str, bool, type(None)})
_COLLECTIONS: tuple[Any, ...] = (list, tuple, set, frozenset)
_KEYS: Any = type({}.keys())
_VALUES: Any = (type({}.values()), type({}.items()))
_LARGE = 1 << 10_000
"""Integers beyond are written in hexadecimal: decimal digits take quadratic time, and Python limits them."""
_LONGEST_ITERATION = 100_000
"""Items of an iterator that are handed over."""


def encode(value: Any) -> Any:
    """`value` as JSON: a subclass of a plain type as that type, an iterator by its items, anything else by its name."""
    kind = type(value)
    if kind in _JSON_TYPES and (kind is not int or -_LARGE < value < _LARGE):
        return value
    if kind in _COLLECTIONS and _is_json(value):
        return [kind.__name__, list(value), True]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return ["int", int.__format__(value, "x")]
    if isinstance(value, float):
        return float.__float__(value)
    for base in _COLLECTIONS:
        if isinstance(value, base):
            return [base.__name__, [encode(item) for item in base.__iter__(value)]]
    if isinstance(value, dict):
        return ["dict", [[encode(key), encode(entry)] for key, entry in dict.items(value)]]
    if isinstance(value, (bytes, bytearray)):
        return [type(value).__name__ if type(value) is bytearray else "bytes", bytes(value).hex()]
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, range):
        return ["range", encode(value.start), encode(value.stop), encode(value.step)]
    if isinstance(value, _KEYS):
        return ["set", [encode(item) for item in value]]
    if value is Ellipsis:
        return ["ellipsis"]
    module, name = type(value).__module__, type(value).__name__
    if (module, name) == ("collections", "deque"):
        return ["deque", [encode(item) for item in value]]
    if (module, name) == ("decimal", "Decimal"):
        return ["Decimal", str(value)]
    if (module, name) == ("fractions", "Fraction"):
        return ["Fraction", encode(value.numerator), encode(value.denominator)]
    if module == "datetime" and name in _DATETIME:
        return ["datetime", name, value.isoformat()]
    if module == "numpy" and hasattr(value, "dtype") and not value.dtype.hasobject:
        if name == "ndarray":
            return ["ndarray", value.dtype.str, list(value.shape), encode(value.ravel().tolist())]
        return encode(value.item())
    if hasattr(type(value), "__next__") or isinstance(value, _VALUES):
        items = list(itertools.islice(iter(value), _LONGEST_ITERATION + 1))
        if len(items) <= _LONGEST_ITERATION:
            return ["iterator", [encode(item) for item in items]]
    return ["opaque", f"{module}.{name}"]


_DATETIME = ("date", "time", "datetime")


def _is_json(items: Any) -> bool:
    """Whether all items are JSON as they stand; without a step of Python per item, as most values are long lists."""
    kinds = set(map(type, items))
    if not kinds <= _JSON_TYPES:
        return False
    return int not in kinds or (kinds <= {int, bool, float} and min(items) > -_LARGE and max(items) < _LARGE)


def encode_plain(value: Any) -> Any:
    """`encode`, for values that have to arrive whole. Raises `_NotPlain` naming what cannot."""
    encoded = encode(value)
    pending = [encoded]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            if item[:1] == ["opaque"]:
                raise _NotPlain(item[1])
            pending += item
    return encoded


class Opaque:
    """Stands for an object that is no plain value: it is there, it is true, and to compare it ends the run."""

    def __init__(self, name: str) -> None:
        self._name = str(name)[:100]

    def _refuse(self, *_: object) -> NoReturn:
        raise _Verdict("failed", f"compared a {self._name}, which is no plain value")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse


def decode(data: Any) -> Any:
    """The plain value that `encode` wrote. Raises `ValueError` or `TypeError` on anything else."""
    if not isinstance(data, list):
        if isinstance(data, dict):
            raise ValueError("not an encoded value")
        return data
    kind, *rest = data
    return _DECODERS[kind](*rest)


def _items(data: Any) -> Iterator[Any]:
    return (decode(item) for item in data)


def _decode_datetime(name: str, text: str) -> Any:
    import datetime

    kinds: dict[str, Any] = {"date": datetime.date, "time": datetime.time, "datetime": datetime.datetime}
    return kinds[name].fromisoformat(text)


def _decode_named(module: str, name: str) -> Callable[..., Any]:
    def build(*parts: Any) -> Any:
        return getattr(__import__(module), name)(*map(decode, parts))

    return build


def _decode_array(dtype: str, shape: list[int], items: Any) -> Any:
    import numpy

    return numpy.array(decode(items), dtype=dtype).reshape(shape)


_DECODERS: dict[str, Callable[..., Any]] = {
    "int": lambda digits: int(digits, 16),
    "list": lambda items, plain=False: list(items if plain else _items(items)),
    "tuple": lambda items, plain=False: tuple(items if plain else _items(items)),
    "set": lambda items, plain=False: set(items if plain else _items(items)),
    "frozenset": lambda items, plain=False: frozenset(items if plain else _items(items)),
    "dict": lambda pairs: {decode(key): decode(item) for key, item in pairs},
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda real, imag: complex(real, imag),
    "range": lambda *parts: range(*map(decode, parts)),
    "ellipsis": lambda: Ellipsis,
    "iterator": lambda items: iter(list(_items(items))),
    "opaque": lambda name: Opaque(name),
    "deque": lambda items: __import__("collections").deque(_items(items)),
    "Decimal": _decode_named("decimal", "Decimal"),
    "Fraction": _decode_named("fractions", "Fraction"),
    "datetime": _decode_datetime,
    "ndarray": _decode_array,
}


# --- walls ----------------------------------------------------------------------------------------------------------

_NO_NEW_PRIVS, _PDEATHSIG, _DUMPABLE, _KEEPCAPS, _SECCOMP, _SUBREAPER = 38, 1, 4, 8, 22, 36
_LINUX = sys.platform == "linux"


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


# fmt: off
_DENIED_EVERYWHERE = (  # same number on every architecture
    424, 428, 429, 430, 431, 432, 434, 438, 440, 442, 447, 448,  # pidfd_*, new mount calls, memfd_secret, process_*
    425, 426, 427, 452,  # io_uring_* would go round this filter; fchmodat2
)
_ARCHITECTURES: dict[str, dict[str, Any]] = {
    # What leaves traces or reaches other processes: sockets, process creation, tracing, signals, mounts, keys, System V
    # and POSIX queues, anonymous files beyond the memory limit, owner, mode and times of files, the machine's settings.
    "x86_64": {
        "audit": 0xC000003E,
        "clone": 56,
        "kill": (62, 234),
        "prlimit": 302,
        "prctl": 157,
        "denied": (
            41, 101, 310, 311, 57, 58, 200, 129, 297, 272, 308, 165, 166, 155, 161, 248, 249, 250, 321, 298, 323, 304,
            29, 64, 68, 240, 319, 246, 175, 313, 176, 169, 167, 168, 163, 164, 227, 305, 159, 170, 171, 103, 179, 172,
            173, 256, 279, 312, 90, 91, 268, 92, 93, 94, 260, 132, 235, 261, 280, 188, 189, 190, 197, 198, 199, 320,
        ),
    },
    "aarch64": {
        "audit": 0xC00000B7,
        "clone": 220,
        "kill": (129, 131),
        "prlimit": 261,
        "prctl": 167,
        "denied": (
            198, 117, 270, 271, 130, 138, 240, 97, 268, 40, 39, 41, 51, 217, 218, 219, 280, 241, 282, 265, 194, 190,
            186, 180, 279, 104, 105, 273, 106, 142, 224, 225, 89, 170, 112, 266, 171, 161, 162, 116, 60, 238, 239, 272,
            52, 53, 54, 55, 88, 5, 6, 7, 14, 15, 16, 294,
        ),
    },
}
# fmt: on


def filter_system_calls() -> bool:
    """Refuse the calls above by seccomp from now on; `False` where the system or the processor offers no filter.

    A thread may still be started and the process may still signal itself.
    """
    machine = _ARCHITECTURES.get(platform.machine()) if _LINUX else None
    if machine is None or sys.maxsize < 1 << 32:
        return False
    load, equal, at_least, any_bit, stop = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, deny, unknown, kill = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x80000000
    nr, arch, first_argument = 0, 4, 16
    own = os.getpid()
    code: list[tuple[int, int, int, int]] = [(load, 0, 0, arch), (equal, 1, 0, machine["audit"]), (stop, 0, 0, kill)]
    code += [(load, 0, 0, nr), (at_least, 0, 1, 0x40000000), (stop, 0, 0, deny)]  # the x32 calls have other numbers
    for number in (*machine["denied"], *_DENIED_EVERYWHERE):
        code += [(equal, 0, 1, number), (stop, 0, 0, deny)]
    code += [(equal, 0, 1, 435), (stop, 0, 0, unknown)]  # clone3: glibc then takes clone, whose flags can be read
    code += [(equal, 0, 4, machine["clone"]), (load, 0, 0, first_argument), (any_bit, 0, 1, 0x10000)]
    code += [(stop, 0, 0, allow), (stop, 0, 0, deny)]
    for number in machine["kill"]:
        code += [(equal, 0, 4, number), (load, 0, 0, first_argument), (equal, 0, 1, own)]
        code += [(stop, 0, 0, allow), (stop, 0, 0, deny)]
    code += [(equal, 0, 5, machine["prlimit"]), (load, 0, 0, first_argument), (equal, 1, 0, 0), (equal, 0, 1, own)]
    code += [(stop, 0, 0, allow), (stop, 0, 0, deny)]
    code += [(equal, 0, 4, machine["prctl"]), (load, 0, 0, first_argument), (equal, 0, 1, _PDEATHSIG)]
    code += [(stop, 0, 0, deny), (stop, 0, 0, allow)]
    code += [(stop, 0, 0, allow)]
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(instructions)))
    if _libc.prctl(_SECCOMP, ctypes.c_ulong(2), program, 0, 0) == 0:
        return True
    if ctypes.get_errno() in (errno.EINVAL, errno.ENOSYS):
        return False
    raise OSError(ctypes.get_errno(), "seccomp: " + os.strerror(ctypes.get_errno()))


_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def landlock_version() -> int:
    """The kernel's Landlock version, 0 where it has none."""
    return max(0, int(_libc.syscall(444, None, ctypes.c_size_t(0), 1))) if _LINUX else 0


def restrict_files(readable: list[str], writable: str) -> bool:
    """Allow reading below `readable`, everything below `writable`, nothing elsewhere; `False` without Landlock.

    Newer kernels also refuse TCP, abstract sockets and signals to processes outside.
    """
    version = landlock_version()
    if not version:
        return False
    rights = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    if version == 4:
        rights = (1 << 15) - 1
    attributes = struct.pack("<QQQ", rights, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _check(_libc.syscall(444, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock_create_ruleset")
    reading = _EXECUTE | _READ_FILE | _READ_DIR
    rules = [(path, reading if os.path.isdir(path) else _READ_FILE | _EXECUTE) for path in readable]
    rules += [(path, _READ_FILE | _WRITE_FILE | _TRUNCATE) for path in DEVICES]
    for path, allowed in [*rules, (writable, rights)]:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        rule = struct.pack("<Qi", allowed & rights, fd)
        _check(_libc.syscall(445, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(fd)
    _check(_libc.syscall(446, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)
    return True


def _drop_to(uid: int | None, *, read_anything: bool) -> None:
    """Become `uid` (root only) and give up every capability but, if asked, that of reading what Landlock allows."""
    kept = 0
    if uid is not None:
        if read_anything:
            _prctl(_KEEPCAPS, 1)
            kept = 1 << 2  # CAP_DAC_READ_SEARCH: the interpreter may lie in a folder that is root's alone
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header = struct.pack("<Ii", 0x20080522, 0)
    _check(_libc.capset(header, struct.pack("<6I", kept, kept, 0, 0, 0, 0)), "capset")


def _limit(limits: dict[str, int], *, processes: bool) -> None:
    def lower(kind: int, soft: int, hard: int | None = None) -> None:
        ceiling = resource.getrlimit(kind)[1]
        values = [v if ceiling == resource.RLIM_INFINITY else min(v, ceiling) for v in (soft, hard or soft)]
        resource.setrlimit(kind, (values[0], values[1]))

    lower(resource.RLIMIT_CPU, limits["cpu_seconds"], limits["cpu_seconds"] + 1)
    lower(resource.RLIMIT_FSIZE, limits["file_mb"] * _MB)
    lower(resource.RLIMIT_NOFILE, 64)
    lower(resource.RLIMIT_CORE, 0)
    if _LINUX:  # macOS refuses a limit of address space
        lower(resource.RLIMIT_AS, limits["memory_mb"] * _MB)
        lower(resource.RLIMIT_MSGQUEUE, 0)
    if processes:
        lower(resource.RLIMIT_NPROC, limits["processes"])


def _wall_in(spec: dict[str, Any], keep: list[int], output: int, *, solution: bool) -> list[str]:
    """Put this forked process behind the walls; the names of those that stand. `keep`: descriptors that stay open."""
    parent = os.getppid()
    os.setsid()
    nothing = os.open("/dev/null", os.O_RDWR)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    last = 2
    for fd in sorted(keep):
        os.closerange(last + 1, fd)
        last = fd
    os.closerange(last + 1, max(last + 1, os.sysconf("SC_OPEN_MAX")) if last < 1 << 16 else last + 1)
    os.chdir(spec["folder"])
    os.environ["HOME"] = os.environ["TMPDIR"] = spec["folder"]
    for number in range(1, signal.NSIG):  # whatever the caller ignores or blocks is not handed on
        with contextlib.suppress(OSError, ValueError):
            if number not in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", 0)):
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    walls = ["limits"]
    if _LINUX:
        _prctl(_NO_NEW_PRIVS, 1)
        if restrict_files(spec["readable"], spec["folder"]):
            walls.append("landlock")
    _limit(spec["limits"], processes=solution)
    if _LINUX:
        _drop_to(spec["uid"], read_anything="landlock" in walls)
        if spec["uid"] is not None:
            walls.append("own user")
        _prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        if not solution:
            _prctl(_DUMPABLE, 0)  # closes /proc/PID/mem and tracing to a process of the same user
        if filter_system_calls():
            walls.append("seccomp")
    sys.path[:] = [*(path for path in sys.path if os.path.isabs(path)), *spec["site"]]
    return walls


# --- namespaces without bubblewrap ----------------------------------------------------------------------------------

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 1 << 17, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    raw = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _check(_libc.mount(raw[0], raw[1], raw[2], ctypes.c_ulong(flags), raw[3]), f"mount {target}")


def _enter_namespaces(spec: dict[str, Any]) -> None:
    """New namespaces with a file system of their own: the readable folders, five devices, an empty /tmp in memory.

    On return this process is the first one of its process namespace; the caller's copy has waited for it and left.
    """
    uid, gid = os.geteuid(), os.getegid()
    flags = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET | (_NEWUSER if uid else 0)
    _check(_libc.unshare(flags), "unshare")
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    root = spec["folder"]
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,nr_inodes=2048,mode=755")
    os.makedirs(root + "/tmp")
    size = spec["limits"]["file_mb"]
    # Before what is readable: an environment below /tmp is bound into it, and not hidden.
    _mount("tmpfs", root + "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size}m,nr_inodes=4096,mode=777")
    for path in (*spec["readable"], *DEVICES):
        target = root + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
            continue
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_RDONLY))
        _mount(path, target, None, _MS_BIND | _MS_REC)
        read_only_no_suid = struct.pack("<QQQQ", 1 | 2, 0, 0, 0)
        at_fdcwd, recursive = -100, 0x8000
        attributes = 0 if path in DEVICES else len(read_only_no_suid)
        if attributes:
            result = _libc.syscall(442, at_fdcwd, target.encode(), recursive, read_only_no_suid, attributes)
            _check(result, f"mount_setattr {path}")
    os.chdir(root)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", 2), "umount2")
    os.chdir("/")
    spec["folder"] = "/tmp"
    first = os.fork()
    if first:
        os.close(0)
        os.close(1)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 0xFF)
    _prctl(_PDEATHSIG, signal.SIGKILL)


# --- the solution's process -----------------------------------------------------------------------------------------


def _describe(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = type(error).__name__
    return text[:_LONGEST_DETAIL]


def _serve(spec: dict[str, Any], requests: int, replies: int) -> NoReturn:
    """Run the solution's source as a module, then answer the judge's requests one by one."""
    name = spec["module"]
    module = type(sys)(name)
    sys.modules[name] = module
    failure = _load(spec["solution"], module)
    while True:
        request = _receive(requests)
        reply = failure or _answer(request, module)
        with contextlib.suppress(BaseException):  # a solution may have closed its own output
            sys.stdout.flush()
        try:
            _send(replies, reply)
        except MemoryError as error:  # nothing was written yet: the message is made whole first
            _send(replies, _failed(error))
        except ValueError as error:
            _send(replies, {"status": "failed", "detail": _describe(error)})
        if request[0] == "end":
            os._exit(0)


def _failed(error: BaseException) -> dict[str, Any]:
    if isinstance(error, SystemExit):
        return {"status": "exited_early", "detail": f"sys.exit({error.code!r})"[:_LONGEST_DETAIL]}
    if isinstance(error, MemoryError):
        return {"status": "memory", "detail": _describe(error)}
    bases = [base.__name__ for base in type(error).__mro__ if base.__module__ == "builtins"]
    return {"status": "failed", "detail": _describe(error), "raises": bases, "text": _text(error)}


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_MB]
    except BaseException:
        return ""


def _load(source: str, module: Any) -> dict[str, Any] | None:
    try:
        code = compile(source, "<solution>", "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        return {"status": "syntax_error", "detail": _describe(error)}
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        return _failed(error)
    return None


def _answer(request: Any, module: Any) -> dict[str, Any]:
    try:
        if request[0] == "end":
            return {"end": request[1]}
        if request[0] == "names":
            found = {name: getattr(module, name) for name in request[1] if hasattr(module, name)}
            return {"names": {name: _offered(value) for name, value in found.items()}}
        _, name, args, keywords = request
        value = getattr(module, name)(*map(decode, args), **{key: decode(item) for key, item in keywords.items()})
        return {"value": encode(value)}
    except BaseException as error:
        return _failed(error)


def _offered(value: Any) -> Any:
    if isinstance(value, type(sys)):
        return {"module": True}
    return {"callable": True} if callable(value) else {"value": encode(value)}


# --- the judge ------------------------------------------------------------------------------------------------------


class _Verdict(BaseException):
    """The run is decided. Not an `Exception`, so that a test's own handlers let it pass."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(status, detail)
        self.status, self.detail = status, detail


_ALIASES = {"np": "numpy", "numpy": "numpy"}


class _Solution:
    """The solution seen from the judge: requests out, plain values in."""

    def __init__(self, requests: int, replies: int) -> None:
        self._requests, self._replies = requests, replies
        self.verdict: _Verdict | None = None

    def ask(self, *request: Any) -> dict[str, Any]:
        if self.verdict is not None:
            raise self.verdict
        try:
            _send(self._requests, request)
            reply = _receive(self._replies)
        except (EOFError, BrokenPipeError):
            self._decide("gone", "")
        except (ValueError, RecursionError) as error:
            self._decide("failed", f"what it sent is no message: {_describe(error)}")
        if not isinstance(reply, dict):
            self._decide("failed", "what it sent is no reply")
        if "status" in reply and (request[0] != "call" or not isinstance(reply.get("raises"), list)):
            status = reply["status"] if reply["status"] in _LOAD_STATUSES else "failed"
            self._decide(status, str(reply.get("detail", ""))[:_LONGEST_DETAIL] or "no reason given")
        return reply

    def call(self, name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        try:
            sent = [encode_plain(arg) for arg in args], {key: encode_plain(item) for key, item in keywords.items()}
        except _NotPlain as error:
            raise TypeError(f"the tests hand {name} a {error}; only plain values can be handed over") from None
        reply = self.ask("call", name, *sent)
        if "raises" in reply:
            raise _raised(reply)
        try:
            return decode(reply["value"])
        except Exception as error:
            self._decide("failed", f"what {name} returned is no plain value: {_describe(error)}")

    def name(self, name: str) -> Callable[..., Any]:
        def candidate(*args: Any, **keywords: Any) -> Any:
            return self.call(name, args, keywords)

        candidate.__name__ = candidate.__qualname__ = name
        return candidate

    def _decide(self, status: str, detail: str) -> NoReturn:
        self.verdict = _Verdict(status, detail)
        raise self.verdict from None


_LOAD_STATUSES = ("failed", "syntax_error", "memory", "exited_early")


def _raised(reply: dict[str, Any]) -> Exception:
    """What the solution raised, as the nearest built-in exception.

    Never one that ends an iteration: `list(map(candidate, inputs))` would stop there and look like success.
    """
    text = str(reply.get("text", ""))
    for name in reply["raises"]:
        kind = getattr(sys.modules["builtins"], str(name), None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            continue
        if issubclass(kind, (StopIteration, StopAsyncIteration)):
            break
        try:
            return kind(text)
        except TypeError:
            continue
    return RuntimeError(str(reply.get("detail", text)))


def _judge(task: dict[str, Any], requests: int, replies: int, results: int) -> NoReturn:
    solution = _Solution(requests, replies)
    nonce = task.pop("nonce")
    status, detail = "failed", ""
    try:
        _run_tests(task, solution)
        if task["whole"]:
            # The end is asked for only now, with words that did not exist while the program ran.
            challenge = os.urandom(16).hex()
            if solution.ask("end", challenge) != {"end": challenge}:
                raise _Verdict("failed", "the program spoke in the name of the sandbox")
        if solution.verdict is not None:
            raise solution.verdict
        status = "passed"
    except _Verdict as verdict:
        status, detail = verdict.status, verdict.detail
    except MemoryError as error:
        status, detail = "memory", _describe(error)
    except SystemExit as error:
        status, detail = "exited_early", f"the tests called sys.exit({error.code!r})"
    except BaseException as error:
        detail = _describe(error) + _test_line(error, task["program"])
    if solution.verdict is not None and status == "failed":
        status, detail = solution.verdict.status, solution.verdict.detail
    _send(results, {"status": status, "detail": detail[: 2 * _LONGEST_DETAIL], "nonce": nonce})
    os._exit(0)


def _run_tests(task: dict[str, Any], solution: _Solution) -> None:
    import ast
    import builtins

    if not task["program"]:
        solution.ask("names", [])
        return
    tree = ast.parse(task["program"], "<tests>")
    loaded: set[str] = {task["entry_point"]}
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (loaded if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    wanted = {name for name in loaded - bound if not hasattr(builtins, name)} | {task["entry_point"]}
    scope: dict[str, Any] = {"__name__": "tests"}
    if wanted != {task["entry_point"]}:
        # Helpers that the task itself gives are taken from the task: a solution could have replaced them.
        given: dict[str, Any] = {"__name__": "prompt"}
        with contextlib.suppress(Exception):
            exec(compile(task["prompt"], "<prompt>", "exec", dont_inherit=True), given)
        scope.update({name: given[name] for name in wanted - {task["entry_point"]} if name in given})
    offers = solution.ask("names", sorted(wanted - scope.keys())).get("names")
    if not isinstance(offers, dict) or task["entry_point"] not in offers:
        raise _Verdict("failed", f"the solution defines no {task['entry_point']!r}")
    for name in wanted - scope.keys():
        offer = offers.get(name)
        if isinstance(offer, dict):
            if offer.get("callable"):
                scope[name] = solution.name(name)
            elif offer.get("module"):
                # By its own name only, and from the judge's own interpreter: `import liar as math` gives no `math`.
                if name in sys.stdlib_module_names or name in _ALIASES:
                    scope[name] = __import__(_ALIASES.get(name, name))
            elif "value" in offer:
                scope[name] = decode(offer["value"])
    exec(compile(tree, "<tests>", "exec", dont_inherit=True, optimize=0), scope)


def _test_line(error: BaseException, program: str) -> str:
    """Where in the tests an exception came from."""
    number, step = 0, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == "<tests>":
            number = step.tb_lineno
        step = step.tb_next
    lines = program.splitlines()
    return f" (tests, line {number}: {lines[number - 1].strip()[:200]})" if 0 < number <= len(lines) else ""


# --- the supervisor -------------------------------------------------------------------------------------------------


def _fork(run: Callable[[], NoReturn]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        run()
    except BaseException as error:
        with contextlib.suppress(BaseException):
            os.write(2, (_describe(error) + "\n").encode())
    os._exit(70)


def main() -> None:
    """Read the walls and the solution, fork, read the tests, fork, watch, report."""
    spec = _receive(0)
    if _LINUX:
        _prctl(_SUBREAPER, 1)
    if spec["level"] == "namespaces":
        _enter_namespaces(spec)
    elif spec["level"] == "process" and spec["uid"] is not None:
        os.chown(spec["folder"], spec["uid"], spec["uid"])
    if _LINUX:
        _prctl(_DUMPABLE, 0)
    output_r, output_w = os.pipe()
    requests_r, requests_w = os.pipe()
    replies_r, replies_w = os.pipe()
    walls_r, walls_w = os.pipe()

    def solve() -> NoReturn:
        try:
            walls = _wall_in(spec, [requests_r, replies_w, walls_w], output_w, solution=True)
            _send(walls_w, walls)
        except BaseException as error:
            _send(walls_w, _describe(error))
            os._exit(70)
        os.close(walls_w)
        _serve(spec, requests_r, replies_w)

    started = time.monotonic()
    solver = _fork(solve)
    for fd in (output_w, requests_r, replies_w, walls_w):
        os.close(fd)
    try:
        walls = _receive(walls_r)
    except EOFError:
        walls = "the solution's process ended before it was walled in"
    os.close(walls_r)
    task = _receive(0)
    if not isinstance(walls, list):
        _send(1, {"error": walls})
        os._exit(1)
    results_r, results_w = os.pipe()

    def judge() -> NoReturn:
        _wall_in(spec, [requests_w, replies_r, results_w], os.open("/dev/null", os.O_WRONLY), solution=False)
        _judge(task, requests_w, replies_r, results_w)

    referee = _fork(judge)
    for fd in (requests_w, replies_r, results_w):
        os.close(fd)
    report = _watch(spec, output_r, results_r, started)
    report |= _settle(report, solver, referee, whole=task["whole"], limits=spec["limits"], started=started)
    _kill_all(solver, referee)
    if report["status"] == "abandoned":
        os._exit(1)
    report |= {"seconds": time.monotonic() - started, "walls": walls}
    if report["status"] == "passed" and report.get("nonce") != task["nonce"]:
        report |= {"status": "failed", "detail": "the nonce did not come back"}
    _send(1, report)


def _watch(spec: dict[str, Any], output: int, results: int, started: float) -> dict[str, Any]:
    """Wait for the judge's word, drain the solution's output, and look after the time and the caller."""
    limits = spec["limits"]
    deadline, printed, allowed = started + limits["wall_seconds"], 0, limits["output_kb"] * 1024
    watched, result = {0, output, results}, b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return {"status": "timeout", "detail": f"{limits['wall_seconds']} s of wall time"}
        ready = select.select(list(watched), [], [], left)[0]
        if output in ready:
            part = os.read(output, 1 << 16)
            printed += len(part)
            if not part:
                watched.discard(output)
            if printed > allowed:
                return {"status": "output_flood", "detail": f"more than {limits['output_kb']} KB printed"}
        if 0 in ready:
            return {"status": "abandoned", "detail": ""}  # the caller is gone, or has given this run up
        if results in ready:
            part = os.read(results, 1 << 16)
            result += part
            if not part:
                break
    if len(result) < 4:
        return {"status": "judge_gone", "detail": ""}
    report: dict[str, Any] = json.loads(result[4:])
    return report


def _settle(
    report: dict[str, Any], solver: int, referee: int, *, whole: bool, limits: dict[str, int], started: float
) -> dict[str, Any]:
    """Turn "gone" into a reason by how the process ended; hold a whole program to exit code 0."""
    if report["status"] not in ("gone", "judge_gone") and not (whole and report["status"] == "passed"):
        return {}
    gone = referee if report["status"] == "judge_gone" else solver
    ended, until = None, min(time.monotonic() + 2, started + limits["wall_seconds"] + 1)
    while ended is None and time.monotonic() < until:
        pid, status, usage = os.wait4(gone, os.WNOHANG)
        if pid:
            ended = os.waitstatus_to_exitcode(status), usage
        else:
            time.sleep(0.005)
    who = "the tests' process" if gone == referee else "the program"
    if ended is None:
        return {"status": "exited_early", "detail": f"{who} closed its channel"}
    code, usage = ended
    if code >= 0:
        if code == 0 and whole and report["status"] == "passed":
            return {}
        return {"status": "exited_early", "detail": f"{who} left with exit code {code}"}
    spent = usage.ru_utime + usage.ru_stime
    if -code == signal.SIGXCPU or (-code == signal.SIGKILL and spent >= limits["cpu_seconds"]):
        return {"status": "timeout", "detail": f"{limits['cpu_seconds']} s of CPU time"}
    return {"status": "killed", "detail": f"{who} was ended by {signal.Signals(-code).name}"}


def _kill_all(*own: int) -> None:
    """End the two processes and whatever they left behind, and wait until nothing is left."""
    for pid in own:
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(pid, signal.SIGKILL)
    while True:
        with contextlib.suppress(FileNotFoundError):  # no /proc within the namespaces, which end with this process
            for pid in _children():
                os.kill(pid, signal.SIGKILL)
        try:
            if os.getpid() <= 2:
                break
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.002)
        except ChildProcessError:
            break


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        _send(1, {"error": _describe(error)})
        os._exit(1)
    os._exit(0)
