"""An engine without a model: a character is a token, and a function of the prompt is the answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sawbench.core.engine import CacheReport, Completion, LogLikelihood, Request


class StubTokenizer:
    bos_token: str | None = None
    bos_token_id: int | None = None
    eos_token_id = 0
    name_or_path = "stub"

    def __init__(self, template: str | None = "{{ messages }} {{ enable_thinking }}") -> None:
        self.chat_template = template

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [ord(character) for character in text]
        start = [self.bos_token_id] if add_special_tokens and self.bos_token_id is not None else []
        return {"input_ids": start + ids}

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in ids if token)

    def apply_chat_template(
        self,
        turns: Sequence[Mapping[str, str]],
        tokenize: bool,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        enable_thinking: bool | None = None,
    ) -> str:
        assert not tokenize
        text = "".join(f"<{turn['role']}>{turn['content']}" for turn in turns)
        return text + "<assistant>" * add_generation_prompt + "<think>\n" * bool(enable_thinking)


class StubEngine:
    """``answer(prompt)`` is what comes back, in reverse order of asking; every request is remembered."""

    def __init__(self, answer: Callable[[str], str] = lambda prompt: "", max_length: int = 100_000) -> None:
        self.tokenizer, self.max_length, self.answer = StubTokenizer(), max_length, answer
        self.asked: list[Request] = []
        self.scored: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        for request in reversed(requests):
            self.asked.append(request)
            text = self.answer(self.tokenizer.decode(request.prompt))
            kept = text[: request.sampling.max_new_tokens]
            finish = "stop" if kept == text else "length"
            yield Completion(request.id, tuple(map(ord, kept)), kept, finish)  # type: ignore[arg-type]

    def loglikelihood(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[LogLikelihood]:
        self.scored += [(tuple(context), tuple(continuation)) for context, continuation in pairs]
        return [LogLikelihood(-float(len(continuation)), False, len(continuation)) for _, continuation in pairs]

    def cache_report(self) -> CacheReport:
        return CacheReport({}, 0, 0)

    def describe(self) -> dict[str, Any]:
        return {"engine": "stub"}


class DictSink:
    """A sink in memory that refuses a second sample of one id, as the one on disk does."""

    def __init__(self) -> None:
        self.done: dict[str, Mapping[str, Any]] = {}

    def add(self, sample_id: str, sample: Mapping[str, Any]) -> None:
        assert sample_id not in self.done
        self.done[sample_id] = dict(sample)
