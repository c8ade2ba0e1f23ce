"""The cells that a bench configuration names, checked as far as they can be before weights load."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from sawbench import __version__
from sawbench.config import instantiate
from sawbench.core.errors import UserError, illegal
from sawbench.engine.build import check_engine
from sawbench.engine.paged.build import resolved
from sawbench.methods.method import KVMethod
from sawbench.models import ModelPlan, choose_device, choose_dtype, plan_model
from sawbench.results.tidy import pairs
from sawbench.throughput.costs import Cost, Parameters, cost_of, meta_model, parameters
from sawbench.throughput.device import device_name
from sawbench.throughput.ledger import run_id
from sawbench.throughput.loads import Load, loads, number
from sawbench.throughput.measures import FILES, RESIDENT_STEPS
from sawbench.throughput.peers import NAMES
from sawbench.throughput.roofline import Bound, Rates, roofline
from sawbench.verbs.labels import assignments, changed_options


@dataclass(frozen=True)
class Cell:
    """One load at one concurrency, for one method on one model; ``base`` is what an overhead is over."""

    config: DictConfig
    plan: ModelPlan
    counted: Parameters
    method: KVMethod
    load: Load
    device: torch.device
    dtype: torch.dtype
    base: "Cell | None" = None

    @property
    def measure(self) -> str:
        return str(self.config.measure)

    @property
    def options(self) -> dict[str, Any]:
        """What tells two rows of one method apart: its options that are not as shipped, and rotations left unfused."""
        return changed_options(self.config) | ({} if self.config.engine.fused else {"fused": False})

    @property
    def names(self) -> dict[str, Any]:
        """The columns that name the cell."""
        method = {"method": self.method.name, "options": pairs(self.options)}
        return {
            "run": self.run,
            "model": self.plan.name,
            **(NAMES if self.measure == "peer" else method),
            "weights": self.plan.weights,
            "load": self.load.name,
            "concurrency": self.load.concurrency,
        }

    @property
    def label(self) -> str:
        method = assignments(self.method.name, self.options)
        return f"{method} {self.load.name} x{self.load.concurrency}"

    @cached_property
    def engine_key(self) -> str:
        """Equal keys can share an engine. Decode steps have a pool of their load's own."""
        parts = [OmegaConf.to_container(self.config[name]) for name in ("method", "engine")]
        return str(parts if self.measure == "load" else [*parts, self.load])

    @cached_property
    def run(self) -> str:
        """Hash of everything that can change the numbers."""
        config: Any = OmegaConf.to_container(self.config, resolve=True)
        return run_id(
            {
                "measure": self.measure,
                "model": {**self.plan.identity, "dtype": str(self.dtype)},
                "method": {name: config["method"][name] for name in ("name", "key", "value")},
                "engine": resolved(config["engine"], self.plan.hf_config, self.plan.shape, self.device),
                "load": vars(self.load),
                "base": self.base and self.base.run,
                "device": device_name(self.device),
                "seed": config["seed"],
                "version": ".".join(__version__.split(".")[:2]),
            }
        )

    @cached_property
    def cost(self) -> Cost:
        """With weights in BF16, as the cards that ``gpu`` names run them."""
        return cost_of(self.method, self.plan.hf_config, self.counted)

    def bound(self) -> Bound | None:
        """The roofline on the card that ``gpu`` names; None where not one request fits."""
        gpu, engine = self.config.gpu, self.config.engine
        pool = engine.kv_bytes or engine.gpu_memory * number(gpu.memory, "gpu.memory") - self.cost.weight_bytes
        return roofline(self.cost, self.load, Rates(gpu.read, gpu.matmul), float(pool))

    def estimate(self) -> float | None:
        """Device seconds at the bound; unknown where no load is run."""
        bound = self.bound() if self.measure == "load" else None
        return bound.seconds if bound else None


def cells_of(config: DictConfig, first: DictConfig) -> list[Cell]:
    """A cell for each concurrency of the load; ``first`` is the configuration whose method an overhead is over.

    Raises:
        UserError: the engine is not the paged one, or measure, model, method, engine or load are refused.
    """
    if config.measure not in FILES:
        raise illegal("measure", config.measure, FILES)
    if config.engine.name != "paged":
        raise UserError(f"bench measures engine=paged: engine={config.engine.name} has no continuous batching")
    plan, method = plan_model(config.model), instantiate(config.method, "method")
    if not config.estimate:  # an estimate is for another machine than this one
        check_engine(config.engine, method)
    method.check(plan.facts)
    levels = loads(config.load)
    steps = 0 if config.measure in ("load", "peer") else RESIDENT_STEPS
    for load in levels:
        replace(load, output_tokens=max(load.output_tokens, steps)).check(plan.max_length, config.engine.max_running)
    device = choose_device(config.device)
    shared = (plan, _counted(plan), method)
    cells = [Cell(config, *shared, load, device, choose_dtype(plan.dtype, device)) for load in levels]
    return _over(cells, first) if config.measure == "overhead" else cells


def _over(cells: list[Cell], first: DictConfig) -> list[Cell]:
    """Cells with what they are compared with; the first method itself has none."""
    method = instantiate(first.method, "method")
    if first.method == cells[0].config.method:
        return []
    return [replace(cell, base=replace(cell, config=first, method=method)) for cell in cells]


_COUNTED: dict[str, Parameters] = {}


def _counted(plan: ModelPlan) -> Parameters:
    """Parameters of a model, counted once: a skeleton takes seconds to make."""
    key = plan.identity["config"]
    if key not in _COUNTED:
        _COUNTED[key] = parameters(meta_model(plan.hf_config), plan.hf_config)
    return _COUNTED[key]
