"""Throughput and kernels: ratios within one file, the paper's beside them, failures visible, strangers ignored."""

from pathlib import Path

import pandas as pd
import pytest

from sawbench.config import compose
from sawbench.report import decode_steps, kernels, paper_loads, retrieval, serving
from sawbench.report.content import Drawing, Table
from sawbench.report.records import Number, Study
from sawbench.throughput.peers import NAMES

ROOT = Path(__file__).parents[2]
BENCH = """model,method,options,run,load,concurrency,output_tps,output_tps_request,ttft_ms,bound_tps,gpus,error
qwen3-8b,bf16,,r1,d16384_1024,8,400,50,900,500,1,
qwen3-8b,bf16,,r2,d16384_1024,64,1000,20,9000,1250,1,
qwen3-8b,int4,,r3,d16384_1024,8,480,60,900,650,1,
qwen3-8b,int4,,r4,d16384_1024,64,1500,25,7000,2000,1,
qwen3-8b,kmeans,,r5,d16384_1024,64,,,,,1,out of memory
"""
KERNELS = """family,kernel,batch,context,query_heads,kv_heads,head_dim,page_size,bytes,floor_us,time_us,low_us,high_us,\
tb_per_s,fraction,vs_bf16,error,note
paged_decode,int4,16,1024,32,8,128,128,1000,10,20,19,21,2.1,0.5,2.0,0.001,
paged_decode,int4,16,16384,32,8,128,128,16000,100,160,158,163,2.6,0.62,2.2,0.001,
paged_decode,sdpa_cudnn,16,16384,32,8,128,128,64000,400,410,400,420,4.2,0.98,1.0,0.001,
paged_decode,int8,16,16384,32,8,128,128,32000,200,,,,,,,0.2,wrong: error 2e-01 above 5e-03
"""


def rows(table: Table) -> list[dict[str, object]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("throughput", "kernels"):
        (tmp_path / folder).mkdir()
    (tmp_path / "throughput" / "h200.csv").write_text(BENCH)
    (tmp_path / "throughput" / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "kernels" / "h200.csv").write_text(KERNELS)
    (tmp_path / "kernels" / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "paper").symlink_to(ROOT / "results" / "paper")
    return tmp_path


def test_measured_ratios_stand_beside_the_papers(root: Path) -> None:
    drawing, table, _ = serving.contents(Study.read(root))
    assert isinstance(drawing, Drawing)
    assert isinstance(table, Table)
    found = {(row["method"], row["concurrency"]): row for row in rows(table)}
    int4 = found["int4", Number(64)]
    assert int4["ratio to BF16"] == Number(1.5, run="r4")
    assert int4["roofline's ratio"] == Number(1.6, run="r4")
    assert int4["share of the bound"] == Number(0.75, run="r4")
    paper = pd.read_csv(root / "paper" / "throughput_h100_tp1.csv")
    theirs = paper[(paper["kv_config"] == "INT4") & (paper["concurrency"] == 64) & (paper["context"] == "long")]
    assert int4["paper's ratio"] == Number(float(theirs["output_tps_speedup_vs_bf16"].iloc[0]))


def test_a_row_of_another_pool_is_compared_with_its_like_alone(root: Path) -> None:
    """A larger pool admits more requests, whatever the method: its rows are a load of their own."""
    frame = pd.read_csv(root / "throughput" / "h200.csv").assign(pool_bytes=58.89e9)
    frame.loc[frame["run"] == "r3", "pool_bytes"] = 58.90e9  # the same budget in pages of another size
    alone = frame[frame["run"] == "r4"].assign(run="r6", pool_bytes=114.1e9, output_tps=1700)
    pair = pd.concat([alone, frame[frame["run"] == "r2"].assign(run="r7", pool_bytes=114.2e9, output_tps=1360)])
    for more, ratio in ((alone, None), (pair, Number(1.25, run="r6"))):
        pd.concat([frame, more]).to_csv(root / "throughput" / "h200.csv", index=False)
        _, table, _ = serving.contents(Study.read(root))
        assert isinstance(table, Table)
        found = {row["run"]: row for row in rows(table)}
        assert found["r4"]["ratio to BF16"] == Number(1.5, run="r4")
        assert found["r3"]["ratio to BF16"] == Number(1.2, run="r3")
        assert found["r6"]["load"] == "d16384_1024, pool of 114 GB"
        assert found["r6"]["ratio to BF16"] == ratio
        assert found["r6"]["paper's ratio"] is None


def test_a_row_of_other_chunks_is_compared_with_its_like_alone(root: Path) -> None:
    """By model: what is usual for a small one is not for a large one."""
    frame = pd.read_csv(root / "throughput" / "h200.csv").assign(chunk=4096)
    other = frame[frame["run"].isin(["r2", "r4"])].assign(chunk=16384, output_tps=[1200, 3000])
    other["run"] += "b"
    small = frame.assign(model="small", chunk=16384)
    small["run"] += "s"
    pd.concat([frame, other, small]).to_csv(root / "throughput" / "h200.csv", index=False)
    tables = [
        each for each in serving.contents(Study.read(root)) if isinstance(each, Table) and "Through" in each.title
    ]
    found = {row["run"]: row for each in tables for row in rows(each)}
    assert [found[run]["load"] for run in ("r4", "r4b", "r4s")] == [
        "d16384_1024", "d16384_1024, chunks of 16384", "d16384_1024",
    ]  # fmt: skip
    assert found["r4b"]["ratio to BF16"] == Number(2.5, run="r4b")
    assert found["r4s"]["ratio to BF16"] == Number(1.5, run="r4s")


def test_another_engine_has_a_row_and_no_place_in_a_figure(root: Path) -> None:
    frame = pd.read_csv(root / "throughput" / "h200.csv")
    peer = frame[frame["run"] == "r1"].assign(method=serving.PEER, options="cache=bf16", run="r9", output_tps=20)
    loads = [frame.assign(concurrency=8, method=name, run=f"{name}-{i}") for i, name in enumerate(["bf16", "int4"])]
    pd.concat([frame, peer, *loads]).to_csv(root / "throughput" / "h200.csv", index=False)
    found = [*serving.contents(Study.read(root))]
    assert NAMES["method"] == serving.PEER
    assert any("r9" in map(str, row) for each in found if isinstance(each, Table) for row in each.rows)
    drawn = [each.figure for each in found if isinstance(each, Drawing)]
    said = {text.get_text() for figure in drawn for axes in figure.axes for text in axes.texts}
    assert "int4" in said
    assert not any(serving.PEER in text for text in said)


def test_runs_of_one_cell_become_their_spread(root: Path) -> None:
    frame = pd.read_csv(root / "throughput" / "h200.csv")
    again = [frame[frame["run"] == "r4"].assign(output_tps=tps) for tps in (1500, 1440, 1530)]
    pd.concat(again).to_csv(root / "throughput" / "repeats.csv", index=False)
    (table,) = [each for each in serving.contents(Study.read(root)) if each.name == "throughput-repeats"]
    assert isinstance(table, Table)
    assert table.rows == [["qwen3-8b", "int4", "d16384_1024", *map(Number, (64, 3, 1500, 1440, 1530, 6))]]


def test_a_failed_cell_keeps_its_row_and_its_error(root: Path) -> None:
    _, table, _ = serving.contents(Study.read(root))
    assert isinstance(table, Table)
    failed = rows(table)[-1]
    assert failed["output tokens/s"] is None
    assert failed["note"] == "out of memory"


def test_the_papers_ratios_are_found_by_model_method_and_load(root: Path) -> None:
    found = paper_loads.cells(Study.read(root))
    assert {load for _, _, load, _ in found} == {"d16384_1024", "d256_1024", "d8192_1024"}
    assert all(cell.ratio == 1 for (_, label, *_), cell in found.items() if label == "bf16")
    assert found["qwen3-8b", "kmeans centroids=256", "d8192_1024", 32].ratio == pytest.approx(347.9 / 859.1)
    assert found["qwen3-4b", "hessian_bdr", "d8192_1024", 32].ratio == pytest.approx(1051.0 / 1030.5)


def test_figures_4_and_7_are_cells_beside_the_sweeps() -> None:
    found = paper_loads.cells(Study.read(ROOT / "results"))
    for model, batch in (("qwen3-4b", 1), ("qwen3-32b", 256), ("glm-4.7", 16)):
        assert {(model, label, "d8192_1024", batch) for label in ("bf16", "int4", "bdr")} <= found.keys()
    unfused = found["qwen3-4b", "bdr fused=False", "d8192_1024", 8]
    assert "method=bdr engine.fused=false load=d8192_1024" in unfused.command
    assert compose("bench", unfused.command.split()[4:]).engine.fused is False


def test_loads_that_did_not_run_have_a_command_that_composes(root: Path) -> None:
    *_, missing = serving.contents(Study.read(root))
    assert isinstance(missing, Table)
    commands = {tuple(row[:3]): str(row[-1]) for row in missing.rows}
    assert ("qwen3-8b", "kmeans centroids=256", "d8192_1024") in commands
    assert not any(row[:4] == ["qwen3-8b", "int4", "d16384_1024", Number(64)] for row in missing.rows)
    assert any(row[:4] == ["qwen3-8b", "int4", "d16384_1024", Number(32)] for row in missing.rows)
    for command in dict(zip((key[1] for key in commands), commands.values(), strict=True)).values():
        config = compose("bench", command.split()[4:])
        assert config.model.weights == "random"
        assert f"method={config.method.name} " in command


def test_a_wrong_kernel_has_a_note_and_no_place_in_a_figure(root: Path) -> None:
    fraction, ratio, table = kernels.contents(Study.read(root))
    assert [fraction.name, ratio.name] == ["kernels-h200-paged-decode-fraction", "kernels-h200-paged-decode-ratio"]
    assert isinstance(table, Table)
    wrong = rows(table)[-1]
    assert wrong["time (us)"] is None
    assert str(wrong["note"]).startswith("wrong")
    assert rows(table)[1]["time (us)"] == Number(160, 158, 163)
    assert isinstance(fraction, Drawing)
    drawn = {text.get_text() for axes in fraction.figure.axes for text in axes.texts}
    assert drawn == {"int4", "sdpa_cudnn"}


def test_share_found_by_length_weighs_questions() -> None:
    frame = pd.DataFrame({"run": ["r"] * 3, "length": [4096, 4096, 8192], "score": [1.0, 0.0, 0.5], "n": [3, 1, 4]})
    grid = retrieval.by_length(frame)
    assert list(grid.loc["r"]) == [0.75, 0.5]


def test_retrieval_has_a_line_and_a_row_for_each_method(tmp_path: Path) -> None:
    keys = "model,method,options,task,engine,attention,prefill,dtypes,run"
    runs = [f"toy,{method},,passkey,hf,naive,quantized,,toy-{method}" for method in ("bf16", "int4")]
    metric = [f"{run},found,0.{at}5,share,0.1,0.9,8" for at, run in enumerate(runs)]
    cells = [f"{run},{length},0.5,0.{at}5,0,1,4" for at, run in enumerate(runs) for length in (4096, 8192)]
    (tmp_path / "metrics.csv").write_text("\n".join([f"{keys},metric,value,unit,low,high,n", *metric]) + "\n")
    (tmp_path / "passkey_found.csv").write_text("\n".join([f"{keys},length,depth,score,low,high,n", *cells]) + "\n")
    drawing, table = retrieval.contents(Study.read(tmp_path))
    assert isinstance(drawing, Drawing)
    assert {text.get_text() for text in drawing.figure.axes[0].texts} == {"bf16", "int4"}
    assert isinstance(table, Table)
    assert [row["method"] for row in rows(table)] == ["int4", "bf16"]


def retrieved(root: Path, asked: dict[str, list[tuple[int, int, int]]], score: str = "0.5") -> list[Drawing | Table]:
    """The parts of a report on runs of passkey: by method, (length, depth, questions) of each cell; ``score`` is what
    the last cell of the last method has."""
    keys = "model,method,options,task,engine,attention,prefill,dtypes,run"
    runs = {method: f"toy,{method},,passkey,hf,naive,quantized,,toy-{method}" for method in asked}
    metrics = [f"{run},found,0.5,share,0.1,0.9,8" for run in runs.values()]
    cells = [f"{runs[m]},{length},{depth},0.5,0,1,{n}" for m, places in asked.items() for length, depth, n in places]
    cells[-1] = cells[-1].replace(",0.5,", f",{score},")
    (root / "metrics.csv").write_text("\n".join([f"{keys},metric,value,unit,low,high,n", *metrics]) + "\n")
    (root / "passkey_passkey.csv").write_text("\n".join([f"{keys},length,depth,score,low,high,n", *cells]) + "\n")
    return list(retrieval.contents(Study.read(root)))


@pytest.mark.parametrize(
    "other",
    [[(512, 0, 2)], [(512, 0, 2), (700, 0, 2)], [(512, 50, 2), (600, 50, 2)], [(512, 0, 9), (600, 0, 9)]],
    ids=["fewer lengths", "other lengths", "another depth", "more questions"],
)
def test_runs_that_were_asked_something_else_are_a_group_of_their_own(
    other: list[tuple[int, int, int]], tmp_path: Path
) -> None:
    usual = [(512, 0, 2), (600, 0, 2)]
    parts = retrieved(tmp_path, {"int4": usual, "bf16": usual, "int8": other})
    tables = [part for part in parts if isinstance(part, Table)]
    assert sorted(sorted(str(row[0]) for row in table.rows) for table in tables) == [["bf16", "int4"], ["int8"]]
    assert len({part.name for part in tables}) == 2
    assert all(value is None or value == value for t in tables for row in rows(t) for value in row.values())
    drawn = [part for part in parts if isinstance(part, Drawing)]
    assert len(drawn) == (2 if len(other) > 1 else 1)


@pytest.mark.parametrize("lengths", [(512, 600), (512,)])
def test_a_length_without_a_score_is_a_dash_and_breaks_no_figure(lengths: tuple[int, ...], tmp_path: Path) -> None:
    *_, table = retrieved(tmp_path, {name: [(n, 0, 2) for n in lengths] for name in ("int4", "bf16")}, score="")
    assert isinstance(table, Table)
    (found,) = [row for row in rows(table) if row["method"] == "bf16"]
    shares = [found[f"{n} tokens"] for n in lengths]
    assert shares == [Number(0.5, run="toy-bf16")] * (len(lengths) - 1) + [None]


SPLIT = """model,method,options,row,batch,context,step_us,value,error
m,int4,,MatMul,32,16384,60,60,
m,int4,,Attention,32,16384,40,40,
m,int4,,TOTAL,32,16384,100,100,
m,bdr,,MatMul,32,16384,60,60,
m,bdr,,Attention,32,16384,40,40,
m,bdr,,set_kv,32,16384,20,20,
m,bdr,,TOTAL,32,16384,120,120,
"""
MORE = """m,bdr,fused=False,MatMul,32,16384,90,90,
m,bdr,fused=False,TOTAL,32,16384,90,90,
m,bdr,,MatMul,8,16384,7,7,
m,bdr,,TOTAL,8,16384,7,7,
m,kmeans,,,,,,,out of memory
"""


def test_splits_of_other_batches_and_of_unfused_rotations_are_not_mixed(root: Path) -> None:
    (root / "throughput" / "split.csv").write_text(SPLIT + MORE)
    tables = [part for part in decode_steps.contents(Study.read(root)) if isinstance(part, Table)]
    assert [table.title.partition(": ")[2] for table in tables] == [
        "m, batch 32, 16k context", "m, batch 8, 16k context"
    ]  # fmt: skip
    matmul = rows(tables[0])[0]
    assert [matmul[f"{name} (ns)"] for name in ("bdr", "bdr fused=False")] == [Number(60), Number(90)]
    assert rows(tables[1])[0]["bdr (ns)"] == Number(7)


def test_table_7_stands_beside_the_batches_that_table_4_lacks() -> None:
    study = Study.read(ROOT / "results")
    seven = decode_steps.published(study, 8, 16384).set_index(["variant", "row"])["value"]
    assert seven["INT4", "MatMul"] == pytest.approx(172030)
    assert seven["Unfused", "outside rotation"] > 0
    assert decode_steps.published(study, 8, 4096).empty
    assert set(decode_steps.published(study, 32, 16384)["variant"]) == {"INT4", "Fused rotate-K", "Unfused"}


def test_a_step_is_split_into_shares_that_sum_to_the_whole(root: Path) -> None:
    (root / "throughput" / "split.csv").write_text(SPLIT)
    drawing, table = decode_steps.contents(Study.read(root))
    assert isinstance(drawing, Drawing)
    assert isinstance(table, Table)
    shares = decode_steps.shares(Study.read(root).throughput["split"].rename(columns={"method": "variant"}))
    assert list(shares.loc["int4"]) == pytest.approx([60, 40, 0])
    assert list(shares.sum(axis=1)) == pytest.approx([100, 100])
    found = {row["part"]: row for row in rows(table)}
    assert found["set_kv"]["int4 (ns)"] is None
    assert found["TOTAL"]["bdr (ns)"] == Number(120)
    assert found["TOTAL"]["paper: INT4 (ns)"] == Number(533146)


def test_overhead_and_floor_have_their_noise(root: Path) -> None:
    head = "model,method,base,batch,context,overhead_pct,low_pct,high_pct"
    (root / "throughput" / "overhead.csv").write_text(f"{head}\nm,bdr,int4,32,16384,0.4,0.1,0.8\n")
    (root / "throughput" / "step.csv").write_text(
        "method,batch,context,step_ms,floor_ms,over_floor\nbf16,1,2048,4,3.2,1.25\n"
    )
    overhead, floor = decode_steps.contents(Study.read(root))
    assert isinstance(overhead, Table)
    assert isinstance(floor, Table)
    assert rows(overhead)[0]["base"] == "int4"
    assert rows(overhead)[0]["overhead (%)"] == Number(0.4, 0.1, 0.8)
    assert rows(floor)[0]["step / floor"] == Number(1.25)
