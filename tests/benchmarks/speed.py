"""How fast, beside what others do and what the machine can: `make bench`, or `python -m tests.benchmarks.speed`.

    python -m tests.benchmarks.speed [--models tiny smollm2] [--pairs 3] [--threads 2] [--clock wall] [--out FOLDER]

Every cell (`tests.benchmarks.cells`) runs in a process of its own, one after the other. The folder receives
`ratios.csv` (the table), `limits.csv` (decoding and training beside their computed limits), `growth.csv`,
`README.md` with all three, `bench.png`, and `machine.json`. A cell that cannot run is named with its reason, not left
out. Targets are ratios within this run, so a slow machine moves both sides.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
FAILED = "failed"


def cell(name: str, model: str, options: argparse.Namespace) -> Any:
    """One cell's result, or `{"failed": reason}`."""
    command = [sys.executable, "-m", "tests.benchmarks.cells", name, model]
    command += ["--pairs", str(options.pairs), "--threads", str(options.threads), "--clock", options.clock]
    command += ["--smoke"] if options.smoke else []
    print(f"{name}, {model}", flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    if done.returncode:
        return {FAILED: (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def ratio_rows(model: str, found: Mapping[str, Any]) -> list[Row]:
    """The table of ratios: what was measured, against whom, how many times better, and the target."""
    rows: list[Row] = []

    def add(what: str, peer: str, target: float | None, cell_name: str, ratio: Any, values: Any) -> None:
        result = found[cell_name]
        failed = result.get(FAILED) if isinstance(result, dict) else None
        rows.append(
            {
                "model": model,
                "what": what,
                "against": peer,
                "ratio": "" if failed else f"{ratio(result):.2f}",
                "target": "" if target is None else f"{target:g}",
                "values": f"not run: {failed}" if failed else values(result),
            }
        )

    for peer, key, target in (("one at a time", "generate_alone", 4.0), ("batched", "generate_batched", 2.0)):
        add(
            "rollout tokens/s",
            f"transformers generate, {peer}",
            target,
            "rollouts",
            lambda r, key=key: r["ours"] / r[key],
            lambda r, key=key: f"{r['ours']:.0f} against {r[key]:.0f} tokens/s, {r['rows']} rows",
        )
    for peer, key, target in (("TRL GRPOTrainer, sequence level", "trl", 3.0), ("library's forward", "library", None)):
        add(
            "update, seconds",
            peer,
            target,
            "updates",
            lambda r, key=key: r[key] / r["ours"],
            lambda r, key=key: (
                f"{r['ours']:.2f} against {r[key]:.2f} s; {r['tokens_distinct']} distinct of "
                f"{r['tokens_plain']} tokens; gradients differ by {r['gradient_difference']:.1e}"
            ),
        )
    for peer, key in (("TRL", "memory_trl"), ("TRL, checkpointing", "memory_trl_checkpointed")):
        pair = {"ours": found["memory_ours"], "theirs": found[key]}
        failed = next((r[FAILED] for r in pair.values() if FAILED in r), None)
        joined = {FAILED: failed} if failed else {who: r["peak_mb"] for who, r in pair.items()}
        found = {**found, f"{key}_pair": joined}
        add(
            "update, peak extra memory",
            peer,
            3.0 if key == "memory_trl" else None,
            f"{key}_pair",
            lambda r: r["theirs"] / max(r["ours"], 1e-9),
            lambda r: f"{r['ours']:.0f} against {r['theirs']:.0f} MB",
        )
    if "training_step" in found:
        add(
            "training step of make reproduce, seconds",
            "library's forward",
            None,
            "training_step",
            lambda r: r["library"] / r["ours"],
            lambda r: f"{r['ours']:.2f} against {r['library']:.2f} s",
        )
    engine, update = found["unsloth"], found["updates"]
    reason = engine.get("not_run") or engine.get(FAILED) or update.get(FAILED)
    rows.append(
        {
            "model": model,
            "what": "update, seconds",
            "against": "Unsloth on the CPU",
            "ratio": "" if reason else f"{engine['unsloth'] / update['ours']:.2f}",
            "target": "",
            "values": f"not run: {reason}" if reason else f"{engine['unsloth']:.2f} s",
        }
    )
    return rows


def limit_rows(model: str, found: Mapping[str, Any]) -> list[Row]:
    """Each measurement beside the least time that the machine's own rates allow."""
    machine = found["limits"]
    if FAILED in machine:
        return []
    stream, product = machine["bytes_per_second"], machine["flops_per_second"]
    rows: list[Row] = []
    steps = found["decoding"] if isinstance(found["decoding"], list) else []
    for step in steps:
        reading, computing = step["bytes"] / stream, step["flops"] / product
        rows.append(
            {
                "model": model,
                "what": f"decode step, {step['rows']} rows",
                "bound by": "streaming" if reading > computing else "products",
                "limit_s": f"{max(reading, computing):.5f}",
                "measured_s": f"{step['seconds']:.5f}",
                "share": f"{max(reading, computing) / step['seconds']:.2f}",
            }
        )
    update = found["updates"]
    if FAILED not in update:
        rows.append(
            {
                "model": model,
                "what": f"update, {update['tokens_distinct']} distinct tokens",
                "bound by": "products",
                "limit_s": f"{update['flops'] / product:.5f}",
                "measured_s": f"{update['ours']:.5f}",
                "share": f"{update['flops'] / product / update['ours']:.2f}",
            }
        )
    return rows


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Rows as CSV, if there are any."""
    if rows:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def markdown(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table."""
    if not rows:
        return "Not run.\n"
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(str(value).replace("|", "/") for value in row.values()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def figure(path: Path, growth: Sequence[Row], limits: Sequence[Row]) -> None:
    """Cost against each axis, relative to its smallest value, with the line that proportional growth would be."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    axes_names = list(dict.fromkeys(row["axis"] for row in growth))
    picture, axes = plt.subplots(2, 3, figsize=(11, 6.5), layout="constrained")
    for axis, name in zip(axes.flat, axes_names, strict=False):
        rows = [row for row in growth if row["axis"] == name]
        values = [row["value"] for row in rows]
        axis.plot(values, [v / values[0] for v in values], ":", color="grey", label="in proportion")
        for key in ("rollout", "update"):
            axis.plot(values, [row[key] / rows[0][key] for row in rows], "o-", label=key)
        axis.set(xlabel=name, ylabel="seconds, relative", xscale="log", yscale="log")
        axis.set_xticks(values, [str(v) for v in values], minor=False)
        axis.minorticks_off()
    axes.flat[0].legend()
    bars = axes.flat[len(axes_names)]
    names = [f"{row['model']}: {row['what']}" for row in limits]
    bars.barh(names, [float(row["share"]) for row in limits])
    bars.axvline(0.5, color="grey", linestyle=":")
    bars.set(xlabel="share of the computed limit", xlim=(0, 1))
    bars.tick_params(axis="y", labelsize=6)
    picture.savefig(path, dpi=110)


def machine(options: argparse.Namespace) -> Row:
    """What the figures hold for."""
    import torch
    import transformers

    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": model,
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "load_average_at_start": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "threads": options.threads,
        "clock": options.clock,
        "pairs": options.pairs,
        "smoke": options.smoke,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; exit code 1 if a cell failed."""
    parser = argparse.ArgumentParser(description="Speed against peers and limits.")
    parser.add_argument("--models", nargs="+", choices=("tiny", "smollm2"), default=["tiny", "smollm2"])
    parser.add_argument("--cells", nargs="+", help="only these cells; the rest is marked as not run")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu on a machine that others share")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / f"bench-{datetime.now():%Y%m%d-%H%M%S}")
    parser.add_argument("--smoke", action="store_true", help="the smallest sizes: shows that it runs, measures nothing")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    about = machine(options)

    ratios: list[Row] = []
    limits: list[Row] = []
    failures: list[str] = []

    def run(name: str, model: str) -> Any:
        if options.cells and name not in options.cells:
            return {FAILED: "not asked for"}
        result = cell(name, model, options)
        if FAILED in result:
            failures.append(f"{name}, {model}: {result[FAILED]}")
        return result

    for model in options.models:
        names = ["limits", "rollouts", "decoding", "updates", "memory_ours", "memory_trl", "memory_trl_checkpointed"]
        names += ["unsloth", *(["training_step"] if model == "tiny" else [])]
        found = {name: run(name, model) for name in names}
        (options.out / f"cells-{model}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        ratios += ratio_rows(model, found)
        limits += limit_rows(model, found)
    growth = run("growth", "tiny") if "tiny" in options.models else []
    growth = growth if isinstance(growth, list) else []

    write_csv(options.out / "ratios.csv", ratios)
    write_csv(options.out / "limits.csv", limits)
    write_csv(options.out / "growth.csv", growth)
    (options.out / "machine.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    parts = {"Ratios": ratios, "Beside the limits": limits, "Growth (tiny, seconds)": growth}
    text = "".join(f"## {title}\n\n{markdown(rows)}\n" for title, rows in parts.items())
    (options.out / "README.md").write_text(f"# Speed\n\n{text}", encoding="utf-8")
    if growth and limits:
        figure(options.out / "bench.png", growth, limits)
    print(text)
    print(f"Written to {options.out}")
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
