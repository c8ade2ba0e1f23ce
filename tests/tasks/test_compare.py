"""Two sets of logits, compared: the definitions of KL, agreement and perplexity, and what is not finite."""

import math

import pytest
import torch

from sawbench.tasks.compare import BLOCK, compare


def test_kl_agreement_and_likelihoods_of_a_case_worked_by_hand() -> None:
    reference = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]).log()
    method = torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.2, 0.7]]).log()
    found = compare(reference, method, (0, 2))
    assert found.kl == pytest.approx([0.5 * math.log(2) + 0.25 * math.log(0.5), 0.0], abs=1e-7)
    assert found.agree == [False, True]
    assert found.reference_nll == pytest.approx([-math.log(0.5), -math.log(0.7)])
    assert found.nll == pytest.approx([-math.log(0.25), -math.log(0.7)])
    assert found.divergence == 0


def test_equal_logits_have_no_divergence() -> None:
    logits = torch.randn(5, 11, generator=torch.Generator().manual_seed(0))
    found = compare(logits, logits + 3.0, (1, 2, 3, 4, 5))  # a constant changes no distribution
    assert max(map(abs, found.kl)) < 1e-6  # type: ignore[arg-type]
    assert found.divergence is None


def test_rows_do_not_depend_on_the_block_they_fall_into() -> None:
    generator = torch.Generator().manual_seed(1)
    reference, method = torch.randn(2, 2 * BLOCK + 3, 7, generator=generator)
    answer = tuple(at % 7 for at in range(len(reference)))
    whole = compare(reference, method, answer)
    last = compare(reference[-1:], method[-1:], answer[-1:])
    assert (len(whole.kl), whole.kl[-1], whole.nll[-1]) == (len(answer), last.kl[0], last.nll[0])
    assert min(whole.kl) >= 0  # type: ignore[type-var]


def test_what_is_not_finite_is_none_and_spoils_no_other_row() -> None:
    reference = torch.zeros(2, 3)
    found = compare(reference, torch.tensor([[math.nan, 0.0, 0.0], [0.0, 0.0, 0.0]]), (0, 0))
    assert found.kl == [None, 0.0]
    assert found.nll == [None, pytest.approx(math.log(3))]


def test_a_token_that_both_forbid_weighs_nothing() -> None:
    masked = torch.tensor([[0.0, 0.0, -math.inf]])
    assert compare(masked, masked, (0,)).kl == [0.0]
