"""The command `agent-gspo`. Imports what a command needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from agent_gspo_core import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 well, 1 a notebook failed, 2 bad input, 130 interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if options.command == "profiles":
            return _profiles()
        return _reproduce(options)
    except (ValueError, FileNotFoundError) as error:
        print(f"agent-gspo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("agent-gspo: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agent-gspo", description="Agents that learn to be brief.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("reproduce", help="run the notebooks of a profile and print the headline")
    run.add_argument("--profile", default="embedded", help="name (see `agent-gspo profiles`) or .yaml file [embedded]")
    run.add_argument("--only", nargs="+", metavar="NN", help="run these notebooks only, by number or name")
    run.add_argument("--seeds", nargs="+", type=int, metavar="N", help="training seeds in place of the profile's")
    run.add_argument("--backend", help="transformers or unsloth, in place of the profile's")
    run.add_argument(
        "--set",
        action="append",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        dest="changes",
        help="change a setting, e.g. trainer.steps=3; values are read as YAML",
    )
    run.add_argument("--run-folder", type=Path, metavar="FOLDER", help="where to write [runs/<time>-<profile>]")

    commands.add_parser("profiles", help="list the profiles")
    return parser


def _profiles() -> int:
    from agent_gspo_core.kit.settings import load_profile, profile_names

    names = profile_names()
    width = max((len(name) for name in names), default=0)
    for name in names:
        print(f"{name:<{width}}  {load_profile(name).description}")
    return 0


def _reproduce(options: argparse.Namespace) -> int:
    from agent_gspo_core.kit.runner import reproduce

    report = reproduce(
        options.profile,
        notebooks=options.only,
        run_folder=options.run_folder.absolute() if options.run_folder else None,
        seeds=options.seeds,
        backend=options.backend,
        overrides=read_changes([change for group in options.changes for change in group]),
    )
    return report.exit_code


def read_changes(changes: Sequence[str]) -> dict[str, object]:
    """Settings from `name=value` texts, values read as YAML. ValueError for another form or a name given twice."""
    import yaml

    read: dict[str, object] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or not name or not value:
            raise ValueError(f"--set {change!r}: expected name=value, e.g. trainer.steps=3")
        if name in read:
            raise ValueError(f"--set {name} is given twice")
        try:
            read[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"--set {change!r}: the value is no YAML: {str(error).splitlines()[0]}") from error
    return read


if __name__ == "__main__":
    sys.exit(main())
