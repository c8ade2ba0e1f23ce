"""Fidelity sees the quantizer, sees nothing where there is none, and survives being killed."""

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers.methods import load_method
from helpers.models import VOCAB, TinyLoaded, tiny
from helpers.stub import DictSink, StubEngine, StubTokenizer
from sawbench.core.errors import UserError
from sawbench.core.progress import silent
from sawbench.core.records import TaskResult
from sawbench.core.replay import Replay
from sawbench.engine.hf import HFEngine
from sawbench.prompts import encode_prompt, shipped
from sawbench.tasks.answers import AnswerStore, greedy_replays
from sawbench.tasks.base import TaskContext
from sawbench.tasks.fidelity import Fidelity, capped, stretches

TASK = Fidelity(prompts=3, answer_tokens=12, floor_prompts=1, layer_prompts=2)


class SmallTokenizer(StubTokenizer):
    """Every text in 127 token ids."""

    def __init__(self) -> None:
        super().__init__(None)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) % 127 for character in text]}

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return "".join(chr(int(token)) for token in ids)


@pytest.fixture(scope="module")
def loaded() -> TinyLoaded:
    return replace(tiny(), tokenizer=SmallTokenizer())  # type: ignore[arg-type]


def engine(loaded: TinyLoaded, name: str, **options: object) -> HFEngine:
    return HFEngine(loaded, load_method(name, **options), {})  # type: ignore[arg-type]


def context(loaded: TinyLoaded, results: Path, made: Any, sink: Any = None) -> TaskContext:
    reference = engine(loaded, "reference")
    return TaskContext(made, lambda: reference, sink or DictSink(), silent, 0, {"name": "tiny"}, results)


def encode(loaded: TinyLoaded, prompt_id: str) -> tuple[int, ...]:
    (text,) = (prompt.text for prompt in shipped("fidelity") if prompt.id == prompt_id)
    return encode_prompt(loaded.tokenizer, text)


def values(result: TaskResult) -> Mapping[str, Any]:
    return {metric.name: metric.value for metric in result.metrics}


@pytest.fixture(scope="module")
def by_bits(loaded: TinyLoaded, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Mapping[str, Any]]:
    results = tmp_path_factory.mktemp("results")
    return {b: values(TASK.run(context(loaded, results, engine(loaded, "int4", bits=b)))) for b in (2, 4, 8)}


def test_the_reference_against_itself_is_exact(loaded: TinyLoaded, tmp_path: Path) -> None:
    found = TASK.run(context(loaded, tmp_path, engine(loaded, "reference")))
    expected = {"kl": 0, "kl_p99": 0, "top1": 1, "diverged": 0, "first_divergence": 12, "non_finite": 0}
    errors = {"key_error": 0, "value_error": 0, "output_error": 0}
    assert {name: values(found)[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    assert {name: values(found)[name] for name in errors} == pytest.approx(errors, abs=1e-12)
    assert values(found)["perplexity"] == pytest.approx(values(found)["perplexity_reference"])


def test_at_two_bits_everything_moves(by_bits: dict[int, Mapping[str, Any]]) -> None:
    coarse, fine = by_bits[2], by_bits[8]
    for name in ("kl", "kl_p99", "diverged", "perplexity", "key_error", "value_error", "output_error"):
        assert coarse[name] > fine[name], name
    assert coarse["top1"] < fine["top1"]
    assert coarse["first_divergence"] < fine["first_divergence"]
    assert coarse["kl"] > 0.1


def test_fewer_bits_are_never_closer_to_the_reference(by_bits: dict[int, Mapping[str, Any]]) -> None:
    for name in ("kl", "key_error", "value_error", "output_error"):
        assert by_bits[2][name] > by_bits[4][name] > by_bits[8][name] > 0, name


def test_the_noise_floor_is_rounding_alone(by_bits: dict[int, Mapping[str, Any]]) -> None:
    """In float64 no code flips between chunkings, so the floor vanishes; the effect does not."""
    assert abs(by_bits[4]["kl_floor"]) < 1e-9 < by_bits[4]["kl"]


def test_the_floor_is_the_same_method_in_small_chunks(loaded: TinyLoaded, tmp_path: Path) -> None:
    """An engine whose chunked logits differ by a known factor has a known floor, on the first prompts only."""
    made, sink = engine(loaded, "int4"), DictSink()
    whole = made.replay

    def replay(items: Any, chunk: int | None = None) -> Any:
        return (logits if chunk is None else torch.zeros_like(logits) for logits in whole(items))

    made.replay = replay  # type: ignore[method-assign]
    TASK.run(context(loaded, tmp_path, made, sink))
    first, *others = sink.done.values()
    (logits,) = whole([Replay("", encode(loaded, "prose-00"), tuple(first["answer"]))])
    expected = math.log(VOCAB) + (logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)  # KL to the uniform
    assert first["floor"] == pytest.approx(expected.tolist())
    assert [other["floor"] for other in others] == [None, None]


def test_a_text_without_tokens_is_refused(loaded: TinyLoaded, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(UserError, match=r"task\.text=.*empty.txt"):
        Fidelity(text=str(tmp_path / "empty.txt")).run(context(loaded, tmp_path, engine(loaded, "int4")))


def test_exact_prefill_is_seen_by_the_answers_alone(loaded: TinyLoaded, tmp_path: Path) -> None:
    """The first answer token is predicted from an exact prompt; all others read the quantized cache."""
    made, sink = HFEngine(loaded, load_method("int4"), {}, prefill="exact"), DictSink()  # type: ignore[arg-type]
    found = values(TASK.run(context(loaded, tmp_path, made, sink)))
    assert all(abs(sample["kl"][0]) < 1e-9 < sample["kl"][1] for sample in sink.done.values())
    assert (found["kl_floor"], found["output_error"]) == (None, None)
    assert found["key_error"] > 0


def test_layers_and_conditions_are_tables(loaded: TinyLoaded, tmp_path: Path) -> None:
    tables = TASK.run(context(loaded, tmp_path, engine(loaded, "int4"))).tables
    assert [(row["layer"], row["head"]) for row in tables["layers"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    (row,) = tables["conditions"]
    assert (row["compute_dtype"], row["reference_dtype"], row["prompts"]) == ("float64", "float64", 3)


class Killed(Exception):
    pass


class DyingSink(DictSink):
    """Takes one sample and dies at the second."""

    def add(self, sample_id: str, sample: Mapping[str, Any]) -> None:
        if self.done:
            raise Killed
        super().add(sample_id, sample)


def test_items_together_are_items_alone(loaded: TinyLoaded, tmp_path: Path) -> None:
    """In float64 a padded batch changes nothing, whatever it is made of."""
    alone, together = (
        TASK.run(context(loaded, tmp_path, engine(loaded, "int4"))),
        replace(TASK, together=2).run(context(loaded, tmp_path, engine(loaded, "int4"))),
    )
    assert values(together) == pytest.approx(values(alone), abs=1e-9)


@pytest.mark.parametrize("together", [1, 2, 3])
def test_killed_and_run_again_makes_only_what_is_missing(loaded: TinyLoaded, tmp_path: Path, together: int) -> None:
    task = replace(TASK, together=together)
    undisturbed = task.run(context(loaded, tmp_path, engine(loaded, "int4")))
    made = engine(loaded, "int4")
    dying, sink = DyingSink(), DictSink()
    with pytest.raises(Killed):
        task.run(context(loaded, tmp_path, made, dying))
    sink.done = dict(dying.done)
    first = dict(sink.done)
    assert task.run(context(loaded, tmp_path, made, sink)) == undisturbed
    assert {key: sink.done[key] for key in first} == first


def test_a_second_method_replays_the_same_answers_without_generating(loaded: TinyLoaded, tmp_path: Path) -> None:
    TASK.run(context(loaded, tmp_path, engine(loaded, "int4")))
    files = set((tmp_path / "reference").iterdir())
    second = context(loaded, tmp_path, engine(loaded, "int8"))
    asked: list[Any] = []
    second.reference().generate = lambda requests: asked.extend(requests) or iter(())
    TASK.run(second)
    assert (asked, set((tmp_path / "reference").iterdir())) == ([], files)


def test_of_several_that_start_together_one_writes_the_answers(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return "ok"

    engine = StubEngine(answer)
    prompts = {str(at): tuple(engine.tokenizer(f"question {at}")["input_ids"]) for at in range(5)}
    store = AnswerStore(tmp_path / "reference", {"name": "stub"})
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: greedy_replays(engine, prompts, 8, store, silent), range(3)))
    assert len(asked) == len(set(asked)) == len(prompts)
    assert found[0] == found[1] == found[2]


def test_another_model_never_sees_these_answers(loaded: TinyLoaded, tmp_path: Path) -> None:
    """Known fault 34: a key that leaves out the model."""
    TASK.run(context(loaded, tmp_path, engine(loaded, "int4")))
    TASK.run(replace(context(loaded, tmp_path, engine(loaded, "int4")), model={"name": "another"}))
    assert len(list((tmp_path / "reference").glob("*.json"))) == 2 * TASK.prompts


def test_a_text_is_replayed_whole_and_without_generation(loaded: TinyLoaded, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 4)
    sink = DictSink()
    task = Fidelity(text=str(text), window=50, floor_prompts=1, layer_prompts=1)
    task.run(context(loaded, tmp_path, engine(loaded, "int4"), sink))
    assert sum(len(sample["answer"]) for sample in sink.done.values()) == 180 - 4  # each stretch starts on a token
    assert not (tmp_path / "reference").exists()
    before = task.inputs()
    text.write_text("Another text, and so another cell.")
    assert task.inputs() != before


def test_stretches_cover_the_text_behind_the_tokenizers_own_start() -> None:
    assert [(s.prompt, s.answer) for s in stretches(range(5), [], 3)] == [((0,), (1, 2)), ((3,), (4,))]
    assert [(s.prompt, s.answer) for s in stretches(range(5), [9], 3)] == [((9,), (0, 1, 2)), ((9,), (3, 4))]


def test_the_cap_cuts_the_last_answer() -> None:
    items = [Replay(str(at), (1,), (2, 3, 4)) for at in range(3)]
    assert [item.answer for item in capped(items, 4)] == [(2, 3, 4), (2,)]
    assert [item.answer for item in capped(items, 3)] == [(2, 3, 4)]


@pytest.mark.parametrize(
    ("task", "named"),
    [
        (Fidelity(prompts=65), "task.prompts=65"),
        (Fidelity(prompts=0), "task.prompts=0"),
        (Fidelity(answer_tokens=512), "task.answer_tokens=512"),
        (Fidelity(text="/does/not/exist"), "task.text=/does/not/exist"),
        (Fidelity(text=__file__, window=600), "task.window=600"),
        (Fidelity(max_replayed=0), "task.max_replayed"),
    ],
)
def test_what_cannot_run_is_refused_before_weights_load(task: Fidelity, named: str) -> None:
    with pytest.raises(UserError, match=named):
        task.check(SimpleNamespace(name="tiny", max_length=512))  # type: ignore[arg-type]


def test_a_prompt_is_never_cut(loaded: TinyLoaded, tmp_path: Path) -> None:
    """Known fault 32: a budget larger than the context empties the prompt."""
    made = engine(loaded, "int4")
    made.max_length = 100
    with pytest.raises(UserError, match=r"task\.answer_tokens=12 leaves 88 tokens; prompt prose-00 has"):
        TASK.run(context(loaded, tmp_path, made))
