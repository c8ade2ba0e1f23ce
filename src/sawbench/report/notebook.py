"""Tables and figures of the report in a notebook."""

from collections.abc import Iterable

from sawbench.report.content import Drawing, Table
from sawbench.report.markdown import markdown


def show(parts: Iterable[Drawing | Table], command: str) -> None:
    """Display every part; where there is none, say the command that measures one."""
    from IPython.display import Markdown, display  # of the notebooks' extra: the report itself does without

    found = list(parts)
    for part in found:
        if isinstance(part, Drawing):
            display(part.figure, Markdown(part.caption))
        else:
            display(Markdown(markdown(part)))
    if not found:
        print(f"not run here: {command}")
