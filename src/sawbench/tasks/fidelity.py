"""Fidelity: what a method's cache does to the model's own predictions, token by token.

The unquantized model (K and V in the compute dtype) answers shipped prompts greedily, or a text is taken as it is; the
same tokens are then replayed, teacher-forced, through the method's cache and compared with the unquantized model's.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sawbench.core.errors import UserError
from sawbench.core.records import TaskResult
from sawbench.core.replay import LayerError, Replay
from sawbench.prompts import encode_prompt, shipped
from sawbench.tasks.answers import AnswerStore, greedy_replays
from sawbench.tasks.base import TaskContext
from sawbench.tasks.compare import compare
from sawbench.tasks.fidelity_summary import layer_metrics, summarize

if TYPE_CHECKING:
    from sawbench.models import ModelPlan

FLOOR_CHUNK = 3
"""Small enough that matrix products take another path, as in decoding: in chunks of 7 and more, fp32 on a CPU rounds
exactly as for the whole prompt, and no floor would show."""


@dataclass(frozen=True)
class Fidelity:
    """Options of ``task=fidelity``.

    Args:
        engine: what engine=auto becomes: errors by layer want K and V as they come, which engine=hf can watch.
        prompts: shipped prompts to answer, from the first.
        answer_tokens: longest answer.
        max_replayed: answer tokens over all prompts at which replay ends; the last answer is cut there.
        text: a text file (UTF-8) to replay in place of answers, in stretches of ``window`` tokens.
        window: tokens of one stretch of ``text``.
        floor_prompts: prompts that are also replayed in chunks of 3 tokens: the same method, rounded in another order.
        layer_prompts: prompts that errors of K, V and attention output are taken over, by layer and head.
        together: items replayed in one padded batch (at most engine.batch_size): more is faster on a GPU.
    """

    name: str = "fidelity"
    engine: str = "hf"
    prompts: int = 16
    answer_tokens: int = 96
    max_replayed: int = 2048
    text: str | None = None
    window: int = 256
    floor_prompts: int = 4
    layer_prompts: int = 4
    together: int = 1

    def check(self, plan: "ModelPlan") -> None:
        """Raises UserError for an unreadable text, more prompts than there are, or answers beyond the context."""
        available = len(shipped("fidelity"))
        if not 1 <= self.prompts <= available:
            raise UserError(f"task.prompts={self.prompts} is not between 1 and {available}, the prompts that ship")
        if min(self.max_replayed, self.answer_tokens, self.together) < 1 or self.window < 2:
            raise UserError("task.max_replayed, answer_tokens and together are at least 1, task.window at least 2")
        if self.text is not None and not Path(self.text).is_file():
            raise UserError(f"task.text={self.text} is not a file")
        option, tokens = ("answer_tokens", self.answer_tokens) if self.text is None else ("window", self.window)
        if tokens >= plan.max_length:
            raise UserError(f"task.{option}={tokens} does not fit the context of {plan.name}: {plan.max_length} tokens")

    def inputs(self) -> Mapping[str, str]:
        """SHA-256 of the files that the result depends on, by option: part of a cell's identity."""
        return {} if self.text is None else {"text": sha256(Path(self.text).read_bytes()).hexdigest()}

    def run(self, ctx: TaskContext) -> TaskResult:
        reference = ctx.reference()
        items = self._items(ctx, reference)
        floored = {item.id for item in items[: self.floor_prompts]}
        batches = [items[at : at + self.together] for at in range(0, len(items), self.together)]
        made = (sample for batch in batches for sample in _samples(ctx, reference, batch, floored))
        samples = list(ctx.progress(made, len(items), "replay"))
        layers = _layer_rows(ctx.engine, items[: self.layer_prompts])
        tables = {"layers": layers, "conditions": [self._conditions(ctx.engine, reference, items)]}
        return TaskResult((*summarize(samples, ctx.seed), *layer_metrics(layers)), tables)

    def _items(self, ctx: TaskContext, reference: Any) -> list[Replay]:
        items = self._answers(ctx, reference) if self.text is None else self._stretches(ctx.engine.tokenizer, self.text)
        if not items:
            raise UserError(f"task.text={self.text} holds no token to predict")
        return capped(items, self.max_replayed)

    def _answers(self, ctx: TaskContext, reference: Any) -> list[Replay]:
        tokenizer, room = ctx.engine.tokenizer, ctx.engine.max_length - self.answer_tokens
        prompts = {p.id: encode_prompt(tokenizer, p.text) for p in shipped("fidelity")[: self.prompts]}
        for key, ids in prompts.items():
            if len(ids) > room:
                raise UserError(
                    f"task.answer_tokens={self.answer_tokens} leaves {room} tokens; prompt {key} has {len(ids)}"
                )
        store = AnswerStore(ctx.results / "reference", {"model": dict(ctx.model), "engine": reference.describe()})
        return greedy_replays(reference, prompts, self.answer_tokens, store, ctx.progress)

    def _stretches(self, tokenizer: Any, path: str) -> list[Replay]:
        text = Path(path).read_text(encoding="utf-8")
        return stretches(
            tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer("")["input_ids"], self.window
        )

    def _conditions(self, engine: Any, reference: Any, items: Sequence[Replay]) -> dict[str, Any]:
        """What the numbers hold for: the dtypes of both sides, and how much was replayed."""
        described = engine.describe()
        return {
            "compute_dtype": described.get("compute_dtype"),
            "reference_dtype": reference.describe().get("compute_dtype"),
            "prefill": described.get("prefill"),
            "text": self.text or "greedy answers of the reference",
            "prompts": len(items),
            "replayed_tokens": sum(len(item.answer) for item in items),
        }


def stretches(ids: Sequence[int], start: Sequence[int], window: int) -> list[Replay]:
    """A text's token ids as replays of ``window`` tokens each, behind what the tokenizer starts a text with, or behind
    their own first token where it starts with nothing."""
    parts = [tuple(ids[at : at + window]) for at in range(0, len(ids), window)]
    split = [(tuple(start), part) if start else (part[:1], part[1:]) for part in parts]
    return [Replay(f"text-{at:05d}", prompt, answer) for at, (prompt, answer) in enumerate(split) if answer]


def capped(items: Iterable[Replay], tokens: int) -> list[Replay]:
    """The first items up to ``tokens`` answer tokens, the last one cut."""
    kept = []
    for item in items:
        if tokens > 0:
            kept.append(Replay(item.id, item.prompt, item.answer[:tokens]))
        tokens -= len(item.answer)
    return kept


def _samples(
    ctx: TaskContext, reference: Any, batch: Sequence[Replay], floored: Collection[str]
) -> Iterator[Mapping[str, Any]]:
    """The comparisons of one batch, from the sink where an earlier run left them all. A batch that is resumed is
    replayed whole, so that its rows are rounded as they would have been; its logits live until it is done."""
    if any(item.id not in ctx.sink.done for item in batch):
        pairs = zip(batch, ctx.engine.replay(batch), reference.replay(batch), strict=True)
        for item, method, expected in pairs:
            if item.id not in ctx.sink.done:
                ctx.sink.add(item.id, _measure(ctx.engine, item, method, expected, item.id in floored))
    yield from (ctx.sink.done[item.id] for item in batch)


def _exact_prefill(engine: Any) -> bool:
    """Whether a first chunk attends to its unquantized K and V."""
    return engine.describe().get("prefill") == "exact"


def _depends_on_chunks(engine: Any) -> bool:
    """Whether a prompt in other chunks is another method, so that comparing the two shows no rounding."""
    return _exact_prefill(engine) or bool(engine.describe().get("stepwise"))


def _measure(engine: Any, item: Replay, method: Any, expected: Any, with_floor: bool) -> dict[str, Any]:
    """``method`` and ``expected``: logits [len(answer), V] of the method and of the reference."""
    floor = None
    if with_floor and not _depends_on_chunks(engine):
        (rechunked,) = engine.replay([item], chunk=FLOOR_CHUNK)
        floor = compare(method, rechunked, item.answer).kl
    found = compare(expected, method, item.answer)
    return {
        "prompt_tokens": len(item.prompt),
        "answer": list(item.answer),
        "divergence": found.divergence,
        **asdict(found),
        "floor": floor,
    }


def _layer_rows(engine: Any, items: Sequence[Replay]) -> list[dict[str, Any]]:
    """Errors by layer and head; under exact prefill attention is not over the cache, and its error is None."""
    errors: list[LayerError] = engine.layer_errors(items)
    unseen = {"output": None} if _exact_prefill(engine) else {}
    return [asdict(error) | unseen for error in errors]
