"""Other people's serving of the same model on the same card: transformers' own continuous batching."""

import dataclasses
from typing import Any

from sawbench.core.errors import UserError
from sawbench.throughput.bench import described
from sawbench.throughput.device import memory, reset_memory
from sawbench.throughput.loads import Load

NAMES = {"method": "generate_batch", "options": "attention=sdpa cache=bf16"}


def generate_batch(loaded: Any, load: Load, seed: int = 0) -> dict[str, Any]:
    """``load`` through ``model.generate_batch`` with SDPA attention and an unquantized cache.

    A first, short call compiles and warms up. The clock then runs from the first request's creation to the last one's
    end, as the library notes them, so that its own set-up does not count. All requests are sent at once: ``load`` has
    as many as its concurrency.

    Raises:
        UserError: there is no CUDA device, or the load is a queue.
    """
    if loaded.model.device.type != "cuda":
        raise UserError("generate_batch is compared on CUDA alone: this model lies on a CPU")
    if load.requests > load.concurrency:
        raise UserError(f"generate_batch takes all requests at once: load.requests={load.requests} exceed "
                        f"load.concurrency={load.concurrency}")  # fmt: skip
    loaded.model.set_attn_implementation("sdpa")
    prompts = [list(r.prompt) for r in load.prompts(loaded.model.config.vocab_size, seed)]
    _run(loaded.model, prompts[:2], 8)
    reset_memory(loaded.model.device)
    outputs = _run(loaded.model, prompts, load.output_tokens)
    wall = max(o.lifespan[1] for o in outputs) - min(o.created_time for o in outputs)
    tokens = sum(len(o.generated_tokens) for o in outputs)
    return {
        **described(load),
        "wall_s": wall,
        "output_tokens_total": tokens,
        "output_tps": tokens / wall,
        **memory(loaded.model.device),
    }


def _run(model: Any, prompts: list[list[int]], new_tokens: int) -> list[Any]:
    """Outputs of all prompts, each of ``new_tokens`` tokens.

    Raises:
        RuntimeError: a request failed or went missing, or has another length.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig

    fields = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
    own = {"auto_switch_to_flash": False} if "auto_switch_to_flash" in fields else {}
    config = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1)
    found = model.generate_batch(prompts, config, continuous_batching_config=ContinuousBatchingConfig(**own))
    outputs = list(found.values())
    lengths = {len(o.generated_tokens) for o in outputs}
    if len(outputs) != len(prompts) or lengths != {new_tokens}:
        raise RuntimeError(f"generate_batch answered {len(outputs)} of {len(prompts)} prompts, with {lengths} tokens")
    return outputs
