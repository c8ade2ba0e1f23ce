"""report.html: one file that opens offline, its tables sortable, every number linked to the run that made it."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

import pandas as pd

from sawbench.report.content import Drawing, Table, Value, digits, text_of, texts
from sawbench.report.records import Number, Study

PROVENANCE = ("date", "commit", "dirty", "cpu", "gpus", "key", "value", "versions", "command")
BENCHS = ("date", "commit", "dirty", "versions", "command")
"""Those that a row of results/throughput/ has under the same names."""
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """A heading, and what stands under it in order; a section without content is left out."""

    id: str
    title: str
    content: Sequence[Table | Drawing]


def page(study: Study, sections: Sequence[Section]) -> str:
    """The whole document; figures are read from ``figures/``, where they were saved."""
    shown = [section for section in sections if section.content]
    anchors = {str(row[0]): f"run-{row[0]}" for table in run_table(study) for row in table.rows}
    anchors |= {run.label: f"section-method-{run.keys['method']}" for run in study.runs()}
    return Template((HERE / "page.html").read_text()).substitute(
        style=(HERE / "page.css").read_text(),
        script=(HERE / "page.js").read_text(),
        summary=escape(summary(study)),
        contents=" ".join(f'<a href="#{section.id}">{escape(section.title)}</a>' for section in shown),
        sections="\n".join(_section(section, anchors, study.root / "figures") for section in shown),
    )


def summary(study: Study) -> str:
    """One sentence: how much was measured, and when."""
    metrics, runs = study.table("metrics"), study.table("runs")
    sizes = {key: metrics[key].nunique() for key in ("run", "model", "method", "task")}
    counts = [f"{size} {key}{'' if size == 1 else 's'}" for key, size in sizes.items()]
    dates = sorted(str(date)[:10] for date in runs["date"].dropna()) if "date" in runs else []
    when = f", measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if dates else ""
    return f"{', '.join(counts)}{when}. Every number links to its run: command, commit, machine and date."


def methods(study: Study) -> list[Table]:
    """A table for each method: every metric that it was measured by."""
    metrics = study.table("metrics")
    found = []
    for method in sorted(set(metrics["method"])):
        rows: list[list[Value]] = [
            [run.keys["model"], run.label, run.keys["task"], name, value, run.id]
            for run in study.runs()
            if run.keys["method"] == method
            for name, value in run.metrics.items()
        ]
        found.append(Table(f"method-{method}", method, ["model", "method", "task", "metric", "value", "run"], rows))
    return found


def run_table(study: Study) -> list[Table]:
    """How each run was made: the cells of ``run`` and those of ``bench``."""
    frames = [study.table("runs"), *(_made(frame) for frame in study.throughput.values() if "run" in frame)]
    runs = pd.concat([frame for frame in frames if len(frame)] or frames[:1]).drop_duplicates("run")
    columns = ["run", *(column for column in PROVENANCE if column in runs)]
    return [Table("runs", "How each run was made", columns, texts(runs, columns))] if len(runs) else []


def _made(frame: pd.DataFrame) -> pd.DataFrame:
    """How a row of ``bench`` was made, its card in the place of a run's GPUs; its own ``gpus`` counts them."""
    return frame.reindex(columns=["run", "device", *BENCHS]).rename(columns={"device": "gpus"})


def _section(section: Section, anchors: Mapping[str, str], figures: Path) -> str:
    parts = [_table(part, anchors) if isinstance(part, Table) else _figure(part, figures) for part in section.content]
    return f'<section id="{section.id}"><h2>{escape(section.title)}</h2>\n' + "\n".join(parts) + "</section>"


def _figure(drawing: Drawing, figures: Path) -> str:
    """The SVG as a data URI: an image of its own, so that ids of two figures cannot meet."""
    source = base64.b64encode((figures / f"{drawing.name}.svg").read_bytes()).decode()
    caption = f"{escape(drawing.caption)} Source: {escape(', '.join(drawing.sources))}."
    return (
        f'<figure id="{drawing.name}"><h3>{escape(drawing.title)}</h3>'
        f'<img src="data:image/svg+xml;base64,{source}" alt="{escape(drawing.title)}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _table(table: Table, anchors: Mapping[str, str]) -> str:
    numeric = [any(isinstance(row[at], Number) for row in table.rows) for at in range(len(table.columns))]
    heads = "".join(_head(column, right) for column, right in zip(table.columns, numeric, strict=True))
    rows = "\n".join(_row(table, row, anchors) for row in table.rows)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    return (
        f'<div id="{table.name}"><h3>{escape(table.title)}</h3><div class="scroll"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{notes}</div>"
    )


def _head(column: str, right: bool) -> str:
    return f'<th scope="col"{" class=number" if right else ""}><button>{escape(column)}</button></th>'


def _row(table: Table, row: Sequence[Value], anchors: Mapping[str, str]) -> str:
    """A row; the table of runs holds the anchors that every other table links to."""
    if table.name == "runs":
        return f'<tr id="run-{escape(str(row[0]))}">{"".join(_cell(value, {}) for value in row)}</tr>'
    return f"<tr>{''.join(_cell(value, anchors) for value in row)}</tr>"


def _cell(value: Value, anchors: Mapping[str, str]) -> str:
    if isinstance(value, Number):
        shown = _link(digits(value.value), anchors.get(value.run))
        interval = escape(text_of(value).partition(" ")[2])
        return f'<td class="number" data-value="{value.value!r}">{shown} <span class="interval">{interval}</span></td>'
    if value is None:
        return '<td class="number">-</td>'
    anchor = anchors.get(value)
    kind = ' class="code"' if value.startswith("python -m") or (anchor or "").startswith("run-") else ""
    return f"<td{kind}>{_link(value, anchor)}</td>"


def _link(text: str, anchor: str | None) -> str:
    return escape(text) if anchor is None else f'<a href="#{escape(anchor)}">{escape(text)}</a>'
