"""The command `agent-gspo`. Imports what a command needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from agent_gspo_core import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 well, 1 a notebook or a check failed, 2 bad input, 130 interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        match options.command:
            case "profiles":
                return _profiles()
            case "evaluate":
                return _evaluate(options)
            case "ablate":
                return _ablate(options)
            case "latent":
                return _latent(options)
            case "data":
                return _data(options)
            case "check":
                return _check(options)
            case "claims":
                return _claims(options)
            case "report":
                return _report(options)
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
    run.add_argument("--from", metavar="NN", dest="start", help="run this notebook and those behind it")
    run.add_argument("--jobs", type=int, default=1, metavar="N", help="notebooks side by side, sharing the cores [1]")
    run.add_argument(
        "--resume",
        action="store_true",
        help="take up the newest run of the profile (or --run-folder): run what is missing",
    )
    run.add_argument("--dry-run", action="store_true", help="say what would run and why, and do nothing")
    run.add_argument("--seeds", nargs="+", type=int, metavar="N", help="training seeds in place of the profile's")
    run.add_argument("--backend", help="transformers or unsloth, in place of the profile's")
    _add_changes(run, "change a setting, e.g. trainer.steps=3")
    run.add_argument("--run-folder", type=_absolute, metavar="FOLDER", help="where to write [runs/<time>-<profile>]")

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
    _add_changes(measure, "change a setting of the evaluation, e.g. team.rounds=2")
    measure.add_argument(
        "--run-folder", type=_absolute, metavar="FOLDER", help="where to write; one that was begun is taken up"
    )

    check = commands.add_parser("check", help="check notebook sources without running them")
    check.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK", help="files [all of notebooks/]")

    claims = commands.add_parser("claims", help="every claim of the papers, and what a run says to it")
    claims.add_argument("run_folder", nargs="?", type=Path, metavar="RUN_FOLDER", help="[data/results/embedded]")
    claims.add_argument(
        "--out", type=Path, metavar="FILE", help="write the page (Markdown) instead of printing a table"
    )

    report = commands.add_parser("report", help="one offline page (HTML and Markdown) from a run folder")
    report.add_argument("run_folder", nargs="?", type=Path, metavar="RUN_FOLDER", help="[runs/latest]")
    report.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where report.html and report.md go [the run folder]"
    )

    ablate = commands.add_parser("ablate", help="run the arms of the ablation and compare them; taken up after a stop")
    ablate.add_argument("--profile", default="embedded", help="whose ablation [embedded]")
    ablate.add_argument("--form", choices=("short", "full"), default="full", help="the notebook's or the whole [full]")
    ablate.add_argument("--arm", nargs="+", metavar="NAME", help="run these now; the tables hold all that are finished")
    ablate.add_argument("--seeds", nargs="+", type=int, metavar="N", help="training seeds in place of the profile's")
    ablate.add_argument("--jobs", type=int, metavar="N", help="runs side by side [the profile's]")
    _add_changes(ablate, "change a setting of every arm, e.g. trainer.steps=3")
    ablate.add_argument(
        "--run-folder", type=_absolute, metavar="FOLDER", help="where to write [runs/ablation-<profile>-<form>]"
    )

    latent = commands.add_parser(
        "latent", help="run the study of latent communication (DiffMAS); taken up after a stop"
    )
    latent.add_argument("--profile", default="embedded", help="whose study [embedded]")
    latent.add_argument("--arm", nargs="+", metavar="NAME", help="these arms in place of the profile's, with diffmas")
    latent.add_argument("--seeds", nargs="+", type=int, metavar="N", help="training seeds in place of the profile's")
    latent.add_argument("--jobs", type=int, metavar="N", help="adapters trained side by side [the profile's]")
    _add_changes(latent, "change a setting of the study, e.g. shared.training.updates=100")
    latent.add_argument("--run-folder", type=_absolute, metavar="FOLDER", help="where to write [runs/latent-<profile>]")

    commands.add_parser("profiles", help="list the profiles")
    _add_data_parser(commands)
    return parser


def _add_changes(command: argparse.ArgumentParser, does: str) -> None:
    command.add_argument(
        "--set",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        dest="changes",
        help=f"{does}; values are read as YAML",
    )


def _absolute(path: str) -> Path:
    """A folder as it is meant where the command is given: notebooks run elsewhere."""
    return Path(path).absolute()


def _add_data_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    data = commands.add_parser("data", help="list, fetch or verify the benchmark files")
    actions = data.add_subparsers(dest="action", required=True, metavar="ACTION")
    listed = actions.add_parser("list", help="what there is, under which licence, and what lies in the folder")
    fetch = actions.add_parser("fetch", help="download original files and check their SHA-256")
    verify = actions.add_parser("verify", help="check digests, counts and every record of the files in the folder")
    fetch.add_argument("names", nargs="+", metavar="NAME", help="benchmarks; `seven` for the seven of the evaluation")
    verify.add_argument("names", nargs="*", metavar="NAME", help="benchmarks [all]")
    for action in (listed, fetch, verify):
        action.add_argument("--root", type=Path, metavar="FOLDER", help="folder of benchmark files [AGENT_GSPO_DATA]")


def _data(options: argparse.Namespace) -> int:
    from agent_gspo_core.kit.data_command import run

    return run(options.action, getattr(options, "names", ()), options.root)


def _evaluate(options: argparse.Namespace) -> int:
    from agent_gspo_core.kit.evaluate import evaluate

    changes = read_changes(options.changes)
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
    evaluate(options.profile, changes, options.run_folder)
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
        run_folder=options.run_folder,
        seeds=options.seeds,
        backend=options.backend,
        overrides=read_changes(options.changes),
        start=options.start,
        jobs=options.jobs,
        resume=options.resume,
        dry_run=options.dry_run,
    )
    return report.exit_code


def _check(options: argparse.Namespace) -> int:
    from agent_gspo_core.kit.check import check_notebooks
    from agent_gspo_core.kit.records import project_root
    from agent_gspo_core.kit.sources import find_notebooks

    absent = [path for path in options.notebooks if not path.is_file()]
    if absent:
        raise FileNotFoundError(f"notebook {str(absent[0])!r} is not there")
    paths = [path.absolute() for path in options.notebooks] or find_notebooks(project_root() / "notebooks")
    findings = check_notebooks(paths)
    for finding in findings:
        print(finding)
    print(f"{len(paths)} notebooks, {len(findings)} findings")
    return 1 if findings else 0


def _claims(options: argparse.Namespace) -> int:
    from agent_gspo_core.kit.claims import claims_page, print_claims
    from agent_gspo_core.kit.records import project_root, write_text

    folder = options.run_folder or project_root() / "data" / "results" / "embedded"
    if options.out is None:
        print_claims(folder)
    else:
        print(f"wrote {write_text(options.out, claims_page(folder))}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from agent_gspo_core.kit.records import project_root
    from agent_gspo_core.kit.report import write_report

    for path in write_report(options.run_folder or project_root() / "runs" / "latest", options.out):
        print(f"wrote {path}")
    return 0


def _ablate(options: argparse.Namespace) -> int:
    from transformers.utils.logging import disable_progress_bar

    from agent_gspo_core.kit import ablation, records
    from agent_gspo_core.kit.settings import load_profile

    disable_progress_bar()
    profile = load_profile(options.profile)
    form = getattr(profile.ablation, options.form)
    changes = read_changes(options.changes)
    base = ablation.base_settings(profile, form, changes)
    arms = ablation.all_arms(base, form)
    seeds = options.seeds or list(form.seeds)
    name = f"ablation-{Path(options.profile).stem}-{options.form}"
    folder = records.project_path(options.run_folder or Path("runs") / name)
    folder.mkdir(parents=True, exist_ok=True)
    jobs = profile.jobs if options.jobs is None else options.jobs
    try:
        plan = ablation.run_ablation(base, arms, seeds, folder, jobs=jobs, only=options.arm)
    except RuntimeError as error:  # an arm failed; the others are recorded
        print(f"agent-gspo: {error}", file=sys.stderr)
        return 1
    if not plan.finished(ablation.FULL):
        print(f"no table yet: arm {ablation.FULL} has not been run, and every arm is compared with it")
        return 0
    table, differences = ablation.write_tables(plan)
    records.merge_summary(folder, profile=options.profile, seeds=seeds, ablation={"arms": ablation.summary_of(table)})
    for row in differences.to_dict("records"):
        print(f"{row['arm']}: {row['shows']}")
    print(f"tables: {records.relative_to_project(folder)}")
    return 0


def _latent(options: argparse.Namespace) -> int:
    from transformers.utils.logging import disable_progress_bar

    from agent_gspo_core.kit import latent_study, latent_tables, records
    from agent_gspo_core.kit.settings import load_profile, override

    disable_progress_bar()
    profile = load_profile(options.profile)
    changes = read_changes(options.changes)
    given = {"arms": options.arm and list(dict.fromkeys(["diffmas", *options.arm])), "seeds": options.seeds}
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = override(profile.latent, changes | chosen, where="--set")
    name = f"latent-{Path(options.profile).stem}"
    folder = records.project_path(options.run_folder or Path("runs") / name)
    jobs = profile.jobs if options.jobs is None else options.jobs
    try:
        study = latent_study.run_study(settings, folder, jobs=jobs)
    except RuntimeError as error:  # a job failed; the others are recorded
        print(f"agent-gspo: {error}", file=sys.stderr)
        return 1
    table, differences, _ = latent_tables.write_tables(study, folder)
    records.merge_summary(
        folder,
        profile=options.profile,
        seeds=list(settings.seeds),
        overrides=changes,
        diffmas=latent_tables.summary(table),
    )
    for row in differences.to_dict("records"):
        print(f"diffmas − {row['against']}: {row['shows']}")
    print(f"tables: {records.relative_to_project(folder)}")
    return 0


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
