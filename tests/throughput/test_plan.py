"""``plan``: bytes and fits against numbers worked out by hand; no weights, no GPU."""

from pathlib import Path

import pytest

from helpers.methods import SERVABLE
from sawbench import cli
from sawbench.results.tidy import read_csv
from sawbench.throughput.costs import UNBOUNDED, Cost, Parameters
from sawbench.throughput.plan import Card, full
from sawbench.throughput.roofline import Rates

TIB = 2**40


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def planned(*words: str) -> tuple[dict[str, dict[str, str]], list[dict[str, str]]]:
    """Rows of methods.csv by method, and of gains.csv."""
    assert cli.main(["plan", *words]) == 0
    (sizes,), (gains,) = (list(Path("results/plan").glob(f"*-{name}.csv")) for name in ("methods", "gains"))
    assert len(list(Path("results/plan").glob("*.svg"))) == 1
    return {row["method"]: row for row in read_csv(sizes)}, read_csv(gains)


def test_llama_4_scout_at_ten_million_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """1.79 TiB if all 48 layers are counted full; 12 full layers and 36 chunks of 8,192 tokens hold 0.45."""
    sizes, _ = planned("model=llama-4-scout", "context=10M", "output=1", "methods=[bf16,int4]")
    layer = 2 * 8 * 128 * 2
    assert float(sizes["bf16"]["request_bytes"]) == pytest.approx(48 * layer * 10_000_000, rel=1e-6)
    assert float(sizes["bf16"]["own_bytes"]) == pytest.approx(layer * (12 * 10_000_000 + 36 * 8192), rel=1e-6)
    out = capsys.readouterr().out
    assert "1.79 TiB" in out
    assert "0.45 TiB" in out
    assert sizes["bf16"]["fit"] == "0"
    assert "gpu.count=10" in sizes["bf16"]["note"]  # 215.5 GB and 491.8 GB over 75.3 GB a card
    assert cli.main(["run", "model=llama-4-scout", "model.weights=random"]) == 2


def test_qwen3_8b_on_a_card(capsys: pytest.CaptureFixture[str]) -> None:
    sizes, gains = planned("context=16384", "output=1024", "concurrency=[8,64]", "gpu.memory=85.52G")
    assert float(sizes["bf16"]["token_bytes"]) == 147_456
    assert float(sizes["int4"]["token_bytes"]) == 39_168
    pool = 0.88 * 85.52e9 - 2 * 8_190_735_360
    assert float(sizes["int4"]["pool_bytes"]) == pytest.approx(pool, rel=1e-6)
    assert sizes["bf16"]["fit"] == str(int(pool // (17_407 * 147_456))) == "22"
    assert sizes["int4"]["fit"] == "86"
    by = {(row["method"], row["concurrency"]): row for row in gains}
    assert float(by["bf16", "64"]["gain"]) == 1.0
    assert float(by["int4", "64"]["gain"]) > float(by["int4", "8"]["gain"]) > 1
    assert by["bf16", "64"]["admitted"] == "22"


def test_every_method_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    sizes, _ = planned("context=1k", "concurrency=[4]")
    shipped = {path.stem for path in (Path(__file__).parents[2] / "configs" / "method").glob("*.yaml")}
    assert set(sizes) == shipped - {"reference"}
    unservable = {name for name, row in sizes.items() if row["note"].startswith("not servable: ")}
    assert unservable == shipped - {*SERVABLE}
    assert all((row["bits"] == "") == (name in unservable) for name, row in sizes.items())
    assert all(float(row["bits"]) <= 16 for name, row in sizes.items() if name not in unservable)


@pytest.mark.parametrize(
    ("word", "said"),
    [("context=much", "context=much"), ("methods=[none]", "methods=none"), ("gpu.memory=0", "gpu.memory=0"),
     ("gpu.share=2", "gpu.share=2"), ("gpu=abacus", "gpu=abacus")],
)  # fmt: skip
def test_mistakes_are_one_line(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", word]) == 2
    assert said in capsys.readouterr().err
    assert not Path("results").exists()


def test_cards_share_memory_and_work() -> None:
    card = Card("x", 100.0, Rates(10.0, 20.0), share=0.5, count=3)
    assert card.pool(40) == 110
    assert card.pool(400) == 0
    assert card.together == Rates(30.0, 60.0)


def test_all_layers_counted_full() -> None:
    cost = Cost(Parameters(1, 1, 1), ((1, UNBOUNDED), (3, 8)), 2.0, 1)
    assert full(cost).kv_bytes(100) == 2 * 4 * 100
    assert cost.kv_bytes(100) == 2 * (100 + 3 * 8)
