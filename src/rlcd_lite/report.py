"""Evaluations → the tables and sentences of a report, and their Markdown.

Every number is one of ``eval.json``'s, only rounded. A `Report` is plain text in tables, so that the Markdown here and the page
of `rlcd_lite.report_page` say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import rlcd_lite.report_columns as col

BASE = "base"
GAP = "–"  # a number that does not exist, such as the accuracy at a gate that nothing passes


@dataclass(frozen=True)
class Table:
    """Rows of cells as text, as long as ``columns``; the first ``keys`` cells of a row name it."""

    title: str
    keys: int
    columns: tuple[col.Column, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Picture:
    """A PNG about a data set: ``file`` is its name in the report's folder, ``meaning`` how to read it."""

    dataset: str
    file: str
    title: str
    meaning: str
    png: bytes


@dataclass(frozen=True)
class SetReport:
    """What is said about one data set; ``tables`` follow the notes. No comparison table where there is one arm."""

    name: str
    facts: str
    scores: Table
    notes: tuple[tuple[str, str], ...]  # (arm, sentence)
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Report:
    """``base`` is the table of the base arm over all data sets, None without such an arm."""

    facts: str
    summary: Table
    base: Table | None
    sets: tuple[SetReport, ...]


# ---- numbers as text ----


def number(value: float | None, digits: int = 3) -> str:
    """A number with a real minus sign and no negative zero; null is `GAP`."""
    if value is None:
        return GAP
    text = f"{value:.{digits}f}"
    return text.replace("-", "" if float(text) == 0 else "−")


def interval(found: Mapping[str, Any], digits: int = 3) -> str:
    return f"{number(found['estimate'], digits)} ({number(found['low'], digits)}–{number(found['high'], digits)})"


def _p_value(value: float | None) -> str:
    return "<0.001" if value is not None and value < 0.0005 else number(value)


def _difference(found: Mapping[str, Any]) -> str:
    """Estimate, interval, and the share of resamples of the other sign in percent."""
    low, high = number(found["low"]), number(found["high"])
    return f"{number(found['estimate'])} ({low} to {high}), {number(100 * found['other_sign'], 1)} %"


def _asked(contract: Mapping[str, str]) -> str:
    asked = f"layout {contract['layout']}, {contract['confidence']} confidence (grid {contract['confidence_grid']})"
    more = {"scoring": "labels", "permutations": 1, "prior": "none"}  # as it was before there was a choice
    return asked + "".join(f", {name} {contract[name]}" for name, usual in more.items() if contract.get(name, usual) != usual)


# ---- tables ----


def build(evaluation: Mapping[str, Any]) -> Report:
    """The report on an evaluation as `rlcd_lite.merge` gives it."""
    settings, packages = evaluation["settings"], evaluation["packages"]
    asked = sorted({_asked(result["contract"]) for result in evaluation["results"]})
    facts = (
        f"Model {settings['model']}, dtype {settings['dtype']}, {' or '.join(asked)}; "
        f"intervals are 95 % percentile intervals over {settings['resamples']:,} resamples of contexts (seed {settings['seed']}); "
        + ", ".join(f"{package} {version}" for package, version in packages.items())
        + "."
    )
    names = list(evaluation["datasets"])
    results = sorted(evaluation["results"], key=lambda result: names.index(result["dataset"]))
    base = [result for result in results if result["arm"] == BASE]
    return Report(
        facts=facts,
        summary=_summary(results),
        base=_base(base, evaluation["datasets"]) if base else None,
        sets=tuple(_set_report(evaluation, name) for name in names),
    )


def _set_report(evaluation: Mapping[str, Any], name: str) -> SetReport:
    about = evaluation["datasets"][name]
    results = [result for result in evaluation["results"] if result["dataset"] == name]
    pairs = [comparison for comparison in evaluation["comparisons"] if comparison["dataset"] == name]
    facts = (
        f"{about['n']} test examples, {sum(r['decisions'] for r in results[:1])} decisions; {about['calibration_n']} calibration "
        f"examples; fields {', '.join(about['fields'])}; options {_counts(about['options'])}; source: {about['source']}; "
        f"hash of the test examples {about['test_hash']}."
    )
    tables = [_gates(results), _more(results)]
    return SetReport(
        name=name,
        facts=facts,
        scores=_scores(results),
        notes=tuple((result["arm"], _note(result)) for result in results),
        tables=tuple([_comparison(pairs), *tables] if pairs else tables),
    )


def _signals(results: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str, Mapping[str, Any]]]:
    for result in results:
        for name, signal in result["signals"].items():
            yield result, name, signal


def _summary(results: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for result, name, s in _signals(results):
        gate = {gate["gate"]: gate for gate in s["gates"]}[col.SUMMARY_GATE]
        rows.append(
            (
                result["dataset"],
                result["arm"],
                name,
                interval(result["accuracy"]),
                interval(s["ece"]),
                number(s["ece"]["null_floor"]["upper"]),
                verdict(result, s),
                number(s["brier"]["estimate"]),
                number(s["murphy"]["uncertainty"]),
                number(gate["coverage"]),
                number(gate["accuracy"]),
            )
        )
    columns = (
        col.DATASET,
        col.ARM,
        col.SIGNAL,
        col.ACCURACY,
        col.ECE,
        col.FLOOR,
        col.CALIBRATED,
        col.BRIER,
        col.BASE_RATE,
        col.GATE_COVERAGE,
        col.GATE_ACCURACY,
    )
    return Table("The numbers that decide", 3, columns, tuple(rows))


def verdict(result: Mapping[str, Any], signal: Mapping[str, Any]) -> str:
    """Is the ECE more than chance would show, and which way do the confidences err on average?"""
    if signal["ece"]["estimate"] <= signal["ece"]["null_floor"]["upper"]:
        return "not shown"
    return "too sure" if signal["mean_confidence"] > result["accuracy"]["estimate"] else "too unsure"


def _scores(results: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for result, name, s in _signals(results):
        terms, floor = s["murphy"], s["ece"]["null_floor"]
        rows.append(
            (
                result["arm"],
                name,
                number(result["accuracy"]["estimate"]),
                interval(s["ece"]),
                number(floor["upper"]),
                number(s["brier"]["estimate"]),
                number(terms["uncertainty"]),
                f"{number(terms['reliability'])} ({number(terms['reliability_debiased'])})",
                f"{number(terms['resolution'])} ({number(terms['resolution_debiased'])})",
                number(s["log_loss"]["estimate"]),
                number(s["aurc"]["estimate"]),
                number(s["mean_confidence"]),
            )
        )
    accuracy = col.Column("acc", col.ACCURACY.meaning)
    columns = (
        col.ARM,
        col.SIGNAL,
        accuracy,
        col.ECE,
        col.FLOOR,
        col.BRIER,
        col.BASE_RATE,
        col.REL,
        col.RES,
        col.LOG_LOSS,
        col.AURC,
        col.MEAN_CONFIDENCE,
    )
    return Table("All arms and signals", 2, columns, tuple(rows))


def _gates(results: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for result, name, s in _signals(results):
        cells = []
        for gate in s["gates"]:
            low, high = gate["accuracy_interval"]
            accuracy = interval({"estimate": gate["accuracy"], "low": low, "high": high}) if gate["count"] else GAP
            cells.append(f"{number(gate['coverage'])}: {accuracy}")
        rows.append((result["arm"], name, *cells))
    gates = [gate["gate"] for gate in next(_signals(results))[2]["gates"]]
    return Table("Coverage and accuracy at confidence gates", 2, (col.ARM, col.SIGNAL, *map(col.gate_column, gates)), tuple(rows))


def _more(results: Sequence[Mapping[str, Any]]) -> Table:
    known = any("posterior_error" in signal for _, _, signal in _signals(results))
    rows = []
    for result, name, s in _signals(results):
        test = s["spiegelhalter"]
        cells = [
            result["arm"],
            name,
            *(interval(s[metric]) for metric in ("brier", "log_loss", "aurc")),
            number(s["e_aurc"]),
            number(s["augrc"]),
            f"{number(test['z'], 2)} ({_p_value(test['p_value'])})",
        ]
        if known:
            error = s.get("posterior_error")
            cells.append(f"{number(error['bias'])}, {number(error['root_mean_square'])}" if error else GAP)
        rows.append(tuple(cells))
    columns = (
        col.ARM,
        col.SIGNAL,
        col.BRIER_INTERVAL,
        col.LOG_LOSS_INTERVAL,
        col.AURC_INTERVAL,
        col.E_AURC,
        col.AUGRC,
        col.SPIEGELHALTER,
    )
    return Table("More about each signal", 2, (*columns, col.TRUTH) if known else columns, tuple(rows))


def _comparison(pairs: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (f"{pair['first']} − {pair['second']}", name, *(_difference(metrics[key]) for key in col.DIFFERENCES))
        for pair in pairs
        for name, metrics in pair["signals"].items()
    ]
    return Table("Arms compared, paired over contexts", 2, (col.ARMS, col.SIGNAL, *col.DIFFERENCES.values()), tuple(rows))


def _base(results: Sequence[Mapping[str, Any]], datasets: Mapping[str, Any]) -> Table:
    rows = []
    for result in results:
        eces = [number(result["signals"][name]["ece"]["estimate"]) for name in col.SIGNAL_ECE]
        flip = interval(result["order"]["flip_rate"]) if result["order"] else GAP
        coverage = number(result["coverage"])
        options = _counts(datasets[result["dataset"]]["options"])
        rows.append((result["dataset"], options, number(result["accuracy"]["estimate"]), *eces, flip, coverage))
    accuracy = col.Column("acc", col.ACCURACY.meaning)
    columns = (col.DATASET, col.OPTIONS, accuracy, *col.SIGNAL_ECE.values(), col.FLIP, col.COVERAGE)
    return Table("The base model on every data set", 1, columns, tuple(rows))


def _counts(options: Sequence[int]) -> str:
    return ", ".join(map(str, options))


def _note(result: Mapping[str, Any]) -> str:
    """The line below the full table, in the order of the seed's."""
    fields = result["fields"]
    parts = ["per-field accuracy " + ", ".join(f"{name} = {interval(f['accuracy'])}" for name, f in fields.items())]
    temperatures = []
    for name, field in fields.items():
        ceiling = " (at the ceiling: no usable signal)" if field["temperature"]["at_ceiling"] else ""
        temperatures.append(f"{name} = {number(field['temperature']['value'], 2)}{ceiling}")
    if rules := result.get("rules"):
        told = ", ".join(f"{interval(rule['rate'])} ({rule['rule']})" for rule in rules["before"])
        enforced = number(rules["after"]["softmax"]["estimate"])
        parts.append(f"broken rules {told} of {rules['contexts']} contexts, {enforced} where rules are enforced")
    parts.append("fitted T " + ", ".join(temperatures))
    if order := result["order"]:
        parts.append(
            f"option-order sensitivity: mean TV {interval(order['total_variation'])}, flip rate {interval(order['flip_rate'])} "
            f"(k = {order['shuffles']}, n = {order['contexts']})"
        )
    for field, scope in (result.get("scope") or {}).items():
        if scope is None:  # of one kind alone
            continue
        told = ", ".join(
            f"{name} AUROC {interval(score['auroc'])}, false alarm at 90 % recall {number(score['false_alarm_at_90_recall'])}"
            for name, score in scope["scores"].items()
        )
        parts.append(
            f"{field} out of scope ({scope['out_of_scope']} of {scope['contexts']}): {told}; ECE of none of the above "
            f"{number(scope['raw']['ece'])}, by Platt scaling {number(scope['platt']['ece'])}"
        )
    if bayes := result.get("bayes"):
        parts.append(f"Bayes accuracy {number(bayes['accuracy'])}, regret {interval(bayes['regret'])}")
        errors = [(name, s["posterior_error"]) for name, s in result["signals"].items() if "posterior_error" in s]
        told = ", ".join(f"{name} = {number(error['mean_absolute'])}" for name, error in errors)
        parts.append(f"mean absolute error against the true posterior {told}")
    return "; ".join(parts)


# ---- Markdown ----


def markdown(report: Report, pictures: Sequence[Picture]) -> str:
    """The report as GitHub Markdown; pictures are linked by their file names."""
    tables = [report.summary, *([report.base] if report.base else [])]
    lines = ["# Evaluation", "", _escape(report.facts), ""]
    for table in tables:
        lines += [f"## {_escape(table.title)}", "", *_table(table), ""]
    for part in report.sets:
        lines += [f"## Data set {_escape(part.name)}", "", _escape(part.facts), "", *_table(part.scores), ""]
        lines += [f"- {_escape(arm)}: {_escape(text)}" for arm, text in part.notes] + [""]
        for table in part.tables:
            lines += [f"### {_escape(table.title)}", "", *_table(table), ""]
        for picture in (p for p in pictures if p.dataset == part.name):
            lines += [f"![{_escape(picture.title)}]({picture.file})", "", _escape(picture.meaning), ""]
        tables += [part.scores, *part.tables]
    meanings = {column.title: column.meaning for table in tables for column in table.columns}
    lines += ["## What the columns mean", ""]
    lines += [f"- **{_escape(title)}**: {_escape(meaning)}" for title, meaning in meanings.items()]
    return "\n".join(lines) + "\n"


def _table(table: Table) -> list[str]:
    rule = ["---"] * table.keys + ["--:"] * (len(table.columns) - table.keys)
    rows = [[column.title for column in table.columns], *table.rows]
    head, *body = ["| " + " | ".join(map(_escape, row)) + " |" for row in rows]
    return [head, "| " + " | ".join(rule) + " |", *body]


def _escape(text: str) -> str:
    """Text as itself in GitHub Markdown: names come from data. An underscore within a word needs no escape."""
    return re.sub(r"[\\`*<>|\[\]~$]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", " ".join(text.split()))
