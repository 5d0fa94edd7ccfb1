"""The ablation: arms that each change one thing, run under the same seeds on the same problems, and what they show.

An arm is a small change to one settings object. Every arm and seed is a folder of its own under `arms/`, named by the
arm and a digest of everything it depends on (settings and the weights it starts from): an interrupted run is taken up
where it stopped, and changing one setting runs only what it changes.

What is equal between arms that are trained: the seeds, the problems in their order, the steps, and with them the
episodes and the messages sampled (rollout rows). What is not: the tokens of those messages, which are what the arms are
about; they are counted for every arm. An arm with fewer messages an episode (the trained single agent) takes more
problems a step instead.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from agent_gspo_core.benchmarks import BENCHMARKS
from agent_gspo_core.episode import Episode, Problem
from agent_gspo_core.evaluation import TeamScore, score_episodes
from agent_gspo_core.insider import Insider, InsiderKind, sample_with_insider, tokens_of_others
from agent_gspo_core.kit import records
from agent_gspo_core.kit.experiment import (
    TRANSCRIPTS,
    load_problems,
    measure,
    run_jobs,
    train_seed,
    transcript,
    weights_digest,
    with_seed,
)
from agent_gspo_core.kit.keys import digest
from agent_gspo_core.kit.settings import AblationForm, Profile, RunSettings, override
from agent_gspo_core.kit.tables import holds_zero, verdict, write_csv
from agent_gspo_core.policy import Policy, PolicySettings, load_policy
from agent_gspo_core.replay import Choice, Replay, of_anybody, of_needed, of_not_needed, replay
from agent_gspo_core.rollout import SamplingSettings, Team, derive_seed
from agent_gspo_core.silence import CollapseError, silence_report

FULL = "full"
"""The arm that the others are compared with."""

METRICS = ("accuracy", "tokens")
"""What the comparisons are about: share of right answers, completion tokens per episode; both at temperature 1."""

SCORES = (
    "accuracy",
    "tokens",
    "prompt_tokens",
    "turns",
    "communication_efficiency",
    "effective_efficiency",
    "silence_rate",
    "silence_right",
    "unparsed",
    "truncated",
)
"""Columns of `arms.csv` that are scores of the team after training (see `evaluation.TeamScore`). Wall times are left
out: the same arm and seed give the same bytes."""

INSIDERS: tuple[InsiderKind, ...] = ("lies", "babbles", "repeats")


@dataclass(frozen=True)
class Arm:
    """One change."""

    name: str
    changes: Mapping[str, object]
    """To the run of "full", by dotted name."""
    asks: str
    """What the comparison with "full" answers."""
    trained: bool = True
    """False: measured as it is loaded."""


# --------------------------------------------------------------------------------------------------------- the arms


def catalogue(base: RunSettings) -> dict[str, Arm]:
    """Every arm that differs from "full", and "full" itself, given its settings. All choices of arms are ours.

    Some arms are a switch: where the base already charges by the pass rate, the arm is "pass_rate_off", else
    "pass_rate_on"; likewise "mean_only" and "std_scaled". An arm that would change nothing (no dual budget to take
    away) is left out.
    """
    free = {"reward.lambda_token": 0.0, "budget.episode_tokens": None}
    price = base.budget.lambda_initial or base.reward.lambda_token
    scaled = base.objective.advantage_scale == "std"
    per_episode = _messages(base)
    alone = {"team.rounds": 0, "team.decider": "last"}
    arms = (
        Arm(FULL, {}, "what the others are compared with"),
        Arm("no_token_penalty", free, "what the price of a token does (turn and repetition stay priced)"),
        Arm(
            "fixed_lambda",
            {"budget.episode_tokens": None, "reward.lambda_token": price},
            f"what the dual variable adds to a price fixed at λ = {price:g}",
        ),
        Arm(
            "round_cap_only",
            {**free, "budget.round_tokens": _hard_cap(base)},
            "whether a hard cap on a round replaces the price (compare with no_token_penalty)",
        ),
        Arm(
            "no_turn_no_repetition",
            {"reward.lambda_turn": 0.0, "reward.lambda_repetition": 0.0},
            "what the two small terms of the reward do",
        ),
        Arm(
            "grpo",
            {"objective.ratio": "token", "objective.epsilon_low": 0.2, "objective.epsilon_high": 0.27},
            "sequence ratio against token ratio (GRPO, with the band that GSPO §5.1 gives it)",
        ),
        Arm(
            "length_weighted",
            {"objective.sequence_weighting": "length"},
            "what weighting messages by length does, the common variant under the name GSPO (TRL #3823)",
        ),
        Arm(
            "one_update",
            {"trainer.mini_batches": 1},
            "what off-policy updates add: with one update per batch the ratio is 1 and nothing is clipped",
        ),
        Arm(
            "mean_only" if scaled else "std_scaled",
            {"objective.advantage_scale": "none" if scaled else "std"},
            "what dividing advantages by the deviation does",
        ),
        Arm("silence_forbidden", {"team.allow_silence": False}, "what silence is worth as an action"),
        Arm(
            "pass_rate_off" if base.reward.scale_by_pass_rate else "pass_rate_on",
            {"reward.scale_by_pass_rate": not base.reward.scale_by_pass_rate},
            "what charging by the group's pass rate does",
        ),
        Arm("untrained", {"team.topology": "free_for_all"}, "what training does at all: free-for-all as loaded", False),
        Arm(
            "single_agent",
            alone,
            "what the team adds: the decider alone, as loaded, with no note and no message",
            False,
        ),
        Arm(
            "single_agent_trained",
            {**alone, "trainer.problems_per_step": base.trainer.problems_per_step * per_episode},
            "what talking adds once both are trained on equally many messages; without notes it can only guess where "
            "notes are private",
        ),
    )
    return {
        arm.name: arm
        for arm in arms
        if arm.name == FULL or not arm.trained or arm_settings(base, arm) != base  # an untrained arm always differs
    }


def choose_arms(base: RunSettings, names: Sequence[str]) -> dict[str, Arm]:
    """The arms `names` with "full" before them; all of the catalogue but "single_agent_trained" when none is named.

    Raises:
        ValueError: an arm that is not in the catalogue.
    """
    known = catalogue(base)
    wanted = list(names) or [name for name in known if name != "single_agent_trained"]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(
            f"ablation: arm {unknown[0]!r} does not exist or changes nothing in this run; "
            f"choose from {', '.join(known)}"
        )
    return {name: known[name] for name in dict.fromkeys([FULL, *wanted])}


def lambda_arms(lambdas: Sequence[float]) -> dict[str, Arm]:
    """A fixed price each, in place of the dual variable."""
    return _sweep(
        "lambda",
        lambdas,
        lambda value: {"budget.episode_tokens": None, "reward.lambda_token": float(value)},
        "accuracy and tokens at a price fixed at λ = {}",
    )


def budget_arms(budgets: Sequence[float]) -> dict[str, Arm]:
    """An episode budget each."""
    return _sweep(
        "budget",
        budgets,
        lambda value: {"budget.episode_tokens": float(value)},
        "accuracy and tokens under an episode budget of {} tokens",
    )


def tied_arms(lambdas: Sequence[float]) -> dict[str, Arm]:
    """Fixed prices in the plain form: deviation without a floor worth the name, cost at full price, no other terms.

    There a group whose answers all tie is pushed towards brevity at full strength at any λ above 0, and not at all at
    λ = 0 (consequence of Eq. 6, ours): the step from 0 to 0+ is the point of this sweep.
    """
    plain = {
        "objective.advantage_scale": "std",
        "objective.std_floor": 1e-4,
        "reward.scale_by_pass_rate": False,
        "reward.brevity_needs_answer": False,
        "reward.lambda_turn": 0.0,
        "reward.lambda_repetition": 0.0,
        "budget.episode_tokens": None,
    }
    return _sweep(
        "plain_lambda",
        lambdas,
        lambda value: {**plain, "reward.lambda_token": float(value)},
        "the plain form at λ = {}",
    )


def topology_arms(base: RunSettings, topologies: Sequence[str]) -> dict[str, Arm]:
    """The team of "full" trained in other topologies; the base's own is "full" itself."""
    return {
        f"topology={name}": Arm(f"topology={name}", {"team.topology": name}, f"the team trained as {name}")
        for name in topologies
        if name != base.team.topology
    }


def _sweep(
    name: str, values: Sequence[float], changes: Callable[[float], Mapping[str, object]], asks: str
) -> dict[str, Arm]:
    return {f"{name}={v:g}": Arm(f"{name}={v:g}", changes(v), asks.format(f"{v:g}")) for v in values}


def all_arms(base: RunSettings, form: AblationForm) -> dict[str, Arm]:
    """Every arm of a form, sweeps included, by name. Errors as in `choose_arms`."""
    return (
        choose_arms(base, form.arms)
        | lambda_arms(form.lambdas)
        | budget_arms(form.budgets)
        | tied_arms(form.tied_lambdas)
        | (topology_arms(base, form.topologies) if form.train_topologies else {})
    )


def base_settings(profile: Profile, form: AblationForm, overrides: Mapping[str, object] | None = None) -> RunSettings:
    """The settings of "full": the profile's, changed by the form, changed by `overrides`."""
    return override(override(profile.settings, form.changes, where="ablation"), overrides or {}, where="overrides")


def arm_settings(base: RunSettings, arm: Arm) -> RunSettings:
    """The arm's own settings."""
    return override(base, arm.changes, where=f"arm {arm.name}")


def diff(base: object, other: object, where: str = "") -> list[tuple[str, str, str]]:
    """(setting, value in base, value in other) of every setting that differs, by dotted name."""
    found = []
    for one in fields(base):  # type: ignore[arg-type]
        old, new = getattr(base, one.name), getattr(other, one.name)
        if is_dataclass(old) and is_dataclass(new):
            found += diff(old, new, f"{where}{one.name}.")
        elif old != new:
            found.append((where + one.name, str(old), str(new)))
    return found


def diff_table(base: RunSettings, arms: Mapping[str, Arm]) -> pd.DataFrame:
    """What each arm changes, a row per changed setting."""
    rows: list[dict[str, str]] = []
    for arm in arms.values():
        changed = diff(base, arm_settings(base, arm))
        note = "" if arm.trained else " (not trained)"
        rows += [
            {"arm": arm.name + note, "setting": name, FULL: old, "here": new}
            for name, old, new in changed or [("–", "", "")]
        ]
    return pd.DataFrame(rows).set_index(["arm", "setting"])


def _messages(settings: RunSettings) -> int:
    return sum(len(turn.agents) for turn in Team(settings.team).turns)


def _hard_cap(base: RunSettings) -> int | tuple[int, ...]:
    """B(t) of the base; where it has none, a quarter of what its messages may be long (ours)."""
    if base.budget.round_tokens is not None:
        return base.budget.round_tokens
    return base.team.agents * max(1, base.team.message_tokens // 4)


# ---------------------------------------------------------------------------------------------------------- the run


def arm_folder(folder: Path, base: RunSettings, arm: Arm, weights: str) -> Path:
    """Where an arm's seeds lie: its name and a digest of all that its outcome depends on, the seed aside."""
    described = asdict(with_seed(arm_settings(base, arm), 0))
    del described["data"]["root"]  # where the files lie changes nothing: their content is checked
    if not arm.trained:
        described = {name: described[name] for name in ("policy", "team", "data", "budget", "evaluation")}
    return folder / "arms" / f"{arm.name}-{digest([described, arm.trained, weights])[:10]}"


def run_arm(settings: RunSettings, seed: int, folder: Path, *, trained: bool = True) -> dict[str, Any]:
    """One arm under one seed: measured, trained, measured; a collapse into silence is a result.

    A collapsed run ends with the policy of its last good checkpoint (the start, if none is known to be good), and that
    is what is measured; `result["collapsed"]` says so. Checkpoints are removed once the result is written.

    Returns:
        As `experiment.train_seed`.
    """
    folder = Path(folder)
    if not trained:
        return _untrained(with_seed(settings, seed), seed, folder)
    try:
        result = train_seed(settings, seed, folder, progress=False)
    except CollapseError as error:
        result = _after_collapse(with_seed(settings, seed), seed, folder, error)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def _untrained(settings: RunSettings, seed: int, folder: Path) -> dict[str, Any]:
    if (folder / "result.json").is_file():
        return dict(records.read_json(folder / "result.json"))
    policy = load_policy(settings.policy)
    test = _test_problems(settings, policy)
    scores = _scores(policy, settings, test)
    return _write_result(settings, seed, folder, before=scores, after=scores, steps=0)


def _after_collapse(settings: RunSettings, seed: int, folder: Path, error: CollapseError) -> dict[str, Any]:
    checkpoints = {int(path.stem.split("-")[1]): path for path in (folder / "checkpoints").glob("step-*.pt")}
    # The checkpoint written after n steps is the policy that step n samples; that of step 0 is the policy as loaded.
    good = max(step for step in checkpoints if step <= (error.last_good or 0))
    policy = load_policy(settings.policy)
    policy.load_state(torch.load(checkpoints[good], map_location=policy.device, weights_only=False)["policy"])
    test = _test_problems(settings, policy)
    after = _scores(policy, settings, test)
    policy.save(folder / "policy")
    before = records.read_json(folder / "before.json")
    collapsed = {"step": error.step, "last_good": error.last_good, "measured": good}
    return _write_result(settings, seed, folder, before=before, after=after, steps=error.step + 1, collapsed=collapsed)


def _test_problems(settings: RunSettings, policy: Policy) -> list[Problem]:
    """The test problems of a run; its training problems, of which there are many more, are not drawn."""
    return load_problems(replace(settings.data, train_problems=1), policy)[1]


def _scores(policy: Policy, settings: RunSettings, problems: Sequence[Problem]) -> dict[str, Any]:
    seed = settings.trainer.seed
    sampled, episodes = measure(policy, settings, problems, seed=seed)
    greedy, _ = measure(policy, settings, problems, seed=seed, temperature=0.0)
    return {
        "sampled": sampled.as_dict(),
        "greedy": greedy.as_dict(),
        "transcripts": [transcript(episode) for episode in episodes[:TRANSCRIPTS]],
    }


def _write_result(settings: RunSettings, seed: int, folder: Path, **values: Any) -> dict[str, Any]:
    result = {"seed": seed, **values, "settings": asdict(settings), "provenance": records.provenance()}
    records.write_json(folder / "result.json", result)
    return dict(records.read_json(folder / "result.json"))


@dataclass(frozen=True)
class Plan:
    """What an ablation consists of, and where it lies."""

    base: RunSettings
    arms: Mapping[str, Arm]
    seeds: tuple[int, ...]
    folder: Path
    weights: str
    """See `weights_digest`."""

    def place(self, arm: str, seed: int) -> Path:
        """Folder of one arm under one seed."""
        return arm_folder(self.folder, self.base, self.arms[arm], self.weights) / f"seed-{seed}"

    def finished(self, arm: str) -> bool:
        """Whether all seeds of an arm are there."""
        return all((self.place(arm, seed) / "result.json").is_file() for seed in self.seeds)

    def result(self, arm: str, seed: int) -> dict[str, Any]:
        """The record of one arm under one seed."""
        return dict(records.read_json(self.place(arm, seed) / "result.json"))

    def metrics(self, arm: str, seed: int) -> list[dict[str, Any]]:
        """The training steps of one arm under one seed; none for an arm that is not trained."""
        path = self.place(arm, seed) / "metrics.jsonl"
        return records.read_jsonl(path) if path.is_file() else []

    def policy(self, arm: str, seed: int) -> PolicySettings:
        """What to load for the trained policy of one arm."""
        return override(self.base.policy, {"model": str(self.place(arm, seed) / "policy")})


def run_ablation(
    base: RunSettings,
    arms: Mapping[str, Arm],
    seeds: Sequence[int],
    folder: Path | str,
    *,
    jobs: int = 1,
    only: Sequence[str] | None = None,
    report: Callable[[str], None] | None = print,
) -> Plan:
    """Run every arm under every seed that the folder does not hold yet.

    An arm that fails (other than by collapse) does not stop the others; the first failure is raised at the end.

    Args:
        base: the settings of "full".
        arms: by name, "full" among them.
        seeds: training seeds.
        folder: of the ablation; one that was begun is taken up.
        jobs: runs side by side, each with cores ÷ jobs threads.
        only: arms to run now; all by default.
        report: called with a line per finished run; `None` is quiet.

    Raises:
        ValueError: no seeds or one twice, no "full", an unknown arm in `only`, jobs below 1.
    """
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"ablation: seeds must be given and distinct, got {list(seeds)}")
    if FULL not in arms:
        raise ValueError(f"ablation: no arm {FULL!r}; every arm is compared with it")
    if jobs < 1:
        raise ValueError(f"ablation: jobs must be at least 1, got {jobs}")
    unknown = [name for name in only or () if name not in arms]
    if unknown:
        raise ValueError(f"ablation: arm {unknown[0]!r} is not part of this one; its arms are {', '.join(arms)}")
    for arm in arms.values():
        arm_settings(base, arm)  # a wrong arm is refused before hours are spent on the right ones
    plan = Plan(base, arms, tuple(seeds), Path(folder), weights_digest(base.policy))
    missing = [
        (name, seed)
        for name in arms
        if only is None or name in only
        for seed in seeds
        if not (plan.place(name, seed) / "result.json").is_file()
    ]
    failures: list[tuple[str, Exception]] = []

    def told(item: tuple[str, int], result: Mapping[str, Any] | Exception) -> None:
        name, seed = item
        if isinstance(result, Exception):
            failures.append((f"arm {name}, seed {seed}", result))
        if report is not None:
            report(f"{name}, {_one_line(seed, result)}")

    run_jobs({item: _job(plan, *item) for item in missing}, told, jobs=jobs)
    if failures:
        where, error = failures[0]
        raise RuntimeError(
            f"ablation: {where} failed ({type(error).__name__}: {error}); {len(failures)} of {len(missing)} runs "
            "failed, the others are recorded"
        ) from error
    return plan


def _job(plan: Plan, name: str, seed: int) -> Callable[[], dict[str, Any]]:
    arm = plan.arms[name]
    return partial(run_arm, arm_settings(plan.base, arm), seed, plan.place(name, seed), trained=arm.trained)


def _one_line(seed: int, result: Mapping[str, Any] | Exception) -> str:
    if isinstance(result, Exception):
        return f"seed {seed}: failed ({type(result).__name__}: {records.scrub(str(result))})"
    before, after = result["before"]["sampled"], result["after"]["sampled"]
    collapsed = result.get("collapsed")
    end = f"; collapsed at step {collapsed['step']}, measured as of step {collapsed['measured']}" if collapsed else ""
    share = ["–" if side["accuracy"] is None else f"{side['accuracy']:.3f}" for side in (before, after)]
    return (
        f"seed {seed}: accuracy {share[0]} → {share[1]}, "
        f"tokens per episode {before['tokens']:.1f} → {after['tokens']:.1f}{end}"
    )


# ------------------------------------------------------------------------------------------------------- the tables


def arms_table(plan: Plan, arms: Sequence[str] | None = None) -> pd.DataFrame:
    """One row per arm and seed, of the arms that are finished; columns as `arms.csv` has them.

    Raises:
        ValueError: "full" is not finished.
    """
    if not plan.finished(FULL):
        raise ValueError(f"ablation: arm {FULL!r} is not finished for the seeds {list(plan.seeds)}; run it first")
    wanted = [name for name in (arms if arms is not None else plan.arms) if plan.finished(name)]
    table = pd.DataFrame([_row(plan, name, seed) for name in wanted for seed in plan.seeds])
    whole = ("sampled_tokens", "collapsed_at", "measured_step")
    return table.astype(dict.fromkeys(whole, "Int64"))  # so that a column without a value looks like one with some


def _row(plan: Plan, name: str, seed: int) -> dict[str, Any]:
    result, metrics = plan.result(name, seed), plan.metrics(name, seed)
    settings = arm_settings(plan.base, plan.arms[name])
    after, greedy = result["after"]["sampled"], result["after"]["greedy"]
    collapsed = result.get("collapsed") or {}
    episodes = settings.trainer.problems_per_step * settings.trainer.members
    tokens: int | None = None
    if settings.trainer.grouping == "episode":  # turn-wise groups share what was sampled before they part
        tokens = round(sum(line["tokens_per_episode"] for line in metrics) * episodes)
    return {
        "arm": name,
        "seed": seed,
        **{key: after[key] for key in SCORES},
        "accuracy_greedy": greedy["accuracy"],
        "tokens_greedy": greedy["tokens"],
        "steps": len(metrics),
        "sampled_messages": len(metrics) * episodes * _messages(settings),
        "sampled_tokens": tokens,
        "collapsed_at": collapsed.get("step"),
        "measured_step": collapsed.get("measured"),
    }


def summary_of(table: pd.DataFrame) -> dict[str, dict[str, records.Interval]]:
    """`{arm: {accuracy, tokens}}`, each a mean over seeds with its t-interval; what was not measured is left out."""
    found: dict[str, dict[str, records.Interval]] = {}
    for name, rows in table.groupby("arm", sort=False):
        figures = {key: [float(value) for value in rows[key].dropna()] for key in METRICS}
        found[str(name)] = {
            key: records.interval(values) for key, values in figures.items() if len(values) == len(rows)
        }
    return found


def differences_table(table: pd.DataFrame, arms: Mapping[str, Arm]) -> pd.DataFrame:
    """Arm − full, seed by seed, as mean with t-interval, for accuracy and tokens; what it asks and what can be told.

    Each interval stands for itself: of twenty comparisons one misses on average.
    """
    full = table[table["arm"] == FULL].set_index("seed")
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(table["arm"]):
        if name == FULL:
            continue
        mine = table[table["arm"] == name].set_index("seed")
        collapsed = int(mine["collapsed_at"].notna().sum())
        row: dict[str, Any] = {"arm": name, "asks": arms[name].asks, "seeds": len(mine), "collapsed": collapsed}
        verdicts = []
        for key in METRICS:
            values = [float(mine[key][seed]) - float(full[key][seed]) for seed in mine.index]
            known = not any(value != value for value in values)
            change = records.interval(values) if known else {"mean": None, "low": None, "high": None}
            row |= {f"{key}_{part}": change[part] for part in ("mean", "low", "high")}
            row[f"{key}_holds_0"] = holds_zero(change)
            verdicts.append(verdict(key, change, FULL))
        fell = f"; collapsed into silence in {collapsed} of {len(mine)} seeds" if collapsed else ""
        rows.append(row | {"shows": "; ".join(verdicts) + fell})
    columns = ["arm", "asks", "seeds", "collapsed"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)


def write_tables(plan: Plan, folder: Path | str | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Write `arms.csv`, `differences.csv` and, per arm, `<arm>.csv` beside its seeds; returns the two tables."""
    folder = plan.folder if folder is None else Path(folder)
    table = arms_table(plan)
    differences = differences_table(table, plan.arms)
    write_csv(folder / "arms.csv", table)
    write_csv(folder / "differences.csv", differences)
    for name, rows in table.groupby("arm", sort=False):
        write_csv(plan.place(str(name), plan.seeds[0]).parent / "arm.csv", rows)
    return table, differences


# ------------------------------------------------------------------------------------------------ what silence is worth


def replay_table(plan: Plan, problems: int, *, arm: str = FULL) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Silence of an arm's trained policies on test problems, and what it is worth (see `replay.replay`).

    Returns:
        Silence: a row per seed and state ("before", "after" training), with `silence.SilenceReport`'s figures.
        Replay: a row per seed and intervention: messages meant and changed, change in accuracy and tokens per changed
        episode, each with an interval over problems.
    """
    told: list[dict[str, Any]] = []
    silent: list[dict[str, Any]] = []
    settings = arm_settings(plan.base, plan.arms[arm])
    team = Team(settings.team)
    for seed in plan.seeds:
        for state, source in (("before", plan.base.policy), ("after", plan.policy(arm, seed))):
            policy = load_policy(source)
            test = _test_problems(settings, policy)
            sampling = _sampling(settings, seed)
            score, episodes = measure(policy, settings, test[:problems], seed=seed)
            silent.append({"seed": seed, "state": state, **_silence_row(score, episodes, team)})
            if state == "before":
                continue
            for name, (verb, who) in _interventions(episodes).items():
                outcome = replay(
                    policy,
                    team,
                    episodes,
                    restore=who if verb == "restore" else None,
                    mute=who if verb == "mute" else None,
                    settings=sampling,
                )
                told.append({"seed": seed, "change": name, **_replay_row(outcome)})
    return pd.DataFrame(silent), pd.DataFrame(told)


def _interventions(episodes: Sequence[Episode]) -> dict[str, tuple[str, Choice]]:
    """What can be asked: with needs known, of the needed and of the others; else of anybody."""
    if all(episode.problem.needed is not None for episode in episodes):
        who: dict[str, Choice] = {"needed": of_needed, "not needed": of_not_needed}
    else:
        who = {"anybody": of_anybody}
    return {f"{verb} {name}": (verb, choice) for verb in ("restore", "mute") for name, choice in who.items()}


def _sampling(settings: RunSettings, seed: int) -> SamplingSettings:
    """As `experiment.measure` samples."""
    return SamplingSettings(
        seed=derive_seed(seed, "evaluation"),
        temperature=settings.evaluation.temperature,
        round_tokens=settings.budget.round_tokens,
    )


def _silence_row(score: TeamScore, episodes: Sequence[Episode], team: Team) -> dict[str, Any]:
    report = silence_report(episodes, decider=team.decider)
    row: dict[str, Any] = {
        "accuracy": score.accuracy,
        "tokens": score.tokens,
        "rate": report.rate,
        "needed_silent": report.needed_silent,
        "not_needed_silent": report.not_needed_silent,
        "precision": report.precision,
        "recall": report.recall,
        "silence_right": report.silence_right,
        "rate_decider": report.rate_decider,
    }
    for name, rates in (
        ("outcome", report.rate_by_correctness),
        ("role", report.rate_by_role),
        ("round", report.rate_by_round),
    ):
        row |= {f"rate_{name}_{key}": rate for key, rate in rates.items()}
    return row


def _replay_row(outcome: Replay) -> dict[str, Any]:
    row: dict[str, Any] = {"meant": outcome.meant, "changed": outcome.changed, "problems": outcome.problems}
    for key, found in (("accuracy", outcome.accuracy), ("tokens", outcome.tokens)):
        for part in ("mean", "low", "high"):
            row[f"{key}_{part}"] = None if found is None else getattr(found, part)
    return row


# -------------------------------------------------------------------------------------------- robustness and scaling


def robustness_table(plan: Plan, topologies: Sequence[str], problems: int, *, agent: int = 0) -> pd.DataFrame:
    """An insider in the team, before and after training, in each topology: accuracy and tokens by seed.

    "after" is the policy trained in that topology where the plan has such an arm, else that of "full" carried over;
    the column `policy` says which. Rows with insider "none" are the honest team. `tokens_of_others` leaves out what the
    insider said.
    """
    rows: list[dict[str, Any]] = []
    for topology in topologies:
        own = f"topology={topology}"
        arm = own if own in plan.arms and plan.finished(own) else FULL
        settings = override(plan.base, {"team.topology": topology})
        team = Team(settings.team)
        for seed in plan.seeds:
            for state, source, name in (
                ("before", plan.base.policy, "as loaded"),
                ("after", plan.policy(arm, seed), arm),
            ):
                policy = load_policy(source)
                test = _test_problems(settings, policy)[:problems]
                for kind in (None, *INSIDERS):
                    if kind == "lies" and settings.team.prompt_style == "compact" and not test[0].notes:
                        continue  # without a note a policy that reads no instructions has nothing to lie about
                    insider = Insider(kind or "lies", agent, seed)
                    if kind is None:
                        episodes = measure(policy, settings, test, seed=seed)[1]
                    else:
                        episodes = sample_with_insider(policy, team, test, insider, settings=_sampling(settings, seed))
                    score = score_episodes(episodes, decider=team.decider)
                    rows.append(
                        {
                            "topology": topology,
                            "insider": kind or "none",
                            "state": state,
                            "policy": name,
                            "seed": seed,
                            "accuracy": score.accuracy,
                            "tokens": score.tokens,
                            "tokens_of_others": sum(tokens_of_others(e, insider) for e in episodes) / len(episodes),
                        }
                    )
    return pd.DataFrame(rows)


def scaling_table(plan: Plan, sizes: Sequence[int], problems: int) -> pd.DataFrame:
    """Teams of other sizes with the policy as loaded and with that of "full", trained in one size only.

    Hidden profiles are drawn for that many agents, so there are as many notes; `least` is the least number of tokens
    with which such a problem can still be answered.
    """
    rows: list[dict[str, Any]] = []
    for size in sizes:
        changes: dict[str, object] = {"team.agents": size, "team.roles": []}
        if plan.base.data.source == "hidden_profile":
            changes["data.hidden_profile.agents"] = size
        settings = override(plan.base, changes)
        for seed in plan.seeds:
            for state, source in (("before", plan.base.policy), ("after", plan.policy(FULL, seed))):
                policy = load_policy(source)
                test = _test_problems(settings, policy)[:problems]
                score, _ = measure(policy, settings, test, seed=seed)
                least = [p.least_tokens for p in test if p.least_tokens is not None]
                rows.append(
                    {
                        "agents": size,
                        "state": state,
                        "seed": seed,
                        "accuracy": score.accuracy,
                        "tokens": score.tokens,
                        "least": sum(least) / len(least) if least else None,
                        "silence_right": score.silence_right,
                    }
                )
    return pd.DataFrame(rows)


def also_on_table(plan: Plan, benchmarks: Sequence[str]) -> pd.DataFrame:
    """The team of "full", before and after training, on whole evaluation splits under their own names; greedy decoding.

    Raises:
        ValueError: an unknown benchmark.
    """
    rows: list[dict[str, Any]] = []
    for name in benchmarks:
        if name not in BENCHMARKS:
            raise ValueError(f"ablation: unknown benchmark {name!r}; known are {', '.join(BENCHMARKS)}")
        card = BENCHMARKS[name]
        test = card.load(card.evaluation_split, root=plan.base.data.root)
        for seed in plan.seeds:
            for state, source in (("before", plan.base.policy), ("after", plan.policy(FULL, seed))):
                score, _ = measure(load_policy(source), plan.base, test, seed=seed, temperature=0.0)
                rows.append(
                    {
                        "benchmark": name,
                        "items": len(test),
                        "state": state,
                        "seed": seed,
                        "accuracy": score.accuracy,
                        "tokens": score.tokens,
                    }
                )
    return pd.DataFrame(rows)
