"""Hessian-aware rotation: the eigenvectors of what a side's error is weighted with.

For keys ``M = mean of q q^T`` over calibration queries, all query heads pooled, since E[(q.dk)^2] = E[dk^T M dk]; for
values ``M_V = mean over query heads of W_o,h W_o,h^T`` (ours: the paper defines nothing for V). With one scale a token
the noise is isotropic and no rotation minimises that objective: nothing of the kind is claimed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sawbench.methods.parts import LayerSample, ModelFacts, SideName, Site
from sawbench.methods.transforms import legal_orders
from sawbench_kernels.hadamard.naive import hadamard

DAMPING = 0.01


def eigenbasis(second_moment: Tensor) -> Tensor:
    """Eigenvectors [D, D] in columns by descending eigenvalue, after 1 % of the mean diagonal is added to it.

    Signs are made canonical: the entry of largest magnitude in a column is positive.
    """
    moment = second_moment.to(torch.float64)
    damped = moment + DAMPING * moment.diagonal().mean() * torch.eye(len(moment), dtype=torch.float64)
    vectors = torch.linalg.eigh(damped).eigenvectors.flip(-1)
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return vectors * largest.sign()


@dataclass(frozen=True)
class Hessian:
    """``R`` from calibration; on keys the queries may first pass Hadamard blocks of ``query_order``, as the authors'
    dump did (order 16). 1 takes the queries as they meet K: after RoPE and query norm."""

    query_order: int = 1
    calibration_tokens: int = 4096

    def check(self, facts: ModelFacts, side: SideName) -> None:
        """Raises UserError where ``query_order`` does not divide head_dim."""
        from sawbench.core.errors import illegal

        legal = [1, *legal_orders(facts.shape.head_dim)]
        if self.query_order not in legal:
            raise illegal(f"{facts.name}: query_order", self.query_order, legal)

    def fit(self, sample: LayerSample, side: SideName, seed: int) -> dict[str, Tensor]:
        if side == "key":
            vectors = hadamard(sample.query, self.query_order).flatten(0, 1)
        else:
            vectors = sample.output_weight.unflatten(1, (-1, sample.value.shape[-1])).flatten(0, 1)
        moment = vectors.T.to(torch.float64) @ vectors.to(torch.float64) / len(vectors)
        return {"rotation": eigenbasis(moment).to(torch.float32)}

    def synthetic(self, facts: ModelFacts, side: SideName, generator: torch.Generator) -> dict[str, Tensor]:
        draw = torch.randn(facts.shape.head_dim, facts.shape.head_dim, generator=generator, dtype=torch.float64)
        return {"rotation": torch.linalg.qr(draw).Q.to(torch.float32)}

    def bind(self, site: Site) -> "BoundRotation":
        return BoundRotation(site.tensors["rotation"])


@dataclass(frozen=True)
class BoundRotation:
    """A dense orthonormal matrix [D, D] for one layer."""

    matrix: Tensor

    @property
    def rotation(self) -> int | Tensor:
        return self.matrix

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        return x.to(wide) @ self.matrix.to(wide)

    query = forward

    def inverse(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        return x.to(wide) @ self.matrix.T.to(wide)

    def shared(self) -> Mapping[str, Tensor]:
        return {"rotation": self.matrix}
