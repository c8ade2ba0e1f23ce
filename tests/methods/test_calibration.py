"""Artifacts: what is written comes back; what was made for something else, is damaged or could run code does not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from helpers.methods import METHODS, load_method, make_facts
from sawbench.core.errors import UserError
from sawbench.core.shape import KVShape
from sawbench.methods.calibration import METADATA, Provenance, load, read, save

MODEL = {"name": "test-model", "source": "ORG/NAME", "revision": "abc", "weights": "pretrained", "config": "0123"}
SHAPE = KVShape(2, 4, 2, 64)
TEXT = {"source": "file", "sha256": "00ff", "tokens": 4096, "seed": 0}


def provenance(name: str = "kmeans", **options: object) -> Provenance:
    return Provenance.of(load_method(name, **options), MODEL, SHAPE, TEXT, synthetic=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensors = load_method("kmeans").synthetic(make_facts(), seed=0)
    save(tmp_path / "made.safetensors", tensors, provenance(), {"sawbench": "0.1.0"})
    return tmp_path / "made.safetensors"


def test_what_was_written_comes_back(path: Path) -> None:
    expected = load_method("kmeans").synthetic(make_facts(), seed=0)
    found = load(path, provenance())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", [n for n in METHODS if load_method(n).calibration_tokens])
def test_every_calibration_can_be_kept(name: str, tmp_path: Path) -> None:
    """Rotations come as turned views too, which the format itself refuses."""
    tensors = load_method(name).synthetic(make_facts(), seed=0)
    save(tmp_path / "made.safetensors", tensors, provenance(name), {})
    turned = {key: tensor.mT for key, tensor in tensors.items() if tensor.ndim > 1}
    save(tmp_path / "turned.safetensors", turned, provenance(name), {})
    assert all(torch.equal(read(tmp_path / "turned.safetensors")[0][key], turned[key]) for key in turned)


def test_the_file_says_what_made_it(path: Path) -> None:
    _, record = read(path)
    assert (record["model"], record["text"], record["synthetic"]) == (MODEL, TEXT, False)
    assert record["shape"] == {"layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 64}
    assert [part["part"] for part in record["parts"]["key"]] == ["Codebook"]
    assert record["notes"] == {"sawbench": "0.1.0"}
    with safe_open(path, "pt") as file:
        assert set(file.metadata()) == {METADATA}


def changed(**fields: Any) -> Provenance:
    return replace(provenance(), **fields)


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (changed(model={**MODEL, "source": "ORG/OTHER"}), 'model source is "ORG/NAME" there, "ORG/OTHER" here'),
        (changed(model={**MODEL, "revision": "def"}), 'model revision is "abc" there, "def" here'),
        (changed(shape={"layers": 2, "query_heads": 4, "kv_heads": 1, "head_dim": 64}), "shape kv_heads is 2 there"),
        (changed(shape={"layers": 3, "query_heads": 4, "kv_heads": 2, "head_dim": 64}), "shape layers is 2 there"),
        (provenance(centroids=256), r"parts key\.0\.centroids is 16 there, 256 here"),
        (provenance("kmeans_k"), "parts value is "),
        (provenance("centre"), "parts key"),
        (changed(synthetic=True), "synthetic is false there, true here"),
    ],
)
def test_what_was_made_for_something_else_is_refused_by_name(path: Path, wanted: Provenance, named: str) -> None:
    """Known fault 18."""
    with pytest.raises(UserError, match=named) as refusal:
        load(path, wanted)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_methods_that_calibrate_the_same_parts_share_an_artifact_and_others_never_do() -> None:
    assert provenance("kmeans").digest != provenance("kmeans", centroids=256).digest
    assert provenance("hessian").digest != provenance("hessian_bdr").digest
    assert provenance("centre").digest == provenance("centre_bdr").digest
    assert changed(text={**TEXT, "seed": 1}).digest != provenance().digest


def test_another_text_is_no_mismatch_for_a_named_artifact(path: Path) -> None:
    assert load(path, changed(text={**TEXT, "sha256": "other"}))


def test_damaged_foreign_and_missing_files_are_one_line(tmp_path: Path, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])
    foreign, pickled = tmp_path / "foreign.safetensors", tmp_path / "pickled.safetensors"
    torch.save({"key.0.mean": torch.zeros(2)}, pickled)
    from safetensors.torch import save_file

    save_file({"key.0.mean": torch.zeros(2)}, foreign)
    for bad in (path, foreign, pickled, tmp_path / "missing.safetensors"):
        with pytest.raises(UserError, match=str(bad)):
            load(bad, provenance())


def test_every_method_fits_the_tensors_that_it_binds(method_name: str) -> None:
    """Names and shapes of a fit equal those of the synthetic artifact, and bind takes both."""
    from sawbench.methods.parts import LayerSample

    method, facts = load_method(method_name), make_facts()
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(64, heads, 64, generator=generator) for heads in (4, 2, 2))
    weight = torch.randn(128, 4 * 64, generator=generator)
    fitted = {}
    for layer in range(2):
        fitted |= method.fit(layer, LayerSample(query, key, value, weight), seed=0)
    fitted, synthetic = method.settled(fitted), method.synthetic(facts, seed=0)
    assert {k: t.shape for k, t in fitted.items()} == {k: t.shape for k, t in synthetic.items()}
    assert bool(fitted) == bool(method.calibration_tokens)
    assert len(method.bind(facts, fitted, torch.device("cpu"))) == 2
