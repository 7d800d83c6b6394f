"""How often 95 % intervals hold the truth: many small data sets with known truth, one fit each.

Each run goes on from the records it finds, and ``render`` writes the table of a page. The pages of debiased
intervals (before the pilot) and of those from the posterior of the pilot::

    python benchmarks/interval_coverage.py run --problem demand-1000 --seeds 3000-3199
    python benchmarks/interval_coverage.py render
    python benchmarks/interval_coverage.py run --inference posterior --problem demand-1000 --seeds 300-349
    python benchmarks/interval_coverage.py render --inference posterior
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dmliv import DMLIV, TwoStageLeastSquares
from dmliv.benchmark.environment import commit, versions
from dmliv.inference.functionals import around
from dmliv.problems import VIOLATIONS, CardWages, Encouragement, TicketDemand, with_instrument_share
from dmliv.problems.suite import SUITE

RESULTS = Path("docs/results")
# Records and pages by the kind of intervals.
NAMES = {"debiased": "coverage", "posterior": "posterior-coverage"}
ALPHA = 0.05
BAND_ROWS = 50
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
# What a fitted model is asked, in the words of the table.
WORDS = {
    "effect": "average effect between the quartiles of the action, or its two levels",
    "shift": "every action shifted by half a standard deviation",
    "derivative": "average derivative",
    "policy": "value of the learned policy minus today's",
    "smoothed_effect": "the average effect, both actions smoothed",
    "smoothed_policy": "the policy's value, its actions smoothed, minus today's",
}
# Standard deviations of the action that smoothed questions average over.
SMOOTHING = 0.5


@dataclass(frozen=True)
class Case:
    """A problem at a size."""

    words: str
    problem: Any
    n_rows: int
    binary: bool = False


def _ordinary(name: str, share: float) -> Case:
    """Return a problem of the suite with an instrument that explains a share of the action."""
    words = f"{name}, instrument of {share:.0%}, 1000 rows"
    return Case(words, with_instrument_share(SUITE[name], share), 1000)


CASES: dict[str, Case] = {
    "demand-1000": Case("ticket demand, 1000 rows", TicketDemand(), 1000),
    "demand-2000": Case("ticket demand, 2000 rows", TicketDemand(), 2000),
    "binary": Case(
        "encouraged-training (binary action), 1000 rows", SUITE["encouraged-training"], 1000, binary=True
    ),
    "two-instruments": Case(
        "heavy-tailed-returns (two instruments), 1000 rows", SUITE["heavy-tailed-returns"], 1000
    ),
    "encouragement-linear": Case("encouragement, linear, 2000 rows", Encouragement("linear"), 2000, True),
    "encouragement-curved": Case("encouragement, curved, 2000 rows", Encouragement("curved"), 2000, True),
    "card-14": Case("Card, first-stage F about 14", CardWages(0.35), 3010),
    "card-130": Case("Card, first-stage F about 130", CardWages(1.0), 3010),
    "saturating-10": _ordinary("saturating-dose", 0.1),
    "wavy-30": _ordinary("wavy-response", 0.3),
    "twenty-10": _ordinary("twenty-columns", 0.1),
    "random-coefficient": Case(
        "random-coefficient (assumption fails), 1000 rows", VIOLATIONS["random-coefficient"], 1000
    ),
}


def replicate(case: Case, seed: int, inference: str) -> dict[str, Any]:
    """Draw rows, fit, and return truth, estimates and interval ends of every question."""
    data = case.problem.sample(case.n_rows, seed=seed)
    est = DMLIV(random_state=seed)
    est.fit(data.Y, data.T, Z=data.Z, X=data.X, inference=inference)  # type: ignore[arg-type]
    simple = TwoStageLeastSquares().fit(data.Y, data.T, Z=data.Z, X=data.X)
    truth, X = case.problem.counterfactual, data.X
    n_rows = case.n_rows

    def asked(
        first: Any,
        second: Any,
        interval: tuple[float, float],
        unit: float = 1.0,
        smoothing: tuple[float, float] = (0.0, 0.0),
    ) -> dict[str, float]:
        """Compare the mean of h(X, first) - h(X, second), per unit, with the truth.

        Each of both may be smoothed, with a standard deviation in units of the action.
        """

        def mean_over(evaluate: Callable[[Any], Any], actions: Any, sd: float) -> Any:
            if sd == 0.0:
                return evaluate(np.broadcast_to(actions, n_rows))
            column = np.broadcast_to(actions, n_rows).astype(np.float64)[:, None]
            return sum(share * evaluate(places[:, 0]) for share, places in around(column, sd))

        def difference(evaluate: Callable[[Any], Any]) -> Any:
            ends = zip((first, second), smoothing, strict=True)
            high, low = (mean_over(evaluate, actions, sd) for actions, sd in ends)
            return (high - low) / unit

        effects = difference(lambda actions: est.predict(actions, X))
        true = float(np.mean(difference(lambda actions: truth(X, actions))))
        naive = 1.959964 * float(effects.std(ddof=1)) / np.sqrt(n_rows)
        return {
            "truth": true,
            "lower": float(interval[0]),
            "upper": float(interval[1]),
            "plug_in": float(effects.mean()),
            "naive_half": float(naive),
        }

    def pointwise(actions: Any) -> dict[str, float]:
        """Return the share of contexts and actions at which the band of the curve holds the truth."""
        some, repeated = np.repeat(X[:BAND_ROWS], len(actions), axis=0), np.tile(actions, BAND_ROWS)
        lower, upper = est.predict_interval(repeated, some, alpha=ALPHA)
        true = truth(some, repeated)
        return {
            "covered": float(np.mean((lower <= true) & (true <= upper))),
            "width": float(np.mean(upper - lower)),
        }

    if case.binary:
        policy = est.policy()
        chosen = policy.predict(X)
        return {
            "intervals": str(est.inference_),
            "width_2sls": float(np.diff(simple.ate_interval(X, T0=0.0, T1=1.0, alpha=ALPHA))[0]),
            "effect": asked(1.0, 0.0, est.ate_interval(X, T0=0.0, T1=1.0, alpha=ALPHA)),
            "policy": asked(chosen, data.T, policy.value_interval(X, alpha=ALPHA, versus=data.T)),
            "band": pointwise(np.array([0.0, 1.0])),
        }
    actions = np.asarray(data.T).ravel()
    spread = float(actions.std())
    low, high = np.quantile(actions, [0.25, 0.75])
    step = 0.05 * spread
    policy = est.policy(np.linspace(*np.quantile(actions, [0.1, 0.9]), 41))
    chosen = policy.predict(X)
    lower, upper = est.average_marginal_effect_interval(actions, X, alpha=ALPHA)
    return {
        "intervals": str(est.inference_),
        "width_2sls": float(np.diff(simple.ate_interval(X, T0=low, T1=high, alpha=ALPHA))[0]),
        "effect": asked(high, low, est.ate_interval(X, T0=low, T1=high, alpha=ALPHA)),
        "shift": asked(
            actions + 0.5 * spread,
            actions,
            est.shift_effect_interval(actions, X, delta=0.5 * spread, alpha=ALPHA),
        ),
        "derivative": asked(actions + step, actions - step, (lower[0], upper[0]), 2.0 * step),
        "policy": asked(chosen, actions, policy.value_interval(X, alpha=ALPHA, versus=actions)),
        "smoothed_effect": asked(
            high,
            low,
            est.ate_interval(X, T0=low, T1=high, alpha=ALPHA, smoothing=SMOOTHING),
            smoothing=(SMOOTHING * spread, SMOOTHING * spread),
        ),
        "smoothed_policy": asked(
            chosen,
            actions,
            policy.value_interval(X, alpha=ALPHA, versus=actions, smoothing=SMOOTHING),
            smoothing=(SMOOTHING * spread, 0.0),
        ),
        "band": pointwise(np.quantile(actions, [0.1, 0.3, 0.5, 0.7, 0.9])),
    }


def run(name: str, seeds: range, inference: str, records: Path) -> None:
    """Add the replications that have no record yet."""
    known = {(record["case"], record["seed"]) for record in read(records)}
    made_with = {"versions": versions(), "commit": commit()}
    for seed in seeds:
        if (name, seed) in known:
            continue
        record = {"case": name, "seed": seed, "asked": replicate(CASES[name], seed, inference), **made_with}
        with records.open("a") as handle:
            handle.write(json.dumps(record) + "\n")
        print(f"{name}, seed {seed} of {seeds.start} to {seeds.stop - 1}", flush=True)


def read(records: Path) -> list[dict[str, Any]]:
    """Return all records."""
    return [json.loads(line) for line in records.read_text().splitlines()] if records.exists() else []


def table(records: list[dict[str, Any]]) -> str:
    """Return coverage and widths as Markdown."""
    groups: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for record in sorted(records, key=lambda each: each["seed"]):
        for question, answer in record["asked"].items():
            groups[record["case"], question].append(answer)
    lines = [
        "| problem | question | data sets | coverage | mean width (largest / median) "
        "| error of the middle (bias, sd) | naive coverage | naive width |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        for question in WORDS:
            answers = groups.get((case, question))
            if answers:
                lines.append(_line(case, question, answers))
    lines += [
        "",
        "Pointwise bands of the dose-response curve, at 50 contexts and five actions (both levels of a "
        "binary one) per data set:",
        "",
        "| problem | data sets | points held, mean over data sets | tenth of the data sets with the least "
        "| mean width |",
        "|---|---|---|---|---|",
    ]
    for case, described in CASES.items():
        answers = groups.get((case, "band"))
        if answers:
            held = np.array([answer["covered"] for answer in answers])
            width = np.mean([answer["width"] for answer in answers])
            shares = f"{100 * held.mean():.1f} % | at most {100 * np.quantile(held, 0.1):.0f} %"
            lines.append(f"| {described.words} | {len(held)} | {shares} | {width:.3f} |")
    lines += _beside_two_stage_least_squares(groups)
    return "\n".join(lines)


def _beside_two_stage_least_squares(groups: dict[tuple[str, str], list[Any]]) -> list[str]:
    """Return how often each kind of interval was given, and widths of the mean effect as multiples."""
    cases = [case for case in CASES if (case, "width_2sls") in groups]
    if not cases:
        return []
    lines = [
        "",
        "Which intervals the fit gave, and the width for the average effect as a multiple of that of two-"
        "stage least squares, linear in the action; where the truth is not, its intervals miss it:",
        "",
        "| problem | data sets | from the posterior | width / 2SLS, median |",
        "|---|---|---|---|",
    ]
    for case in cases:
        kinds, widths = groups[case, "intervals"], np.array(groups[case, "width_2sls"])
        ours = np.array([answer["upper"] - answer["lower"] for answer in groups[case, "effect"]])
        share = f"{100 * np.mean([kind == 'posterior' for kind in kinds]):.0f} %"
        ratio = np.median(ours / widths)
        lines.append(f"| {CASES[case].words} | {len(kinds)} | {share} | {ratio:.2f} |")
    return lines


def _line(case: str, question: str, answers: list[dict[str, float]]) -> str:
    def column(read_one: Callable[[dict[str, float]], float]) -> Any:
        return np.array([read_one(answer) for answer in answers])

    truth, lower, upper = (column(lambda a, key=key: a[key]) for key in ("truth", "lower", "upper"))  # type: ignore[misc]
    plug_in, half = column(lambda a: a["plug_in"]), column(lambda a: a["naive_half"])
    covered, naive = (lower <= truth) & (truth <= upper), np.abs(plug_in - truth) <= half
    error, width = (lower + upper) / 2 - truth, upper - lower
    widths = f"{np.mean(width):.3f} ({np.max(width) / np.median(width):.1f})"
    return (
        f"| {CASES[case].words} | {WORDS[question]} | {len(answers)} | {100 * covered.mean():.1f} % "
        f"| {widths} | {error.mean():+.3f}, {error.std(ddof=1):.3f} "
        f"| {100 * naive.mean():.1f} % | {np.mean(2 * half):.3f} |"
    )


def render(records: Path, page: Path) -> None:
    """Put the table into the page."""
    text = page.read_text()
    before, rest = text.split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{table(read(records))}\n\n{END}{rest.split(END)[1]}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("--problem", choices=list(CASES), required=True)
    runs.add_argument("--seeds", default="3000-3199")
    runs.add_argument("--inference", choices=list(NAMES), default="debiased")
    shows = commands.add_parser("render")
    shows.add_argument("--inference", choices=list(NAMES), default="debiased")
    arguments = parser.parse_args()
    name = NAMES[arguments.inference]
    records = RESULTS / "simulations" / f"{name}.jsonl"
    if arguments.command == "render":
        render(records, RESULTS / f"{name}.md")
        return
    first, last = (int(part) for part in arguments.seeds.split("-"))
    run(arguments.problem, range(first, last + 1), arguments.inference, records)


if __name__ == "__main__":
    main()
