"""Intervals, tests and plain rules by which two systems are compared.

Which function for which question:

| question | function |
|---|---|
| one accuracy | `wilson` |
| two systems, the same items, one sample an item | `paired_counts`, `mcnemar_exact`; beside it `paired_difference` |
| two systems, the same items, several samples an item | `item_means` for each, then `paired_difference` |
| items in clusters (MMLU: subjects) | `clustered_mean`, `clustered_difference` |
| two systems, different items | `unpaired_difference` |
| training seeds | `t_interval`; show every point beside it |
| several benchmarks at once | `holm` |
| was the benchmark large enough | `minimum_detectable_difference`, `detectability` |
| pass@k | `pass_at_k` for each item |
| accuracy against cost | `pareto_front` |

Outcomes come as `{item id: value}`, so that pairs are made by id and never by position. Shares and differences of
shares lie in [−1, 1]; nothing here is in per cent. The same input and seed give the same result, whatever the order
of the mappings.

The resampling of `paired_difference`, `clustered_mean` and `clustered_difference` is the *expanded percentile*
bootstrap (Hesterberg 2015, doi 10.1080/00031305.2015.1089789): quantiles of the resampled means, taken further out so
that few units do not make the interval too narrow. Chosen by simulation (ours, 1,500 data sets each): intervals
of nominally 95 % held the truth in 0.92–1.00 of cases with 30 and 164 paired items and in 0.94–0.95 with 57 clusters,
those of BCa in 0.90–0.98 and 0.93; with 10 clusters in 0.93–0.95 (BCa 0.88–0.90), with 5 in 0.92. An interval from
fewer should not be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, ndtr, ndtri, stdtrit

Average = Literal["micro", "macro"]
"""Over clusters: "micro" counts every item once (Σ values ÷ Σ items), "macro" every cluster once."""


@dataclass(frozen=True)
class Interval:
    """A mean, share or difference with its two-sided interval."""

    mean: float
    """The estimate itself, in the unit of the values."""
    low: float | None
    """Lower end; None, as `high`, where the data cannot tell how sure the estimate is."""
    high: float | None
    """Upper end."""
    n: int
    """Independent units behind it: items, clusters or seeds, of both arms together where they differ."""


@dataclass(frozen=True)
class PairedCounts:
    """Right and wrong answers of two systems to the same items."""

    both: int
    """Items that both have right."""
    only_a: int
    """Items that only the first has right: McNemar's b."""
    only_b: int
    """Items that only the second has right: McNemar's c."""
    neither: int
    """Items that neither has right."""

    @property
    def n(self) -> int:
        """Items."""
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def discordance(self) -> float:
        """Share of items that exactly one of the two has right."""
        return (self.only_a + self.only_b) / self.n


# ----------------------------------------------------------------------------------------------------------- one system


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Share of `n` independent items with Wilson's score interval (Wilson 1927, doi 10.1080/01621459.1927.10502953).

    Raises:
        ValueError: n below 1, successes outside 0 … n or no whole number, or a level outside (0, 1).
    """
    successes, n = _share("wilson", successes, n)
    return Interval(successes / n, *_wilson_ends(successes, n, level), n)


def _wilson_ends(successes: int, n: int, level: float) -> tuple[float, float]:
    z2 = _normal(level) ** 2
    share = successes / n
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2) / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    # At the ends the interval touches 0 or 1 exactly; rounding must not carry it past.
    return 0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean over independent units (training seeds) with Student's t interval: mean ± t(n−1) · s / √n.

    One unit has no interval. Shares are not clipped to [0, 1]: with few seeds the interval may reach beyond, and
    cutting it would hide how wide it is. Show the values themselves beside it: three seeds are three points.

    Raises:
        ValueError: no values, one that is not finite, or a level outside (0, 1).
    """
    _check_level(level)
    if isinstance(values, Mapping):
        raise ValueError("t interval: got a mapping, whose keys would be averaged; give its values()")
    found = []
    for value in values:
        if not math.isfinite(number := _as_float(value)):
            raise ValueError(f"t interval: {value!r} among the values; leave out what was not measured")
        found.append(number)
    if not found:
        raise ValueError("t interval: no values; at least one seed must have been measured")
    n = len(found)
    mean = math.fsum(found) / n
    if n == 1:
        return Interval(mean, None, None, n)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in found) / (n - 1))
    half = float(stdtrit(n - 1, (1 + level) / 2)) * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def clustered_mean(
    values: Mapping[str, float],
    clusters: Mapping[str, str],
    *,
    average: Average = "micro",
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Mean of items that belong together in clusters, with an interval that resamples whole clusters.

    It answers "what if the benchmark had drawn other subjects of this kind", which is wider than "other questions of
    these subjects" wherever subjects differ. Clusters of unequal size change the number of items in a resample: the
    micro average is therefore a ratio of two resampled sums.

    Args:
        values: item id → value.
        clusters: item id → cluster; may name more items than were run.
        average: see `Average`.
        level: confidence.
        resamples: bootstrap resamples, at least 1,000.
        seed: of the resampling.

    Returns:
        `n` is the number of clusters. Ends are None when all clusters agree exactly.

    Raises:
        ValueError: no items, a value that is not finite, an item without a cluster, fewer than two clusters, an unknown
            average, too few resamples, or a level outside (0, 1).
    """
    return _clustered("clustered mean", _outcomes("values", values), clusters, average, level, resamples, seed)


# ------------------------------------------------------------------------------------------ two systems, the same items


def paired_counts(a: Mapping[str, bool | float], b: Mapping[str, bool | float]) -> PairedCounts:
    """Count who has which item right. Outcomes are right (True, 1) or wrong (False, 0), by item id.

    Raises:
        ValueError: no items, ids that only one side has, or an outcome other than 0 and 1.
    """
    left, right = _pairs(a, b)
    for side, outcomes in (("a", left), ("b", right)):
        for item, value in outcomes.items():
            if value not in (0.0, 1.0):
                raise ValueError(
                    f"paired counts: item {item!r} of {side} is {value}, expected right (1) or wrong (0); "
                    "where an item has several samples, compare their means with paired_difference"
                )
    cells = [(left[item], right[item]) for item in left]
    return PairedCounts(cells.count((1, 1)), cells.count((1, 0)), cells.count((0, 1)), cells.count((0, 0)))


def mcnemar_exact(b: int, c: int) -> float:
    """Two-sided exact McNemar test: p of a split at least as uneven as `b` to `c` if either way were equally likely.

    `b` and `c` are the items that only the one, or only the other, system has right (see `paired_counts`); items on
    which both agree say nothing about the difference. 1 when there are none.

    Raises:
        ValueError: a count that is negative or no whole number.
    """
    b, c = _count("mcnemar: b", b), _count("mcnemar: c", c)
    return min(1.0, 2 * float(bdtr(min(b, c), b + c, 0.5)))


def differences(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    """What the first system scores above the second, a − b, item by item.

    Raises:
        ValueError: no items, ids that only one side has, or a value that is not finite.
    """
    left, right = _pairs(a, b)
    return {item: value - right[item] for item, value in left.items()}


def paired_difference(
    a: Mapping[str, float],
    b: Mapping[str, float],
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Mean of a − b over the same items, with an interval that resamples items (see the module for the method).

    Several samples of one item are one unit: give their means (`item_means`). Items that belong together, such as
    questions of one subject, need `clustered_difference`. Right for accuracies and for token counts alike.

    Args:
        a: item id → outcome of the first system.
        b: item id → outcome of the second system.
        level: confidence.
        resamples: bootstrap resamples, at least 1,000.
        seed: of the resampling.

    Returns:
        `n` is the number of items. Ends are None when every item shows the same difference, as when two systems agree
        throughout: resampling would then give an interval of width 0, and agreement on few items is no such certainty.

    Raises:
        ValueError: fewer than two items, ids that only one side has, a value that is not finite, too few resamples, or
            a level outside (0, 1).
    """
    found = differences(a, b)
    if len(found) < 2:
        raise ValueError(f"paired difference: {_some(found)} alone; resampling needs at least two items")
    values = np.array([found[item] for item in sorted(found, key=str)])
    return _bootstrap("paired difference", values, np.ones(len(values)), level, resamples, seed)


def clustered_difference(
    a: Mapping[str, float],
    b: Mapping[str, float],
    clusters: Mapping[str, str],
    *,
    average: Average = "micro",
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Mean of a − b over the same items, with an interval that resamples whole clusters of items.

    Arguments, result and errors as in `clustered_mean`; ids that only one side has are an error too.
    """
    return _clustered("clustered difference", differences(a, b), clusters, average, level, resamples, seed)


# ----------------------------------------------------------------------------------------- two systems, different items


def unpaired_difference(successes_a: int, n_a: int, successes_b: int, n_b: int, level: float = 0.95) -> Interval:
    """Difference of two shares over different items, with Newcombe's hybrid score interval (1998, his method 10).

    doi 10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I. For the same items use `paired_difference`,
    which is narrower.

    Raises:
        ValueError: as in `wilson`, naming the arm (a or b).
    """
    successes_a, n_a = _share("unpaired difference: a", successes_a, n_a)
    successes_b, n_b = _share("unpaired difference: b", successes_b, n_b)
    a, b = successes_a / n_a, successes_b / n_b
    low_a, high_a = _wilson_ends(successes_a, n_a, level)
    low_b, high_b = _wilson_ends(successes_b, n_b, level)
    return Interval(
        a - b, a - b - math.hypot(a - low_a, high_b - b), a - b + math.hypot(high_a - a, b - low_b), n_a + n_b
    )


# ---------------------------------------------------------------------------------------------- several samples an item


def item_means(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean over the samples of each item: samples of one item are not independent, so the item is the unit.

    Raises:
        ValueError: no items, an item without samples, or a sample that is not finite.
    """
    _check_mapping("item means", samples, "{item id: [outcome of each sample]}")
    means = {}
    for item, values in samples.items():
        found = [_number(f"item means: a sample of item {item!r}", value) for value in values]
        if not found:
            raise ValueError(f"item means: item {item!r} has no samples; leave it out on both sides or sample it")
        means[item] = math.fsum(found) / len(found)
    return means


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that at least one of `k` samples is right, unbiased from `n` samples of which `correct` are.

    1 − C(n − correct, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, Eq. 1). Average it over items.

    Raises:
        ValueError: correct outside 0 … n, k outside 1 … n, or a number that is not whole.
    """
    correct, n = _share("pass@k", correct, n)
    k = _count("pass@k: k", k)
    if not 1 <= k <= n:
        raise ValueError(f"pass@k: k is {k} with {n} samples an item; expected 1 ≤ k ≤ {n}, draw more samples")
    draws = math.comb(n, k)
    return (draws - math.comb(n - correct, k)) / draws  # whole numbers, so nothing is lost before the division


# -------------------------------------------------------------------------------------------------- several comparisons


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjusted p of each comparison (Holm 1979), in the order given.

    Compare each with the level for the whole family: the chance of one false claim among them all is then at most that
    level, however the comparisons hang together.

    Raises:
        ValueError: no p-values, or one outside [0, 1].
    """
    _check_mapping("holm", p_values, "{comparison: p}")
    found = {name: _number(f"holm: p of {name!r}", p) for name, p in p_values.items()}
    for name, p in found.items():
        if not 0 <= p <= 1:
            raise ValueError(f"holm: p of {name!r} is {p}; a p-value lies in [0, 1]")
    adjusted: dict[str, float] = {}
    least = 0.0
    for rank, name in enumerate(sorted(found, key=lambda name: found[name])):
        least = max(least, min(1.0, (len(found) - rank) * found[name]))
        adjusted[name] = least
    return {name: adjusted[name] for name in found}


# ------------------------------------------------------------------------------------------------------------- planning


def minimum_detectable_difference(
    n: int, discordance: float = 0.3, power: float = 0.8, level: float = 0.05
) -> float | None:
    """Least true difference of two accuracies on the same `n` items that McNemar's test finds with the given power.

    Normal approximation (Connor 1987, doi 10.2307/2531961): δ √n = z(1 − level/2) √ψ + z(power) √(ψ − δ²), ψ being the
    discordance. The exact test is more careful and needs somewhat more: at n = 30 and ψ = 0.3 it finds this δ with a
    power of 0.77 in place of 0.80, at n = 164 with 0.77 too.

    Args:
        n: items.
        discordance: share of items that exactly one of the two systems has right (ours: 0.3).
        power: chance of finding the difference, at least 0.5.
        level: two-sided level of the test: 0.05 goes with a 95 % interval. Under 0.5.

    Returns:
        A share (0.27 is 27 points); None where even a difference of `discordance`, the largest possible, would be
        missed.

    Raises:
        ValueError: n below 1, or a share outside its range.
    """
    n = _count("minimum detectable difference: n", n)
    if n < 1:
        raise ValueError("minimum detectable difference: n is 0; give the number of items, at least 1")
    for name, value, fits, expected in (
        ("discordance", discordance, 0 < discordance <= 1, "a share of the items above 0 and up to 1, e.g. 0.3"),
        ("power", power, 0.5 <= power < 1, "at least 0.5 and under 1, e.g. 0.8"),
        ("level", level, 0 < level < 0.5, "the level of the test, above 0 and under 0.5, e.g. 0.05"),
    ):
        if not fits:
            raise ValueError(f"minimum detectable difference: {name} is {value}; expected {expected}")
    threshold = -float(ndtri(level / 2)) * math.sqrt(discordance)
    z = float(ndtri(power))
    # Connor's equation squared is quadratic in δ; the root with +z √… is the one of the equation itself.
    inner = discordance * (n + z * z) - threshold * threshold
    if inner < 0:
        return None
    difference = (math.sqrt(n) * threshold + z * math.sqrt(inner)) / (n + z * z)
    return difference if difference <= discordance else None


def detectability(n: int, discordance: float = 0.3, power: float = 0.8, level: float = 0.05) -> str:
    """`minimum_detectable_difference` as a sentence to print beside a result, its assumptions named.

    Errors as there.
    """
    difference = minimum_detectable_difference(n, discordance, power, level)
    assumed = (
        f"(power {100 * power:g} % at a two-sided level of {level:g}, normal approximation to McNemar's test, "
        f"independent items, {100 * discordance:g} % of them right in exactly one of the two systems)"
    )
    if difference is None:
        return f"With n = {n} items no difference between two systems can be detected reliably {assumed}."
    points = f"{100 * difference:.0f}" if difference >= 0.1 else f"{100 * difference:.2g}"
    return (
        f"With n = {n} items a difference between two systems under about {points} percentage points "
        f"cannot be detected reliably {assumed}."
    )


# ------------------------------------------------------------------------------------------------ accuracy against cost


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names of the (cost, accuracy) points that no other point beats, from the cheapest to the dearest.

    A point is beaten by one that costs no more and is no less accurate, and better in one of the two. Points that are
    equal in both do not beat each other: they are on the front together, in the order given.

    Raises:
        ValueError: no points, one that is no pair, or a value that is not finite.
    """
    _check_mapping("pareto front", points, "{name: (cost, accuracy)}")
    found: dict[str, tuple[float, float]] = {}
    for name, point in points.items():
        if isinstance(point, str) or not isinstance(point, Collection) or len(point) != 2:
            raise ValueError(f"pareto front: point {name!r} is {point!r}; expected (cost, accuracy)")
        cost, accuracy = point
        found[name] = (
            _number(f"pareto front: cost of {name!r}", cost),
            _number(f"pareto front: accuracy of {name!r}", accuracy),
        )
    front: list[str] = []
    for name in sorted(found, key=lambda name: (found[name][0], -found[name][1])):
        if not front or found[name][1] > found[front[-1]][1] or found[name] == found[front[-1]]:
            front.append(name)
    return front


# ----------------------------------------------------------------------------------------------------------- resampling

_CHUNK = 1 << 22
"""Counts drawn at once (32 MiB of them)."""


def _bootstrap(
    name: str,
    sums: NDArray[np.float64],
    sizes: NDArray[np.float64],
    level: float,
    resamples: int,
    seed: int,
) -> Interval:
    """Σ sums ÷ Σ sizes with its expanded percentile interval; `sums` and `sizes` are [units]."""
    _check_level(level)
    resamples = _count(f"{name}: resamples", resamples)
    if resamples < 1000:
        raise ValueError(f"{name}: {resamples} resamples; at least 1000 are needed for ends of an interval")
    n = len(sums)
    mean = math.fsum(sums) / math.fsum(sizes)
    ratios = sums / sizes
    if float(np.ptp(ratios)) <= 1e-12 * float(np.abs(ratios).max()):
        return Interval(mean, None, None, n)
    # Outcomes take few values, so how often each value is drawn says all: 14,042 items become three counts. The values
    # stay in the order of the ids, so that a − b and b − a are resampled alike.
    _, first, counts = np.unique(np.stack([sums, sizes]), axis=1, return_index=True, return_counts=True)
    order = np.argsort(first)
    first, shares = first[order], counts[order] / n
    rng = np.random.default_rng(seed)
    rows = max(1, _CHUNK // len(first))
    means = []
    for start in range(0, resamples, rows):
        drawn = rng.multinomial(n, shares, size=min(rows, resamples - start)).astype(np.float64)
        means.append((drawn @ sums[first]) / (drawn @ sizes[first]))
    tail = float(ndtr(-math.sqrt(n / (n - 1)) * stdtrit(n - 1, (1 + level) / 2)))
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Interval(mean, float(low), float(high), n)


def _clustered(
    name: str,
    values: Mapping[str, float],
    clusters: Mapping[str, str],
    average: Average,
    level: float,
    resamples: int,
    seed: int,
) -> Interval:
    _check_mapping(f"{name}: clusters", clusters, "{item id: cluster}")
    lost = [item for item in values if item not in clusters]
    if lost:
        raise ValueError(f"{name}: {_some(lost)} without a cluster; give {{item id: cluster}} for every item")
    grouped: dict[str, list[float]] = {}
    for item, value in values.items():
        grouped.setdefault(clusters[item], []).append(value)
    if len(grouped) < 2:
        raise ValueError(
            f"{name}: all {len(values)} items are in cluster {next(iter(grouped))!r}; "
            "at least two clusters are needed, use wilson or paired_difference for one"
        )
    keys = sorted(grouped, key=str)
    sums = np.array([math.fsum(grouped[key]) for key in keys])
    sizes = np.array([float(len(grouped[key])) for key in keys])
    if average == "macro":
        return _bootstrap(name, sums / sizes, np.ones(len(keys)), level, resamples, seed)
    if average != "micro":
        raise ValueError(f"{name}: average is {average!r}; expected 'micro' (by items) or 'macro' (by clusters)")
    return _bootstrap(name, sums, sizes, level, resamples, seed)


# ---------------------------------------------------------------------------------------------------------------- input


def _outcomes(name: str, values: Mapping[str, float]) -> dict[str, float]:
    _check_mapping(name, values, "{item id: outcome}")
    return {item: _number(f"{name}: item {item!r}", value) for item, value in values.items()}


def _pairs(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    left, right = _outcomes("a", a), _outcomes("b", b)
    only_a = [item for item in left if item not in right]
    only_b = [item for item in right if item not in left]
    if only_a or only_b:
        where = [f"{_some(items)} only in {side}" for side, items in (("a", only_a), ("b", only_b)) if items]
        raise ValueError(
            f"paired outcomes: {' and '.join(where)}; both systems must have the same items, "
            "run what is missing or leave it out on both sides"
        )
    return left, right


def _some(items: Iterable[str]) -> str:
    names = [repr(item) for item in items]
    shown = ", ".join(names[:5])
    return f"{len(names)} item{'s' * (len(names) > 1)} ({shown}{', …' if len(names) > 5 else ''})"


def _check_mapping(name: str, value: object, form: str) -> None:
    if not isinstance(value, Mapping) or not value:
        given = "is empty" if isinstance(value, Collection) and not value else f"got {type(value).__name__}"
        raise ValueError(f"{name}: {given}; give {form} with at least one entry")


def _as_float(value: object) -> float:
    """NaN where it is no number; digits in a text are none."""
    try:
        return math.nan if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _number(name: str, value: float) -> float:
    number = _as_float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value!r}, expected a finite number; leave out what was not measured")
    return number


def _count(name: str, value: float) -> int:
    number = _as_float(value)  # sums of 0.0 and 1.0 are counts too
    if isinstance(value, bool) or not number.is_integer() or number < 0:
        raise ValueError(f"{name} is {value!r}; expected a whole number, 0 or more")
    return int(value)


def _share(name: str, successes: int, n: int) -> tuple[int, int]:
    successes, n = _count(f"{name}: successes", successes), _count(f"{name}: n", n)
    if n < 1 or successes > n:
        raise ValueError(f"{name}: {successes} successes of {n} items; expected 0 ≤ successes ≤ n and n ≥ 1")
    return successes, n


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it is a share between 0 and 1, e.g. 0.95")


def _normal(level: float) -> float:
    _check_level(level)
    return float(ndtri((1 + level) / 2))
