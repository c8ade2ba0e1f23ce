"""The roofline against numbers worked out by hand, and against the figures that this project was planned with."""

from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from helpers.methods import load_method
from sawbench.config import group_config
from sawbench.models.architecture import make_config
from sawbench.throughput.costs import UNBOUNDED, Cost, Parameters, cost_of, layer_windows, meta_model, parameters
from sawbench.throughput.loads import Load
from sawbench.throughput.roofline import Rates, decode_weights, roofline, step_floor

SMALL = Cost(Parameters(total=1000, body=600, head=100), ((2, UNBOUNDED),), layer_bytes=5.0, query_width=4)
RATES = Rates(read=1e3, matmul=1e4)


def shipped(model: str) -> Any:
    return make_config(OmegaConf.to_container(group_config("model", model).config))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def qwen() -> Any:
    return shipped("qwen3-8b")


@pytest.fixture(scope="module")
def counted(qwen: Any) -> Parameters:
    return parameters(meta_model(qwen), qwen)


def test_by_hand() -> None:
    """3 requests of 10 tokens in, 3 out, two at a time: two waves (of 2 and 1) of 2 decode steps each."""
    bound = roofline(SMALL, Load("x", 10, 3, concurrency=2, requests=3), RATES, pool_bytes=1e9)
    assert bound is not None
    prompt = 2 * (600 * 10 + 100) + 4 * 4 * (2 * 10 * 10 / 2)  # linear; QK^T and PV over half a square in two layers
    assert bound.prefill_s == pytest.approx(3 * prompt / 1e4)
    assert bound.weights_s == pytest.approx(2 * 2 * 1.4)  # 700 parameters of 2 bytes at 1e3 bytes/s, in 4 steps
    assert bound.kv_s == pytest.approx(3 * (11 + 12) * 10 / 1e3)
    assert bound.output_tokens == 9
    assert bound.output_tps == pytest.approx(9 / (bound.prefill_s + bound.weights_s + bound.kv_s))


def test_a_wide_batch_is_bound_by_multiplying() -> None:
    """2 FLOPs a parameter and token: 700 parameters pass their 1.4 s of reading at ten tokens."""
    assert decode_weights(SMALL, 5, RATES) == pytest.approx(1.4)
    assert decode_weights(SMALL, 20, RATES) == pytest.approx(20 * 2 * 700 / 1e4)


def test_a_small_pool_admits_fewer_and_costs_more_steps() -> None:
    load = Load("x", 10, 3, concurrency=4, requests=4)
    wide, narrow = roofline(SMALL, load, RATES, 4 * 120.0), roofline(SMALL, load, RATES, 2 * 120.0 + 119)
    assert wide
    assert narrow
    assert (wide.admitted, narrow.admitted) == (4, 2)
    assert narrow.weights_s == pytest.approx(2 * wide.weights_s)
    assert narrow.kv_s == wide.kv_s
    assert roofline(SMALL, load, RATES, 119.0) is None


def test_a_window_bounds_what_is_held_and_read() -> None:
    cost = Cost(SMALL.parameters, ((1, UNBOUNDED), (3, 8)), 5.0, 4)
    assert cost.kv_bytes(20) == 5 * (20 + 3 * 8)
    assert cost.kv_bytes(4) == 5 * 4 * 4
    floor = step_floor(cost, 1, 20, RATES)
    assert floor == pytest.approx(1.4 + cost.kv_bytes(20) / 1e3)


def test_experts_are_read_as_far_as_tokens_meet_them() -> None:
    """16 experts, one a token: a single token reads one, many read all; each token multiplies by one."""
    mixture = Parameters(total=2000, body=100, head=50, experts=1600, share=1 / 16)
    assert mixture.decode == 100 + 50 + 100
    assert mixture.read(1) == pytest.approx(100 + 50 + 100)
    assert mixture.read(1000) == pytest.approx(100 + 50 + 1600)


def test_weights_of_qwen3_8b(counted: Parameters) -> None:
    """36 layers of q, o (4096 x 4096), k, v (4096 x 1024) and three matrices of 4096 x 12288; the vocabulary twice."""
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288
    assert counted.body == 36 * layer
    assert counted.head == 151936 * 4096
    assert counted.read(7) == counted.body + counted.head  # the embedding table is left out
    assert 0 < counted.total - counted.body - 2 * counted.head < 1e6  # norms


def test_a_tied_table_counts_once() -> None:
    config = make_config({"model_type": "llama", "vocab_size": 50, "hidden_size": 8, "intermediate_size": 16,
                          "num_hidden_layers": 1, "num_attention_heads": 2, "tie_word_embeddings": True})  # fmt: skip
    with torch.device("cpu"):
        found = parameters(meta_model(config), config)
    assert found.head == 50 * 8
    assert found.total == found.body + found.head + 3 * 8  # and three norms


@pytest.mark.parametrize(
    ("method", "options", "size"),
    [("bf16", {}, 147_456), ("int4", {}, 39_168), ("int4", {"storage": "fp32"}, 41_472), ("bdr", {}, 39_168)],
)
def test_bytes_a_token_of_qwen3_8b(
    qwen: Any, counted: Parameters, method: str, options: dict[str, str], size: int
) -> None:
    assert cost_of(load_method(method, **options), qwen, counted).token_bytes == size


def test_the_figures_of_the_plan(qwen: Any, counted: Parameters) -> None:
    """INT4 over BF16 was planned as 1.76, 1.38 and 1.45, and BF16 at 17,400 tokens/s.

    They come out at a copy bandwidth of 4.28 TB/s and 600 TFLOP/s, in a pool of 58.9 GB, where BF16 admits 22 of 64
    requests of 17,408 tokens; at 790 TFLOP/s, the card's best, the ratios are higher still.
    """
    cost = {name: cost_of(load_method(name), qwen, counted) for name in ("bf16", "int4")}

    def tps(name: str, load: Load, rates: Rates) -> float:
        bound = roofline(cost[name], load, rates, 58.9e9)
        assert bound
        return bound.output_tps

    planned, best = Rates(4.28e12, 600e12), Rates(4.53e12, 790e12)
    loads = {
        1.76: Load("long", 16384, 1024, 64, 64),
        1.38: Load("few", 16384, 1024, 8, 16),
        1.45: Load("short", 256, 1024, 128, 128),
    }
    for ratio, load in loads.items():
        assert tps("int4", load, planned) / tps("bf16", load, planned) == pytest.approx(ratio, rel=0.025)
        assert tps("int4", load, best) / tps("bf16", load, best) > ratio
    wide = Load("wide", 256, 1024, 256, 256)
    assert tps("bf16", wide, planned) == pytest.approx(17_400, rel=0.005)
    long = roofline(cost["bf16"], loads[1.76], planned, 58.9e9)
    assert long
    assert long.admitted == 22


def test_llama_4_scout_keeps_a_chunk_in_three_layers_of_four() -> None:
    assert layer_windows(shipped("llama-4-scout")) == ((12, UNBOUNDED), (36, 8192))
