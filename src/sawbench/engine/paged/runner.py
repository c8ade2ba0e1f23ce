"""One step of the model: flat tokens in, a drawn token for each sequence that asks for one."""

from typing import Any

import torch
from torch import Tensor

from sawbench.attention.paged import ChunkPlace, PagedCache, PagedStep, attending
from sawbench.engine.paged.rows import Rows
from sawbench.engine.paged.scheduler import Step
from sawbench.engine.sampling import draw


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token of each row [B, V], and whether all its logits were finite."""
    return logits.nan_to_num().argmax(-1), logits.isfinite().all(-1)


class Runner:
    """Runs steps eagerly; the new tokens stay on the device until somebody asks."""

    def __init__(self, model: Any, cache: PagedCache, rows: Rows) -> None:
        self.model, self.cache, self.rows = model, cache, rows

    def admit(self, step: Step) -> None:
        """Tell the device of the sequences and pages that are new in ``step``."""
        for sequence in step.admitted:
            self.rows.admit(sequence)
        self.rows.sync_pages([*step.decodes, *(c.sequence for c in step.chunks)])

    @torch.inference_mode()
    def run(self, step: Step) -> tuple[Tensor, Tensor]:
        """Tokens int64 [sampled] and whether their logits were finite, bool [sampled]; both on the device."""
        self.admit(step)
        logits = self.logits(step, self._sampled_places(step))
        return self.sample(logits, self.rows.sent([s.row for s in step.sampled]))

    def logits(self, step: Step, places: Tensor) -> Tensor:
        """Logits [len(places), V] of the step's flat tokens ``places``, after K and V of all tokens are stored."""
        rows = self.rows.sent([s.row for s in step.decodes])
        prompt = self.rows.sent([t for c in step.chunks for t in c.sequence.token_ids()[c.start : c.stop]])
        ids = torch.cat((self.rows.tokens[rows], prompt))
        paged = self._place(step, rows)
        for chunk in step.chunks:
            self.rows.lengths[chunk.sequence.row] = chunk.stop
        self.rows.lengths[rows] += 1
        return self.forward(ids, paged, places)

    def forward(self, ids: Tensor, paged: PagedStep, places: Tensor) -> Tensor:
        """The model itself, on flat tokens [T]."""
        with attending(self.model, paged):
            out = self.model(
                input_ids=ids[None], position_ids=paged.positions[None], use_cache=False, logits_to_keep=places
            )
        return out.logits[0]

    def sample(self, logits: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Draw for ``rows`` and note the draw on the device."""
        tokens, finite = self.draw(logits, rows)
        self.rows.tokens[rows] = tokens
        self.rows.drawn[rows] += 1
        return tokens, finite

    def draw(self, logits: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens by each row's own knobs, plain argmax where no request of this run samples; and whether all logits
        were finite."""
        if self.rows.uniforms.shape[1] == 1:
            return self.greedy(logits)
        finite = logits.isfinite().all(-1)
        wide = logits.nan_to_num().to(torch.promote_types(logits.dtype, torch.float32))
        last = self.rows.uniforms.shape[1] - 1  # greedy rows, which use none, may have drawn more than any other will
        uniform = self.rows.uniforms[rows, self.rows.drawn[rows].clamp_max(last)]
        knobs = self.rows.knobs
        return draw(wide, type(knobs)(knobs.temperature[rows], knobs.top_p[rows], knobs.top_k[rows]), uniform), finite

    def greedy(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return greedy(logits)

    def _place(self, step: Step, rows: Tensor) -> PagedStep:
        tables = self.rows.tables
        at = self.rows.lengths[rows]
        spans = [torch.arange(c.start, c.stop, device=self.rows.device) for c in step.chunks]
        owners = [torch.full((c.stop - c.start,), c.sequence.row, device=self.rows.device) for c in step.chunks]
        positions, owner = torch.cat((at, *spans)), torch.cat((rows, *owners))
        size = self.cache.page_size
        slots = tables[owner, positions // size].to(torch.int64) * size + positions % size
        chunks = [ChunkPlace(c.stop - c.start, c.stop, tables[c.sequence.row]) for c in step.chunks]
        return PagedStep(self.cache, slots, positions, tables[rows], (at + 1).to(torch.int32), chunks)

    def _sampled_places(self, step: Step) -> Tensor:
        places = list(range(len(step.decodes)))
        end = len(step.decodes)
        for chunk in step.chunks:
            end += chunk.stop - chunk.start
            places += [end - 1] * chunk.samples
        return self.rows.sent(places)
