"""Log-likelihoods from teacher-forced logits."""

import torch
from torch import Tensor

from sawbench.core.engine import LogLikelihood


def score(logits: Tensor, answer: tuple[int, ...]) -> LogLikelihood:
    """Sum of log-probabilities of ``answer`` under logits [len(answer), V], row i predicting answer[i]."""
    target = torch.tensor(answer, device=logits.device)
    total = logits.log_softmax(-1).gather(-1, target[:, None]).sum()
    return LogLikelihood(float(total), bool((logits.argmax(-1) == target).all()), len(answer))
