"""The pieces of a generation step that transformers calls, and what its rows become."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from sawbench.core.engine import Completion, Finish, Request
from sawbench.engine.sampling import Knobs, draw, text_until, uniforms

STOP_TAIL = 64  # tokens of text that are searched for a stop string at each step


def left_padded(rows: Sequence[tuple[int, ...]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, int64 [B, T], padded on the left with token 0."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


class RowSampler(LogitsProcessor):
    """Draws each row's token by its own sampling and leaves it as the only candidate of a greedy step."""

    def __init__(self, batch: Sequence[Request], prompt_width: int) -> None:
        self.prompt_width = prompt_width
        self.finite = torch.ones(len(batch), dtype=torch.bool)
        self.samplings = [r.sampling for r in batch]
        most = max(s.max_new_tokens for s in self.samplings)
        # A row that is done goes on until the batch is: its spare draws are never read.
        spare = [torch.nn.functional.pad(uniforms(s), (0, most - s.max_new_tokens)) for s in self.samplings]
        self.uniforms = torch.stack(spare)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = input_ids.shape[1] - self.prompt_width
        self.finite = self.finite.to(scores.device) & scores.isfinite().all(-1)
        safe = scores.nan_to_num()
        if all(s.temperature == 0 for s in self.samplings):
            return safe
        tokens = draw(safe, Knobs.of(self.samplings, safe.device), self.uniforms[:, step].to(safe.device))
        return torch.full_like(safe, -torch.inf).scatter_(1, tokens[:, None], 0.0)


class RowStop(StoppingCriteria):
    """Ends a row at its own token budget, its end-of-text token, or its stop strings."""

    def __init__(self, batch: Sequence[Request], tokenizer: Any, eos_ids: tuple[int, ...], prompt_width: int) -> None:
        self.batch, self.tokenizer, self.prompt_width = batch, tokenizer, prompt_width
        self.eos = torch.tensor(eos_ids)
        self.heeds_eos = torch.tensor([not r.sampling.ignore_eos for r in batch])
        self.budget = torch.tensor([r.sampling.max_new_tokens for r in batch])
        self.done = torch.zeros(len(batch), dtype=torch.bool)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        device = input_ids.device
        ended = torch.isin(input_ids[:, -1], self.eos.to(device)) & self.heeds_eos.to(device)
        spent = input_ids.shape[1] - self.prompt_width >= self.budget.to(device)
        self.done = self.done.to(device) | ended | spent | self._stopped(input_ids).to(device)
        return self.done

    def _stopped(self, input_ids: Tensor) -> Tensor:
        if not any(r.sampling.stop for r in self.batch):
            return torch.zeros(len(self.batch), dtype=torch.bool)
        start = max(self.prompt_width, input_ids.shape[1] - STOP_TAIL)
        tails = self.tokenizer.batch_decode(input_ids[:, start:])
        return torch.tensor([text_until(t, r.sampling.stop)[1] for t, r in zip(tails, self.batch, strict=True)])


def completion(request: Request, row: list[int], tokenizer: Any, eos_ids: tuple[int, ...], finite: bool) -> Completion:
    """What a finished row of generated ids (padding behind its end included) says."""
    tokens = row[: request.sampling.max_new_tokens]
    finish: Finish = "length"
    if not request.sampling.ignore_eos:
        ends = [at for at, token in enumerate(tokens) if token in eos_ids]
        if ends:
            tokens, finish = tokens[: ends[0] + 1], "stop"
    text, stopped = text_until(tokenizer.decode(tokens, skip_special_tokens=True), request.sampling.stop)
    if stopped:
        tokens, finish = _until_stop(tokens, tokenizer, request.sampling.stop), "stop"
    return Completion(request.id, tuple(tokens), text, finish, finite)


def _until_stop(tokens: list[int], tokenizer: Any, stops: tuple[str, ...]) -> list[int]:
    """The shortest beginning of ``tokens`` whose text holds a stop string: padding behind it is not the model's."""
    low, high = 1, len(tokens)
    while low < high:
        middle = (low + high) // 2
        if text_until(tokenizer.decode(tokens[:middle], skip_special_tokens=True), stops)[1]:
            high = middle
        else:
            low = middle + 1
    return tokens[:low]
