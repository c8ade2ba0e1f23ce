"""``doctor``: what this machine can run, and for what it cannot the reason and the remedy. Probes no network."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import DictConfig
from packaging.requirements import Requirement

from sawbench.core.errors import UserError
from sawbench.models import has_weights, plan_model
from sawbench.scoring.sandbox import refusal
from sawbench.verbs.table import table

SPARE_DISK_GIB = 5
"""Below this, a converted 1.5B model and its results may not fit."""


@dataclass(frozen=True)
class Finding:
    """``ok`` None is information; False names what does not work and, after it, how to mend it. ``needed`` findings
    decide the exit code: without them not even the default run works."""

    name: str
    ok: bool | None
    text: str
    needed: bool = False


def main(config: DictConfig) -> int:
    """0 where the default run would work, else 1."""
    found = [finding for check in CHECKS for finding in check(config)]
    marks = {True: "ok", False: "no", None: "-"}
    print(table(["", "what", "found"], [[marks[one.ok], one.name, one.text] for one in found]))
    broken = [one.name for one in found if one.needed and one.ok is False]
    print(
        f"\n`python -m sawbench run` will not work: {', '.join(broken)}"
        if broken
        else "\n`python -m sawbench run` works"
    )
    return int(bool(broken))


def interpreter(config: DictConfig) -> Iterator[Finding]:
    yield Finding("python", sys.version_info >= (3, 11), f"{platform.python_version()}; 3.11 or later", True)


def packages(config: DictConfig) -> Iterator[Finding]:
    """Every requirement of the package itself against what is installed."""
    for line in importlib.metadata.requires("sawbench") or []:
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(requirement.name, False, f"missing: pip install '{line}'", True)
            continue
        fits = requirement.specifier.contains(version, prereleases=True)
        yield Finding(requirement.name, fits, f"{version}{'' if fits else f'; needs {requirement.specifier}'}", True)


def accelerator(config: DictConfig) -> Iterator[Finding]:
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    if not torch.cuda.is_available():
        remedy = "" if torch.version.cuda is None else "; no device or driver was found"
        yield Finding("CUDA", None, f"torch is built for: {build}{remedy}; models run on the CPU in float32")
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        capability = f"sm_{device.major}{device.minor}"
        yield Finding(
            f"cuda:{index}", True, f"{device.name}, {device.total_memory / 2**30:.0f} GiB, {capability}, {build}"
        )


def machine(config: DictConfig) -> Iterator[Finding]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("cores, memory", None, f"{cores} cores, {memory:.0f} GiB")
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    yield Finding("disk", free > SPARE_DISK_GIB, f"{free:.0f} GiB free in this folder; {SPARE_DISK_GIB} wanted")


def default_model(config: DictConfig) -> Iterator[Finding]:
    try:
        missing = has_weights(plan_model(config.model, need_weights=False))
    except UserError as error:
        missing = str(error)
    yield Finding(f"model={config.model.name}", not missing, missing or "weights at hand", True)


def code_sandbox(config: DictConfig) -> Iterator[Finding]:
    """task=humaneval runs what a model wrote: it wants namespaces of its own."""
    reason = refusal("strict")
    remedy = "own user, network and pid namespaces" if reason is None else f"{reason}; task.sandbox=weak isolates less"
    yield Finding("code sandbox", reason is None, remedy)


CHECKS: tuple[Callable[[DictConfig], Iterator[Finding]], ...] = (
    interpreter,
    packages,
    accelerator,
    machine,
    default_model,
    code_sandbox,
)
