"""Shapes and methods that every contract test runs over: a method is tested by existing."""

from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from sawbench.core.shape import KVShape
from sawbench.methods.method import BoundLayer, KVMethod
from sawbench.methods.parts import ModelFacts
from sawbench_kernels.key_bias import Rotary

CONFIGS = Path(__file__).parents[2] / "configs" / "method"
METHODS = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
SMALL = {
    "kivi2": {"group": 4, "residual": 8},
    "kivi4": {"group": 4, "residual": 8},
    "kitty": {"page": 8, "window": 4, "sink": 3},
    "mixed": {"group": 16},
}
"""Options under which a few tokens are enough to fill a method's groups and to empty its windows."""


def load_method(name: str, **options: object) -> KVMethod:
    """The method of configs/method/NAME.yaml with some of its options changed."""
    config = OmegaConf.load(CONFIGS / f"{name}.yaml")
    OmegaConf.set_struct(config, True)
    for key, value in options.items():
        config.options[key] = value
    return instantiate(config)


TOKENWISE = [name for name in METHODS if not load_method(name).stepwise]
WINDOWED = [name for name in METHODS if load_method(name).stepwise]
SERVABLE = [name for name in METHODS if not load_method(name).unservable]


def small_method(name: str, **options: object) -> KVMethod:
    """The method with windows and groups that a few tokens fill; any other as it ships."""
    return load_method(name, **{**SMALL.get(name, {}), **options})


def make_facts(head_dim: int = 64, kv_heads: int = 2, layers: int = 2, bias: float = 50.0) -> ModelFacts:
    """Facts of a model in half order whose keys have a bias of size ``bias``."""
    generator = torch.Generator().manual_seed(3)
    half = torch.arange(head_dim // 2)
    rotary = Rotary(torch.stack((half, half + head_dim // 2), -1), 10000.0 ** (-2 * half.double() / head_dim), 1.0)
    biases = tuple(bias * torch.randn(kv_heads, head_dim, generator=generator) for _ in range(layers))
    return ModelFacts("test-model", KVShape(layers, 2 * kv_heads, kv_heads, head_dim), rotary, biases)


def synthetic_tensors(method: KVMethod, facts: ModelFacts) -> dict[str, torch.Tensor]:
    """Calibration tensors of the right shapes, as ``KVMethod.bind`` takes them; the same at every call."""
    generator = torch.Generator().manual_seed(5)
    drawn = {
        f"{side_name}.{layer}.{name}": tensor
        for side_name, side in method.sides()
        for layer in range(facts.shape.layers)
        for part in side.calibrated()
        for name, tensor in part.synthetic(facts, side_name, generator).items()
    }
    return method.settled(drawn)


def bind(method: KVMethod, facts: ModelFacts) -> list[BoundLayer]:
    """The method on the model, with synthetic calibration tensors where it needs any."""
    return method.bind(facts, synthetic_tensors(method, facts), torch.device("cpu"))
