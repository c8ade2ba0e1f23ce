"""What a cell will take of a card, before it runs: the roofline of the tokens that it may write."""

from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sawbench.config import group_config, instantiate
from sawbench.models.architecture import make_config
from sawbench.throughput.costs import Cost, Parameters, cost_of, meta_model, parameters
from sawbench.throughput.loads import Load, loads, number
from sawbench.throughput.measures import RESIDENT_STEPS
from sawbench.throughput.roofline import Rates, roofline, step_floor

QUESTIONS = {"gpqa_diamond": 198, "humaneval": 164, "livecodebench": 171, "aime25": 30, "math500": 500}
"""Items of the paper's benchmarks, LiveCodeBench in the paper's window of dates."""
PROMPT = 512
"""Tokens of a question, assumed."""


def assumptions(gpu: Any) -> str:
    """What the hours hold for, in one line."""
    return (
        f"Hours at the roofline of one {gpu.name}, every answer as long as its budget, prompts of {PROMPT} tokens, as "
        "many at once as engine=paged admits, kernels and calibration left out: real steps take longer, answers fewer."
    )


def seconds(verb: str, config: DictConfig, gpu: Any) -> float | None:
    """Device seconds of one cell at its bound; None where the card does not hold the model and one request, and 0 for
    kernels, which take minutes in all."""
    if verb == "kernels":
        return 0.0
    engine = config.engine if config.engine.name == "paged" else group_config("engine", "paged")
    cost, rates = cost_of_model(config), Rates(gpu.read, gpu.matmul)
    free = engine.gpu_memory * number(gpu.memory, "gpu.memory") - cost.weight_bytes
    if free <= 0:
        return None
    if config.get("measure", "load") != "load":
        steps = [step_floor(cost, load.concurrency, load.input_tokens, rates) for load in loads(config.load)]
        return RESIDENT_STEPS * sum(steps)
    work = loads(config.load) if verb == "bench" else [answers(config, engine.max_running)]
    bounds = [roofline(cost, load, rates, float(engine.kv_bytes or free)) for load in work]
    return None if None in bounds else sum(bound.seconds for bound in bounds if bound)


def answers(config: DictConfig, at_once: int) -> Load:
    """A benchmark as a load: a request for every question and repeat."""
    protocol = config.task.protocol
    items = min(protocol["items"] or QUESTIONS[config.task.name], QUESTIONS[config.task.name])
    budget = protocol.max_new_tokens or config.task.max_new_tokens
    return Load(config.task.name, PROMPT, budget, at_once, items * protocol.repeats)


def cost_of_model(config: DictConfig) -> Cost:
    hf_config, counted = _counted(OmegaConf.to_yaml(config.model.config))
    return cost_of(instantiate(config.method, "method"), hf_config, counted)


@cache
def _counted(fields: str) -> tuple[Any, Parameters]:
    """A model's configuration and its parameters, counted once: a skeleton takes a second to make."""
    hf_config = make_config(OmegaConf.to_container(OmegaConf.create(fields)))  # type: ignore[arg-type]
    return hf_config, parameters(meta_model(hf_config), hf_config)
