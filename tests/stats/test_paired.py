"""Paired tests against enumeration, published cases and their own error rates."""

import subprocess
import sys
from itertools import product

import numpy as np
import pytest

from sawbench.stats import Pair, compare, holm, mcnemar, minimum_detectable, paired_interval, sign_flip


def discordant(wins: int, losses: int, ties: int = 10) -> tuple[np.ndarray, np.ndarray]:
    method = np.array([1.0] * wins + [0.0] * losses + [1.0] * ties)
    baseline = np.array([0.0] * wins + [1.0] * losses + [1.0] * ties)
    return method, baseline


@pytest.mark.parametrize(
    ("wins", "losses", "p"), [(0, 0, 1.0), (5, 0, 0.0625), (8, 2, 0.109375), (3, 3, 1.0), (0, 6, 0.03125)]
)
def test_mcnemar_is_the_exact_binomial_test(wins: int, losses: int, p: float) -> None:
    assert mcnemar(*discordant(wins, losses)) == p


def test_mcnemar_of_many_items_does_not_overflow() -> None:
    assert 0 < mcnemar(*discordant(700, 900)) < 1e-5


def test_sign_flip_of_single_answers_is_mcnemar() -> None:
    method, baseline = discordant(8, 2)
    assert sign_flip(method, baseline) == pytest.approx(mcnemar(method, baseline))
    method, baseline = discordant(30, 14)
    assert sign_flip(method, baseline) == pytest.approx(mcnemar(method, baseline), abs=0.005)


def test_sign_flip_enumerates_whole_items() -> None:
    method = np.array([1, 1, 0, 1, 0.5, 1])
    baseline = np.array([0, 1, 1, 0, 0, 0.25])
    clusters = np.array(["a", "a", "b", "b", "c", "c"])
    sums = np.array([1, 0, 1.25])
    wanted = np.mean([abs(np.dot(s, sums)) >= sums.sum() - 1e-9 for s in product((-1, 1), repeat=3)])
    assert sign_flip(method, baseline, clusters) == pytest.approx(wanted)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_paired_interval_by_hand() -> None:
    # Bonett and Price: 12 won, 4 lost of 100: (13 - 5) / 102 +- 1.96 sqrt((18/102 - d^2) / 102), here over N - 1
    method, baseline = discordant(12, 4, 84)
    centre = 8 / 102
    half = 1.959964 * ((18 / 102 - centre**2) / 101) ** 0.5
    assert paired_interval(method, baseline) == pytest.approx((0.08, centre - half, centre + half), rel=1e-6)


def test_methods_that_never_differ_still_get_an_interval() -> None:
    same = np.ones(30)
    value, low, high = paired_interval(same, same)
    assert value == 0
    assert low < -0.05
    assert high > 0.05


def test_identical_repeats_do_not_narrow_the_paired_interval() -> None:
    method, baseline = discordant(12, 4, 84)
    clusters = np.repeat(np.arange(100), 5)
    repeated = paired_interval(np.repeat(method, 5), np.repeat(baseline, 5), clusters)
    assert repeated == pytest.approx(paired_interval(method, baseline), rel=1e-9)


def test_paired_interval_covers_the_truth() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        item = rng.random(60)
        method, baseline = (rng.random((5, 60)) < item + 0.1).T.ravel(), (rng.random((5, 60)) < item).T.ravel()
        _, low, high = paired_interval(method, baseline, np.repeat(np.arange(60), 5))
        hits += low <= 0.1 - 0.005 <= high  # E[min(item + 0.1, 1) - item] = 0.095
    assert 0.92 <= hits / 400 <= 0.985


def test_thirty_items_cannot_show_a_small_difference() -> None:
    rng = np.random.default_rng(1)
    method, baseline = rng.binomial(1, 0.7, (2, 30)).astype(float)
    assert minimum_detectable(method, baseline) > 0.2


def test_the_detectable_difference_is_found_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    wide = rng.binomial(1, [[0.5], [0.5]], (2, 400)).astype(float)
    effect = minimum_detectable(*wide)
    found = 0
    for _ in range(200):
        method, baseline = rng.binomial(1, 0.5 + effect / 2, 400), rng.binomial(1, 0.5 - effect / 2, 400)
        found += mcnemar(method, baseline) < 0.05
    assert 0.7 <= found / 200 <= 0.9


def test_the_detectable_difference_is_found_as_often_in_a_table_of_many_methods() -> None:
    """Holm asks more of a lone difference the more methods stand beside it, and so does what is called detectable."""
    rng = np.random.default_rng(5)

    def table(effect: float) -> dict[str, Pair]:
        baseline, *others = rng.binomial(1, 0.5 - effect / 2, (8, 400)).astype(float)
        different = rng.binomial(1, 0.5 + effect / 2, 400).astype(float)
        return {"different": Pair(different, baseline), **{f"{i}": Pair(s, baseline) for i, s in enumerate(others)}}

    effect = float(np.mean([compare(table(0.0))["different"].detectable for _ in range(20)]))
    found = sum(compare(table(effect))["different"].verdict == "better" for _ in range(300))
    assert 0.75 <= found / 300 <= 0.87


def test_verdicts() -> None:
    rng = np.random.default_rng(3)
    baseline = rng.binomial(1, 0.7, 164).astype(float)
    noisy = np.where(rng.random(164) < 0.03, 1 - baseline, baseline)
    scores = {"collapsed": np.zeros(164), "same": noisy, "perfect": np.ones(164)}
    found = compare({name: Pair(values, baseline) for name, values in scores.items()})
    assert {name: c.verdict for name, c in found.items()} == {
        "collapsed": "worse",
        "same": "cannot tell",
        "perfect": "better",
    }
    assert found["same"].detectable > 0.02
    assert found["same"].items == 164


def test_holm_corrects_across_the_table() -> None:
    method, baseline = discordant(9, 1, 90)
    alone = compare({"a": Pair(method, baseline)})["a"]
    others = {f"b{i}": Pair(baseline, baseline) for i in range(9)}
    among = compare({"a": Pair(method, baseline), **others})["a"]
    assert alone.verdict == "better"
    assert among.p == pytest.approx(min(1, 10 * alone.p))
    assert among.verdict == "cannot tell"


def test_false_alarms_stay_rare_when_repeats_agree() -> None:
    rng = np.random.default_rng(4)
    clusters = np.repeat(np.arange(40), 5)
    alarms = 0
    for trial in range(60):
        method, baseline = (np.repeat(rng.binomial(1, 0.5, 40), 5).astype(float) for _ in range(2))
        alarms += compare({"a": Pair(method, baseline, clusters)}, seed=trial)["a"].verdict != "cannot tell"
    assert alarms <= 8


def test_scores_of_different_items_are_refused() -> None:
    with pytest.raises(ValueError, match="paired"):
        paired_interval([1.0, 0.0], [1.0])


def test_statistics_need_no_torch() -> None:
    code = "import sys, sawbench.stats; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
