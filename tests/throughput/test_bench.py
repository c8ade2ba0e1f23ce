"""``bench`` from end to end on a model of random weights: cells, rows, reruns, failures, and what its rows claim."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sawbench import cli
from sawbench.config import compose, group_config, instantiate
from sawbench.core.errors import UserError
from sawbench.engine.paged.build import build_paged
from sawbench.models import LoadedModel, load_model, plan_model
from sawbench.report import serving
from sawbench.report.content import Table
from sawbench.report.records import Study
from sawbench.results.tidy import read_csv
from sawbench.throughput.bench import run_cell
from sawbench.throughput.ledger import Ledger
from sawbench.throughput.loads import Load
from sawbench.throughput.peers import generate_batch
from sawbench.throughput.profile import classify
from sawbench.throughput.roofline import Rates
from sawbench.throughput.steps import Decoding, _overhead, compare_steps, decode_step
from sawbench.throughput.warmup import resident
from sawbench.verbs.bench_cells import cells_of

RATES = Rates(1e10, 1e11)
SMALL = ("model=tiny", "device=cpu", "load.input_tokens=20", "load.output_tokens=6", "engine.page_size=16",
         "engine.kv_bytes=100000")  # fmt: skip


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(plan_model(group_config("model", "tiny")), torch.device("cpu"), torch.float32)


def engine(loaded: LoadedModel, method: str = "bf16", **options: Any) -> Any:
    """A pool of 40 pages of 16 tokens where nothing else is said."""
    fixed = {"page_size": 16, "chunk": 32, "max_running": 8, "kv_bytes": 40 * 16 * 256, "prefill": "quantized"}
    config = group_config("engine", "paged")
    config.attention = "auto"
    config.merge_with({**fixed, **options})
    built = instantiate(group_config("method", method), "method")
    return build_paged(config, loaded, built, built.synthetic(loaded.facts, seed=0))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def bench(*words: str) -> int:
    return cli.main(["bench", *SMALL, *words])


def rows(name: str = "bench") -> list[dict[str, str]]:
    return read_csv(Path("results/throughput") / f"{name}.csv")


def test_a_cell_counts_exact_lengths_and_accounts_for_every_page(loaded: LoadedModel) -> None:
    made = engine(loaded)
    row = run_cell(made, Load("d20_6", 20, 6, concurrency=3, requests=5), RATES)
    assert row["output_tokens_total"] == 5 * 6
    assert row["output_tps"] == pytest.approx(30 / row["wall_s"])
    assert row["admitted_max"] == 3
    assert row["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2  # layers, K and V, heads, head size, bytes
    assert row["pool_bytes"] == 40 * 16 * row["kv_bytes_per_token"]
    assert row["preemptions"] == 0
    assert 0 < row["of_bound"] < 1
    assert made.blocks.used == 0


def test_a_small_pool_shows_in_admission_and_preemptions(loaded: LoadedModel) -> None:
    """Four pages: two requests of 16 tokens start, but each wants a second page, and one more must wait or go."""
    row = run_cell(engine(loaded, kv_bytes=4 * 16 * 256), Load("d16_20", 16, 20, 4, 4), RATES)
    assert row["output_tokens_total"] == 4 * 20
    assert row["admitted_max"] < 4
    assert row["preemptions"] > 0


def test_a_load_that_would_be_cut_short_is_refused(loaded: LoadedModel) -> None:
    with pytest.raises(UserError, match="max_running=8"):
        run_cell(engine(loaded), Load("x", 20, 6, 9, 9), RATES)


def test_decode_steps_start_from_a_full_context_without_a_prompt(loaded: LoadedModel) -> None:
    made = engine(loaded)
    requests = list(Load("x", 50, 4, 2, 2).prompts(264, 0))
    landed = list(resident(made, requests))
    assert len(landed) == 4  # one token more a step: no prompt was computed
    assert [len(step.step.decodes) for step in landed] == [0, 2, 2, 2]
    assert all(chunk.start == 49 for chunk in landed[0].step.chunks)
    assert made.blocks.used == 0


@pytest.mark.parametrize("method", ["bf16", "int4", "kmeans"])
def test_pages_that_no_prompt_wrote_are_finite_and_in_range(loaded: LoadedModel, method: str) -> None:
    """An index beyond its codebook would read past it."""
    made = engine(loaded, method)
    for planes in made.cache.planes:
        for plane in planes.values():
            plane.fill_(255 if plane.dtype == torch.uint8 else float("nan"))
    landed = list(resident(made, list(Load("x", 50, 4, 2, 2).prompts(264, 0))))
    assert all(sequence.finite for step in landed for sequence in step.finished)
    assert sum(len(step.finished) for step in landed) == 2


def test_a_step_stands_beside_its_floor(loaded: LoadedModel) -> None:
    made = engine(loaded)
    row = decode_step(made, 2, 50, RATES, steps=5)
    weights = sum(p.numel() for p in loaded.model.parameters() if p.ndim > 1) - 264 * 64  # without the embedding table
    stored = 2 * (50 + 4 + 2) * 256
    assert row["floor_ms"] == pytest.approx(1e3 * (4 * weights + stored) / 1e10)
    assert row["over_floor"] == pytest.approx(row["step_ms"] / row["floor_ms"])
    assert made.blocks.used == 0


def test_interleaved_steps_advance_both_engines_alike(loaded: LoadedModel) -> None:
    a, b = engine(loaded), engine(loaded, "int4")
    row = compare_steps(a, b, 1, 20, steps=4, repeats=3)
    assert row["low_pct"] <= row["overhead_pct"] <= row["high_pct"]
    assert (a.blocks.used, b.blocks.used) == (0, 0)
    decoding = Decoding(a, 1, 20, 40)
    assert len(decoding.times(5)) == 5
    decoding.close()
    assert a.blocks.used == 0


def test_overhead_is_that_of_the_median_pair() -> None:
    """Drift that doubles every step of the second pair cancels; one slow step in a block does not count."""
    blocks = np.array([[[1.0, 1.0, 9.0], [1.1, 1.1, 1.1]], [[2, 2, 2], [2.2, 2.2, 2.2]], [[1, 1, 1], [1.2, 1.2, 1.2]]])
    assert _overhead(blocks) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("kernel", "row"),
    [
        ("decode_kernel", "Attention"),
        ("merge_kernel", "Attention"),
        ("store_kernel", "set_kv"),
        ("products_kernel", "set_kv"),
        ("nearest_kernel", "set_kv"),
        ("hadamard_kernel", "outside rotation"),
        ("nvjet_tst_128x8_64x12_4x1_v_bz_splitK_TNT", "MatMul"),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16>", "MatMul"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>", "MatMul"),
        ("aten::mm", "MatMul"),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>",
            "Sampling",
        ),
        ("triton_poi_fused_mul_silu_0", "Norm/Act/RoPE"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel", "Norm/Act/RoPE"),
    ],
)
def test_kernels_fall_into_the_rows_of_table_4(kernel: str, row: str) -> None:
    assert classify(kernel) == row


def test_methods_side_by_side_and_a_rerun_that_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("method=bf16,int4", "load.concurrency=[1,2]", "load.requests=2")
    assert bench(*words) == 0
    first = rows()
    assert [(r["method"], r["concurrency"]) for r in first] == [
        ("bf16", "1"),
        ("bf16", "2"),
        ("int4", "1"),
        ("int4", "2"),
    ]
    assert {r["output_tokens_total"] for r in first} == {"12"}
    assert all(r["command"] and r["date"] and r["device"] and r["versions"] for r in first)
    assert bench(*words) == 0
    assert rows() == first
    assert "1.000" in capsys.readouterr().out  # BF16 over BF16


def test_the_report_reads_what_bench_writes() -> None:
    assert bench("method=bf16,int4", "load.concurrency=[1,2]", "load.requests=2") == 0
    assert set(rows()[0]) >= serving.NEEDED | {"options", "output_tps_request", "ttft_ms", "gpus", "error", "bound_tps"}
    (table,) = [part for part in serving.contents(Study.read(Path("results"))) if isinstance(part, Table)]
    ratio = table.columns.index("ratio to BF16")
    measured = {r["method"]: float(r["output_tps"]) for r in rows() if r["concurrency"] == "2"}
    shown = next(line for line in table.rows if line[0] == "int4" and line[2].value == 2)  # type: ignore[union-attr]
    assert shown[ratio].value == pytest.approx(measured["int4"] / measured["bf16"], rel=1e-5)  # type: ignore[union-attr]


def test_the_report_sets_a_peer_beside_them() -> None:
    """A peer has throughput alone: no time to first token, no bound."""
    assert bench("method=bf16", "load.concurrency=[1,2]", "load.requests=2") == 0
    base = rows()[1]
    peer = {name: base[name] for name in ("model", "load", "concurrency")}
    half = float(base["output_tps"]) / 2
    ledger = Ledger(Path("results/throughput/bench.csv"))
    ledger.write("peer", [{**peer, "method": "generate_batch", "options": "", "output_tps": half, "error": ""}])
    parts = list(serving.contents(Study.read(Path("results"))))
    (table,) = [part for part in parts if isinstance(part, Table)]
    shown = next(line for line in table.rows if line[0] == "generate_batch")
    assert shown[table.columns.index("ratio to BF16")].value == pytest.approx(0.5)  # type: ignore[union-attr]


def test_a_failed_cell_is_a_row_and_the_others_go_on() -> None:
    """BF16's request of 60 tokens does not fit 2,048 bytes a page times two; INT4's does."""
    words = (
        "method=bf16,int4",
        "load.input_tokens=60",
        "load.concurrency=1",
        "load.requests=1",
        "engine.kv_bytes=12000",
    )
    assert bench(*words) == 1
    failed, measured = rows()
    assert "engine.kv_bytes" in failed["error"]
    assert not failed["output_tps"]
    assert measured["method"] == "int4"
    assert not measured["error"]
    assert bench(*words) == 1  # tried again, not taken for done


def test_what_cannot_be_measured_is_refused_before_weights_load(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("engine=hf", "~engine.page_size") == 2
    assert cli.main(["bench", "model=tiny", "engine=hf"]) == 2
    assert "engine=paged" in capsys.readouterr().err
    assert bench("load.output_tokens=4090", "load.concurrency=1", "load.requests=1") == 2
    assert "context of 4096" in capsys.readouterr().err
    assert bench("measure=nothing") == 2
    assert not Path("results").exists()


def test_the_estimate_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "model.weights=random", "method=bf16,int4", "load.concurrency=[64]", "load.requests=64"]
    assert cli.main([*words, "engine.kv_bytes=58.9e9", "--estimate"]) == 0
    out = capsys.readouterr().out
    assert "bf16 d16384_1024 x64" in out
    assert "109 s of device time" in out  # 71.1 and 37.8 by the roofline's own test
    assert not Path("results").exists()


def test_a_claimed_cell_is_left_to_its_holder(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "results" / "throughput" / "bench.csv")
    with ledger.claim("abc") as mine, Ledger(ledger.path).claim("abc") as other:
        assert mine
        assert not other
    with ledger.claim("abc") as again:
        assert again


def test_rows_are_replaced_by_run_and_the_file_is_always_whole(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "results" / "throughput" / "bench.csv")
    ledger.write("a", [{"method": "x", "error": "boom"}])
    ledger.write("b", [{"method": "y", "output_tps": 2.0, "error": ""}])
    assert not ledger.done("a")
    ledger.write("a", [{"method": "x", "output_tps": 1.0, "error": ""}])
    with ledger.path.open() as stream:
        found = list(csv.DictReader(stream))
    assert [(row["run"], row["output_tps"]) for row in found] == [("b", "2"), ("a", "1")]
    assert ledger.done("a")


def test_the_peer_runs_on_cuda_alone(loaded: LoadedModel) -> None:
    with pytest.raises(UserError, match="CUDA"):
        generate_batch(loaded, Load("x", 8, 4, 2, 2))


def test_a_peer_that_fails_is_no_row_of_the_method() -> None:
    assert bench("measure=peer", "method=bf16", "load.concurrency=1", "load.requests=1") == 1
    (row,) = rows()
    assert row["method"] == "generate_batch"
    assert "CUDA" in row["error"]


def test_decode_steps_of_a_cell_have_a_pool_of_their_own() -> None:
    """Whatever ``engine.kv_bytes`` is for loads; and a split's rows sum to its total."""
    words = ("method=int4", "load.concurrency=1", "load.requests=1", "engine.kv_bytes=null")
    assert bench("measure=split", *words) == 0
    parts = {row["row"]: float(row["step_us"]) for row in rows("split")}
    assert parts.pop("TOTAL") == pytest.approx(sum(parts.values()), rel=1e-4)
    assert parts["MatMul"] > 0


def test_identities_tell_measures_and_loads_apart() -> None:
    configs = [compose("bench", [*SMALL, *words]) for words in ([], ["measure=step"], ["seed=1"], ["method=int4"])]
    runs = [cell.run for config in configs for cell in cells_of(config, config)]
    assert len(set(runs)) == len(runs) == 4 * 5
    again = compose("bench", [*SMALL, "results=elsewhere"])
    assert [cell.run for cell in cells_of(again, again)] == runs[:5]
