"""A byte-level tokenizer made in code, for models with random weights, and the ids at which a model stops."""

from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """256 bytes and three special tokens: every text has an encoding, and decoding gives it back."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate([*alphabet, *SPECIAL])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHATML,
    )


def stop_ids(tokenizer: Any, generation_config: Any, tokens: Iterable[str]) -> tuple[int, ...]:
    """Ids that end a completion, ascending: those of ``tokens`` that the vocabulary has, those of the model's
    generation configuration, and the tokenizer's own end of sequence."""
    vocab = tokenizer.get_vocab()
    ids = {vocab[token] for token in tokens if token in vocab}
    configured = getattr(generation_config, "eos_token_id", None)
    ids.update(configured if isinstance(configured, (list, tuple)) else [configured])
    ids.add(tokenizer.eos_token_id)
    return tuple(sorted(i for i in ids if i is not None))
