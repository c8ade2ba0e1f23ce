"""Per-head mixed precision (the paper's digest, "A second reading"): the heads that hurt most keep more bits.

How much a head hurts is measured on calibration text: K or V of one head alone is stored with few bits, and the output
of its layer's attention compared. The most sensitive heads of the whole model, K and V together, get ``high`` bits
until the average is spent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sawbench.core.errors import UserError, illegal
from sawbench.methods.parts import LayerSample, ModelFacts, Planes, SideName, Site
from sawbench.methods.quantizers import AffineInt, Raw, Storage, TokenByToken

HIGH = (8, 16)


@dataclass(frozen=True)
class MixedHeads:
    """Heads of two widths: ``low`` bits in groups of ``group`` dimensions, or ``high`` (8 with one range a head, or 16:
    bfloat16) for as many heads as an average of ``average_bits`` a code pays for."""

    low: int = 4
    high: int = 8
    average_bits: float = 5.0
    group: int | Literal["head"] = 32
    storage: Storage = "fp16"
    calibration_tokens: int = 2048

    stepwise: ClassVar[bool] = False
    unservable: ClassVar[str] = "heads keep different bits, other ones in each layer: no uniform pages"

    def quantizer(self, bits: int) -> AffineInt | Raw:
        if bits == 16:
            return Raw("bfloat16")
        return AffineInt(bits, self.group if bits == self.low else "head", self.storage)

    def check(self, facts: ModelFacts, side: SideName) -> None:
        """Raises UserError for widths that are not, a group that does not divide head_dim, or an average that lies
        outside of the two widths."""
        if self.high not in HIGH:
            raise illegal("method.options.high", self.high, HIGH)
        if not 2 <= self.low < self.high or not self.low <= self.average_bits <= self.high:
            raise UserError(
                f"method.options.average_bits={self.average_bits} must lie between low={self.low} and high={self.high}"
            )
        self.quantizer(self.low).check(facts, side)

    def fit(self, sample: LayerSample, side: SideName, seed: int) -> dict[str, Tensor]:
        """``sensitivity`` float32 [H]: relative error of the layer's attention output when this side of one head alone
        has ``low`` bits."""
        x = sample.side(side)
        stored = self.quantizer(self.low)
        coarse = stored.decode(stored.encode(x[None]), x.shape[-1], x.dtype)[0]
        changed = replace(sample, key=coarse) if side == "key" else replace(sample, value=coarse)
        return {"sensitivity": output_errors(sample, changed)}

    def synthetic(self, facts: ModelFacts, side: SideName, generator: torch.Generator) -> dict[str, Tensor]:
        return {"sensitivity": torch.rand(facts.shape.kv_heads, generator=generator)}

    def settle(self, tensors: Mapping[str, Tensor], side: SideName) -> dict[str, Tensor]:
        """``bits`` uint8 [H] of this side of every layer, by the sensitivities of K and V over all layers."""
        names = sorted(name for name in tensors if name.endswith(".sensitivity"))
        every = torch.cat([tensors[name] for name in names])
        paid = int((self.average_bits - self.low) / (self.high - self.low) * len(every) + 1e-9)
        bits = torch.full_like(every, self.low, dtype=torch.uint8)
        bits[every.argsort(descending=True, stable=True)[:paid]] = self.high
        heads = dict(zip(names, bits.split([len(tensors[name]) for name in names]), strict=True))
        return {
            name.replace(".sensitivity", ".bits"): own.clone() for name, own in heads.items() if name.startswith(side)
        }

    def bind(self, site: Site) -> "BoundMixedHeads":
        bits = site.tensors["bits"]
        widths = [width for width in (self.low, self.high) if bool((bits == width).any())]
        return BoundMixedHeads(
            {width: self.quantizer(width) for width in widths},
            {width: (bits == width).nonzero()[:, 0] for width in widths},
        )


@dataclass(frozen=True)
class BoundMixedHeads(TokenByToken):
    """The heads of one side of one layer, int64 indices by width, and what each width's become."""

    quantizers: Mapping[int, AffineInt | Raw]
    heads: Mapping[int, Tensor]

    def bytes_per_vector(self, head_dim: int) -> float:
        total = sum(len(self.heads[width]) * one.bytes_per_vector(head_dim) for width, one in self.quantizers.items())
        return total / sum(map(len, self.heads.values()))

    def encode(self, x: Tensor) -> Planes:
        """Planes of each width's heads, ``codes.4``, ``pair.4``, ``codes.8``, ..."""
        return {
            f"{name}.{width}": plane
            for width, one in self.quantizers.items()
            for name, plane in one.encode(x[:, :, self.heads[width]]).items()
        }

    def decode(self, planes: Planes, head_dim: int, dtype: torch.dtype) -> Tensor:
        parts = []
        for width, one in self.quantizers.items():
            own = {name.rpartition(".")[0]: plane for name, plane in planes.items() if name.endswith(f".{width}")}
            parts.append(one.decode(own, head_dim, dtype))
        return torch.cat(parts, 2)[:, :, torch.cat([*self.heads.values()]).argsort()]


def output_errors(exact: LayerSample, stored: LayerSample) -> Tensor:
    """Float32 [H]: how far the layer's output, after its projection, moves when one KV head alone is ``stored``,
    relative to its norm. Heads meet in the projection only, so that one pass over all of them tells each one's part."""
    kv_heads = exact.key.shape[1]
    output = attention_output(exact)
    moved = (attention_output(stored) - output).unflatten(1, (kv_heads, -1))
    weights = exact.output_weight.unflatten(1, (kv_heads, -1))
    parts = torch.stack([(moved[:, head] @ weights[:, head].T).norm() for head in range(kv_heads)])
    return parts / (output @ exact.output_weight.T).norm().clamp_min(torch.finfo(output.dtype).tiny)


def attention_output(sample: LayerSample) -> Tensor:
    """[T, Hq * D], each window of tokens causal and by itself."""
    size = sample.window or len(sample.query)
    query, key, value = (x.transpose(0, 1)[None].split(size, 2) for x in (sample.query, sample.key, sample.value))
    outputs = [
        scaled_dot_product_attention(q, k, v, is_causal=True, scale=sample.scaling, enable_gqa=True)
        for q, k, v in zip(query, key, value, strict=True)
    ]
    return torch.cat(outputs, 2)[0].transpose(0, 1).flatten(1)


def sensitivity_rows(tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """What an artifact says of its heads: layer, head, side, error, bits assigned; none where it says nothing."""
    rows = []
    for name in sorted(name for name in tensors if name.endswith(".sensitivity")):
        side, layer, _ = name.split(".")
        pairs = zip(tensors[name].tolist(), tensors[f"{side}.{layer}.bits"].tolist(), strict=True)
        rows += [
            {"layer": int(layer), "head": head, "side": side, "error": error, "bits": bits}
            for head, (error, bits) in enumerate(pairs)
        ]
    return sorted(rows, key=lambda row: (row["side"], row["layer"], row["head"]))
