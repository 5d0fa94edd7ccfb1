from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from agent_gspo_core import statistics
from agent_gspo_core.kit import records
from agent_gspo_core.statistics import (
    Interval,
    PairedCounts,
    clustered_difference,
    clustered_mean,
    detectability,
    differences,
    holm,
    item_means,
    mcnemar_exact,
    minimum_detectable_difference,
    paired_counts,
    paired_difference,
    pareto_front,
    pass_at_k,
    t_interval,
    unpaired_difference,
    wilson,
)

shares = st.floats(0, 1)
counts_of_items = st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def ends(interval: Interval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def items(values: list[float]) -> dict[str, float]:
    return {f"item/{number}": value for number, value in enumerate(values)}


# ----------------------------------------------------------------------------------------------------------- one system


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(8, 10, 0.49016, 0.94332), (0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (81, 263, 0.25529, 0.36621)],
)
def test_wilson_oracles(successes: int, n: int, low: float, high: float) -> None:
    found = wilson(successes, n)
    assert ends(found) == pytest.approx((low, high), abs=5e-6)
    assert (found.mean, found.n) == (successes / n, n)


@settings(max_examples=30)
@given(counts_of_items, st.floats(0.5, 0.999))
def test_wilson_agrees_with_scipy(counts: tuple[int, int], level: float) -> None:
    expected = stats.binomtest(*counts).proportion_ci(confidence_level=level, method="wilson")
    assert ends(wilson(*counts, level)) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(counts_of_items)
def test_wilson_holds_the_share_stays_in_bounds_and_mirrors(counts: tuple[int, int]) -> None:
    successes, n = counts
    low, high = ends(wilson(successes, n))
    assert 0 <= low <= successes / n <= high <= 1
    assert ends(wilson(n - successes, n)) == pytest.approx((1 - high, 1 - low), abs=1e-12)
    wider = ends(wilson(successes, n, 0.99))
    assert wider[0] <= low
    assert high <= wider[1]


def test_wilson_takes_numpy_counts_and_sums_of_floats_and_gives_plain_floats() -> None:
    right = np.array([True, False, True])
    found = wilson(right.sum(), np.float64(3.0))  # type: ignore[arg-type]
    assert found == wilson(2, 3)
    assert [type(value) for value in (found.mean, found.low, found.high, found.n)] == [float, float, float, int]


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8).filter(lambda values: np.ptp(values) > 1e-3))
def test_t_interval_agrees_with_scipy(values: list[float]) -> None:
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert ends(t_interval(values)) == pytest.approx((expected.low, expected.high), rel=1e-7, abs=1e-7)


def test_one_seed_has_no_interval_and_records_hold_the_same_interval() -> None:
    assert t_interval([0.5]) == Interval(0.5, None, None, 1)
    found = t_interval([0.9, 1.0, 0.95])
    assert ends(found)[1] > 1  # not cut at 1
    assert records.interval([0.9, 1.0, 0.95]) == {"mean": found.mean, "low": found.low, "high": found.high}


# ------------------------------------------------------------------------------------------ two systems, the same items


@pytest.mark.parametrize(
    ("b", "c", "p"), [(5, 1, 0.21875), (121, 59, 4.434e-06), (0, 0, 1.0), (7, 7, 1.0), (0, 6, 1 / 32)]
)
def test_mcnemar_oracles(b: int, c: int, p: float) -> None:
    assert mcnemar_exact(b, c) == pytest.approx(p, rel=2e-4)


def test_mcnemar_equals_the_count_over_all_outcomes() -> None:
    for n in range(1, 11):
        for b in range(n + 1):
            flips = [abs(2 * sum(heads) - n) for heads in itertools.product((0, 1), repeat=n)]
            expected = sum(flip >= abs(2 * b - n) for flip in flips) / 2**n
            assert mcnemar_exact(b, n - b) == pytest.approx(expected, rel=1e-12)


@given(st.integers(0, 4000), st.integers(0, 4000))
def test_mcnemar_is_symmetric_a_probability_and_exact_in_whole_numbers(b: int, c: int) -> None:
    p = mcnemar_exact(b, c)
    assert p == mcnemar_exact(c, b)
    assert 0 <= p <= 1
    if b + c <= 400:
        tail = sum(math.comb(b + c, k) for k in range(min(b, c) + 1))
        assert p == pytest.approx(float(min(Fraction(1), Fraction(2 * tail, 2 ** (b + c)))), rel=1e-10)


@given(st.integers(0, 500), st.integers(0, 500))
def test_mcnemar_falls_as_the_split_grows_more_uneven(b: int, c: int) -> None:
    more, less = max(b, c), min(b, c)
    assert mcnemar_exact(more + 1, less) <= mcnemar_exact(more, less) + 1e-12


def test_paired_counts_pair_by_id_and_feed_mcnemar() -> None:
    a = {"x": True, "y": True, "z": False, "w": False, "v": True}
    b = {"v": 0.0, "w": 0, "z": 1, "y": np.bool_(False), "x": 1.0}  # another order, other kinds of right and wrong
    counts = paired_counts(a, b)  # type: ignore[arg-type]
    assert counts == PairedCounts(both=1, only_a=2, only_b=1, neither=1)
    assert (counts.n, counts.discordance) == (5, 0.6)


def test_mismatched_items_are_named_on_both_sides() -> None:
    a, b = {"gsm8k/1": 1.0, "gsm8k/2": 0.0}, {"gsm8k/1": 1.0, "gsm8k/3": 1.0, "gsm8k/4": 1.0}
    for function in (paired_counts, paired_difference, differences):
        with pytest.raises(
            ValueError, match=r"1 item \('gsm8k/2'\) only in a and 2 items .*'gsm8k/3', 'gsm8k/4'.* in b"
        ):
            function(a, b)  # type: ignore[operator]


def test_many_mismatched_items_are_counted_and_the_first_named() -> None:
    with pytest.raises(ValueError, match=r"999 items \('item/1', .*'item/5', …\) only in a;"):
        paired_difference(items([1.0] * 1000), items([1.0]))


def test_paired_difference_agrees_with_scipys_bootstrap_at_the_same_quantiles() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 2, 60).astype(float), rng.integers(0, 2, 60).astype(float)
    found = paired_difference(items(a.tolist()), items(b.tolist()), resamples=100_000)
    # The nominal level that, with 60 items, is taken further out to the same quantiles.
    level = 1 - 2 * stats.norm.cdf(-math.sqrt(60 / 59) * stats.t.ppf(0.975, 59))
    expected = stats.bootstrap(
        (a - b,), np.mean, n_resamples=20_000, confidence_level=level, method="percentile", rng=1
    ).confidence_interval
    assert found.mean == pytest.approx((a - b).mean())
    assert ends(found) == pytest.approx((expected.low, expected.high), abs=1 / 60)
    assert found.n == 60


def test_paired_difference_of_token_counts_is_near_students_interval() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.gamma(2, 100, 150), rng.gamma(2, 80, 150)
    found = paired_difference(items(a.tolist()), items(b.tolist()))
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    width = expected.high - expected.low
    assert ends(found) == pytest.approx((expected.low, expected.high), abs=0.05 * width)


paired_items = st.lists(st.tuples(shares, shares), min_size=2, max_size=40)


@settings(max_examples=30)
@given(paired_items, st.integers(0, 5))
def test_paired_difference_is_mirrored_seeded_and_blind_to_order(pairs: list[tuple[float, float]], seed: int) -> None:
    a, b = items([left for left, _ in pairs]), items([right for _, right in pairs])
    found = paired_difference(a, b, resamples=1000, seed=seed)
    shuffled = dict(reversed(list(a.items())))
    assert paired_difference(shuffled, b, resamples=1000, seed=seed) == found
    other = paired_difference(b, a, resamples=1000, seed=seed)
    assert other.mean == pytest.approx(-found.mean, abs=1e-12)
    if found.low is None:
        assert other.low is None
    else:
        low, high = ends(found)
        assert ends(other) == pytest.approx((-high, -low), abs=1e-12)
        assert -1 - 1e-12 <= low <= high <= 1 + 1e-12


def test_another_seed_resamples_otherwise_and_a_higher_level_is_wider() -> None:
    a, b = items([1.0, 0.0, 1.0, 1.0, 0.2] * 6), items([0.0, 0.0, 1.0, 0.3, 0.7] * 6)
    found = paired_difference(a, b)
    assert paired_difference(a, b, seed=1) != found
    wide = ends(paired_difference(a, b, level=0.99))
    assert wide[0] < ends(found)[0]
    assert wide[1] > ends(found)[1]


def test_resampling_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    a, b = items(rng.random(50).tolist()), items(rng.random(50).tolist())
    whole = paired_difference(a, b, resamples=1001)
    monkeypatch.setattr(statistics, "_CHUNK", 500)
    assert ends(paired_difference(a, b, resamples=1001)) == pytest.approx(ends(whole), rel=1e-12)


def test_systems_that_agree_throughout_get_no_interval_of_width_zero() -> None:
    a = items([1.0, 0.0, 1.0, 1.0])
    assert paired_difference(a, a) == Interval(0.0, None, None, 4)
    assert paired_difference(items([1.0] * 30), items([0.0] * 30)) == Interval(1.0, None, None, 30)


def test_paired_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(200):
        outcomes = rng.choice([-1.0, 0.0, 1.0], p=[0.1, 0.7, 0.2], size=60)
        low, high = ends(paired_difference(items(outcomes.tolist()), items([0.0] * 60), resamples=1000))
        covered += low <= 0.1 <= high
    assert 0.91 <= covered / 200 <= 0.99  # ± 2.6 standard errors around 0.95


# ------------------------------------------------------------------------------------------------------------- clusters


def subjects(rng: np.random.Generator, clusters: int) -> tuple[dict[str, float], dict[str, str]]:
    """Right and wrong answers in clusters of unequal size whose accuracies differ."""
    values: dict[str, float] = {}
    home: dict[str, str] = {}
    for cluster in range(clusters):
        accuracy = rng.uniform(0.2, 0.9)
        for number in range(int(rng.integers(20, 200))):
            item = f"{cluster}/{number}"
            values[item], home[item] = float(rng.random() < accuracy), f"subject {cluster}"
    return values, home


def test_micro_counts_items_and_macro_counts_clusters() -> None:
    values = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0}
    clusters = {"a": "law", "b": "law", "c": "law", "d": "virology", "unused": "history"}
    assert clustered_mean(values, clusters).mean == 0.75
    assert clustered_mean(values, clusters, average="macro").mean == 0.5
    assert clustered_mean(values, clusters).n == 2


def test_clusters_widen_the_interval_where_they_differ() -> None:
    values, clusters = subjects(np.random.default_rng(0), 57)
    low, high = ends(clustered_mean(values, clusters))
    plain = ends(wilson(int(sum(values.values())), len(values)))
    assert high - low > 2 * (plain[1] - plain[0])


def test_clusters_of_one_item_each_are_plain_resampling_of_items() -> None:
    rng = np.random.default_rng(4)
    a, b = items(rng.random(40).tolist()), items(rng.random(40).tolist())
    own = {item: item for item in a}
    for average in ("micro", "macro"):
        assert clustered_difference(a, b, own, average=average) == paired_difference(a, b)  # type: ignore[arg-type]


def test_clustered_micro_interval_agrees_with_scipys_bootstrap_of_the_ratio() -> None:
    values, clusters = subjects(np.random.default_rng(1), 40)
    keys = sorted(set(clusters.values()))
    sums = np.array([sum(v for item, v in values.items() if clusters[item] == key) for key in keys])
    sizes = np.array([sum(cluster == key for cluster in clusters.values()) for key in keys], dtype=float)
    level = 1 - 2 * stats.norm.cdf(-math.sqrt(40 / 39) * stats.t.ppf(0.975, 39))

    def ratio(top: np.ndarray, bottom: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(top.sum(axis) / bottom.sum(axis))

    expected = stats.bootstrap(
        (sums, sizes), ratio, paired=True, n_resamples=20_000, confidence_level=level, method="percentile", rng=2
    ).confidence_interval
    found = ends(clustered_mean(values, clusters, resamples=20_000))
    assert found == pytest.approx((expected.low, expected.high), abs=0.04 * (expected.high - expected.low))


def test_clustered_difference_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        a: dict[str, float] = {}
        home: dict[str, str] = {}
        for cluster in range(20):
            share, size = rng.normal(0.1, 0.1), int(rng.integers(1, 25))
            for number in range(size):
                item = f"{cluster}/{number}"
                a[item], home[item] = share + rng.normal(0, 0.3), str(cluster)
        zero = dict.fromkeys(a, 0.0)
        low, high = ends(clustered_difference(a, zero, home, resamples=1000))
        covered += low <= 0.1 <= high
    assert 0.90 <= covered / 200 <= 0.985


def test_clusters_that_agree_exactly_give_no_interval() -> None:
    clusters = {f"item/{number}": str(number % 3) for number in range(9)}
    assert clustered_mean(items([1.0] * 9), clusters) == Interval(1.0, None, None, 3)


# ----------------------------------------------------------------------------------------- two systems, different items


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [
        ((56, 70, 48, 80), 0.0524, 0.3339),  # Newcombe 1998, table II, method 10
        ((9, 10, 3, 10), 0.1705, 0.8090),
        ((6, 7, 2, 7), 0.0582, 0.8062),
        ((5, 56, 0, 29), -0.0381, 0.1926),
        ((0, 10, 0, 20), -0.1611, 0.2775),
        ((10, 10, 0, 20), 0.6791, 1.0),
    ],
)
def test_unpaired_difference_oracles(counts: tuple[int, int, int, int], low: float, high: float) -> None:
    found = unpaired_difference(*counts)
    assert ends(found) == pytest.approx((low, high), abs=6e-5)
    assert found.n == counts[1] + counts[3]


@given(counts_of_items, counts_of_items)
def test_unpaired_difference_is_bounded_and_mirrored(a: tuple[int, int], b: tuple[int, int]) -> None:
    found = unpaired_difference(*a, *b)
    low, high = ends(found)
    assert -1 - 1e-12 <= low <= found.mean <= high <= 1 + 1e-12
    other = ends(unpaired_difference(*b, *a))
    assert other == pytest.approx((-high, -low), abs=1e-12)


# ---------------------------------------------------------------------------------------------- several samples an item


def test_item_means_make_the_item_the_unit_however_often_it_was_sampled() -> None:
    means = item_means({"a": [1.0, 0.0, 0.0, 0.0], "b": [True, True]})
    assert means == {"a": 0.25, "b": 1.0}
    once = paired_difference(items([1.0, 0.0, 0.0, 1.0]), items([0.0, 0.0, 1.0, 0.0]))
    often = {item: [value] * 50 for item, value in items([1.0, 0.0, 0.0, 1.0]).items()}
    assert paired_difference(item_means(often), items([0.0, 0.0, 1.0, 0.0])) == once


def test_pass_at_k_equals_the_share_of_all_draws() -> None:
    for n in range(1, 8):
        for correct in range(n + 1):
            for k in range(1, n + 1):
                draws = list(itertools.combinations([1] * correct + [0] * (n - correct), k))
                assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws), rel=1e-12)


@given(st.integers(2, 2000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n - 1))))
def test_pass_at_k_grows_with_k_and_starts_at_the_share(numbers: tuple[int, int, int]) -> None:
    n, correct, k = numbers
    assert pass_at_k(n, correct, 1) == correct / n
    assert 0 <= pass_at_k(n, correct, k) <= pass_at_k(n, correct, k + 1) <= 1
    assert pass_at_k(n, correct, n) == float(correct > 0)


def test_pass_at_k_keeps_a_tiny_chance() -> None:
    assert pass_at_k(10**17, 1, 1) == 1e-17


# -------------------------------------------------------------------------------------------------- several comparisons


def test_holm_steps_down_over_the_seven() -> None:
    p = {
        "mmlu": 0.01,
        "gsm8k": 0.02,
        "multiarith": 0.022,
        "svamp": 0.2,
        "aqua": 0.9,
        "humaneval": 0.003,
        "math500": 0.8,
    }
    found = holm(p)
    assert list(found) == list(p)
    assert found == pytest.approx(
        {  # 7 · 0.003, 6 · 0.01, 5 · 0.02, then 4 · 0.022 = 0.088 held up at 0.1, 3 · 0.2, and two at 1
            "humaneval": 0.021,
            "mmlu": 0.06,
            "gsm8k": 0.1,
            "multiarith": 0.1,
            "svamp": 0.6,
            "aqua": 1.0,
            "math500": 1.0,
        }
    )


@given(st.dictionaries(st.text(max_size=3), shares, min_size=1, max_size=8))
def test_holm_keeps_order_is_bounded_and_never_below_the_raw_p(p: dict[str, float]) -> None:
    found = holm(p)
    ranked = sorted(p, key=lambda name: p[name])
    assert all(found[a] <= found[b] for a, b in itertools.pairwise(ranked))
    assert all(p[name] <= found[name] <= min(1.0, len(p) * p[name]) for name in p)
    # Rejections at 0.05 are those of Holm's procedure taken step by step.
    rejected = set(itertools.takewhile(lambda name: (len(p) - ranked.index(name)) * p[name] <= 0.05, ranked))
    assert {name for name in p if found[name] <= 0.05} == rejected


def test_equal_p_values_are_adjusted_alike() -> None:
    assert holm({"a": 0.02, "b": 0.02, "c": 0.5}) == {"a": 0.06, "b": 0.06, "c": 0.5}


# ------------------------------------------------------------------------------------------------------------- planning


@pytest.mark.parametrize(("n", "points"), [(30, 26.9), (164, 11.9), (1319, 4.22), (14042, 1.29)])
def test_minimum_detectable_difference_oracles(n: int, points: float) -> None:
    found = minimum_detectable_difference(n)
    assert found is not None
    assert 100 * found == pytest.approx(points, rel=5e-3)


@given(st.integers(1, 100_000), st.floats(0.01, 1), st.floats(0.5, 0.99), st.floats(0.001, 0.2))
def test_minimum_detectable_difference_solves_its_equation(
    n: int, discordance: float, power: float, level: float
) -> None:
    def gap(difference: float) -> float:
        z, tail = stats.norm.ppf(power), stats.norm.ppf(1 - level / 2)
        spread = math.sqrt(max(0.0, discordance - difference**2))
        return float(difference * math.sqrt(n) - tail * math.sqrt(discordance) - z * spread)

    found = minimum_detectable_difference(n, discordance, power, level)
    if found is None:  # not even the largest possible difference
        assert gap(discordance) < 1e-9 * math.sqrt(n)
    else:
        assert 0 < found <= discordance
        assert gap(found) == pytest.approx(0, abs=1e-7 * math.sqrt(n))


@given(st.integers(50, 10_000), st.floats(0.1, 0.9))
def test_more_items_and_less_discordance_detect_less(n: int, discordance: float) -> None:
    found = minimum_detectable_difference(n, discordance) or math.inf
    assert (minimum_detectable_difference(n + 50, discordance) or math.inf) <= found
    assert found == math.inf or (minimum_detectable_difference(n, discordance + 0.05) or 0) > found


def test_the_difference_is_found_about_as_often_as_it_says() -> None:
    n, difference = 1319, minimum_detectable_difference(1319)
    assert difference is not None
    rng = np.random.default_rng(0)
    shares = [(0.3 + difference) / 2, (0.3 - difference) / 2, 0.7]
    found = [mcnemar_exact(int(b), int(c)) <= 0.05 for b, c, _ in rng.multinomial(n, shares, size=2000)]
    assert np.mean(found) == pytest.approx(0.787, abs=0.03)  # the exact test is somewhat more careful than 0.80


def test_detectability_is_a_sentence_with_its_assumptions() -> None:
    assert detectability(30) == (
        "With n = 30 items a difference between two systems under about 27 percentage points cannot be detected "
        "reliably (power 80 % at a two-sided level of 0.05, normal approximation to McNemar's test, independent items, "
        "30 % of them right in exactly one of the two systems)."
    )
    assert "under about 4.2 percentage points" in detectability(1319)
    assert "under about 1.3 percentage points" in detectability(14042)
    assert minimum_detectable_difference(5) is None
    assert detectability(5).startswith("With n = 5 items no difference between two systems can be detected reliably (")


# ------------------------------------------------------------------------------------------------ accuracy against cost


def test_pareto_front_leaves_out_the_beaten_and_keeps_equals() -> None:
    points = {
        "dear": (9.0, 0.9),
        "cheap": (1.0, 0.5),
        "beaten": (5.0, 0.4),
        "same cost, worse": (1.0, 0.4),
        "same accuracy, dearer": (2.0, 0.5),
        "cheap again": (1.0, 0.5),
        "middle": (3.0, 0.7),
    }
    assert pareto_front(points) == ["cheap", "cheap again", "middle", "dear"]
    assert pareto_front({"alone": (1, 0)}) == ["alone"]


@given(st.dictionaries(st.integers(), st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=15))
def test_pareto_front_is_what_no_other_point_beats(points: dict[int, tuple[int, int]]) -> None:
    def beats(a: tuple[int, int], b: tuple[int, int]) -> bool:
        return a != b and a[0] <= b[0] and a[1] >= b[1]

    named = {str(name): point for name, point in points.items()}
    expected = {n for n, point in named.items() if not any(beats(other, point) for other in named.values())}
    front = pareto_front(named)  # type: ignore[arg-type]
    assert set(front) == expected
    assert len(front) == len(expected)
    assert [named[name][0] for name in front] == sorted(named[name][0] for name in front)


# --------------------------------------------------------------------------------------------------------------- errors

TWO = {"a": 1.0, "b": 0.0}
HOME = {"a": "law", "b": "history"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wilson(0, 0), "n ≥ 1"),
        (lambda: wilson(3, 2), "3 successes of 2 items"),
        (lambda: wilson(-1, 2), "successes is -1; expected a whole number"),
        (lambda: wilson(0.5, 2), "successes is 0.5"),
        (lambda: wilson(math.nan, 2), "successes is nan"),
        (lambda: wilson(1, math.inf), "n is inf"),
        (lambda: wilson(True, 2), "successes is True"),
        (lambda: wilson("8", 10), "successes is '8'"),
        (lambda: wilson(1, 2, 95), "level is 95; it is a share between 0 and 1"),
        (lambda: wilson(1, 2, math.nan), "level is nan"),
        (lambda: t_interval([]), "at least one seed"),
        (lambda: t_interval([1.0, math.inf]), "inf among the values"),
        (lambda: t_interval([1.0, None]), "None among the values"),
        (lambda: t_interval({0: 0.9, 1: 0.8}), "give its values"),
        (lambda: t_interval([1.0], 1.0), "between 0 and 1"),
        (lambda: mcnemar_exact(-1, 3), "b is -1"),
        (lambda: mcnemar_exact(1, 3.5), "c is 3.5"),
        (lambda: paired_counts({}, {}), "a: is empty"),
        (lambda: paired_counts([1, 0], [1, 1]), "a: got list; give {item id: outcome}"),
        (lambda: paired_counts(TWO, {"a": 0.5, "b": 0}), "item 'a' of b is 0.5, .*paired_difference"),
        (lambda: paired_counts(TWO, {"a": None, "b": 0}), "b: item 'a' is None, .*leave out what was not measured"),
        (lambda: paired_difference({"a": 1}, {"a": 0}), r"1 item \('a'\) alone; .*at least two items"),
        (lambda: paired_difference(TWO, {"a": math.nan, "b": 0}), "item 'a' is nan"),
        (lambda: paired_difference(TWO, {"a": "1", "b": 0}), "item 'a' is '1'"),
        (lambda: paired_difference(TWO, TWO, level=0), "level is 0"),
        (lambda: paired_difference(TWO, TWO, resamples=100), "100 resamples; at least 1000"),
        (lambda: clustered_mean({}, HOME), "values: is empty"),
        (lambda: clustered_mean(TWO, {}), "clusters: is empty; give {item id: cluster}"),
        (lambda: clustered_mean(TWO, {"a": "law"}), r"1 item \('b'\) without a cluster"),
        (lambda: clustered_mean(TWO, {"a": "law", "b": "law"}), "all 2 items are in cluster 'law'; at least two"),
        (lambda: clustered_mean(TWO, HOME, average="mean"), "average is 'mean'; expected 'micro'"),
        (lambda: clustered_difference(TWO, {"a": 1.0}, HOME), "only in a; both systems must have the same items"),
        (lambda: unpaired_difference(1, 2, 3, 2), "unpaired difference: b: 3 successes of 2"),
        (lambda: item_means({}), "item means: is empty"),
        (lambda: item_means({"a": []}), "item 'a' has no samples"),
        (lambda: item_means({"a": [1.0, None]}), "a sample of item 'a' is None"),
        (lambda: pass_at_k(5, 6, 1), "6 successes of 5"),
        (lambda: pass_at_k(5, 2, 6), "k is 6 with 5 samples an item; .*draw more samples"),
        (lambda: pass_at_k(5, 2, 0), "k is 0"),
        (lambda: holm({}), "holm: is empty; give {comparison: p}"),
        (lambda: holm([0.1]), "holm: got list"),
        (lambda: holm({"a": 1.5}), r"p of 'a' is 1.5; a p-value lies in \[0, 1\]"),
        (lambda: holm({"a": math.nan}), "p of 'a' is nan"),
        (lambda: minimum_detectable_difference(0), "n is 0"),
        (lambda: minimum_detectable_difference(30, discordance=30), "discordance is 30; expected a share"),
        (lambda: minimum_detectable_difference(30, discordance=0), "discordance is 0;"),
        (lambda: minimum_detectable_difference(30, power=1), "power is 1; expected at least 0.5"),
        (lambda: minimum_detectable_difference(30, level=0.95), "level is 0.95; .* e.g. 0.05"),
        (lambda: minimum_detectable_difference(30, level=math.nan), "level is nan"),
        (lambda: pareto_front({}), "pareto front: is empty"),
        (lambda: pareto_front({"a": (1.0, math.nan)}), "accuracy of 'a' is nan"),
        (lambda: pareto_front({"a": (1.0,)}), r"point 'a' is \(1.0,\); expected \(cost, accuracy\)"),
    ],
)
def test_bad_input_is_named_with_its_remedy(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.sub(r"([{}])", r"\\\1", message)):
        call()
