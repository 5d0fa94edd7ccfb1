"""The notebooks that ship: clean sources, and a smoke run of all of them through the product's own runner."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from agent_gspo_core.kit import records
from agent_gspo_core.kit.runner import find_notebooks, reproduce
from agent_gspo_core.policy import project_root

SOURCES = find_notebooks(project_root() / "notebooks")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_notebook_sources_hold_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One smoke run of every notebook."""
    folder = tmp_path_factory.mktemp("reproduce") / "run"
    report = reproduce("smoke", run_folder=folder)
    assert {o.name: o.outcome for o in report.outcomes} == {path.stem: "ok" for path in SOURCES}
    return folder


def test_a_smoke_run_writes_the_headline(smoke: Path) -> None:
    summary = records.read_json(smoke / "summary.json")
    assert summary["profile"] == "smoke"
    assert set(summary["notebooks"].values()) == {"ok"}
    wanted = {"accuracy_before", "accuracy_after", "tokens_before", "tokens_after"}
    wanted |= {"communication_efficiency_after", "silence_right_after"}
    assert wanted <= set(summary["headline"])
    for figure in summary["headline"].values():
        assert set(figure) == {"mean", "low", "high"}


def test_executed_notebooks_show_their_figures(smoke: Path) -> None:
    for source in SOURCES:
        executed = nbformat.read(smoke / "notebooks" / source.name, as_version=4)
        images = [
            output
            for cell in executed.cells
            if cell.cell_type == "code"
            for output in cell.outputs
            if "image/png" in output.get("data", {})
        ]
        assert images, f"{source.name} shows no figure"
        assert all(image.metadata["image/png"]["alt"] for image in images)
