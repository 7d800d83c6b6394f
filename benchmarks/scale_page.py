"""The page of results that ``scale.py`` writes from its record."""

from __future__ import annotations

from typing import Any

import numpy as np


def render(known: dict[str, Any]) -> str:
    """Return the page for everything on record."""
    lines = [
        "# Scale",
        "",
        "Default DML-IV (`DMLIV()`, ten folds, one thread) on the suite's `twenty-columns`: 20 contexts, 5",
        "instruments. Written by `benchmarks/scale.py`. Fits in memory, training steps and trials ran with",
        "nothing else running; fits from Parquet ran beside other work, so that processor seconds are their",
        "fair measure.",
        "",
        "Fits in memory are those of today's default, whose pilot learns from at most 50,000 rows. **Fits",
        "from Parquet and the section on batch sizes are of an earlier version, without a pilot.**",
        "",
    ]
    for part, write in SECTIONS.items():
        if part in known:
            lines += write(known)
    return "\n".join(lines) + "\n"


def fits(known: dict[str, Any]) -> list[str]:
    """Return the table of fits, their growth, and where the time went."""
    in_memory, on_files = known["memory"], known.get("parquet", [])
    lines = [
        "The error is the mean squared error of h at the problem's 2000 test points (variance of the truth "
        f"{in_memory[0]['variance_of_truth']:.2f}).",
        "",
        "| rows | from | processor s | elapsed s | rows per processor s | data MB | peak MB "
        "| 3 x data + 2 GB | MSE | h | seed |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for fit in (*in_memory, *on_files):
        streamed = "pass_rows" in fit
        origin = f"Parquet, {fit['pass_rows']:,} rows an epoch" if streamed else "memory"
        # Earlier versions had several learners for h, and named those that were used.
        pilot = "pilot" if "structural model" not in fit["stages"] else "pilot and networks"
        h = ", ".join(fit.get("stayed", [pilot]))
        limit = "flat" if streamed else f"{3 * fit['data_megabytes'] + 2048:,}"
        lines.append(
            f"| {fit['rows']:,} | {origin} | {fit['processor_seconds']:,.0f} | {fit['seconds']:,.0f} | "
            f"{fit['rows'] / fit['processor_seconds']:,.0f} | {fit['data_megabytes']:,} | "
            f"{fit['peak_megabytes']:,} | {limit} | {fit['mse']:.4f} | {h} | "
            f"{fit['seed']}{', ' + fit['note'] if 'note' in fit else ''} |"
        )
    if len(in_memory) > 1:
        lines += [
            "",
            "Growth exponent of processor seconds in memory: "
            f"{exponent(in_memory, 'processor_seconds'):.2f}; "
            f"of elapsed seconds: {exponent(in_memory, 'seconds'):.2f}.",
        ]
    if len(on_files) > 1:
        small, large = on_files[0], on_files[-1]
        lines += [
            "",
            f"From Parquet, {large['rows'] / small['rows']:,.0f} times the rows take "
            f"{large['peak_megabytes'] / small['peak_megabytes']:.2f} times the peak memory "
            f"({small['peak_megabytes']:,} MB for {small['rows']:,} rows, {large['peak_megabytes']:,} MB for "
            f"{large['rows']:,}).",
        ]
    return lines + stages([fit for fit in (*in_memory, *on_files) if fit["stages"]])


def stages(fits: list[dict[str, Any]]) -> list[str]:
    """Return processor seconds by stage."""
    names = list(dict.fromkeys(name for fit in fits for name in fit["stages"]))
    titles = [f"{fit['rows']:,}{', Parquet' if 'pass_rows' in fit else ''}" for fit in fits]
    lines = ["", "Where the processor seconds went:", "", "| stage | " + " | ".join(titles) + " |"]
    lines.append("|---|" + "---:|" * len(fits))
    for name in names:
        lines.append(f"| {name} | " + " | ".join(f"{fit['stages'].get(name, 0):.0f}" for fit in fits) + " |")
    rest = [fit["processor_seconds"] - sum(fit["stages"].values()) for fit in fits]
    lines.append("| everything else | " + " | ".join(f"{value:.0f}" for value in rest) + " |")
    return lines


def batches(known: dict[str, Any]) -> list[str]:
    """Return what larger batches cost in accuracy."""
    lines = [
        "",
        "## Batch sizes",
        "",
        "The same default with batches of one size wherever a network learns from more than 50,000 rows.",
        "Its own size is 354 for 100,000 rows and 1024 for a million. These fits ran beside other work.",
        "",
        "| rows | seed | batch | processor s | MSE |",
        "|---:|---:|---:|---:|---:|",
    ]
    for fit in known["batches"]:
        lines.append(
            f"| {fit['rows']:,} | {fit['seed']} | {fit['batch_size']:,} | {fit['processor_seconds']:,.0f} | "
            f"{fit['mse']:.4f} |"
        )
    return lines


def engine(known: dict[str, Any]) -> list[str]:
    """Return the speed of training steps."""
    lines = [
        "",
        "## Training steps",
        "",
        f"Whole steps of a stack of {known['engine']['members']} networks (fetching and encoding a",
        "batch, forward, loss, backward, clipping, AdamW) against a plain product of two 1024 x 1024",
        "matrices, in turn on the same core.",
        "",
        "| nuisance | encoding | widths | batch | GFLOP/s | plain product | share of matrix products |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for step in known["engine"]["steps"]:
        lines.append(
            f"| {step['role']} | {step['encoding']} | {'-'.join(map(str, step['widths']))} | "
            f"{step['batch_size']:,} | {step['gflops']} | {step['plain_gflops']} | "
            f"{step['product_share']:.0%} |"
        )
    lines += [
        "",
        "Steps of narrow networks are short, and what surrounds the products, some thirty calls, takes half",
        "of them. Fetching the columns of 16 batches at once and making the views of all layers in one call",
        "were tried and gained nothing that could be measured.",
    ]
    return lines


def overhead(known: dict[str, Any]) -> list[str]:
    """Return the time of short trials on workers."""
    times = {name: value for name, value in known["overhead"].items() if name != "trials"}
    return [
        "",
        "## Trials on a local cluster",
        "",
        f"{known['overhead']['trials']} short trials, seconds with the start of the workers:",
        "",
        "| " + " | ".join(times) + " |",
        "|" + "---:|" * len(times),
        "| " + " | ".join(f"{value:.1f}" for value in times.values()) + " |",
    ]


def exponent(fits: list[dict[str, Any]], column: str) -> float:
    """Return the slope of log seconds on log rows."""
    return float(np.polyfit(*(np.log([fit[key] for fit in fits]) for key in ("rows", column)), 1)[0])


SECTIONS = {"memory": fits, "batches": batches, "engine": engine, "overhead": overhead}
