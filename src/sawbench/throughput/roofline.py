"""The bound that a load's throughput cannot pass, from rates of the card and shapes of the model: one function.

seconds = prefill FLOPs / matmul rate
        + sum over decode steps of max(weight bytes / read rate, linear FLOPs / matmul rate)
        + KV bytes that the decode steps read / read rate

Prefill and decode are summed as if they never overlapped, attention in decode as if it cost its bytes alone, and
writing K and V, norms, sampling and the host as if they cost nothing. Requests run in waves of as many as the
concurrency and the pool admit together; a method that stores fewer bytes then also needs fewer steps.
"""

from dataclasses import dataclass

from sawbench.throughput.costs import Cost
from sawbench.throughput.loads import Load


@dataclass(frozen=True)
class Rates:
    """Of one card, or of several that share the work without cost: ``read`` in bytes/s, ``matmul`` in FLOP/s (BF16)."""

    read: float
    matmul: float


@dataclass(frozen=True)
class Bound:
    """Seconds of the three terms, and what the load writes in them."""

    prefill_s: float
    weights_s: float
    kv_s: float
    output_tokens: int
    admitted: int

    @property
    def seconds(self) -> float:
        return self.prefill_s + self.decode_s

    @property
    def decode_s(self) -> float:
        return self.weights_s + self.kv_s

    @property
    def output_tps(self) -> float:
        """Output tokens/s of the job."""
        return self.output_tokens / self.seconds


def admitted(cost: Cost, load: Load, pool_bytes: float) -> int:
    """Requests of ``load`` that run side by side to their end in a pool of so many bytes."""
    return min(load.concurrency, load.requests, int(pool_bytes // cost.kv_bytes(load.tokens)))


def roofline(cost: Cost, load: Load, rates: Rates, pool_bytes: float) -> Bound | None:
    """The bound of ``load``; None where the pool does not hold even one request.

    A request's first token comes from its prefill, so that it takes part in ``output_tokens - 1`` decode steps.
    """
    width = admitted(cost, load, pool_bytes)
    if not width:
        return None
    steps = load.output_tokens - 1
    full, rest = divmod(load.requests, width)
    waves = [(full, width), (1, rest)] if rest else [(full, width)]
    weights = sum(count * steps * decode_weights(cost, batch, rates) for count, batch in waves)
    stored = sum(cost.kv_bytes(load.input_tokens + step) for step in range(1, load.output_tokens))
    return Bound(
        prefill_s=load.requests * cost.prefill_flops(load.input_tokens) / rates.matmul,
        weights_s=weights,
        kv_s=load.requests * stored / rates.read,
        output_tokens=load.requests * load.output_tokens,
        admitted=width,
    )


def decode_weights(cost: Cost, batch: int, rates: Rates) -> float:
    """Seconds that the matrix products of one decode step take: bound by reading the weights, or by multiplying."""
    p = cost.parameters
    return max(p.read(batch) * cost.itemsize / rates.read, 2 * p.decode * batch / rates.matmul)


def step_floor(cost: Cost, batch: int, context: int, rates: Rates) -> float:
    """Seconds of one decode step of ``batch`` sequences, each with ``context`` tokens stored."""
    return decode_weights(cost, batch, rates) + batch * cost.kv_bytes(context) / rates.read
