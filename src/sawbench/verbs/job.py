"""One cell to be measured: what was asked for, checked as far as it can be before weights load, and then run."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from sawbench import __version__
from sawbench.config import choices, group_config, instantiate
from sawbench.core.engine import CacheReport
from sawbench.core.errors import UserError
from sawbench.core.progress import bar
from sawbench.core.records import Metric, TaskResult
from sawbench.core.samples import tokens_held
from sawbench.engine.build import build_engine, check_engine
from sawbench.engine.calibrate import artifact_for
from sawbench.engine.paged.build import resolved
from sawbench.methods.method import KVMethod
from sawbench.models import ModelPlan, choose_device, choose_dtype, plan_model
from sawbench.results import Cell, environment
from sawbench.tasks.base import Task, TaskContext
from sawbench.verbs.labels import BATCHING, assignments, changed, changed_options
from sawbench.verbs.loading import Shelf

FIXED = ("_target_", "name", "engine")
"""Keys of a task's configuration that are no options of it."""


@dataclass(frozen=True)
class Job:
    """A composed configuration and the objects that it names."""

    config: DictConfig
    plan: ModelPlan
    method: KVMethod
    task: Task
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, config: DictConfig) -> "Job":
        """Check everything that needs no weights.

        Raises:
            UserError: the model, the method on this model, or the task on this machine is refused.
        """
        device = choose_device(config.device)
        plan = plan_model(config.model)
        dtype = choose_dtype(plan.dtype, device)
        method, task = instantiate(config.method, "method"), instantiate(config.task, "task")
        method.check(plan.facts)
        config = with_engine(config, device, task, method)
        check_engine(config.engine, method)
        check_protocol(config)
        task.check(plan)
        job = cls(config, plan, method, task, device, dtype)
        job.identity()  # reads the texts that it digests, and refuses those that cannot be read
        return job

    def baseline(self) -> "Job":
        """The same model, task and engine with the method that ``baseline`` names, its options as they ship."""
        config = self.config.copy()
        config.method = group_config("method", config.baseline)
        return Job.of(config)

    def identity(self) -> dict[str, Any]:
        """Everything that can change the numbers; equal identities share a cell."""
        config = OmegaConf.to_container(self.config, resolve=True)
        assert isinstance(config, dict)
        method = {key: config["method"][key] for key in ("key", "value") if key in config["method"]}
        engine = resolved(config["engine"], self.plan.hf_config, self.plan.shape, self.device)
        engine = {key: value for key, value in engine.items() if key not in BATCHING}
        identity = {
            "model": {**self.plan.identity, "dtype": str(self.dtype).removeprefix("torch.")},
            "method": {"name": self.method.name, "options": changed_options(self.config), **method},
            "task": {**config["task"], **getattr(self.task, "inputs", dict)()},
            "engine": engine,
            "device": self.device.type,
            "seed": config["seed"],
            "version": ".".join(__version__.split(".")[:2]),
        }
        return identity | ({"calibration": self.calibration()} if self.method.calibration_tokens else {})

    def calibration(self) -> dict[str, Any]:
        """What decides the calibration: its text, or the artifact that stands in for one. Raises UserError."""
        text = instantiate(self.config.calibration, "calibration")
        if text.artifact is None:
            return {**text.describe(), "tokens": text.tokens or self.method.calibration_tokens}
        try:
            return {"artifact": sha256(Path(text.artifact).read_bytes()).hexdigest()}
        except OSError as error:
            raise UserError(f"calibration.artifact={text.artifact} cannot be read: {error.strerror}") from error

    def measure(self, cell: Cell, shelf: Shelf) -> TaskResult:
        """Load, calibrate where needed, run the task in the claimed ``cell`` and finish it."""
        loaded = shelf.load(self.plan, self.device, self.dtype)
        results = Path(self.config.results)
        tensors = artifact_for(self.method, loaded, self.config.calibration, results)
        engine = build_engine(self.config.engine, loaded, self.method, tensors)
        stored = effective_parts(self.method, self.plan.shape.head_dim)
        has_bias = loaded.facts.key_bias is not None
        said = {"engine": engine.describe(), "stored": stored, "model_has_key_bias": has_bias}
        servable = {"servable": not self.method.unservable, "servable_reason": self.method.unservable}
        cell.environment(environment() | said | servable)

        reference = instantiate(group_config("method", "reference"), "method")
        context = TaskContext(
            engine=engine,
            reference=lambda: build_engine(self.config.engine, loaded, reference, {}),
            sink=cell.sink,
            progress=bar,
            seed=self.config.seed,
            model=loaded.identity,
            results=results,
        )
        result = self.task.run(context)
        lengths = [n for n in map(tokens_held, cell.sink.done.values()) if n]
        if self.method.stepwise and lengths:
            report = engine.report_of_rows(lengths)
        else:
            if not engine.cache_report().tokens:  # all samples were on disk: one token shows what the cache stores
                engine.loglikelihood([(loaded.eos_ids[:1], loaded.eos_ids[:1])])
            report = engine.cache_report()
        result = with_cache(result, report)
        cell.finish(result)
        return result


def with_engine(config: DictConfig, device: torch.device, task: Task, method: KVMethod) -> DictConfig:
    """The configuration with engine=auto made one: the task's own, else paged on a CUDA device where pages hold what
    the method stores, else hf.

    Raises:
        UserError: another engine was named than the one that the task needs.
    """
    needed = getattr(task, "engine", None)
    if config.engine.name != "auto":
        if needed not in (None, config.engine.name):
            raise UserError(f"engine={config.engine.name} cannot serve task={task.name}, which needs engine={needed}")
        return config
    config, pages = config.copy(), device.type == "cuda" and not method.unservable
    config.engine = group_config("engine", needed or ("paged" if pages else "hf"))
    return config


def check_protocol(config: DictConfig) -> None:
    """Raises UserError for an option of a protocol that is given to a task which takes none: it would change nothing.
    A protocol of those that ship may stand there, since sweeps put one beside tasks of every kind."""
    if "protocol" in config.task or "protocol" not in config:
        return
    name = config.protocol.name if config.protocol.name in choices("protocol") else "greedy"
    if given := changed(config.protocol, group_config("protocol", name)):
        raise UserError(f"protocol.{next(iter(given))} is set, but task={config.task.name} takes no protocol; it has "
                        f"{', '.join(f'task.{key}' for key in config.task if key not in FIXED)}")  # fmt: skip


def effective_parts(method: KVMethod, head_dim: int) -> dict[str, list[str]]:
    """What is done to K and to V on this model, in order, with every choice resolved (``order: auto`` to a number)."""
    sides: dict[str, list[str]] = {}
    for name, side in method.sides():
        sides[name] = []
        for part in side.parts():
            options = asdict(part) | ({"order": part.resolve(head_dim)} if hasattr(part, "resolve") else {})
            sides[name].append(assignments(type(part).__name__, options))
    return sides


def with_cache(result: TaskResult, report: CacheReport) -> TaskResult:
    """The result with what the cache really stored: bits per value, bytes per token, what is held once, and a table
    of bytes by plane."""
    per_token = report.bytes / report.tokens if report.tokens else None
    metrics = (
        Metric("bits_per_value", report.bits_per_value if report.values else None, "bits"),
        Metric("cache_bytes_per_token", per_token, "bytes"),
        Metric("shared_bytes", report.shared_bytes, "bytes"),
    )
    planes: list[dict[str, Any]] = [{"plane": name, "bytes": size} for name, size in report.planes.items()]
    tables: Mapping[str, list[dict[str, Any]]] = {**result.tables, "cache": planes}
    return replace(result, metrics=(*result.metrics, *metrics), tables=tables)
