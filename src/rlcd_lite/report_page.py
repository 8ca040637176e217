"""A report as one HTML file: it opens offline, asks no other host, runs no script, and reads on a phone, in light and in dark."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby

from rlcd_lite.report import Picture, Report, SetReport, Table

KEY = ' class="key"'
STYLE = """
:root { color-scheme: light dark; }
:root { --ink: #1b1b1b; --paper: #fff; --soft: #5c5c5c; --line: #d9d9d9; --shade: #f5f6f7; --link: #0057a8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #15171a; --soft: #a9adb3; --line: #3a3e44; --shade: #1e2125; --link: #7ab8ff; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
header, nav, main { max-width: 72rem; margin: 0 auto; padding: 0 1rem; }
h1 { margin: 1.5rem 0 0.25rem; font-size: 1.7rem; line-height: 1.2; }
h2 { margin: 2.5rem 0 0.5rem; padding-top: 0.5rem; border-top: 1px solid var(--line); font-size: 1.3rem; }
h3 { margin: 1.75rem 0 0.5rem; font-size: 1.05rem; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: 0.5rem; padding: 0.25rem 0.5rem; background: var(--paper); }
.facts { color: var(--soft); font-size: 0.9rem; }
nav ul { display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; padding: 0; list-style: none; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { min-width: 100%; border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
table { white-space: nowrap; overflow-wrap: normal; }
th, td { padding: 0.3rem 0.6rem; text-align: right; font-weight: normal; }
thead th { background: var(--shade); border-bottom: 1px solid var(--line); font-weight: 600; vertical-align: bottom; }
tbody tr > * { border-top: 1px solid var(--line); }
.group th { text-align: left; font-weight: 600; background: var(--shade); }
.group span { position: sticky; left: 0.6rem; }
.key { position: sticky; left: 0; text-align: left; background: var(--paper); border-right: 1px solid var(--line); }
thead .key { background: var(--shade); }
details { margin: 0.5rem 0 1rem; }
summary { cursor: pointer; color: var(--link); padding: 0.25rem 0; }
dl { margin: 0.25rem 0; padding: 0.25rem 1rem; border-left: 3px solid var(--line); }
dt { font-weight: 600; }
dd { margin: 0 0 0.5rem; }
figure { margin: 1.5rem 0 0; }
figcaption p { margin: 0.25rem 0; max-width: 48rem; }
figure img { display: block; max-width: max(100%, 46rem); height: auto; }
figure .scroll { background: #fff; padding: 0.5rem; }
li { margin: 0.25rem 0; }
@media print { details > * { display: block; } .scroll { overflow: visible; } }
"""


def page(report: Report, pictures: Sequence[Picture]) -> str:
    """The whole page. Names come from data, so every text is escaped on its way in."""
    contents = [("summary", report.summary.title)]
    if report.base is not None:
        contents.append(("base", report.base.title))
    contents += [(f"set-{i}", f"Data set {part.name}") for i, part in enumerate(report.sets)]
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>Evaluation: rlcd-lite</title>",
        f"<style>{STYLE}</style>",
        "</head>",
        "<body>",
        '<a class="skip" href="#main">Skip to the numbers</a>',
        "<header>",
        "<h1>Are the confidences true?</h1>",
        f'<p class="facts">{escape(report.facts)}</p>',
        "</header>",
        '<nav aria-label="Contents"><ul>',
        *(f'<li><a href="#{anchor}">{escape(title)}</a></li>' for anchor, title in contents),
        "</ul></nav>",
        '<main id="main">',
        f'<section id="summary"><h2>{escape(report.summary.title)}</h2>',
        *_table(report.summary),
        "</section>",
    ]
    if report.base is not None:
        lines += [f'<section id="base"><h2>{escape(report.base.title)}</h2>', *_table(report.base), "</section>"]
    for i, part in enumerate(report.sets):
        lines += [f'<section id="set-{i}">', *_set(part, [p for p in pictures if p.dataset == part.name]), "</section>"]
    return "\n".join([*lines, "</main>", "</body>", "</html>", ""])


def _set(part: SetReport, pictures: Iterable[Picture]) -> Iterator[str]:
    yield f"<h2>Data set {escape(part.name)}</h2>"
    yield f'<p class="facts">{escape(part.facts)}</p>'
    for picture in pictures:
        yield from _figure(picture)
    for table in (part.scores, *part.tables):
        yield f"<h3>{escape(table.title)}</h3>"
        yield from _table(table)
        if table is part.scores:
            yield "<ul>"
            yield from (f"<li><b>{escape(arm)}</b>: {escape(text)}</li>" for arm, text in part.notes)
            yield "</ul>"


def _figure(picture: Picture) -> Iterator[str]:
    pixels = [int.from_bytes(picture.png[at : at + 4]) for at in (16, 20)]  # width and height in the PNG's first chunk
    width, height = (round(size / 1.2) for size in pixels)  # so that the widest just fill the page, and letters agree
    source = base64.b64encode(picture.png).decode()
    title = escape(picture.title)
    yield f'<figure><div class="scroll" role="region" aria-label="{title}" tabindex="0">'
    yield f'<img alt="{title}" width="{width}" height="{height}" src="data:image/png;base64,{source}"></div>'
    yield f"<figcaption><details><summary>How to read it</summary><p>{escape(picture.meaning)}</p></details></figcaption></figure>"


def _table(table: Table) -> Iterator[str]:
    """The table, with all keys but the last as headings over the rows that share them: narrow enough for a phone."""
    outer = table.keys - 1
    yield f'<div class="scroll" role="region" aria-label="{escape(table.title)}" tabindex="0"><table><thead><tr>'
    for i, column in enumerate(table.columns[outer:]):
        yield f'<th scope="col"{"" if i else KEY}>{escape(column.title)}</th>'
    yield "</tr></thead>"
    for names, rows in groupby(table.rows, key=lambda row: row[:outer]):
        yield "<tbody>"
        if names:
            title = " · ".join(map(escape, names))
            yield f'<tr class="group"><th scope="rowgroup" colspan="{len(table.columns) - outer}"><span>{title}</span></th></tr>'
        for row in rows:
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[table.keys :])
            yield f'<tr><th scope="row"{KEY}>{escape(row[outer])}</th>{cells}</tr>'
        yield "</tbody>"
    yield "</table></div><details><summary>What the columns mean</summary><dl>"
    yield from (f"<dt>{escape(c.title)}</dt><dd>{escape(c.meaning)}</dd>" for c in table.columns)
    yield "</dl></details>"
