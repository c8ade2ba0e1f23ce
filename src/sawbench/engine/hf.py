"""The engine on transformers.generate: any decoder, padded batches, the quantized cache in every forward."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
import transformers
from torch import Tensor

from sawbench.attention.hf import cache_argument, install, watching_positions
from sawbench.cache.hf import QuantizedCache, report_of_rows
from sawbench.core.engine import CacheReport, Completion, LogLikelihood, Request
from sawbench.core.replay import KeyChannel, LayerError, Replay
from sawbench.engine.key_profile import KeyMeter
from sawbench.engine.layer_errors import ErrorMeter
from sawbench.engine.scores import score
from sawbench.engine.steps import RowSampler, RowStop, completion, left_padded
from sawbench.methods.method import KVMethod
from sawbench.models import LoadedModel


class HFEngine:
    """One loaded model with one method's cache behind it.

    ``chunk`` > 0 writes prompts ``chunk`` tokens at a time; ``prefill`` quantized lets a prompt's tokens attend to what
    is stored, as the paper's system does, exact to the unquantized chunk (whole prompts only). Where what a token sees
    depends on the chunk (a method that is ``stepwise``) answers are replayed token by token, and chunked prompts run
    one by one, since padding would move their cuts.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        method: KVMethod,
        tensors: Mapping[str, Tensor],
        *,
        batch_size: int = 8,
        chunk: int = 0,
        prefill: Literal["quantized", "exact"] = "quantized",
    ) -> None:
        self.loaded, self.method = loaded, method
        self.model, self.tokenizer, self.max_length = loaded.model, loaded.tokenizer, loaded.max_length
        self.batch_size, self.chunk, self.prefill = 1 if chunk and method.stepwise else batch_size, chunk, prefill
        self.device = next(self.model.parameters()).device
        self.layers = method.bind(loaded.facts, tensors, self.device)
        self.fullest = CacheReport({}, 0, 0)

    def new_cache(self) -> QuantizedCache:
        """A fresh cache, one a call, and the model made to read it."""
        install(self.model)
        return QuantizedCache(self.layers, self.loaded.shape, self.prefill == "exact")

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        """Completions batch by batch, longest prompts first (so that running out of memory shows at once)."""
        ordered = sorted(requests, key=lambda r: -len(r.prompt))
        for batch in _batches(ordered, self.batch_size):
            yield from self._generate(batch)

    @torch.inference_mode()
    def _generate(self, batch: Sequence[Request]) -> list[Completion]:
        ids, mask = left_padded([r.prompt for r in batch], self.device)
        sampler = RowSampler(batch, ids.shape[1])
        stop = RowStop(batch, self.tokenizer, self.loaded.eos_ids, ids.shape[1])
        cache = self.new_cache()
        with watching_positions(self.model, cache):
            out = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                **{cache_argument(self.model): cache},
                do_sample=False,
                max_new_tokens=max(r.sampling.max_new_tokens for r in batch),
                prefill_chunk_size=self.chunk or None,
                logits_processor=transformers.LogitsProcessorList([sampler]),
                stopping_criteria=transformers.StoppingCriteriaList([stop]),
                eos_token_id=None,
                pad_token_id=0,
            )
        self._note(cache)
        rows = out[:, ids.shape[1] :].tolist()
        finite = sampler.finite.tolist()
        return [
            completion(r, row, self.tokenizer, self.loaded.eos_ids, ok)
            for r, row, ok in zip(batch, rows, finite, strict=True)
        ]

    def loglikelihood(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[LogLikelihood]:
        """Scores of continuations; an empty context is one end-of-text token."""
        items = [Replay(str(i), tuple(c) or self.loaded.eos_ids[:1], tuple(a)) for i, (c, a) in enumerate(pairs)]
        return [score(logits, item.answer) for logits, item in zip(self.replay(items), items, strict=True)]

    def replay(self, items: Sequence[Replay], chunk: int | None = None) -> Iterator[Tensor]:
        """Teacher-forced logits, float32 (or wider) [len(answer), V], in order; ``chunk`` overrides the engine's.

        Under exact prefill an item's prompt alone is its first chunk, or no answer token would read what is stored.
        """
        size = self.chunk if chunk is None else chunk
        if self.method.stepwise:
            for batch in _batches(items, 1 if size else self.batch_size):
                yield from self._replay_stepwise(batch, size)
            return
        for batch in _batches(items, 1 if self.prefill == "exact" else self.batch_size):
            yield from self._replay(batch, len(batch[0].prompt) if self.prefill == "exact" else 0, size)

    @torch.inference_mode()
    def _replay(self, batch: Sequence[Replay], first: int, chunk: int) -> list[Tensor]:
        ids, mask = left_padded([r.prompt + r.answer for r in batch], self.device)
        total, keep = ids.shape[1], max(len(r.answer) for r in batch) + 1
        cache = self.new_cache()
        logits = self._forward(ids, mask, cache, keep, [*range(first, total, chunk or total)])
        self._note(cache)
        return [row[keep - 1 - len(r.answer) : keep - 1] for row, r in zip(logits, batch, strict=True)]

    @torch.inference_mode()
    def _replay_stepwise(self, batch: Sequence[Replay], chunk: int) -> list[Tensor]:
        """Prompts as ``generate`` writes them, then one answer token of every row a forward; shorter answers go on with
        token 0, which nobody reads."""
        ids, mask = left_padded([r.prompt for r in batch], self.device)
        start, steps = ids.shape[1], max(len(r.answer) for r in batch)
        answers = torch.tensor([[*r.answer, *[0] * (steps - len(r.answer))] for r in batch], device=self.device)
        ids, mask = torch.cat((ids, answers), 1), torch.cat((mask, torch.ones_like(answers)), 1)
        cache, cuts = self.new_cache(), [*range(0, start, chunk or start), *range(start, start + steps)]
        logits = self._forward(ids, mask, cache, steps + 1, cuts)
        self._note(cache)
        return [row[: len(r.answer)] for row, r in zip(logits, batch, strict=True)]

    def _forward(self, ids: Tensor, mask: Tensor, cache: QuantizedCache, keep: int, cuts: Sequence[int] = ()) -> Tensor:
        """Logits of the last ``keep`` positions, [B, keep, V], float32 or wider, chunk by chunk between ``cuts``."""
        total = ids.shape[1]
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        parts = []
        with watching_positions(self.model, cache):
            for start, stop in pairwise(sorted({0, *cuts, total})):
                wanted = stop - max(start, total - keep)
                out = self.model(
                    input_ids=ids[:, start:stop],
                    attention_mask=mask[:, :stop],
                    position_ids=positions[:, start:stop],
                    **{cache_argument(self.model): cache},
                    use_cache=True,
                    logits_to_keep=max(wanted, 1),
                )
                if wanted > 0:
                    parts.append(out.logits)
        logits = torch.cat(parts, 1)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def layer_errors(self, items: Sequence[Replay]) -> list[LayerError]:
        """Errors of every layer and KV head, one item at a time and in one chunk."""
        meter = ErrorMeter()
        self._watch(items, meter)
        return meter.errors()

    def key_channels(self, items: Sequence[Replay]) -> list[KeyChannel]:
        """Keys by layer, head and channel, before and after offset and transform."""
        meter = KeyMeter()
        self._watch(items, meter)
        return meter.channels()

    @torch.inference_mode()
    def _watch(self, items: Sequence[Replay], observer: Callable[..., None]) -> None:
        """Run each item alone and in one chunk; ``observer`` sees every attention."""
        for item in items:
            ids, mask = left_padded([item.prompt + item.answer], self.device)
            cache = self.new_cache()
            cache.on_attention = observer
            self._forward(ids, mask, cache, 1)

    def _note(self, cache: QuantizedCache) -> None:
        report = cache.report()
        if report.tokens > self.fullest.tokens:
            self.fullest = report

    def cache_report(self) -> CacheReport:
        return self.fullest

    def report_of_rows(self, lengths: Sequence[int]) -> CacheReport:
        """What rows of so many tokens store: with a window (a ``stepwise`` method) not what the fullest batch did."""
        return report_of_rows(self.layers, self.loaded.shape, lengths, self.model.dtype)

    def describe(self) -> dict[str, Any]:
        """Engine, attention backend, prefill, dtypes and versions, for the record."""
        return {
            "engine": "hf",
            "attention": "naive",
            "prefill": self.prefill,
            "chunk": self.chunk,
            "stepwise": self.method.stepwise,
            "compute_dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.device),
            "transformers": transformers.__version__,
        }


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
