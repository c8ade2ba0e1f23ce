"""What is subtracted from K or V before it is rotated and quantized, and added back exactly when it is read.

A good offset leaves a residual with a small range: nothing, a mean per channel, the nearest centroid of a codebook, or
the part of a key that its bias makes.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sawbench.core.errors import UserError, illegal
from sawbench.methods.parts import LayerSample, ModelFacts, Planes, SideName, Site
from sawbench_kernels.key_bias import Rotary, enough_pairs, rotated_bias, split_bias
from sawbench_kernels.kmeans_assign.naive import assign

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NoOffset:
    """Nothing is subtracted."""

    def check(self, facts: ModelFacts, side: SideName) -> None:
        pass

    def bind(self, site: Site) -> "NoOffset":
        return self

    @property
    def centroids(self) -> Tensor | None:
        return None

    def describe(self, x: Tensor) -> Planes:
        return {}

    def value(self, planes: Planes, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        return None

    def shared(self) -> Mapping[str, Tensor]:
        return {}


@dataclass(frozen=True)
class Centre:
    """A static mean per layer, head and channel, from calibration text."""

    calibration_tokens: int = 4096

    def check(self, facts: ModelFacts, side: SideName) -> None:
        pass

    def fit(self, sample: LayerSample, side: SideName, seed: int) -> dict[str, Tensor]:
        return {"mean": sample.side(side).mean(0)}

    def synthetic(self, facts: ModelFacts, side: SideName, generator: torch.Generator) -> dict[str, Tensor]:
        return {"mean": torch.randn(facts.shape.kv_heads, facts.shape.head_dim, generator=generator)}

    def bind(self, site: Site) -> "BoundCentre":
        return BoundCentre(site.tensors["mean"])


@dataclass(frozen=True)
class BoundCentre:
    mean: Tensor
    """[H, D]"""

    @property
    def centroids(self) -> Tensor | None:
        return self.mean[None, None]

    def describe(self, x: Tensor) -> Planes:
        return {}

    def value(self, planes: Planes, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        return self.mean.to(dtype)

    def shared(self) -> Mapping[str, Tensor]:
        return {"mean": self.mean}


@dataclass(frozen=True)
class Codebook:
    """K-means vector quantization (paper, K-means VQ): a token stores the index of its nearest centroid.

    ``centroids`` C; the vectors clustered are those of all KV heads of a token joined, or of ``heads_per_codebook``
    neighbouring heads (4 is what the published two-GPU runs did). Indices are uint8 up to C = 256, uint16 above.
    """

    centroids: int = 16
    heads_per_codebook: int | Literal["all"] = "all"
    calibration_tokens: int = 4096

    def check(self, facts: ModelFacts, side: SideName) -> None:
        """Raises UserError for a codebook that two bytes cannot index, or heads that do not divide."""
        if not 1 <= self.centroids <= 65536:
            raise UserError(f"method.options.centroids={self.centroids} is not between 1 and 65536")
        if facts.shape.kv_heads % self._heads(facts):
            divisors = [h for h in range(1, facts.shape.kv_heads + 1) if facts.shape.kv_heads % h == 0]
            raise illegal(
                f"{facts.name}: method.options.heads_per_codebook", self.heads_per_codebook, ["all", *divisors]
            )

    def _heads(self, facts: ModelFacts) -> int:
        return facts.shape.kv_heads if self.heads_per_codebook == "all" else self.heads_per_codebook

    def fit(self, sample: LayerSample, side: SideName, seed: int) -> dict[str, Tensor]:
        """``codebooks`` float32 [books, C, heads, D] by Lloyd's algorithm with k-means++ starts.

        Raises:
            UserError: there are fewer tokens than centroids.
        """
        from sklearn.cluster import KMeans

        x = sample.side(side)
        if len(x) < self.centroids:
            raise UserError(f"method.options.centroids={self.centroids} needs as many calibration tokens; got {len(x)}")
        heads = x.shape[1] if self.heads_per_codebook == "all" else self.heads_per_codebook
        books = []
        for part in x.split(heads, 1):
            model = KMeans(self.centroids, n_init=1, max_iter=50, random_state=seed).fit(part.flatten(1).numpy())
            books.append(torch.from_numpy(model.cluster_centers_).float().unflatten(-1, (heads, -1)))
        return {"codebooks": torch.stack(books)}

    def synthetic(self, facts: ModelFacts, side: SideName, generator: torch.Generator) -> dict[str, Tensor]:
        heads = self._heads(facts)
        shape = (facts.shape.kv_heads // heads, self.centroids, heads, facts.shape.head_dim)
        return {"codebooks": torch.randn(shape, generator=generator)}

    def bind(self, site: Site) -> "BoundCodebook":
        return BoundCodebook(site.tensors["codebooks"])


@dataclass(frozen=True)
class BoundCodebook:
    codebooks: Tensor
    """[books, C, heads, D]"""

    @property
    def centroids(self) -> Tensor | None:
        return self.codebooks

    @property
    def index_dtype(self) -> torch.dtype:
        return torch.uint8 if self.codebooks.shape[1] <= 256 else torch.uint16

    def describe(self, x: Tensor) -> Planes:
        """``index`` uint8 or uint16 [B, T, books]: the nearest centroid, sought before any rotation."""
        heads = self.codebooks.shape[2]
        parts = zip(x.split(heads, -2), self.codebooks, strict=True)
        indices = [assign(part.flatten(-2), book.flatten(-2)) for part, book in parts]
        return {"index": torch.stack(indices, -1).to(self.index_dtype)}

    def value(self, planes: Planes, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        index = planes["index"].to(torch.int64)
        parts = [book.to(dtype)[index[..., i]] for i, book in enumerate(self.codebooks)]
        return torch.cat(parts, -2)

    def shared(self) -> Mapping[str, Tensor]:
        return {"codebooks": self.codebooks}


LEFT = 5.0
"""Largest bias of a rotary pair that pairs=auto leaves in the key: what depends on the token reaches about as far."""


@dataclass(frozen=True)
class KeyBias:
    """The key-bias split, exact and without calibration: only ``R_j W x`` is quantized, ``R_j b`` is never stored.

    ``pairs`` covers the rotary pairs of largest bias only ("all": the whole bias; "auto": in each layer the fewest of
    8, 16, 32, ... that leave no pair of a larger bias than LEFT). Any subset is exact; what is left is quantized with
    the key, and costs accuracy where it is large. On a model whose keys have no bias it is no offset at all, and says
    so.
    """

    pairs: int | Literal["all", "auto"] = "all"

    def check(self, facts: ModelFacts, side: SideName) -> None:
        """Raises UserError where something stands between bias and RoPE, or on the value side."""
        if side == "value":
            raise UserError("the key-bias split is for keys: method.value.offset cannot be KeyBias")
        if facts.bias_obstacle:
            raise UserError(f"the key-bias split does not hold for {facts.name}: {facts.bias_obstacle}")
        if self.pairs not in ("all", "auto") and (not isinstance(self.pairs, int) or self.pairs < 1):
            raise UserError(f"method.options.pairs={self.pairs}: legal are all, auto, or a number of pairs from 1")

    def bind(self, site: Site) -> "BoundKeyBias | NoOffset":
        facts = site.facts
        if facts.key_bias is None:
            if site.layer == 0:
                log.warning("%s has no key bias: the key-bias split has nothing to take out", facts.name)
            return NoOffset()
        if facts.rotary is None:
            raise UserError(f"the key-bias split needs the rotary embedding of {facts.name}, which was not found")
        bias = facts.key_bias[site.layer].to(site.device)
        pairs = enough_pairs(bias, facts.rotary, LEFT) if self.pairs == "auto" else self.pairs
        return BoundKeyBias(split_bias(bias, facts.rotary, None if pairs == "all" else pairs), facts.rotary)


@dataclass(frozen=True)
class BoundKeyBias:
    bias: Tensor
    """float32 [H, D]: the part that is split off."""
    rotary: Rotary

    @property
    def centroids(self) -> Tensor | None:
        return None

    def describe(self, x: Tensor) -> Planes:
        return {}

    def value(self, planes: Planes, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        return rotated_bias(self.bias.to(torch.promote_types(dtype, torch.float32)), self.rotary, positions)

    def shared(self) -> Mapping[str, Tensor]:
        return {}
