"""What the device knows of the running sequences, one row each: enough to make a decode step without the host."""

import numpy as np
import torch
from torch import Tensor

from sawbench.engine.paged.scheduler import Sequence
from sawbench.engine.sampling import Knobs, uniforms


class Rows:
    """State of ``count`` rows and of one more, the last, that pads a captured graph's batch.

    ``tokens`` int64 [R] newest token; ``lengths`` int64 [R] tokens whose K and V are stored; ``tables`` int32
    [R, pages]; ``drawn`` int64 [R] draws made. Sampling: ``knobs`` and ``uniforms`` float64 [R, draws], the latter only
    as wide as a sampling request has needed.
    """

    def __init__(self, count: int, pages: int, device: torch.device) -> None:
        self.count, self.device = count, device
        self.tokens = torch.zeros(count + 1, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(count + 1, dtype=torch.int64, device=device)
        self.drawn = torch.zeros(count + 1, dtype=torch.int64, device=device)
        self.tables = torch.zeros(count + 1, pages, dtype=torch.int32, device=device)
        zeros = torch.zeros(count + 1, dtype=torch.float64, device=device)
        self.knobs = Knobs(zeros, torch.ones_like(zeros), torch.zeros(count + 1, dtype=torch.int64, device=device))
        self.uniforms = torch.zeros(count + 1, 1, dtype=torch.float64, device=device)
        self._known = np.zeros(count + 1, dtype=np.int64)  # pages of each row that the device has

    @property
    def padding(self) -> int:
        return self.count

    def reserve(self, draws: int) -> None:
        """Room for ``draws`` uniform numbers a row. The tensor moves: graphs captured before are void."""
        if self.uniforms.shape[1] < draws:
            self.uniforms = torch.zeros(self.count + 1, draws, dtype=torch.float64, device=self.device)

    def admit(self, sequence: Sequence) -> None:
        """Set a row up for a sequence that starts, or starts again after preemption."""
        row, sampling = sequence.row, sequence.request.sampling
        self.tokens[row] = sequence.token_ids()[-1]
        self.drawn[row] = sequence.drawn
        self._known[row] = 0
        self.knobs.temperature[row] = sampling.temperature
        if sampling.temperature > 0:
            self.knobs.top_p[row] = sampling.top_p
            self.knobs.top_k[row] = sampling.top_k
            self.uniforms[row, : sampling.max_new_tokens] = self._sent(uniforms(sampling))

    def sync_pages(self, sequences: list[Sequence]) -> None:
        """Tell the device which pages were added to these sequences since it last heard."""
        new = [(s.row, at, s.pages[at]) for s in sequences for at in range(int(self._known[s.row]), len(s.pages))]
        for sequence in sequences:
            self._known[sequence.row] = len(sequence.pages)
        if new:
            row, at, page = self._sent(torch.tensor(new)).unbind(1)
            self.tables[row, at] = page.to(torch.int32)

    def sent(self, values: list[int]) -> Tensor:
        """int64 values on the device, without waiting for it."""
        return self._sent(torch.tensor(values, dtype=torch.int64))

    def _sent(self, host: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return host
        return host.pin_memory().to(self.device, non_blocking=True)
