"""Intervals against closed forms, published values and their own coverage."""

from math import comb, isnan, sqrt

import numpy as np
import pytest

from sawbench.stats import mean_interval, pass_at_k, proportion_interval, recovered, standard_error, wilson


def test_standard_error_of_distinct_items_is_the_textbook_one() -> None:
    values = np.random.default_rng(0).normal(size=50)
    assert standard_error(values) == pytest.approx(values.std(ddof=1) / sqrt(50), rel=1e-12)
    assert standard_error(values, np.arange(50)) == pytest.approx(standard_error(values), rel=1e-12)


def test_repeating_every_item_adds_no_certainty() -> None:
    values = np.random.default_rng(1).random(40)
    clusters = np.repeat(np.arange(40), 5)
    assert standard_error(np.repeat(values, 5), clusters) == pytest.approx(standard_error(values), rel=1e-12)
    assert standard_error(np.repeat(values, 5)) < 0.5 * standard_error(values)


def test_clusters_of_unequal_size_by_hand() -> None:
    # mean 2; residual sums: a -2, b 2; sqrt(2 / 1 * (4 + 4)) / 4
    assert standard_error([1, 1, 2, 4], ["a", "a", "b", "b"]) == pytest.approx(sqrt(2 * 8) / 4)
    assert isnan(standard_error([1, 2], ["a", "a"]))


@pytest.mark.parametrize("bad", [[], [1.0, float("nan")], [float("inf")]])
def test_values_that_have_no_mean_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        mean_interval(bad)


def test_bootstrap_of_normal_data_is_near_the_normal_interval() -> None:
    values = np.random.default_rng(2).normal(3.0, 1.0, 400)
    mean, low, high = mean_interval(values)
    half = 1.96 * values.std() / 20
    assert mean == pytest.approx(values.mean())
    assert (mean - low, high - mean) == pytest.approx((half, half), rel=0.08)


def test_bootstrap_is_seeded_and_keeps_clusters_whole() -> None:
    values = np.repeat(np.random.default_rng(3).exponential(size=30), 4)
    clusters = np.repeat(np.arange(30), 4)
    assert mean_interval(values, clusters, seed=5) == mean_interval(values, clusters, seed=5)
    assert mean_interval(values, clusters, seed=5) != mean_interval(values, clusters, seed=6)
    _, low, high = mean_interval(values, clusters)
    _, blind_low, blind_high = mean_interval(values)
    assert high - low > 1.6 * (blind_high - blind_low)


def test_bca_covers_a_skewed_mean_better_than_chance_would_forgive() -> None:
    rng = np.random.default_rng(4)
    hits = 0
    for trial in range(300):
        _, low, high = mean_interval(rng.exponential(size=30), seed=trial)
        hits += low <= 1.0 <= high
    assert 0.89 <= hits / 300 <= 0.985


def test_many_values_are_resampled_in_blocks() -> None:
    _, low, high = mean_interval(np.random.default_rng(5).random(30_000))
    assert high - low == pytest.approx(2 * 1.96 * sqrt(1 / 12 / 30_000), rel=0.1)


def test_a_single_item_has_no_interval() -> None:
    interval = mean_interval([1.0, 2.0], ["a", "a"])
    assert interval.value == 1.5
    assert isnan(interval.low)
    assert isnan(interval.high)


def test_wilson_gives_published_values() -> None:
    # Newcombe 1998, table I: 81/263, 15/148, 0/20, 1/29
    for right, n, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        assert wilson(right / n, n)[1:] == pytest.approx((low, high), abs=6e-5)


@pytest.mark.parametrize("score", [0.0, 1.0])
@pytest.mark.parametrize("repeats", [1, 5])
def test_at_0_and_100_per_cent_the_interval_is_wide_and_repeats_do_not_narrow_it(score: float, repeats: int) -> None:
    values = np.full(164 * repeats, score)
    interval = proportion_interval(values, np.repeat(np.arange(164), repeats))
    assert interval == wilson(score, 164)
    assert interval.low <= score <= interval.high
    assert interval.high - interval.low > 0.02


def test_independent_answers_get_the_plain_wilson_interval() -> None:
    values = np.array([1.0] * 60 + [0.0] * 40)
    assert proportion_interval(values) == pytest.approx(wilson(0.6, 99), abs=1e-9)  # s with N - 1


def test_repeats_that_always_agree_count_as_one_answer() -> None:
    once = np.array([1.0] * 20 + [0.0] * 10)
    five = proportion_interval(np.repeat(once, 5), np.repeat(np.arange(30), 5))
    assert five == pytest.approx(proportion_interval(once), abs=1e-9)


def test_one_question_has_a_wide_interval() -> None:
    assert proportion_interval([1.0, 0.0], ["q", "q"]) == wilson(0.5, 1)


def test_scores_outside_0_to_1_are_refused() -> None:
    with pytest.raises(ValueError, match="0, 1"):
        proportion_interval([67.3])


def test_pass_at_k_is_the_average_over_all_draws_of_k() -> None:
    from itertools import combinations

    for n, right, k in [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 2), (7, 3, 5)]:
        draws = list(combinations([1] * right + [0] * (n - right), k))
        assert pass_at_k(n, right, k) == pytest.approx(sum(any(d) for d in draws) / comb(n, k))


def test_pass_at_1_does_not_depend_on_how_many_samples_are_drawn() -> None:
    rng = np.random.default_rng(6)
    for n in (1, 5, 20):
        draws = rng.binomial(n, 0.4, 4000)
        assert np.mean([pass_at_k(n, int(c), 1) for c in draws]) == pytest.approx(0.4, abs=0.025)


@pytest.mark.parametrize(("n", "right", "k"), [(5, 6, 1), (5, 1, 6), (5, 1, 0), (0, 0, 1)])
def test_pass_at_k_refuses_what_cannot_be(n: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(n, right, k)


def test_recovered_is_0_for_the_worst_and_1_for_the_best() -> None:
    rng = np.random.default_rng(7)
    best = rng.binomial(1, 0.7, 200).astype(float)
    worst = best * rng.binomial(1, 0.2, 200)
    assert recovered(best, worst, best).value == 1
    assert recovered(worst, worst, best).value == 0
    half = recovered((best + worst) / 2, worst, best)
    assert half.value == pytest.approx(0.5)


@pytest.mark.parametrize("repeats", [1, 5])
def test_a_method_that_equals_the_worst_or_the_best_on_every_item_still_gets_an_interval(repeats: int) -> None:
    """As wide at 0 as at 1, some three items of those lost; repeats that agree do not narrow it."""
    best, worst = np.array([1.0] * 110 + [0.0] * 54), np.zeros(164)
    items, (best, worst) = np.repeat(np.arange(164), repeats), (np.repeat(s, repeats) for s in (best, worst))
    for method, share in ((worst, 0.0), (best, 1.0)):
        value, low, high = recovered(method, worst, best, items)
        assert value == share
        assert low <= value - 2 / 110
        assert high >= value + 2 / 110
        assert high - low < 10 / 110


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_recovered_covers_the_truth_near_its_ends(share: float) -> None:
    """Where a method gives back next to nothing, or all but a little, most samples show no difference at all."""
    rng = np.random.default_rng(10)
    hits = 0
    for trial in range(200):
        best, worst = rng.binomial(1, 0.7, 100).astype(float), np.zeros(100)
        interval = recovered(best * rng.binomial(1, share, 100), worst, best, seed=trial)
        hits += interval.low <= share <= interval.high
    assert hits / 200 >= 0.93


def test_nothing_is_recovered_where_nothing_was_surely_lost() -> None:
    best, worst = np.array([1.0] * 52 + [0.0] * 48), np.array([0.0] * 10 + [1.0] * 40 + [0.0] * 42 + [1.0] * 8)
    interval = recovered(worst, worst, best)
    assert interval.value == 0
    assert isnan(interval.low)
    assert isnan(recovered(best, best, best).value)


def test_recovered_covers_the_truth() -> None:
    rng = np.random.default_rng(9)
    hits = 0
    for trial in range(200):
        worst = rng.binomial(1, 0.1, 164).astype(float)
        method = rng.binomial(1, 0.4, 164).astype(float)
        best = rng.binomial(1, 0.7, 164).astype(float)
        interval = recovered(method, worst, best, seed=trial)
        hits += interval.low <= 0.5 <= interval.high
    assert 0.9 <= hits / 200 <= 0.99
