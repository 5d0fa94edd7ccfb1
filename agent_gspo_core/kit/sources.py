"""Notebook sources: which there are, what parameters they declare, what they need and what they promise.

Read from the syntax tree: papermill's own reader works line by line and misreads annotations and calls.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from nbformat import NotebookNode

_PARSING = Lock()


def find_notebooks(folder: Path, only: Sequence[str] | None = None, start: str | None = None) -> list[Path]:
    """Notebooks `NN_name.ipynb` of a folder in order, those of them that `only` names, or all from `start` on.

    A name may be a number ("2", "02"), a stem, a file name, or a path to a notebook anywhere.

    Raises:
        ValueError: there are none, a name fits none, two have the same stem, or both choices are made.
    """
    known = sorted(path for path in folder.glob("[0-9][0-9]_*.ipynb"))
    if only is not None and start is not None:
        raise ValueError("notebooks: both --only and --from are given; each chooses, so give one")
    if start is not None:
        first = _find_notebook(known, start)
        if first not in known:
            raise ValueError(f"notebooks: {start!r} is none of {folder.name}/, so nothing follows it")
        return known[known.index(first) :]
    if only is None:
        if not known:
            raise ValueError(f"notebooks: {folder} holds none named NN_name.ipynb")
        return known
    chosen = [_find_notebook(known, name) for name in dict.fromkeys(only)]
    if not chosen:
        raise ValueError("notebooks: none named; leave the choice out to run them all")
    chosen = list(dict.fromkeys(chosen))
    stems = [path.stem for path in chosen]
    twice = sorted({stem for stem in stems if stems.count(stem) > 1})
    if twice:
        raise ValueError(f"notebooks: {twice[0]!r} is chosen twice; its records would overwrite each other")
    return sorted(chosen, key=lambda path: path.name)


def _find_notebook(known: Sequence[Path], name: str) -> Path:
    for path in known:
        if name in (path.stem, path.name, path.stem[:2]) or (name.isdigit() and int(name) == int(path.stem[:2])):
            return path
    if name.endswith(".ipynb") and Path(name).is_file():
        return Path(name).resolve()
    choices = ", ".join(path.stem for path in known) or "none are here"
    raise ValueError(f"notebooks: {name!r} is none of them ({choices})")


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook. ValueError when it is none, or not Python's."""
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # nbformat raises whatever its parsers raise
        first = (str(error) or repr(error)).splitlines()[0]
        raise ValueError(f"{path.name} is not a notebook that can be read: {first}") from error
    return notebook  # type: ignore[no-any-return]


def code_tree(source: str) -> ast.Module:
    """Syntax tree of a cell; %magic and !command become calls. SyntaxError when it is no Python."""
    from IPython.core.inputtransformer2 import TransformerManager

    manager = TransformerManager()  # type: ignore[no-untyped-call]
    python: str = manager.transform_cell(source)
    return parse_python(python)


def parse_python(source: str | bytes) -> ast.Module:
    """`ast.parse` for runs with several threads: in Python 3.11 two at once can end in a SystemError, since the counter
    that guards its recursion is shared.
    """
    with _PARSING:
        return ast.parse(source)


def is_name(node: ast.AST, context: type[ast.expr_context]) -> TypeGuard[ast.Name]:
    """Whether a node is a name that is read (`ast.Load`) or assigned (`ast.Store`)."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, context)


# ----------------------------------------------------------------------------------------------------------- parameters


def parameter_cells(notebook: NotebookNode) -> list[int]:
    """Positions of the code cells tagged `parameters`."""
    return [
        index
        for index, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", [])
    ]


def _parameter_tree(notebook: NotebookNode) -> ast.Module:
    tagged = parameter_cells(notebook)
    if len(tagged) != 1:
        found = "no cell is" if not tagged else f"{len(tagged)} cells are"
        raise ValueError(f"{found} tagged 'parameters'; tag the one cell that assigns them")
    try:
        return parse_python(str(notebook.cells[tagged[0]].source))
    except SyntaxError as error:
        raise ValueError(f"the cell tagged 'parameters' is no Python: {error}") from error


def declared_parameters(notebook: NotebookNode) -> tuple[str, ...]:
    """Names that the cell tagged `parameters` assigns.

    Raises:
        ValueError: no such cell or two of them, it is no Python, or one of its values is computed from another, which
            would keep the default's value after the injected cell has changed it.
    """
    tree = _parameter_tree(notebook)
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [t for one in assigned for t in (one.targets if isinstance(one, ast.Assign) else [one.target])]
    names = [node.id for target in targets for node in ast.walk(target) if is_name(node, ast.Store)]
    values = [one.value for one in assigned if one.value is not None]
    read = {node.id for value in values for node in ast.walk(value) if is_name(node, ast.Load)}
    computed_from = [name for name in names if name in read]
    if computed_from:
        raise ValueError(
            f"the cell tagged 'parameters' computes something from {computed_from[0]!r}, which is injected after it; "
            "move that to the next cell"
        )
    return tuple(dict.fromkeys(names))


def check_parameters(notebook: NotebookNode, parameters: Mapping[str, object]) -> None:
    """Refuse parameters that papermill would pass in vain or with the wrong type.

    Raises:
        ValueError: as in `declared_parameters`; a parameter is not declared, has another type than is declared, or no
            later cell reads it.
    """
    declared = declared_parameters(notebook)
    unknown = [name for name in parameters if name not in declared]
    if unknown:
        raise ValueError(f"parameter {unknown[0]!r} is not declared; declared are {', '.join(declared) or 'none'}")
    for node in _parameter_tree(notebook).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in parameters:
            value = parameters[node.target.id]
            if not fits(value, node.annotation):
                raise ValueError(
                    f"parameter {node.target.id!r} is declared as {ast.unparse(node.annotation)}, but is given "
                    f"{value!r} ({type(value).__name__})"
                )
    used = names_read(notebook, after=parameter_cells(notebook)[0])
    idle = [name for name in parameters if name not in used]
    if idle:
        raise ValueError(f"parameter {idle[0]!r} is declared, but no later cell reads it: it would change nothing")


def fits(value: object, annotation: ast.expr) -> bool:
    """Whether a JSON value has the annotated type; what is not understood fits."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return fits(value, annotation.left) or fits(value, annotation.right)
    if isinstance(annotation, ast.Constant):
        return annotation.value is None and value is None
    if isinstance(annotation, ast.Subscript):
        if not fits(value, annotation.value):
            return False
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if isinstance(value, dict):
            return all(fits(one, inner[-1]) for one in value.values())
        return not isinstance(value, list | tuple) or all(fits(one, inner[0]) for one in value)
    kinds: dict[str, tuple[type, ...]] = {
        "str": (str,),
        "bool": (bool,),
        "int": (int,),
        "float": (int, float),
        "list": (list, tuple),
        "tuple": (list, tuple),
        "dict": (dict,),
    }
    name = annotation.id if isinstance(annotation, ast.Name) else ""
    if name not in kinds:
        return True
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, kinds[name]) and (name == "bool" or not isinstance(value, bool))


def names_read(notebook: NotebookNode, *, after: int) -> set[str]:
    """Names that the code cells behind position `after` read."""
    names: set[str] = set()
    for cell in notebook.cells[after + 1 :]:
        if cell.cell_type != "code":
            continue
        try:
            tree = code_tree(cell.source)
        except SyntaxError:
            continue  # running it will say so
        names |= {node.id for node in ast.walk(tree) if is_name(node, ast.Load)}
    return names


# ---------------------------------------------------------------------------------------------- what it needs, promises


@dataclass(frozen=True)
class Contract:
    """What a notebook says of itself under `agent_gspo` in its metadata; all of it may be left out."""

    after: tuple[str, ...] = ()
    """Notebooks (number or stem) that come first and whose files it reads; "*" stands for all before it."""
    inputs: tuple[str, ...] = ()
    """Files of the run folder without which it is not begun."""
    outputs: tuple[str, ...] = ()
    """Files of the run folder that it must leave."""

    def follows(self, own: str, other: str) -> bool:
        """Whether the notebook with stem `own` comes after the one with stem `other`."""
        if "*" in self.after and other < own:
            return True
        return any(name in (other, other[:2]) for name in self.after)


def read_contract(notebook: NotebookNode) -> Contract:
    """The contract in a notebook's metadata.

    Raises:
        ValueError: an unknown key, a value that is no list of texts, or a file outside the run folder.
    """
    written = notebook.metadata.get("agent_gspo", {})
    fields = ("after", "inputs", "outputs")
    if not isinstance(written, Mapping) or set(written) - set(fields):
        raise ValueError(f"metadata agent_gspo is {dict(written)!r}; it may hold lists {', '.join(fields)}")
    values: dict[str, tuple[str, ...]] = {}
    for name in fields:
        given = written.get(name, [])
        if not isinstance(given, list) or not all(isinstance(one, str) and one for one in given):
            raise ValueError(f"metadata agent_gspo.{name} is {given!r}; give a list of texts")
        values[name] = tuple(given)
    for path in (*values["inputs"], *values["outputs"]):
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ValueError(f"metadata agent_gspo names {path!r}; files count from the run folder and lie in it")
    return Contract(**values)
