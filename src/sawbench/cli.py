"""The command line: ``python -m sawbench VERB [-m] [option=value ...]``.

Hydra has no sub-commands, so the verb is taken off the arguments first; what remains are Hydra's overrides over
``configs/<verb>.yaml``. Sweeps run in this process, one cell after another, so that they share a loaded model.
"""

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from omegaconf import DictConfig, OmegaConf

from sawbench import __version__
from sawbench.config import choices, compose, config_dir, expand
from sawbench.core.errors import UserError, illegal

VERBS = {
    "run": "measure a method on a model with a task, beside the BF16 baseline",
    "bench": "throughput of methods under load, beside its bound",
    "plan": "what a cache costs on a card, and what a method gains, without model or card",
    "calibrate": "fit what a method learns from text, and keep it",
    "rescore": "score the answers in results/ again, offline, by today's rules",
    "report": "tables and figures from results/",
    "experiment": "a table or figure of the paper: its cost, then what is missing of it",
    "kernels": "time the kernels against their floor and their peers",
    "list": "models, methods, tasks and engines that there are",
    "doctor": "what this machine can run, and why not",
}
SWITCHES = {
    "-m": "sweep: every option may hold several values, a,b,c",
    "--estimate": "bench: print the seconds that every cell takes at its bound, and stop",
    "--cfg": "print the composed configuration and stop",
    "--help": "this text",
}
USAGE = "python -m sawbench VERB [-m] [option=value ...]"

SWEEPS = ("bench",)
"""Verbs that take several values for an option without -m: a comparison is what they are for."""

EXIT_ERROR, EXIT_USER, EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code: 0, 1 (a cell failed), 2 (the user's mistake) or 130 (Ctrl-C)."""
    _prepare()
    try:
        code = dispatch(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"sawbench: {error}", file=sys.stderr)
        return EXIT_USER
    except KeyboardInterrupt:
        print("sawbench: interrupted; the samples made so far are kept, the same command goes on", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR


def dispatch(arguments: list[str]) -> int:
    """Raises UserError for an unknown verb, switch or option."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(general_help())
        return 0
    if arguments[0] == "--version":
        print(__version__)
        return 0
    verb, *rest = arguments
    if verb not in VERBS:
        raise illegal("VERB", verb, VERBS)
    switches = {_switch(word) for word in rest if word.startswith("-")}
    overrides = [word for word in rest if not word.startswith("-")]
    if "--help" in switches:
        print(verb_help(verb))
        return 0
    overrides += ["estimate=true"] * ("--estimate" in switches)
    cells = expand(verb, overrides) if "-m" in switches or verb in SWEEPS else [overrides]
    configs = [compose(verb, cell) for cell in cells]
    if "--cfg" in switches:
        print("---\n".join(OmegaConf.to_yaml(config) for config in configs), end="")
        return 0
    return execute(importlib.import_module(f"sawbench.verbs.{verb}"), configs)


def execute(module: ModuleType, configs: Sequence[DictConfig]) -> int:
    """A verb that has a ``sweep`` takes all cells at once; another's ``main`` gets them in turn."""
    if hasattr(module, "sweep"):
        return int(module.sweep(configs))
    return max(int(module.main(config)) for config in configs)


def _switch(word: str) -> str:
    long = {"-h": "--help", "--multirun": "-m"}.get(word, word)
    if long not in SWITCHES:
        raise illegal("switch", word, SWITCHES)
    return long


def general_help() -> str:
    verbs = [f"  {verb:<10} {about}" for verb, about in VERBS.items()]
    return "\n".join([f"usage: {USAGE}", "", *verbs, "", f"{USAGE.split(' VERB')[0]} VERB --help lists its options."])


def verb_help(verb: str) -> str:
    """The verb's groups with their names, and its other options with their defaults, as the file comments them."""
    groups, options = [], []
    for line in (config_dir() / f"{verb}.yaml").read_text().splitlines():
        if line.lstrip().startswith("- ") and ": " in line:
            group, default = line.lstrip(" -").split(": ")
            groups.append(f"  {group}={default}   of: {', '.join(choices(group))}")
        elif line and not line.startswith((" ", "#", "defaults:")):
            option, _, rest = line.partition(": ")
            options.append(f"  {option}={rest}")
    switches = [f"  {switch:<10} {about}" for switch, about in SWITCHES.items()]
    usage = f"usage: {USAGE.replace('VERB', verb)}\n\n{VERBS[verb]}"
    return "\n".join([usage, "", *groups, *options, "", *switches])


def _prepare() -> None:
    """Our own words at INFO; the libraries' only where something fails. Set before any of them is imported."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("sawbench").setLevel(logging.INFO)
    for name, value in {
        "TRANSFORMERS_VERBOSITY": "error",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "DATASETS_VERBOSITY": "error",
        "HF_HUB_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait cost minutes on a busy machine
    }.items():
        os.environ.setdefault(name, value)
