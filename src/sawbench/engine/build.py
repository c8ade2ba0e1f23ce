"""An engine from its configuration."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from sawbench.core.errors import UserError, illegal
from sawbench.engine.hf import HFEngine
from sawbench.engine.paged.build import build_paged, check_paged
from sawbench.methods.method import KVMethod
from sawbench.models import LoadedModel

PREFILLS = ("quantized", "exact")


def build_engine(config: Any, loaded: LoadedModel, method: KVMethod, tensors: Mapping[str, Tensor]) -> Any:
    """The engine that ``config.name`` names (configs/engine), with ``method``'s cache behind the model.

    Raises:
        UserError: as ``check_engine``.
    """
    check_engine(config, method)
    return ENGINES[config.name].build(config, loaded, method, tensors)


def check_engine(config: Any, method: KVMethod) -> None:
    """Needs no weights.

    Raises:
        UserError: an engine, attention backend or prefill that does not exist, or not together; a method that the
            engine cannot serve.
    """
    if config.name not in ENGINES:
        raise illegal("engine", config.name, ENGINES)
    ENGINES[config.name].check(config, method)


def _check_hf(config: Any, method: KVMethod) -> None:
    if config.prefill not in PREFILLS:
        raise illegal("prefill", config.prefill, PREFILLS)
    if config.attention not in ("auto", "naive"):
        raise UserError(f"attention={config.attention} is not for engine=hf, which has: auto, naive")
    if config.prefill == "exact" and config.chunk:
        raise UserError(f"prefill=exact writes a prompt in one chunk: engine.chunk={config.chunk} must be 0")


def _hf(config: Any, loaded: LoadedModel, method: KVMethod, tensors: Mapping[str, Tensor]) -> HFEngine:
    return HFEngine(loaded, method, tensors, batch_size=config.batch_size, chunk=config.chunk, prefill=config.prefill)


class Builder(NamedTuple):
    check: Callable[[Any, KVMethod], None]
    build: Callable[[Any, LoadedModel, KVMethod, Mapping[str, Tensor]], Any]


ENGINES = {"hf": Builder(_check_hf, _hf), "paged": Builder(check_paged, build_paged)}
