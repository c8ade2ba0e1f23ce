"""Greedy answers of the unquantized model, kept so that every method replays the same tokens."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sawbench.core.engine import Request, Sampling
from sawbench.core.files import locked, write_atomic
from sawbench.core.progress import Progress
from sawbench.core.replay import Replay


@dataclass(frozen=True)
class AnswerStore:
    """``folder/<hash>.json``, one file an answer: the model and the engine that wrote it, prompt and answer as token
    ids. ``made_by`` is part of the hash, so that no model ever sees another's answers. Token ids only, no logits."""

    folder: Path
    made_by: Mapping[str, Any]

    def find(self, request: Request) -> tuple[int, ...] | None:
        path = self._path(request)
        return tuple(json.loads(path.read_text())["answer"]) if path.exists() else None

    def keep(self, request: Request, answer: Sequence[int]) -> None:
        """Written whole or not at all: several processes may share the folder."""
        write_atomic(self._path(request), json.dumps({**self._key(request), "answer": list(answer)}, default=str))

    def making(self) -> AbstractContextManager[None]:
        """Held while answers of this model are made: a second process waits, and then finds them."""
        return locked(self.folder / f".{_digest(dict(self.made_by))}.lock")

    def _key(self, request: Request) -> dict[str, Any]:
        budget = request.sampling.max_new_tokens
        return {"made_by": dict(self.made_by), "prompt": list(request.prompt), "max_new_tokens": budget}

    def _path(self, request: Request) -> Path:
        return self.folder / f"{_digest(self._key(request))}.json"


def _digest(key: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:24]


def greedy_replays(
    engine: Any, prompts: Mapping[str, tuple[int, ...]], tokens: int, store: AnswerStore, progress: Progress
) -> list[Replay]:
    """Each prompt with the engine's greedy answer of at most ``tokens`` tokens, its stop token included; answers that
    the store lacks are generated and kept as they come."""
    requests = {key: Request(key, ids, Sampling(tokens)) for key, ids in prompts.items()}

    def missing() -> list[Request]:
        return [request for request in requests.values() if store.find(request) is None]

    if missing():
        with store.making():
            wanted = missing()
            for done in progress(engine.generate(wanted), len(wanted), "reference answers"):
                store.keep(requests[done.id], done.tokens)
    answers = {key: store.find(request) for key, request in requests.items()}
    return [Replay(key, prompts[key], answer) for key, answer in answers.items() if answer]
