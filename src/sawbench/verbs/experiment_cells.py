"""The cells of a table or figure: configs/experiment/<name>.yaml to the words that would be typed for each of them.

A file holds ``about`` and ``cells``, or ``like`` another file. Each entry of ``cells`` names its ``verb``: for ``run``
the product of ``models``, ``methods`` and ``tasks`` under one ``protocol``, for ``bench`` that of ``models``,
``methods`` and ``loads``, for ``kernels`` its ``families``. A method is written as a row of results names it
(``bdr order=16``); ``set`` holds further options of all cells of the entry.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from sawbench.config import choices, group_config
from sawbench.core.errors import UserError, illegal
from sawbench.tasks.documents import READERS

CODE = ("humaneval", "livecodebench")
"""Tasks that run what the model writes."""
TINY = (
    "model=tiny", "model.config.model_type=qwen3", "model.config.head_dim=128", "model.config.num_attention_heads=8",
    "model.config.num_key_value_heads=8",
)  # fmt: skip
"""As many KV heads of the same size as the paper's models have, so that every method binds as it does there."""
SMOKE = {
    "run": ("protocol.items=2", "protocol.max_new_tokens=4", "protocol.repeats=1"),
    "bench": ("load.input_tokens=24", "load.output_tokens=4", "load.concurrency=2", "load.requests=2",
              "engine.page_size=16", "engine.kv_bytes=4e6"),
    "kernels": ("shapes=quick",),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """What one ``verb`` would be told, and the names of it: ``what`` is a task, a load or families of kernels."""

    verb: str
    model: str
    method: str
    what: str
    words: tuple[str, ...]


def cells_of(config: DictConfig) -> list[Cell]:
    """Every cell of the experiment ``config.name``, each once.

    Raises:
        UserError: no such experiment, or no file of a task in ``data``.
    """
    found = [cell for entry in experiment(config.name).cells for cell in CELLS[entry.verb](entry, config)]
    distinct: dict[tuple[str, tuple[str, ...]], Cell] = {}
    for cell in found:
        distinct.setdefault((cell.verb, cell.words), cell)
    return list(distinct.values())


def experiment(name: str) -> DictConfig:
    """The file ``name``; its cells are another's where it says ``like``."""
    if name not in choices("experiment"):
        raise illegal("name", name, choices("experiment"))
    file = group_config("experiment", name)
    if "like" in file:
        file.cells = experiment(file.like).cells
    return file


def _run(entry: Any, config: DictConfig) -> Iterator[Cell]:
    protocol = "quick" if config.smoke else entry.protocol
    for model, method, task in product(entry.models, entry.methods, entry.tasks):
        words = (*_shared(model, method, config), f"task={task}", f"protocol={protocol}", *entry.get("set", ()))
        yield _cell("run", (model, method, task), (*words, *_questions(task, config)), config)


def _bench(entry: Any, config: DictConfig) -> Iterator[Cell]:
    for model, method, load in product(entry.models, entry.methods, entry.loads):
        words = (*_shared(model, method, config), f"load={load}", *entry.get("set", ()))
        engine = [word for word in entry.get("set", ()) if word.startswith("engine.")]
        yield _cell("bench", (model, " ".join([method, *engine]), load), words, config)


def _kernels(entry: Any, config: DictConfig) -> Iterator[Cell]:
    families = ",".join(entry.families)
    yield _cell("kernels", ("-", "all", families), (f"families=[{families}]", *entry.get("set", ())), config)


CELLS = {"run": _run, "bench": _bench, "kernels": _kernels}


def _cell(verb: str, names: tuple[str, str, str], words: tuple[str, ...], config: DictConfig) -> Cell:
    """What the user sets comes last, and so wins."""
    return Cell(
        verb, *names, (*words, *(smoke(verb) if config.smoke else ()), f"results={quoted(folder(config))}", *config.set)
    )


def smoke(verb: str) -> tuple[str, ...]:
    """Options that make a cell small; without a GPU there are no kernels to leave unfused."""
    fused = ("engine.fused=true",) if verb == "bench" and not torch.cuda.is_available() else ()
    return SMOKE[verb] + fused


def _shared(model: str, method: str, config: DictConfig) -> tuple[str, ...]:
    name, *options = method.split()
    named = TINY if config.smoke else (f"model={model}",)
    return (*named, f"method={name}", *(f"method.options.{option}" for option in options))


def _questions(task: str, config: DictConfig) -> Iterator[str]:
    """Where a benchmark's file is, and what may be done with the code that answers it."""
    if config.smoke:
        yield f"task.data={quoted(Path(str(files('sawbench.prompts'))) / 'smoke' / f'{task}.jsonl')}"
    elif config.data is not None:
        yield f"task.data={quoted(data_file(Path(config.data), task))}"
    if task in CODE:
        yield f"task.allow_code_execution={str(config.allow_code_execution).lower()}"
        yield f"task.sandbox={'later' if config.smoke else config.sandbox}"


def data_file(folder: Path, task: str) -> Path:
    """The file of a benchmark in a folder of them. Raises UserError where there is none."""
    for kind in READERS:
        if (folder / f"{task}.{kind}").is_file():
            return folder / f"{task}.{kind}"
    raise UserError(f"data={folder} holds no {task}.jsonl (or .{', .'.join(READERS[1:])})")


def folder(config: DictConfig) -> Path:
    """Where results go; those of a smoke run apart from all others."""
    return Path(config.results) / "smoke" if config.smoke else Path(config.results)


def quoted(path: Path) -> str:
    """A path as a value of an option, whatever characters it holds."""
    return "'" + str(path).replace("'", r"\'") + "'"
