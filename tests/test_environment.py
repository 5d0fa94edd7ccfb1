"""pyproject.toml is the source; environment.yml, the constraints and the Makefile agree with it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import agent_gspo_core

ROOT = Path(__file__).resolve().parents[1]
FIXED = {"jupyter", "torch", "transformers", "unsloth", "datasets", "matplotlib", "pandas", "papermill"}
ONLY_UNSLOTH_DIFFERS_IN = {"torch"}
IMPORTED_AS = {"pyyaml": "yaml", "pillow": "PIL", "ipython": "IPython"}


def load_project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]


def load_environment() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "environment.yml").read_text())


def ranges(lines: list[str]) -> dict[str, SpecifierSet]:
    """Requirement lines by canonical name; a name that stands twice is an error."""
    requirements = [Requirement(line) for line in lines]
    found = {canonicalize_name(r.name): r.specifier for r in requirements}
    assert len(found) == len(requirements), "a dependency is listed twice"
    return found


def pins(name: str) -> dict[str, Version]:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    found = {}
    for line in lines:
        requirement = Requirement(line)
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", f"{name}: {line!r} is no exact pin"
        key = canonicalize_name(requirement.name)
        assert key not in found, f"{name}: {line!r} stands twice"
        found[key] = Version(specifier.version)
    return found


PROJECT = load_project()
RUNTIME = ranges(PROJECT["dependencies"])
UNSLOTH = ranges(PROJECT["optional-dependencies"]["unsloth"])
TEST = ranges(PROJECT["optional-dependencies"]["test"])
PIP_LINES: list[str] = load_environment()["dependencies"][-1]["pip"]


def test_environment_lists_the_fixed_packages_by_name():
    assert set(ranges(PIP_LINES)) >= FIXED


def test_environment_is_the_package_with_both_extras():
    assert ranges(PIP_LINES) == RUNTIME | UNSLOTH | TEST


def test_environment_allows_the_pythons_of_pyproject():
    (python,) = [d for d in load_environment()["dependencies"] if isinstance(d, str) and d.startswith("python")]
    assert Requirement(python).specifier == SpecifierSet(PROJECT["requires-python"])


def test_classifiers_name_exactly_the_pythons_allowed():
    named = {c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)}
    assert named == {f"3.{n}" for n in range(30) if f"3.{n}" in SpecifierSet(PROJECT["requires-python"])}


def test_environment_lists_pip_before_its_pip_section():
    dependencies = load_environment()["dependencies"]
    assert dependencies.index("pip") == len(dependencies) - 2
    assert list(dependencies[-1]) == ["pip"]


def test_environment_holds_no_build_strings_and_no_local_paths():
    for line in [d for d in load_environment()["dependencies"] if isinstance(d, str)] + PIP_LINES:
        requirement = Requirement(line)  # a build string (name=1.0=py311_0) or a path does not parse
        assert requirement.url is None
        assert not requirement.extras
    assert "prefix" not in load_environment()


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-unsloth.txt"])
def test_every_direct_dependency_has_a_pin_inside_its_range(file: str):
    wanted = RUNTIME | TEST | (UNSLOTH if file == "constraints-unsloth.txt" else {})
    pinned = pins(file)
    assert set(wanted) <= set(pinned)
    outside = {name: str(pinned[name]) for name, allowed in wanted.items() if pinned[name] not in allowed}
    assert not outside


def test_the_two_constraints_differ_in_torch_alone():
    plain, unsloth = pins("constraints.txt"), pins("constraints-unsloth.txt")
    assert set(plain) <= set(unsloth)
    assert {name for name in plain if plain[name] != unsloth[name]} == ONLY_UNSLOTH_DIFFERS_IN
    assert not set(plain) & set(UNSLOTH)


def test_makefile_installs_what_environment_lists():
    makefile = (ROOT / "Makefile").read_text()
    assert re.findall(r"UNSLOTH_VENV\)/\.stamp: EXTRAS := (\S+)", makefile) == ["test,unsloth"]
    assert re.findall(r"UNSLOTH_VENV\)/\.stamp: CONSTRAINTS := (\S+)", makefile) == ["constraints-unsloth.txt"]


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    changelog = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert agent_gspo_core.__version__ == str(citation["version"]) == changelog[0] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"] == "Apache-2.0"


def imports(folder: str) -> dict[str, str]:
    """Top-level names of every import in a folder's Python files, lazy ones too, with a file that has it."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            found.update({name.split(".")[0]: str(path.relative_to(ROOT)) for name in names})
    own = {"agent_gspo_core", "conftest", "tests"} | {p.stem for p in (ROOT / "tests").glob("*.py")}
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names | own}


def import_names(declared: dict[str, SpecifierSet]) -> set[str]:
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in declared}


def test_the_package_imports_only_what_it_declares():
    undeclared = {n: p for n, p in imports("agent_gspo_core").items() if n not in import_names(RUNTIME | UNSLOTH)}
    assert not undeclared, "add to dependencies in pyproject.toml, environment.yml and both constraints"


def test_the_tests_import_only_what_is_declared():
    undeclared = {n: p for n, p in imports("tests").items() if n not in import_names(RUNTIME | UNSLOTH | TEST)}
    assert not undeclared, "add to the test extra in pyproject.toml, to environment.yml and both constraints"


def test_installed_versions_are_inside_the_ranges():
    declared = RUNTIME | TEST
    outside = {n: metadata.version(n) for n, allowed in declared.items() if metadata.version(n) not in allowed}
    assert not outside
