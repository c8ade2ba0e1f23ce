"""What a model's cache costs on a card and what a method gains, from shapes alone: no weights, no GPU.

results/plan/methods.csv, one row a model, method, card and context: ``model method gpu cards context output``,
``weight_bytes`` (BF16), ``token_bytes`` (KV cache of one token, all layers), ``request_bytes`` (of ``context +
output - 1`` tokens, all layers counted full), ``own_bytes`` (each layer with its own window or chunk: what a request
really holds), ``pool_bytes`` (share of the card less weights), ``fit`` (requests), ``bits`` (per value), ``note``.

results/plan/gains.csv, one row more a concurrency: ``concurrency admitted output_tps gain decode_gain`` (both over
BF16 at the same concurrency, the latter with the prompts' prefill left out), by ``sawbench.throughput.roofline``:
bounds, not measurements.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from sawbench.core.errors import UserError
from sawbench.methods.method import KVMethod
from sawbench.models.architecture import kv_shape
from sawbench.throughput.costs import UNBOUNDED, Cost, cost_of, meta_model, parameters
from sawbench.throughput.loads import Load
from sawbench.throughput.roofline import Rates, roofline

Row = dict[str, Any]


@dataclass(frozen=True)
class Card:
    """``count`` cards that share everything; ``pool`` is what weights leave of ``share`` of their memory."""

    name: str
    memory: float
    rates: Rates
    share: float = 0.88
    count: int = 1

    def pool(self, weight_bytes: float) -> float:
        return max(0.0, self.share * self.memory * self.count - weight_bytes)

    @property
    def together(self) -> Rates:
        """Rates of all cards, what they tell each other left out."""
        return Rates(self.rates.read * self.count, self.rates.matmul * self.count)


@dataclass(frozen=True)
class Plan:
    """A model on a card with a load's lengths."""

    model: str
    config: Any
    card: Card
    context: int
    output: int

    def costs(self, methods: Mapping[str, KVMethod]) -> tuple[dict[str, Cost], dict[str, str]]:
        """Cost by method, and why the others have none."""
        counted = parameters(meta_model(self.config), self.config)
        found, refused = {}, {}
        for name, method in methods.items():
            if method.unservable:
                refused[name] = f"not servable: {method.unservable}"
                continue
            try:
                found[name] = cost_of(method, self.config, counted)
            except UserError as error:
                refused[name] = str(error)
        return found, refused

    def methods(self, costs: Mapping[str, Cost], refused: Mapping[str, str]) -> list[Row]:
        """Rows of methods.csv."""
        head = {"model": self.model, "gpu": self.card.name, "cards": self.card.count, "context": self.context,
                "output": self.output}  # fmt: skip
        rows = [{**head, "method": name, **self._sizes(cost)} for name, cost in costs.items()]
        return rows + [{**head, "method": name, "note": note} for name, note in refused.items()]

    def _sizes(self, cost: Cost) -> Row:
        tokens = self.context + self.output - 1
        pool, own = self.card.pool(cost.weight_bytes), cost.kv_bytes(tokens)
        cards = ceil((cost.weight_bytes + own) / (self.card.share * self.card.memory))
        return {
            "weight_bytes": cost.weight_bytes,
            "token_bytes": cost.token_bytes,
            "request_bytes": full(cost).kv_bytes(tokens),
            "own_bytes": own,
            "pool_bytes": pool,
            "fit": int(pool // own),
            "bits": 8 * cost.token_bytes / kv_shape(self.config).values_per_token,
            "note": "" if own <= pool else f"weights and one request want gpu.count={cards}",
        }

    def gains(self, costs: Mapping[str, Cost], concurrency: Sequence[int]) -> Iterator[Row]:
        """Rows of gains.csv; each load has as many requests as its concurrency."""
        for level in concurrency:
            load = Load("plan", self.context, self.output, level, level)
            bounds = {
                name: roofline(cost, load, self.card.together, self.card.pool(cost.weight_bytes))
                for name, cost in costs.items()
            }
            base = bounds.get("bf16")
            for name, bound in bounds.items():
                yield {
                    "model": self.model,
                    "method": name,
                    "gpu": self.card.name,
                    "cards": self.card.count,
                    "context": self.context,
                    "output": self.output,
                    "concurrency": level,
                    "admitted": bound.admitted if bound else 0,
                    "output_tps": bound.output_tps if bound else None,
                    "gain": bound.output_tps / base.output_tps if bound and base else None,
                    "decode_gain": base.decode_s / bound.decode_s if bound and base else None,
                }


def full(cost: Cost) -> Cost:
    """``cost`` as if every layer kept every token."""
    return replace(cost, windows=((sum(layers for layers, _ in cost.windows), UNBOUNDED),))
