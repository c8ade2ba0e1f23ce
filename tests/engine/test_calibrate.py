"""Calibration from end to end on a tiny model: text, capture, fit, artifact, and who may share it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.methods import load_method
from helpers.stub import StubEngine
from sawbench.config import group_config, instantiate
from sawbench.core.errors import UserError
from sawbench.core.progress import silent
from sawbench.engine import calibrate
from sawbench.engine.calibrate import artifact_for, captured, find_or_make, fit
from sawbench.engine.calibration_text import MmluPro, SelfWritten, TextFile, self_or_file
from sawbench.methods.calibration import read
from sawbench.models import LoadedModel, capture_layers, load_model, plan_model
from sawbench.results.tidy import read_csv

WORDS = "Colourless green ideas sleep furiously, and the old harbour keeps its own time. "


@pytest.fixture(scope="module")
def random_model() -> LoadedModel:
    return load_model(plan_model(group_config("model", "tiny")), torch.device("cpu"), torch.float64)


@pytest.fixture(scope="module")
def model(random_model: LoadedModel) -> LoadedModel:
    """As if its weights had been trained: they are then calibrated for real."""
    return replace(random_model, identity={**random_model.identity, "weights": "pretrained"})


@pytest.fixture
def text(tmp_path: Path) -> TextFile:
    (tmp_path / "text.txt").write_text(WORDS * 10)
    return TextFile(str(tmp_path / "text.txt"), tokens=300)


def ids(count: int) -> list[int]:
    return [(7 * at) % 256 for at in range(count)]


def test_windows_are_joined_in_order(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "WINDOW", 40)
    whole = [capture_layers(model, torch.tensor([ids(100)[at : at + 40]])) for at in (0, 40, 80)]
    samples = dict(captured(model, ids(100), silent))
    assert list(samples) == [0, 1]
    for layer, sample in samples.items():
        for name in ("query", "key", "value"):
            assert torch.equal(getattr(sample, name), torch.cat([getattr(w[layer], name) for w in whole]))


def test_layers_that_do_not_fit_in_memory_take_another_pass(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fit(load_method("centre"), model, ids(100), 0, silent)
    monkeypatch.setattr(calibrate, "HELD_BYTES", 1)
    found = fit(load_method("centre"), model, ids(100), 0, silent)
    assert found.keys() == expected.keys() == {"key.0.mean", "key.1.mean"} | {k for k in expected if k[0] == "v"}
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_the_mean_is_the_mean_of_the_keys_seen(model: LoadedModel) -> None:
    sample = capture_layers(model, torch.tensor([ids(100)]))[1]
    assert torch.equal(fit(load_method("centre"), model, ids(100), 0, silent)["key.1.mean"], sample.key.mean(0))


def test_the_same_seed_gives_the_same_codebooks_and_another_does_not(model: LoadedModel) -> None:
    first, again, other = (fit(load_method("kmeans"), model, ids(200), seed, silent) for seed in (0, 0, 1))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_an_artifact_is_made_once_and_found_again(model: LoadedModel, text: TextFile, tmp_path: Path) -> None:
    made = find_or_make(load_method("centre"), model, text, tmp_path, silent)
    shared = find_or_make(load_method("centre_bdr"), model, text, tmp_path, silent)
    assert (made.made, shared.made, shared.path) == (True, False, made.path)
    assert all(torch.equal(made.tensors[key], shared.tensors[key]) for key in made.tensors)


def test_of_several_that_calibrate_at_once_one_does_and_one_text_is_written(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    truly = calibrate.read_text

    def noted(*args: Any) -> list[int]:
        asked.append("text")
        return truly(*args)

    monkeypatch.setattr(calibrate, "read_text", noted)
    own = SelfWritten(answer_tokens=4, tokens=120)
    methods = [load_method(name) for name in ("centre", "centre_bdr", "centre")]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda method: find_or_make(method, model, own, tmp_path, silent), methods))
    assert (len(asked), sorted(one.made for one in found)) == (1, [False, False, True])
    assert len({one.path for one in found}) == 1


@pytest.mark.parametrize("change", ["text", "tokens", "seed", "model", "dtype"])
def test_what_decides_the_tensors_decides_the_file(
    change: str, model: LoadedModel, text: TextFile, tmp_path: Path
) -> None:
    first = find_or_make(load_method("centre"), model, text, tmp_path, silent)
    if change == "text":
        Path(text.text).write_text(WORDS[::-1] * 10)
    elif change == "model":
        model = replace(model, identity={**model.identity, "revision": "another"})
    elif change == "dtype":
        model = load_model(plan_model(group_config("model", "tiny")), torch.device("cpu"), torch.float32)
        model = replace(model, identity={**model.identity, "weights": "pretrained"})
    else:
        text = replace(text, **{change: 299})
    second = find_or_make(load_method("centre"), model, text, tmp_path, silent)
    assert (second.made, second.path == first.path) == (True, False)


def test_random_weights_get_a_synthetic_artifact_marked_as_such(random_model: LoadedModel, tmp_path: Path) -> None:
    made = find_or_make(load_method("kmeans"), random_model, SelfWritten(), tmp_path, silent)
    tensors, record = read(made.path)
    assert (record["synthetic"], record["text"]["source"]) == (True, "none")
    expected = load_method("kmeans").synthetic(random_model.facts, seed=0)
    assert all(torch.equal(tensors[key], expected[key]) for key in expected)


def test_sensitivities_are_a_table_of_all_models_that_is_kept_up_to_date(
    model: LoadedModel, text: TextFile, tmp_path: Path
) -> None:
    """Found or made, the artifact's heads stand in sensitivity.csv; another model's rows stay."""
    mixed = load_method("mixed", group=16)
    other = replace(model, identity={**model.identity, "name": "another"})
    for each in (model, other, model):
        artifact = find_or_make(mixed, each, text, tmp_path, silent)
    rows = read_csv(tmp_path / "sensitivity.csv")
    assert list(rows[0]) == ["model", "layer", "head", "side", "error", "bits"]
    assert len(rows) == 2 * 2 * 2 * 2
    own = [row for row in rows if row["model"] == model.identity["name"]]
    for row in own:
        at, head = f"{row['side']}.{row['layer']}", int(row["head"])
        assert float(row["error"]) == pytest.approx(float(artifact.tensors[f"{at}.sensitivity"][head]), rel=1e-5)
        assert int(row["bits"]) == int(artifact.tensors[f"{at}.bits"][head])
    assert sorted(int(row["bits"]) for row in own) == [4] * 6 + [8] * 2


def test_sensitivities_drawn_at_random_are_no_measurement(random_model: LoadedModel, tmp_path: Path) -> None:
    find_or_make(load_method("mixed", group=16), random_model, SelfWritten(), tmp_path, silent)
    assert not (tmp_path / "sensitivity.csv").exists()


def test_a_synthetic_artifact_does_not_pass_for_a_real_one(
    random_model: LoadedModel, model: LoadedModel, tmp_path: Path
) -> None:
    made = find_or_make(load_method("kmeans"), random_model, SelfWritten(), tmp_path, silent)
    with pytest.raises(UserError, match="does not fit"):
        find_or_make(load_method("kmeans"), model, SelfWritten(artifact=str(made.path)), tmp_path, silent)


def test_a_named_artifact_is_used_as_it_is_and_never_made(model: LoadedModel, text: TextFile, tmp_path: Path) -> None:
    made = find_or_make(load_method("centre"), model, text, tmp_path / "here", silent)
    config = group_config("calibration", "self")
    config.artifact = str(made.path)
    tensors = artifact_for(load_method("centre"), model, config, tmp_path, silent)
    assert all(torch.equal(tensors[key], made.tensors[key]) for key in made.tensors)
    with pytest.raises(UserError, match="does not exist"):
        find_or_make(load_method("centre"), model, replace(text, artifact="missing"), tmp_path, silent)


def test_a_method_without_calibrated_parts_needs_nothing(model: LoadedModel, tmp_path: Path) -> None:
    assert artifact_for(load_method("bdr"), model, group_config("calibration", "self"), tmp_path, silent) == {}
    assert not list(tmp_path.iterdir())


def test_the_model_writes_its_own_text_once_for_all_methods(model: LoadedModel, tmp_path: Path) -> None:
    own = SelfWritten(answer_tokens=4, tokens=120)
    first = find_or_make(load_method("centre"), model, own, tmp_path, silent)
    second = find_or_make(load_method("kmeans"), model, own, tmp_path, silent)
    texts = list((tmp_path / "calibration").glob("text-*.json"))
    assert (first.made, second.made, len(texts)) == (True, True, 1)
    assert read(first.path)[1]["notes"]["ids_sha256"] == read(second.path)[1]["notes"]["ids_sha256"]


def test_own_text_is_prompts_and_answers_in_order_whichever_comes_first() -> None:
    """The stub answers in reverse order of asking."""
    engine = StubEngine(lambda prompt: "ok")
    ids = SelfWritten(answer_tokens=8).read(engine, 700, silent)
    text = engine.tokenizer.decode(ids)
    assert len(ids) == 700
    assert text.startswith("<user>Write a paragraph about an old photograph")
    assert "<assistant>ok<user>Write a Python function that returns all prime numbers" in text
    assert {(r.sampling.temperature, r.sampling.top_p) for r in engine.asked} == {(1.0, 1.0)}


def test_prompts_asked_again_are_answered_under_another_seed() -> None:
    engine = StubEngine(lambda prompt: "ok")
    SelfWritten().read(engine, 12_000, silent)
    assert len(engine.asked) > 64
    assert len({request.sampling.seed for request in engine.asked}) == len(engine.asked)


def test_a_text_that_is_too_short_is_refused_with_its_length(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("four")
    with pytest.raises(UserError, match="holds 4 tokens; this calibration needs 5"):
        TextFile(str(tmp_path / "short.txt")).read(StubEngine(), 5, silent)
    with pytest.raises(UserError, match=r"calibration\.text="):
        TextFile(str(tmp_path / "missing.txt")).describe()


def test_self_takes_a_text_file_in_place() -> None:
    assert isinstance(self_or_file(None, seed=1, answer_tokens=9), SelfWritten)
    assert self_or_file("a.txt", seed=1, answer_tokens=9) == TextFile("a.txt", seed=1)


def test_the_papers_text_from_a_local_file(tmp_path: Path) -> None:
    rows = ['{"question": "Why?", "options": ["yes", "no"], "answer": "A"}', '{"question": "How?", "options": []}']
    (tmp_path / "mmlu.jsonl").write_text("\n".join(rows))
    engine = StubEngine()
    ids = MmluPro(str(tmp_path / "mmlu.jsonl")).read(engine, 40, silent)
    assert engine.tokenizer.decode(ids) == "Question: Why?\nA. yes\nB. no\nQuestion: How?\n"[:40]


def test_the_papers_text_is_refused_in_one_line_where_it_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def offline(*args: Any, **kwargs: Any) -> Iterator[Any]:
        raise ConnectionError("no route to the hub\nand more")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(UserError, match=r"calibration=paper needs TIGER-Lab/MMLU-Pro") as refusal:
        MmluPro().read(StubEngine(), 10, silent)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("name", "tokens"), [("self", None), ("paper", 20_000)])
def test_shipped_configurations(name: str, tokens: int | None) -> None:
    made = instantiate(group_config("calibration", name), "calibration")
    assert (made.tokens, made.seed, made.artifact) == (tokens, 0, None)
