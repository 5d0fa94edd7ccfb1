"""Checks of notebook sources, each rule by a source that breaks it and one that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from agent_gspo_core.kit import check, cli

PARAMETERS = 'profile: str = "smoke"\nsteps: int = 3'


def write(path: Path, *cells: Any, parameters: str | None = PARAMETERS, used: str = "(profile, steps)") -> Path:
    made = [cell if isinstance(cell, dict) else new_code_cell(cell) for cell in (used, *cells)]
    if parameters is not None:
        made.insert(0, new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=made, metadata=metadata), path)
    return path


def found(path: Path) -> list[tuple[str, int, int]]:
    return [(one.rule, one.cell, one.line) for one in check.check_notebooks([path])]


def test_a_clean_notebook_has_no_findings(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.ipynb",
        new_markdown_cell("See [the paper](https://arxiv.org/abs/2510.22477)."),
        "import numpy as np\nfrom agent_gspo_core.kit import records\nfrom agent_gspo_core import TrainerSettings",
        "from dataclasses import replace\nsettings = replace(TrainerSettings(steps=steps), members=4)\nsettings.steps",
        "records.write_json('x.json', {'a': 1})\nfor _ in range(3):\n    print(records.interval([1.0], 0.9))",
        "def show(records):\n    return records.anything(1, 2, 3)",
        "from agent_gspo_core import Trainer\nTrainer(*[], **{}).alarm",
        "%matplotlib inline",
    )
    assert found(path) == []


@pytest.mark.parametrize(
    ("parameters", "used", "rule"),
    [
        (None, "1", "no cell is tagged 'parameters'"),
        ('profile = "x"\nsteps: int = 3', "(profile, steps)", "'profile' has no type"),
        ("steps: int = 3", "1", "'steps' is read by no later cell"),
        ("steps: int = 'three'", "steps", "declared as int, but its default is 'three'"),
        ("steps: int = 3.5", "steps", "declared as int, but its default is 3.5"),
        ("on: bool = 1", "on", "declared as bool, but its default is 1"),
        ("xs: list[int] = [1, 'a']", "xs", "declared as list[int], but its default is [1, 'a']"),
        ("rate: float = 1e999", "rate", "is inf, which is no JSON"),
        ("steps: int = 2 + len('x')", "steps", "is computed; write a plain value"),
        ("steps: int", "steps", "has no default"),
        ("steps: int = 3\nsteps: int = 4", "steps", "declared twice"),
        ("steps: int = 3\nprint(steps)", "steps", "only `name: type = value` lines"),
        ("steps: int = (", "steps", "is no Python"),
    ],
)
def test_parameters_are_tagged_typed_plain_and_read(
    parameters: str | None, used: str, rule: str, tmp_path: Path
) -> None:
    findings = check.check_notebooks([write(tmp_path / "x.ipynb", parameters=parameters, used=used)])
    assert [one.rule for one in findings] == ["parameters"]
    assert rule in findings[0].message


@pytest.mark.parametrize("fits", ["x: list[str] | None = None", "x: dict = {}", "x: float = 1", "x: tuple = (1, 2)"])
def test_parameters_that_fit_are_left_alone(fits: str, tmp_path: Path) -> None:
    assert found(write(tmp_path / "x.ipynb", parameters=fits, used="x")) == []


def test_outputs_counts_and_leftover_metadata_are_found(tmp_path: Path) -> None:
    ran = new_code_cell("1", execution_count=3, outputs=[new_output("stream", text="1")])
    touched = new_code_cell("1", metadata={"scrolled": True, "papermill": {}})
    path = write(tmp_path / "x.ipynb", ran, touched)
    assert found(path) == [("clean", 3, 0), ("clean", 3, 0), ("clean", 4, 0)]
    source = json.loads(path.read_text())
    source["metadata"]["widgets"] = {"state": {}}
    source["metadata"]["kernelspec"]["name"] = "my-env"
    path.write_text(json.dumps(source))
    assert [rule for rule, cell, _ in found(path) if cell == 0] == ["notebook", "widget"]


@pytest.mark.parametrize(
    "text",
    ["open('/home/ann/x')", "x = '/Users/ann/data'", "# see ~/notes/x.txt", "'C:\\\\Users\\\\ann'", "'file:///tmp/x'"],
)
def test_places_of_one_machine_are_found_with_their_line(text: str, tmp_path: Path) -> None:
    assert ("path", 3, 2) in found(write(tmp_path / "x.ipynb", f"1\n{text}"))


def test_ratios_addresses_and_plain_paths_are_no_machine_paths(tmp_path: Path) -> None:
    text = "See https://example.org/home/x, tokens/episode, `runs/latest`, 1/2 and a/b."
    assert found(write(tmp_path / "x.ipynb", new_markdown_cell(text), "x = 'data/results'\n1 / 2")) == []


@pytest.mark.parametrize(
    "text",
    [f"x = 'hf_{'a1' * 17}'", "api_key = 'abcdefgh1234'", f"# ghp_{'B2' * 18}", "x = 'https://ann:pw1234@example.org'"],
)
def test_planted_secrets_are_found(text: str, tmp_path: Path) -> None:
    assert [rule for rule, *_ in found(write(tmp_path / "x.ipynb", text))] == ["secret"]


@pytest.mark.parametrize(
    ("code", "rule", "message"),
    [
        ("import tensorflow", "import", "'tensorflow' is neither a dependency"),
        ("def f():\n    import trl", "import", "'trl' is neither"),
        ("from . import x", "import", "relative import"),
        ("import ipywidgets", "widget", "ipywidgets"),
        ("from tqdm.notebook import tqdm", "widget", "tqdm.notebook"),
        ("!pip install x", "shell", "command of the system"),
        ("%%bash\nls", "shell", "command of the system"),
        ("x = (", "notebook", "is no Python"),
        ("from agent_gspo_core.kit import no_such", "api", "agent_gspo_core.kit has no 'no_such'"),
        ("from agent_gspo_core import no_such", "api", "agent_gspo_core has no 'no_such'"),
        ("import agent_gspo_core.no_such", "api", "cannot be imported"),
        ("from agent_gspo_core.kit import records\nrecords.gone(1)", "api", "has no 'gone'"),
        (
            "from agent_gspo_core.kit.records import interval\ninterval()",
            "api",
            "missing a required argument: 'values'",
        ),
        ("from agent_gspo_core.kit import records as r\nr.interval([1], level=3)", "api", "'level'"),
        ("from agent_gspo_core import TrainerSettings\nTrainerSettings(step=3)", "api", "'step'"),
        ("import agent_gspo_core as g\n[g.TrainerSettings(x) for x in (1,)]\ng.TrainerSettings(no=1)", "api", "'no'"),
        ("from agent_gspo_core import TrainerSettings\ns = TrainerSettings()\ns.step", "api", "has no 'step'"),
        (
            "from dataclasses import replace\nfrom agent_gspo_core.kit.settings import load_profile\n"
            "replace(load_profile('smoke').settings.trainer, stepz=1)",
            "api",
            "TrainerSettings has no field 'stepz'",
        ),
        (
            "from agent_gspo_core import load_policy\npolicy = load_policy()\npolicy.trainable(1, 2, 3)",
            "api",
            "Policy.trainable",
        ),
        (
            "from agent_gspo_core.kit import records\nkw = {}\nrecords.interval(*[1], **kw, nonsense=1)",
            "api",
            "'nonsense'",
        ),
    ],
)
def test_code_that_would_fail_or_must_not_be_there_is_found(code: str, rule: str, message: str, tmp_path: Path) -> None:
    findings = check.check_notebooks([write(tmp_path / "x.ipynb", code)])
    assert [one.rule for one in findings] == [rule], findings
    assert message in findings[0].message


def test_names_that_are_bound_anew_are_no_longer_the_cores(tmp_path: Path) -> None:
    code = (
        "from agent_gspo_core.kit import records\nrecords = [1]\nrecords.append(2)\n"
        "from agent_gspo_core.kit import plots\nfor plots in ([],):\n    plots.append(1)\n"
        "(lambda plots: plots.x)(1)"
    )
    assert found(write(tmp_path / "x.ipynb", code)) == []


def test_neighbours_must_be_linked_and_links_must_resolve(tmp_path: Path) -> None:
    folder = tmp_path / "notebooks"
    write(folder / "01_a.ipynb", new_markdown_cell("Next: [02](02_b.ipynb)"))
    middle = write(folder / "02_b.ipynb", new_markdown_cell("text\n[gone](03_gone.ipynb) `[x](code.md)`"))
    last = write(folder / "03_c.ipynb", new_markdown_cell("Previous: [02](02_b.ipynb#part)"))
    findings = check.check_notebooks([middle])
    assert [(one.cell, one.line, one.message) for one in findings] == [
        (0, 0, "does not link to the next notebook, 03_c.ipynb"),
        (0, 0, "does not link to the previous notebook, 01_a.ipynb"),
        (3, 2, "'03_gone.ipynb' is not there"),
    ]
    assert found(last) == []


def test_a_contract_must_name_notebooks_before_it(tmp_path: Path) -> None:
    path = write(tmp_path / "02_b.ipynb")
    source = json.loads(path.read_text())
    source["metadata"]["agent_gspo"] = {"after": ["03"]}
    path.write_text(json.dumps(source))
    assert [one.message for one in check.check_notebooks([path])] == [
        "follows '03', which is no notebook before this one"
    ]


def test_a_torn_file_is_a_finding_and_the_command_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write(tmp_path / "good.ipynb")
    assert cli.main(["check", str(good)]) == 0
    assert "1 notebooks, 0 findings" in capsys.readouterr().out
    (tmp_path / "torn.ipynb").write_text("{")
    assert cli.main(["check", str(good), str(tmp_path / "torn.ipynb")]) == 1
    assert "torn.ipynb: notebook: is not a notebook" in capsys.readouterr().out
    bad = write(tmp_path / "bad.ipynb", "1\n!ls")
    assert cli.main(["check", str(bad)]) == 1
    assert "bad.ipynb: cell 3, line 2: shell:" in capsys.readouterr().out
    assert cli.main(["check", str(tmp_path / "absent.ipynb")]) == 2
