"""What of a model's text is its answer: thinking removed, the final code block, runaway text told apart."""

import re

OPEN, CLOSE = "<think>", "</think>"
FENCE = re.compile(r"^([ \t]*)(```+|~~~+)[ \t]*([\w+#.-]*)[^\n]*$", re.MULTILINE)
LOOP_TAIL, LOOP_MINIMUM, LOOP_PERIODS = 6000, 120, 3


def opens_thought(prompt: str) -> bool:
    """Whether a prompt ends inside a thought that the answer has to close."""
    return prompt.rfind(OPEN) > prompt.rfind(CLOSE)


def answer_of(text: str, thought_open: bool = False) -> str | None:
    """The text behind the last thought; None where a thought was never closed, since then nothing was answered.

    ``thought_open``: the prompt had opened a thought already.
    """
    _, closed, answer = text.rpartition(CLOSE)
    if not closed:
        return None if thought_open or OPEN in text else text
    return None if OPEN in answer else answer


def until(text: str, stops: tuple[str, ...], thought_open: bool = False) -> str:
    """``text`` cut before the first stop string of its answer; a stop string inside a thought ends nothing."""
    answer = answer_of(text, thought_open)
    if answer is None:
        return text
    found = [at for at in (answer.find(stop) for stop in stops if stop) if at >= 0]
    return text[: len(text) - len(answer) + min(found)] if found else text


def code_blocks(text: str) -> list[str]:
    """Contents of Markdown fences, in order, without the indentation of the fence (it may stand in a list); a fence
    that is never closed runs to the end."""
    blocks, opened = [], None
    for fence in FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence[2].startswith(opened[2]) and not fence[3]:
            blocks.append(_block(text[: fence.start()], opened))
            opened = None
    return blocks if opened is None else [*blocks, _block(text, opened)]


def _block(text: str, fence: re.Match[str]) -> str:
    """What follows a fence; its lines lose as much indentation as the fence has, where they have as much."""
    return re.sub(rf"^[ \t]{{0,{len(fence[1])}}}", "", text[fence.end() + 1 :], flags=re.MULTILINE)


def final_code(text: str) -> str | None:
    """The last code block that holds anything; None without one."""
    return next((block for block in reversed(code_blocks(text)) if block.strip()), None)


def is_loop(text: str) -> bool:
    """Whether the text ends in one passage of at most 2,000 characters repeated, exactly, at least three times over
    120 characters or more."""
    return any(
        length >= max(LOOP_MINIMUM, LOOP_PERIODS * period)
        for length, period in enumerate(periods(text[: -LOOP_TAIL - 1 : -1]), 1)
    )


def periods(text: str) -> list[int]:
    """The smallest period of each prefix of a text, by the failure function of Knuth, Morris and Pratt (1977)."""
    borders = [0] * bool(text)
    for character in text[1:]:
        border = borders[-1]
        while border and text[border] != character:
            border = borders[border - 1]
        borders.append(border + (text[border] == character))
    return [length - border for length, border in enumerate(borders, 1)]
