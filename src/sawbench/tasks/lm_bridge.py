"""Our engines as a language model of lm-eval: whatever it asks runs through the method's cache.

Every answer is in the cell's samples before the next is awaited, and what a killed run left there is not made again.
Prompts are never cut: what does not fit the context is refused before anything is generated.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from sawbench.core.engine import Completion, Engine, Request
from sawbench.core.errors import UserError
from sawbench.core.progress import Progress, silent
from sawbench.core.samples import SampleSink
from sawbench.scoring.text import OPEN, answer_of, opens_thought, until
from sawbench.tasks.protocol import Protocol, request_seed

log = logging.getLogger(__name__)

SCORED_AT_ONCE = 64
"""Log-likelihoods that are asked of the engine before they are written."""


class Unanswered(str):
    """What lm-eval is handed where nothing was answered: empty, and still told apart from an answer."""

    __slots__ = ()


class Asked(NamedTuple):
    """A request, and which of its item's answers it asks for."""

    request: Request
    repeat: int


class EngineLM(TemplateLM):
    """lm-eval's view of an engine.

    Args:
        engine: what answers.
        protocol: decoding; an lm-eval task's own temperature is overridden by it, its stop strings are kept.
        sink: where samples go; ids are ``task/item/repeat`` for answers, ``loglikelihood/digest`` for scores.
        budget: new tokens where neither protocol nor task says how many.

    ``round``: how often the same requests were put before; their answers get seeds and ids of their own.
    """

    def __init__(
        self,
        engine: Engine,
        protocol: Protocol,
        sink: SampleSink,
        *,
        seed: int = 0,
        budget: int = 1024,
        progress: Progress = silent,
    ) -> None:
        super().__init__()
        self.engine, self.protocol, self.sink = engine, protocol, sink
        self.seed, self.budget, self.progress = seed, budget, progress
        self.tokenizer = engine.tokenizer
        self.round = 0
        if self.protocol.thinking and not self.thinking:
            log.warning("protocol.thinking=true changes nothing: the chat template has no enable_thinking")

    @property
    def thinking(self) -> bool | None:
        """What the chat template is told; None where it is not asked, or has no thinking to switch."""
        switch = "enable_thinking" in str(getattr(self.tokenizer, "chat_template", None) or "")
        return self.protocol.thinking if self.protocol.chat and switch else None

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        bos = getattr(self.tokenizer, "bos_token_id", None)
        return self.eot_token_id if bos is None else int(bos)

    @property
    def max_length(self) -> int:
        return self.engine.max_length

    @property
    def tokenizer_name(self) -> str:
        return str(getattr(self.tokenizer, "name_or_path", "")).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids; special tokens are added unless the text (a filled chat template) begins with one already."""
        if add_special_tokens is None:
            bos = getattr(self.tokenizer, "bos_token", None)
            add_special_tokens = not self.protocol.chat and not (bos and string.startswith(bos))
        return list(self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"])

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The turns as the model was taught to read them, thinking on or off as the protocol says."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise UserError("protocol.chat=true: the tokenizer has no chat template; protocol.chat=false asks plainly")
        thinking = {} if self.thinking is None else {"enable_thinking": self.thinking}
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **thinking,
            )
        )

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers in order, each written to the sink as it is made."""
        asked = self._asked(requests)
        self._require_fit([each.request for each in asked.values()])
        samples = {
            key: self._provenance(each, instance, len(asked))
            for (key, each), instance in zip(asked.items(), requests, strict=True)
        }
        missing = [each.request for key, each in asked.items() if not self._on_disk(key, samples[key])]
        for completion in self.progress(self.engine.generate(missing), len(missing), "answers"):
            self.sink.add(completion.id, samples[completion.id] | _outcome(completion))
        stops = [_stops(instance) for instance in requests]
        return [_answer(self.sink.done[key], stop) for key, stop in zip(asked, stops, strict=True)]

    def _asked(self, instances: Sequence[Instance]) -> dict[str, Asked]:
        """Requests by sample id. An instance that stands n times in the list is asked n times."""
        turns: Counter[tuple[Any, ...]] = Counter()
        asked = {}
        for instance in instances:
            task, item, first = place(instance)
            turn = (task, item, first, instance.idx)
            repeat = first + self.round * (instance.repeats or 1) + turns[turn]
            turns[turn] += 1
            key = f"{task}/{item}/{repeat}" + (f"/{instance.idx}" if instance.idx else "")
            asked[key] = Asked(self._request(key, instance, request_seed(self.seed, task, item, repeat)), repeat)
        if len(asked) != len(instances):
            raise ValueError("two lm-eval instances share a sample id")
        return asked

    def _request(self, key: str, instance: Instance, seed: int) -> Request:
        context, options = instance.args
        stops = () if self._may_think(context) else _stops(instance)
        sampling = self.protocol.sampling(int(options.get("max_gen_toks", self.budget)), seed, stops)
        return Request(key, tuple(self.tok_encode(context)), sampling)

    def _may_think(self, context: str) -> bool:
        """A thought may hold a stop string without ending there: the answer is then cut when it is whole."""
        return opens_thought(context) or OPEN in str(getattr(self.tokenizer, "chat_template", "") or "")

    def _require_fit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            prompt, budget = len(request.prompt), request.sampling.max_new_tokens
            if prompt + budget > self.max_length:
                raise UserError(
                    f"{request.id}: a prompt of {prompt} tokens and {budget} new ones exceed the context of "
                    f"{self.max_length}; protocol.max_new_tokens={self.max_length - prompt} would fit"
                )

    def _provenance(self, asked: Asked, instance: Instance, of: int) -> dict[str, Any]:
        """What is known before the answer: enough to score it again without the data set, and to see whether all
        ``of`` answers are there."""
        task, item, _ = place(instance)
        request = asked.request
        document = dict(instance.doc) if "item" in instance.doc else {}
        return {
            "task": task,
            "item": item,
            "repeat": asked.repeat,
            "of": of,
            "document": document,
            "prompt": instance.args[0],
            "prompt_tokens": len(request.prompt),
            "thinking": self.thinking,
            "seed": request.sampling.seed,
            "budget": request.sampling.max_new_tokens,
        }

    def _on_disk(self, key: str, sample: Mapping[str, Any]) -> bool:
        """Whether the sample was made already. One of that id for another prompt or seed is never taken for it."""
        if key not in self.sink.done:
            return False
        if any(self.sink.done[key].get(field) != sample[field] for field in ("prompt", "seed", "budget")):
            raise UserError(f"results: sample {key} on disk answers another prompt; results=FOLDER starts afresh")
        return True

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        pairs = [(tuple(context), tuple(continuation)) for _, context, continuation in requests]
        found = self._scores(pairs)
        return [(found[pair]["total"], found[pair]["greedy"]) for pair in pairs]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood (nats) of each whole text, in windows of the context, every token predicted once."""
        texts = [[(tuple(c), tuple(t)) for c, t in self._windows(instance.args[0])] for instance in requests]
        found = self._scores([pair for windows in texts for pair in windows])
        return [sum(found[pair]["total"] for pair in windows) for windows in texts]

    def _windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        tokens = self.tok_encode(text, add_special_tokens=False)
        windows = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length - 1, context_len=1)
        return [make_disjoint_window(window) for window in windows]

    def _scores(
        self, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
    ) -> dict[tuple[tuple[int, ...], tuple[int, ...]], Mapping[str, Any]]:
        """Each distinct (context, continuation), scored once and written in steps."""
        for context, continuation in pairs:
            if len(context) + len(continuation) > self.max_length:
                raise UserError(
                    f"{len(context)} + {len(continuation)} tokens to score exceed the context of {self.max_length}"
                )
        keys = {pair: f"loglikelihood/{sha256(repr(pair).encode()).hexdigest()[:24]}" for pair in pairs}
        missing = [pair for pair, key in keys.items() if key not in self.sink.done]
        steps = [missing[at : at + SCORED_AT_ONCE] for at in range(0, len(missing), SCORED_AT_ONCE)]
        for step in self.progress(steps, len(steps), "log-likelihoods"):
            for pair, score in zip(step, self.engine.loglikelihood(step), strict=True):
                tokens = {"context_tokens": len(pair[0]), "tokens": score.tokens}
                self.sink.add(keys[pair], {"total": score.total, "greedy": score.greedy, **tokens})
        return {pair: self.sink.done[key] for pair, key in keys.items()}


def place(instance: Instance) -> tuple[str, str, int]:
    """Task, item and repeat of an instance; our own definitions carry the last two in the document."""
    document = instance.doc if isinstance(instance.doc, Mapping) else {}
    return str(instance.task_name), str(document.get("item", instance.doc_id)), int(document.get("repeat", 0))


def _stops(instance: Instance) -> tuple[str, ...]:
    stops = instance.args[1].get("until") or ()
    return (stops,) if isinstance(stops, str) else tuple(stops)


def _outcome(completion: Completion) -> dict[str, Any]:
    return {
        "text": completion.text,
        "tokens": len(completion.tokens),
        "finish": completion.finish,
        "finite": completion.finite,
    }


def _answer(sample: Mapping[str, Any], stops: tuple[str, ...]) -> str:
    """What lm-eval scores: the text behind the thought, up to the first stop string. Blank lines between the two are
    no part of the answer: a stop string among them would leave nothing of it."""
    answer = answer_of(sample["text"], opens_thought(sample["prompt"])) or ""
    if answer != sample["text"]:
        answer = answer.lstrip()
    answer = until(answer, stops)
    return answer if answer.strip() else Unanswered()
