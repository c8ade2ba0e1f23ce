"""Tokenizers out of GGUF files.

transformers builds other tokenizers from the same file in different versions (5.17 cuts SmolLM2's text as Llama 3's
and swaps begin and end of sequence), and tokens decide every number here. So byte-level vocabularies are assembled from
what the file says, cut as its ``tokenizer.ggml.pre`` names; what is not in ``CUTS`` is left to transformers.
"""

import logging
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sawbench.models.tokenizers import CHATML

log = logging.getLogger(__name__)

_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _words(digits: str) -> Any:
    split = pre_tokenizers.Split(Regex(_WORDS.replace("DIGITS", digits)), "isolated")
    return pre_tokenizers.Sequence([split, _BYTES])


CUTS = {
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2]),
    "qwen2": _words(r"\p{N}"),
    "llama-bpe": _words(r"\p{N}{1,3}"),
    "gpt-2": _GPT2,
}
_CONTROL, _USER_DEFINED = 3, 4
"""llama.cpp's token types that are matched whole: special tokens, and plain added ones."""


def gguf_tokenizer(file: Path) -> Any:
    """The tokenizer of ``file``, with ChatML as chat template where the file has none but knows ChatML's tokens."""
    fields = {name.removeprefix("tokenizer."): field for name, field in GGUFReader(file).fields.items()}
    said = {name: field.contents() for name, field in fields.items() if name.startswith(("ggml.", "chat_template"))}
    if said["ggml.model"] == "gpt2" and said.get("ggml.pre") in CUTS:
        tokenizer = _assemble(said)
    else:
        log.warning("%s: its tokenizer (%s) is left to transformers", file.name, said.get("ggml.pre"))
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if tokenizer.chat_template is None and "<|im_start|>" in tokenizer.get_vocab():
        tokenizer.chat_template = CHATML
    return tokenizer


def _assemble(said: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokens = said["ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in said["ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    if said["ggml.pre"] == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = CUTS[said["ggml.pre"]]
    tokenizer.decoder = decoders.ByteLevel()
    kinds = list(zip(tokens, said["ggml.token_type"], strict=True))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, k in kinds if k == _CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, k in kinds if k == _USER_DEFINED])
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    special = {name: tokens[i] for name, key in names.items() if (i := said.get(f"ggml.{key}_token_id")) is not None}
    if said.get("ggml.add_bos_token"):
        begin = special["bos_token"]
        pieces = [(begin, said["ggml.bos_token_id"])]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{begin} $A", special_tokens=pieces)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=said.get("chat_template"),
        clean_up_tokenization_spaces=False,
        **special,
    )
