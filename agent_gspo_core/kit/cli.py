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
        match options.command:
            case "profiles":
                return _profiles()
            case "evaluate":
                return _evaluate(options)
            case _:
                return _reproduce(options)
    except (ValueError, FileNotFoundError, ConnectionError, ImportError) as error:
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

    measure = commands.add_parser("evaluate", help="run methods on benchmarks and compare them")
    measure.add_argument("--profile", default="embedded", help="whose evaluation settings to begin with [embedded]")
    measure.add_argument("--benchmark", nargs="+", metavar="NAME", help="see `agent-gspo data list`, or hidden_profile")
    measure.add_argument(
        "--method", nargs="+", metavar="NAME", help="e.g. single free_for_all, or free_for_all@FOLDER of a policy"
    )
    measure.add_argument("--limit", type=int, metavar="N", help="problems per benchmark; 0 takes all")
    measure.add_argument("--seeds", nargs="+", type=int, metavar="N", help="sampling seeds")
    measure.add_argument("--cap", nargs="+", type=int, metavar="TOKENS", help="most tokens a problem; 0 is without")
    measure.add_argument("--model", help="policy in place of the profile's: tiny, smollm2, a folder or a hub id")
    measure.add_argument("--root", metavar="FOLDER", help="folder with benchmark files [AGENT_GSPO_DATA, else the hub]")
    measure.add_argument("--run-code", action="store_true", help="run model-written programs in the sandbox")
    measure.add_argument(
        "--set", action="append", nargs="+", default=[], metavar="NAME=VALUE", dest="changes",
        help="change a setting of the evaluation, e.g. team.rounds=2; values are read as YAML",
    )  # fmt: skip
    measure.add_argument(
        "--run-folder", type=Path, metavar="FOLDER", help="where to write; one that was begun is taken up"
    )

    commands.add_parser("profiles", help="list the profiles")
    return parser


def _evaluate(options: argparse.Namespace) -> int:
    from agent_gspo_core.kit.evaluate import evaluate

    changes = read_changes([change for group in options.changes for change in group])
    given = {
        "benchmarks": options.benchmark,
        "methods": options.method,
        "limit": options.limit,
        "seeds": options.seeds,
        "caps": options.cap and [cap or None for cap in options.cap],
        "policy.model": options.model,
        "root": options.root,
        "run_code": options.run_code or None,
    }
    changes |= {name: value for name, value in given.items() if value is not None}
    if changes.get("limit") == 0:
        changes["limit"] = None
    evaluate(options.profile, changes, options.run_folder.absolute() if options.run_folder else None)
    return 0


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
