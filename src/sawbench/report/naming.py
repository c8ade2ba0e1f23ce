"""Names of files, and what tells one setting from another."""

import re
from collections.abc import Sequence
from itertools import zip_longest


def slug(*parts: str) -> str:
    """A file name's stem."""
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(parts).lower()).strip("-")


def names(keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """A stem for each (model, setting): the model alone where it has one setting, else with what tells its own from
    the others."""
    found: dict[tuple[str, str], str] = {}
    for model in dict.fromkeys(model for model, _ in keys):
        settings = [setting for name, setting in keys if name == model]
        for setting, words in zip(settings, telling(settings), strict=True):
            found[model, setting] = slug(model, *words)
    return {key: found[key] for key in keys}


def telling(settings: Sequence[str]) -> list[tuple[str, ...]]:
    """Of each setting the first few phrases that no other has all of; nothing of a setting that is alone."""
    chosen: list[tuple[str, ...]] = [()] * len(settings)
    for column in zip_longest(*(setting.split(", ") for setting in settings), fillvalue=""):
        longer = [(*words, phrase) for words, phrase in zip(chosen, column, strict=True)]
        if len(set(longer)) > len(set(chosen)):
            chosen = longer
    return chosen
