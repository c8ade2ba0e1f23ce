"""Who runs in the next step: admission in order of arrival, chunked prefill mixed with decode, preemption by recompute.

No torch here. A sequence's newest token may still be on its way from the device: its value is then unknown, but not
its place, and that is all that planning the next step needs.
"""

from collections import deque
from dataclasses import dataclass, field

from sawbench.cache.pages import BlockManager
from sawbench.core.engine import Request
from sawbench.core.errors import UserError


@dataclass(eq=False)
class Sequence:
    """A request on its way. ``planned`` counts tokens that are known or in flight, ``cached`` those with K and V."""

    request: Request
    row: int = -1
    generated: list[int] = field(default_factory=list)
    in_flight: int = 0
    cached: int = 0
    pages: list[int] = field(default_factory=list)
    finite: bool = True
    preemptions: int = 0
    done: bool = False

    @property
    def planned(self) -> int:
        return len(self.request.prompt) + len(self.generated) + self.in_flight

    @property
    def drawn(self) -> int:
        """Tokens generated or in flight: the index of the next draw."""
        return len(self.generated) + self.in_flight

    @property
    def exhausted(self) -> bool:
        """Whether its budget is spent once what is in flight has landed."""
        return self.drawn >= self.request.sampling.max_new_tokens

    def token_ids(self) -> list[int]:
        """Prompt and what was generated (nothing may be in flight where the end matters)."""
        return [*self.request.prompt, *self.generated]


@dataclass(frozen=True)
class Chunk:
    """Prompt tokens ``start`` to ``stop`` of a sequence; ``samples`` where a token is drawn at its end."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def samples(self) -> bool:
        return self.stop == self.sequence.planned


@dataclass(frozen=True)
class Step:
    """One forward: a token for each of ``decodes``, then ``chunks``; ``admitted`` got their rows just now."""

    decodes: tuple[Sequence, ...]
    chunks: tuple[Chunk, ...]
    admitted: tuple[Sequence, ...]

    @property
    def sampled(self) -> tuple[Sequence, ...]:
        """Sequences that draw a token, in the order of the step's logits."""
        return (*self.decodes, *(c.sequence for c in self.chunks if c.samples))


class Scheduler:
    """Plans steps over one pool of pages.

    At most ``max_running`` sequences hold pages; a step computes at most ``chunk`` prompt tokens beside its decodes.
    """

    def __init__(self, blocks: BlockManager, max_running: int, chunk: int) -> None:
        self.blocks, self.max_running, self.chunk = blocks, max_running, chunk
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.rows = list(range(max_running - 1, -1, -1))
        self.preemptions = 0

    def add(self, request: Request) -> Sequence:
        """Queue a request.

        Raises:
            UserError: prompt and budget would not fit the pool even alone.
        """
        most = len(request.prompt) + request.sampling.max_new_tokens
        if self.blocks.needed(most) > self.blocks.pages - 1:
            room = (self.blocks.pages - 1) * self.blocks.page_size
            raise UserError(
                f"request {request.id} wants {most} tokens and the KV pool holds {room}: raise engine.kv_bytes"
            )
        sequence = Sequence(request)
        self.waiting.append(sequence)
        return sequence

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def plan(self) -> Step | None:
        """The next step, with pages for it, or None where nothing can be planned until what is in flight has landed."""
        decodes = self._plan_decodes()
        if decodes is None:
            return None
        chunks, admitted = self._plan_chunks()
        return Step(tuple(decodes), tuple(chunks), tuple(admitted)) if decodes or chunks else None

    def launched(self, step: Step) -> None:
        """Account for a step that is on its way."""
        for sequence in step.decodes:
            sequence.cached += 1
        for chunk in step.chunks:
            chunk.sequence.cached = chunk.stop
        for sequence in step.sampled:
            sequence.in_flight += 1

    def landed(self, sequence: Sequence, token: int) -> None:
        """A token of ``sequence`` is known now; tokens that land after its end are dropped."""
        sequence.in_flight -= 1
        if not sequence.done:
            sequence.generated.append(token)

    def finish(self, sequence: Sequence) -> None:
        """Its pages and row are free again; a step already launched for it runs before whatever reuses them."""
        sequence.done = True
        self._release(sequence)

    def _plan_decodes(self) -> list[Sequence] | None:
        """Running sequences whose only missing K and V are those of their newest token, each with a page for it."""
        ready = [s for s in self.running if s.cached and s.planned - s.cached == 1 and s.drawn and not s.exhausted]
        while sum(self.blocks.needed(s.planned, len(s.pages)) for s in ready) > self.blocks.free:
            if any(s.in_flight for s in self.running):
                return None
            victim = self.running[-1]
            self._preempt(victim)
            ready = [s for s in ready if s is not victim]
        for sequence in ready:
            self._grow(sequence, sequence.planned)
        return ready

    def _plan_chunks(self) -> tuple[list[Chunk], list[Sequence]]:
        budget, chunks, admitted = self.chunk, [], []
        for sequence in self.running:
            if budget and self._prefilling(sequence):
                chunks.append(self._cut(sequence, budget))
                budget -= chunks[-1].stop - chunks[-1].start
        while budget and self.waiting and self.rows and len(self.running) < self.max_running:
            if self.blocks.needed(self.waiting[0].planned + 1) > self.blocks.free:
                break
            sequence = self._admit()
            admitted.append(sequence)
            chunks.append(self._cut(sequence, budget))
            budget -= chunks[-1].stop - chunks[-1].start
        return chunks, admitted

    @staticmethod
    def _prefilling(sequence: Sequence) -> bool:
        return (
            sequence.in_flight == 0
            and sequence.cached < sequence.planned
            and (sequence.planned - sequence.cached > 1 or not sequence.drawn)
        )

    @staticmethod
    def _cut(sequence: Sequence, budget: int) -> Chunk:
        return Chunk(sequence, sequence.cached, min(sequence.planned, sequence.cached + budget))

    def _admit(self) -> Sequence:
        sequence = self.waiting.popleft()
        sequence.row = self.rows.pop()
        self.running.append(sequence)
        self._grow(sequence, sequence.planned)
        return sequence

    def _grow(self, sequence: Sequence, tokens: int) -> None:
        sequence.pages += self.blocks.take(self.blocks.needed(tokens, len(sequence.pages)))

    def _preempt(self, sequence: Sequence) -> None:
        """Forget its K and V; it comes back first and computes them again from its tokens."""
        self._release(sequence)
        sequence.cached = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.blocks.give_back(sequence.pages)
        self.rows.append(sequence.row)
        sequence.pages, sequence.row = [], -1
