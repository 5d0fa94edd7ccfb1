"""What the README shows, runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from agent_gspo_core.policy import project_root


def test_the_readme_example_runs_and_is_short(tmp_path: Path) -> None:
    text = (project_root() / "README.md").read_text(encoding="utf-8")
    blocks = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "gspo_loss" in code]
    assert len(blocks) == 1
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 16
    done = subprocess.run([sys.executable, "-c", blocks[0]], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout


def test_the_readme_names_only_files_that_exist() -> None:
    root = project_root()
    text = (root / "README.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert links
    assert [link for link in links if not (root / link).exists()] == []
