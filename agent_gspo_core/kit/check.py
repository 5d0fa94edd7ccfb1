"""Check notebook sources without a kernel: would they run as they are meant to, and are they fit to be shared?

What is not covered: what a cell does when it runs. Calls are checked where the called thing can be told from imports,
from a constructor or from a return annotation; others are passed over.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import json
import math
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from agent_gspo_core.kit import records
from agent_gspo_core.kit.sources import Contract, code_tree, fits, is_name, names_read, parameter_cells, read_contract

if TYPE_CHECKING:
    from nbformat import NotebookNode

PACKAGE = "agent_gspo_core"


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that is wrong."""

    file: str
    cell: int
    """Counted from 1 over all cells; 0 for the notebook as a whole."""
    line: int
    """Counted from 1 within the cell; 0 for the cell as a whole."""
    rule: str
    """parameters, clean, path, secret, widget, shell, import, api, link, contract, or notebook."""
    message: str

    def __str__(self) -> str:
        place = self.file + (f": cell {self.cell}" if self.cell else "") + (f", line {self.line}" if self.line else "")
        return f"{place}: {self.rule}: {self.message}"


def check_notebooks(paths: Sequence[Path]) -> list[Finding]:
    """Every finding in these notebooks, in their order; neighbours in the folder decide what must be linked."""
    return [finding for path in paths for finding in sorted(_check(path))]


def _check(path: Path) -> Iterator[Finding]:
    import nbformat

    name = records.relative_to_project(path)
    try:
        raw = path.read_text(encoding="utf-8")
        notebook = nbformat.reads(raw, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # nbformat raises whatever its parsers raise
        first = (str(error) or repr(error)).splitlines()[0]
        yield Finding(name, 0, 0, "notebook", f"is not a notebook that can be read: {first}")
        return
    yield from _clean(name, notebook)
    yield from _parameters(name, notebook)
    yield from _contract(name, notebook, path)
    yield from _texts(name, notebook)
    yield from _code(name, notebook)
    yield from _links(name, notebook, path)


# ---------------------------------------------------------------------------------------------------------- the sources


def _clean(name: str, notebook: NotebookNode) -> Iterator[Finding]:
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type == "code":
            if cell.outputs:
                yield Finding(name, number, 0, "clean", "holds outputs; sources hold none, clear them")
            if cell.execution_count is not None:
                yield Finding(name, number, 0, "clean", f"holds the execution count {cell.execution_count}; clear it")
        extra = sorted(set(cell.metadata) - {"tags"})
        if extra:
            yield Finding(name, number, 0, "clean", f"metadata {', '.join(map(repr, extra))} is of no use; remove it")
        if cell.get("attachments"):
            yield Finding(name, number, 0, "clean", "holds attachments; keep pictures as files")
    extra = sorted(set(notebook.metadata) - {"kernelspec", "language_info", "agent_gspo", "jupytext"})
    if "widgets" in extra:
        yield Finding(name, 0, 0, "widget", "metadata holds the state of widgets; clear it")
    elif extra:
        yield Finding(name, 0, 0, "clean", f"metadata {', '.join(map(repr, extra))} is of no use; remove it")
    kernel = notebook.metadata.get("kernelspec", {}).get("name")
    if kernel != "python3":
        yield Finding(name, 0, 0, "notebook", f"names the kernel {kernel!r}; it runs everywhere as python3")


def _parameters(name: str, notebook: NotebookNode) -> Iterator[Finding]:
    tagged = parameter_cells(notebook)
    if len(tagged) != 1:
        found = "no cell is" if not tagged else f"{len(tagged)} cells are"
        yield Finding(name, 0, 0, "parameters", f"{found} tagged 'parameters'; exactly one must be")
        return
    number = tagged[0] + 1
    try:
        tree = ast.parse(notebook.cells[tagged[0]].source)
    except SyntaxError as error:
        yield Finding(name, number, error.lineno or 0, "parameters", f"is no Python: {error.msg}")
        return
    used = names_read(notebook, after=tagged[0])
    seen: set[str] = set()
    for node in tree.body:
        line = node.lineno
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a text for the reader
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield Finding(
                name, number, line, "parameters", f"{node.targets[0].id!r} has no type; write `name: type = …`"
            )
            continue
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            yield Finding(name, number, line, "parameters", "only `name: type = value` lines belong here")
            continue
        parameter = node.target.id
        if parameter in seen:
            yield Finding(name, number, line, "parameters", f"{parameter!r} is declared twice")
        seen.add(parameter)
        if node.value is None:
            yield Finding(name, number, line, "parameters", f"{parameter!r} has no default")
        else:
            yield from _default(name, number, node, parameter)
        if parameter not in used:
            yield Finding(
                name, number, line, "parameters", f"{parameter!r} is read by no later cell; it changes nothing"
            )


def _default(name: str, number: int, node: ast.AnnAssign, parameter: str) -> Iterator[Finding]:
    assert node.value is not None
    try:
        value = ast.literal_eval(node.value)
    except ValueError:
        yield Finding(
            name, number, node.lineno, "parameters", f"the default of {parameter!r} is computed; write a plain value"
        )
        return
    if isinstance(value, float) and not math.isfinite(value):
        yield Finding(
            name, number, node.lineno, "parameters", f"the default of {parameter!r} is {value}, which is no JSON"
        )
    elif not fits(value, node.annotation):
        kind = ast.unparse(node.annotation)
        yield Finding(
            name,
            number,
            node.lineno,
            "parameters",
            f"{parameter!r} is declared as {kind}, but its default is {value!r}",
        )


def _contract(name: str, notebook: NotebookNode, path: Path) -> Iterator[Finding]:
    try:
        contract: Contract = read_contract(notebook)
    except ValueError as error:
        yield Finding(name, 0, 0, "contract", str(error))
        return
    known = [other.stem for other in _siblings(path)]
    for after in contract.after:
        if after != "*" and not any(after in (stem, stem[:2]) and stem < path.stem for stem in known):
            yield Finding(name, 0, 0, "contract", f"follows {after!r}, which is no notebook before this one")


MACHINE = re.compile(
    r"(?:^|[\s'\"(=])(/(?:home|Users|root|mnt|tmp|var|opt|content|kaggle|workspace|data|scratch)/[\w./-]*"
    r"|[A-Za-z]:\\\\?[\w\\.-]+|~/[\w./-]+|file://[\w./-]*)"
)
"""Places that exist on one machine only."""

CREDENTIAL = re.compile(
    r"""\b\w*(?:token|secret|passw(?:or)?d|api_?key)\w*\s*[:=]\s*['"][^'"\s]{8,}['"]""", re.IGNORECASE
)


def _texts(name: str, notebook: NotebookNode) -> Iterator[Finding]:
    """Machine paths and secrets, in code and in Markdown."""
    here = str(Path(__file__).resolve().parents[2])
    for number, cell in enumerate(notebook.cells, start=1):
        for line, text in enumerate(cell.source.splitlines(), start=1):
            for match in MACHINE.finditer(text):
                yield Finding(name, number, line, "path", f"{match[1]!r} exists on one machine only")
            if here in text and not MACHINE.search(text):
                yield Finding(name, number, line, "path", "the folder of this checkout exists on one machine only")
            if records.SECRETS.search(text) or CREDENTIAL.search(text):
                yield Finding(name, number, line, "secret", "looks like a secret; read it from the environment")
    rest = json.dumps({key: value for key, value in notebook.metadata.items() if key != "kernelspec"})
    if records.SECRETS.search(rest):
        yield Finding(name, 0, 0, "secret", "the metadata holds what looks like a secret")


# ------------------------------------------------------------------------------------------------------------- the code

WIDGETS = ("ipywidgets", "tqdm.notebook", "tqdm.auto", "nglview", "bqplot")


def _code(name: str, notebook: NotebookNode) -> Iterator[Finding]:
    known: dict[str, Any] = {}
    allowed = _allowed_modules()
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code":
            continue
        for line, text in enumerate(cell.source.splitlines(), start=1):
            if re.match(r"\s*(!|%%(?:bash|sh|script|system)\b|%(?:pip|conda|sx|system)\b)", text):
                yield Finding(name, number, line, "shell", "a command of the system; notebooks are Python alone")
        try:
            tree = code_tree(cell.source)
        except SyntaxError as error:
            if number - 1 in parameter_cells(notebook):
                continue  # said with the parameters
            yield Finding(name, number, error.lineno or 0, "notebook", f"is no Python: {error.msg}")
            continue
        for line, rule, message in (*_imports(tree, allowed), *_Calls(known).run(tree)):
            yield Finding(name, number, line, rule, message)


def _allowed_modules() -> set[str]:
    """Top-level modules of the standard library, this package and its dependencies, extras left out."""
    allowed = {*sys.stdlib_module_names, PACKAGE}
    wanted = set()
    for line in metadata.requires("agent-gspo") or []:
        if "extra ==" not in line:
            wanted.add(re.split(r"[^\w.-]", line, maxsplit=1)[0].lower().replace("_", "-"))
    for module, distributions in metadata.packages_distributions().items():
        if any(one.lower().replace("_", "-") in wanted for one in distributions):
            allowed.add(module)
    return allowed


def _imports(tree: ast.Module, allowed: set[str]) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "import", "a relative import has no meaning in a notebook"
                continue
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            if module.startswith(WIDGETS):
                yield node.lineno, "widget", f"{module} draws widgets, which an executed copy does not show"
            elif module.split(".")[0] not in allowed:
                yield node.lineno, "import", f"{module!r} is neither a dependency nor part of this package"


class _Instance:
    """A value of which only the class is known."""

    def __init__(self, kind: type) -> None:
        self.kind = kind


class _Calls(ast.NodeVisitor):
    """Walks a cell in order, keeps what names stand for, and binds each call of the core to its signature."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.known = known
        self.found: list[tuple[int, str, str]] = []

    def run(self, tree: ast.Module) -> list[tuple[int, str, str]]:
        for node in tree.body:
            self.visit(node)
        return self.found

    # ---- what names stand for

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] in (PACKAGE, "dataclasses"):
                module = self._module(alias.name, node.lineno)
                top = alias.name if alias.asname else alias.name.split(".")[0]
                if module is not None:
                    self.known[alias.asname or top] = sys.modules[top]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if module.split(".")[0] not in (PACKAGE, "dataclasses"):
            for alias in node.names:
                self.known.pop(alias.asname or alias.name, None)
            return
        home = self._module(module, node.lineno)
        for alias in node.names:
            if home is None:
                continue
            try:
                self.known[alias.asname or alias.name] = getattr(home, alias.name)
            except AttributeError:
                inner = f"{module}.{alias.name}"
                if importlib.util.find_spec(inner) is None if hasattr(home, "__path__") else True:
                    self.found.append((node.lineno, "api", f"{module} has no {alias.name!r}"))
                else:
                    self.known[alias.asname or alias.name] = importlib.import_module(inner)

    def _module(self, name: str, line: int) -> ModuleType | None:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            self.found.append((line, "api", f"{name} cannot be imported: {error}"))
            return None

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        value = self._value(node.value)
        for target in node.targets:
            self._bind(target, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
        self._bind(node.target, self._value(node.value) if node.value is not None else None)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        self._bind(node.target, None)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._bind(node.target, self._value(node.value))

    def _bind(self, target: ast.AST, value: Any) -> None:
        if isinstance(target, ast.Name):
            if value is None:
                self.known.pop(target.id, None)
            else:
                self.known[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            inner = value if isinstance(value, tuple) and len(value) == len(target.elts) else [None] * len(target.elts)
            for one, part in zip(target.elts, inner, strict=True):
                self._bind(one.value if isinstance(one, ast.Starred) else one, part)
        else:
            self.visit(target)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._bind(node.target, None)
        for inner in (*node.body, *node.orelse):
            self.visit(inner)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, None)
        for inner in node.body:
            self.visit(inner)

    def _scoped(self, node: ast.AST, hidden: Iterable[str], inside: Iterable[ast.AST]) -> None:
        """Visit with some names hidden, and forget what is bound inside."""
        outer = self.known
        self.known = {name: value for name, value in outer.items() if name not in set(hidden)}
        for inner in inside:
            self.visit(inner)
        self.known = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
        stored = [inner.id for part in node.body for inner in ast.walk(part) if is_name(inner, ast.Store)]
        for default in (*arguments.defaults, *(one for one in arguments.kw_defaults if one is not None)):
            self.visit(default)
        self._scoped(node, [*(one.arg for one in every), *stored], node.body)
        self.known.pop(node.name, None)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scoped(node, (), node.body)
        self.known.pop(node.name, None)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._scoped(node, [one.arg for one in (*node.args.args, *node.args.kwonlyargs)], [node.body])

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        bound = [one.id for part in node.generators for one in ast.walk(part.target) if isinstance(one, ast.Name)]
        self.visit(node.generators[0].iter)
        inside: list[ast.AST] = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        inside += [condition for part in node.generators for condition in part.ifs]
        inside += [part.iter for part in node.generators[1:]]
        self._scoped(node, bound, inside)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    # ---- what an expression is

    def _value(self, node: ast.AST) -> Any:
        """A module, class or function, an `_Instance`, a tuple of them, or None where nothing is known."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(self._value(node.value), node.attr)
        if isinstance(node, ast.Call):
            called = self._value(node.func)
            if called is dataclasses.replace and node.args:
                return self._value(node.args[0])
            return _result(called)
        if isinstance(node, ast.Tuple):
            return tuple(self._value(one) for one in node.elts)
        return None

    def _attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, ModuleType):
            return getattr(owner, name, None) if owner.__name__.split(".")[0] in (PACKAGE, "dataclasses") else None
        if inspect.isclass(owner):
            return getattr(owner, name, None)
        if isinstance(owner, _Instance):
            found = inspect.getattr_static(owner.kind, name, None)
            if isinstance(found, FunctionType):
                return _Method(found)
            if isinstance(found, property) and found.fget is not None:
                return _from_hint(_hints(found.fget).get("return"))
            return _from_hint(_hints(owner.kind).get(name))
        return None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.visit(node.value)
        owner = self._value(node.value)
        if isinstance(owner, ModuleType) and owner.__name__.split(".")[0] == PACKAGE:
            if not hasattr(owner, node.attr) and not _is_module(owner, node.attr):
                self.found.append((node.lineno, "api", f"{owner.__name__} has no {node.attr!r}"))
        elif isinstance(owner, _Instance) and not _has(owner.kind, node.attr):
            self.found.append((node.lineno, "api", f"{owner.kind.__name__} has no {node.attr!r}"))

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        called = self._value(node.func)
        if called is dataclasses.replace and node.args:
            self._check_replace(node)
        elif called is not None and not isinstance(called, _Instance | tuple | ModuleType):
            self._check_call(node, called)

    def _check_replace(self, node: ast.Call) -> None:
        owner = self._value(node.args[0])
        if isinstance(owner, _Instance) and dataclasses.is_dataclass(owner.kind):
            fields = {one.name for one in dataclasses.fields(owner.kind) if one.init}
            for keyword in node.keywords:
                if keyword.arg is not None and keyword.arg not in fields:
                    self.found.append((node.lineno, "api", f"{owner.kind.__name__} has no field {keyword.arg!r}"))

    def _check_call(self, node: ast.Call, called: Any) -> None:
        own = called.function if isinstance(called, _Method) else called
        if not (getattr(own, "__module__", "") or "").startswith(PACKAGE):
            return
        try:
            signature = inspect.signature(own)
        except (TypeError, ValueError):
            return
        first = [None] if isinstance(called, _Method) else []
        open_ended = any(isinstance(one, ast.Starred) for one in node.args) or any(k.arg is None for k in node.keywords)
        positional = [None for one in node.args if not isinstance(one, ast.Starred)]
        named = {keyword.arg: None for keyword in node.keywords if keyword.arg is not None}
        try:
            (signature.bind_partial if open_ended else signature.bind)(*first, *positional, **named)
        except TypeError as error:
            name = getattr(own, "__qualname__", str(own))
            self.found.append((node.lineno, "api", f"{name}{signature}: {error}"))


class _Method:
    """A function that is called on an instance."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function


def _is_module(owner: ModuleType, name: str) -> bool:
    return hasattr(owner, "__path__") and importlib.util.find_spec(f"{owner.__name__}.{name}") is not None


def _has(kind: type, name: str) -> bool:
    """Whether instances have the attribute; where they may make their own, nothing is claimed."""
    if hasattr(kind, name) or "__getattr__" in dir(kind) or not dataclasses.is_dataclass(kind):
        return True
    if any(name in vars(base).get("__annotations__", {}) for base in kind.__mro__):
        return True
    return bool(re.search(rf"\bself\.{name}\b[^=\n]*=[^=]", inspect.getsource(kind)))


def _result(called: Any) -> Any:
    """What calling gives."""
    if inspect.isclass(called):
        return _Instance(called) if called.__module__.startswith(PACKAGE) else None
    own = called.function if isinstance(called, _Method) else called
    return _from_hint(_hints(own).get("return")) if isinstance(own, FunctionType) else None


def _hints(owner: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(owner)
    except (NameError, TypeError, AttributeError):  # a name that only type checkers import
        return {}


def _from_hint(hint: Any) -> Any:
    if inspect.isclass(hint) and hint.__module__.split(".")[0] == PACKAGE:
        return _Instance(hint)
    if typing.get_origin(hint) is tuple and Ellipsis not in typing.get_args(hint):
        return tuple(_from_hint(one) for one in typing.get_args(hint))
    return None


# ------------------------------------------------------------------------------------------------------------ the links

LINK = re.compile(r"\]\(([^)\s]+)\)")


def _siblings(path: Path) -> list[Path]:
    return sorted(path.parent.glob("[0-9][0-9]_*.ipynb"))


def _links(name: str, notebook: NotebookNode, path: Path) -> Iterator[Finding]:
    targets: list[str] = []
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "markdown":
            continue
        for line, text in enumerate(cell.source.splitlines(), start=1):
            for target in LINK.findall(re.sub(r"`[^`]*`", "", text)):
                place = target.partition("#")[0]
                if "://" in target or target.startswith("mailto:") or not place:
                    continue
                targets.append(place)
                if not (path.parent / place).exists():
                    yield Finding(name, number, line, "link", f"{place!r} is not there")
    order = _siblings(path)
    if path not in order:
        return
    place = order.index(path)
    for word, other in (("previous", place - 1), ("next", place + 1)):
        if 0 <= other < len(order) and order[other].name not in targets:
            yield Finding(name, 0, 0, "link", f"does not link to the {word} notebook, {order[other].name}")
