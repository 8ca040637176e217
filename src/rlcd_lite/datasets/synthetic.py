"""Ticket triage whose true probabilities are known: severity, team and needs_human of a generated support ticket.

How a ticket is made, by design and not by fit:

1. *Evidence* is drawn for severity and, independently, for team. It is one of four kinds, each told in words of its own:
   *clear*, one strong cue (its option has probability 1); *leaning*, a strong cue against a weak one (0.7 and 0.3); *even*, two
   strong cues (0.5 each); *hearsay*, a strong cue that somebody else reports (0.75, the rest spread evenly).
2. A *customer fact* is drawn: escalated, self-service or none. `HUMAN` gives the probability that a person must answer for every
   fact and severity; it is 1 for critical, so that the rule critical ⇒ needs_human holds in every label.
3. The text is worded from `synthetic_phrases`. All of the above can be read off it, so equal texts have equal posteriors.
4. The labels are drawn from the joint posterior P(severity) · P(needs_human | severity, fact) · P(team), given the text.

Ticket ``index`` of a split is drawn anew until the hash of its text falls into the split (the rule of the other sets), so no text
stands in two splits, whatever the seeds. Everything depends on (seed, split, index) alone: the stream is unlimited, and any ticket
can be made without those before it.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rlcd_lite.datasets import synthetic_phrases as phrases
from rlcd_lite.datasets.example import Example, Split
from rlcd_lite.datasets.sources import field_sizes
from rlcd_lite.datasets.splits import split_of
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.schema import Condition, Field, Option, Rule, Schema

NAME = "synthetic"
ABOUT = "ticket triage with known posteriors"
SEVERITIES = ("low", "medium", "high", "critical")
TEAMS = ("billing", "auth", "infra", "frontend")
SCHEMA = Schema(
    (
        Field("severity", "choice", tuple(Option(s) for s in SEVERITIES), "How badly the customer is affected."),
        Field("team", "choice", tuple(Option(t) for t in TEAMS), "The team whose work it is."),
        Field("needs_human", "bool", (Option(True), Option(False)), "Must a person answer? A critical ticket always needs one."),
    ),
    rules=(Rule(when=(Condition("severity", (3,)),), then=(Condition("needs_human", (0,)),)),),  # kept by every label
)
FIELDS = field_sizes(SCHEMA)
SHARES: Mapping[Split, float] = {"train": 0.5, "calibration": 0.25, "test": 0.25}

LEANING, HEARSAY = 0.7, 0.75  # probability of the strong cue's option, of the reported cue's option
KINDS = {  # how often each kind of evidence is drawn
    "severity": {"clear": 0.64, "leaning": 0.14, "even": 0.08, "hearsay": 0.14},
    "team": {"clear": 0.68, "leaning": 0.12, "even": 0.08, "hearsay": 0.12},
}
FACTS = {"escalated": 0.35, "self-service": 0.40, "none": 0.25}
HUMAN = {  # P(needs_human | severity, fact), in the order of SEVERITIES
    "escalated": (0.88, 0.92, 0.96, 1.0),
    "self-service": (0.03, 0.06, 0.12, 1.0),
    "none": (0.05, 0.20, 0.80, 1.0),
}
AMBIGUOUS = 0.9  # a field of a ticket is called ambiguous when its largest probability lies below this

Array = npt.NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True)
class Evidence:
    """What a text says about a field of four options: ``kind`` and the options of its strong (``a``) and other (``b``) cue."""

    kind: str
    a: int
    b: int | None = None

    @property
    def posterior(self) -> Array:
        """Probability of every option, shape (4,)."""
        if self.kind == "hearsay":
            p = np.full(4, (1 - HEARSAY) / 3)
            p[self.a] = HEARSAY
            return p
        p = np.zeros(4)
        p[self.a] = {"clear": 1.0, "leaning": LEANING, "even": 0.5}[self.kind]
        if self.b is not None:
            p[self.b] = 1 - p[self.a]
        return p


@dataclass(frozen=True)
class Ticket:
    """A ticket's text and all that it says."""

    id: str
    text: str
    severity: Evidence
    team: Evidence
    fact: str

    @property
    def joint(self) -> Array:
        """Probability of every (severity, team, needs_human) given the text, in option order (True first): shape (4, 4, 2)."""
        return joint_posterior(self.severity, self.team, self.fact)

    @property
    def posterior(self) -> dict[str, tuple[float, ...]]:
        """The joint's marginals per field, in option order."""
        return marginals(self.severity, self.team, self.fact)


def joint_posterior(severity: Evidence, team: Evidence, fact: str) -> Array:
    human = np.array(HUMAN[fact])
    needs = np.stack([human, 1 - human], axis=1)  # (4, 2)
    joint: Array = (severity.posterior[:, None] * needs)[:, None, :] * team.posterior[None, :, None]
    return joint


def marginals(severity: Evidence, team: Evidence, fact: str) -> dict[str, tuple[float, ...]]:
    p = tuple(map(float, severity.posterior))
    # in fractions, rounded once: a product of BLAS rounds otherwise on other processors, and `data_hash` knows every digit
    human = float(sum(Fraction(a) * Fraction(b) for a, b in zip(p, HUMAN[fact], strict=True)))
    return {
        "severity": p,
        "team": tuple(map(float, team.posterior)),
        "needs_human": (human, 1 - human),
    }


def ticket(seed: int, split: Split, index: int) -> Ticket:
    """Ticket ``index`` (from 0) of a split's stream."""
    id_ = f"{NAME}-{split}-{seed}-{index}"
    for attempt in itertools.count():
        rng = random.Random(f"{id_}-{attempt}")  # a string seeds by SHA-512, the same on every platform and version
        severity, team, fact = _evidence(rng, "severity"), _evidence(rng, "team"), _weighted(rng, FACTS)
        text = _word(rng, severity, team, fact)
        if split_of(text, SHARES) == split:
            return Ticket(id_, text, severity, team, fact)
    raise AssertionError


def example(seed: int, split: Split, index: int) -> Example:
    """Ticket ``index`` of a split's stream with its labels."""
    return labelled(ticket(seed, split, index))


def labelled(ticket: Ticket) -> Example:
    """The ticket with labels drawn from its joint posterior; ``posterior`` holds the joint's marginals."""
    cumulated = np.cumsum(ticket.joint)  # over the 32 cells in C order
    point = random.Random(f"{ticket.id}-labels").random() * cumulated[-1]
    cell = int(np.searchsorted(cumulated, point, side="right"))  # "right": a cell of probability 0 is never hit
    position = np.unravel_index(cell, (4, 4, 2))
    labels = {f.name: f.options[int(i)].value for f, i in zip(SCHEMA.fields, position, strict=True)}
    return Example(ticket.id, ticket.text, SCHEMA, labels, ticket.posterior)


def joint(example_id: str) -> Array:
    """The joint posterior (4, 4, 2) of an example, made again from its id."""
    found = re.fullmatch(rf"{NAME}-(train|calibration|test)-(-?\d+)-(\d+)", example_id)
    if found is None:
        raise UserError(f"{shorten(example_id)} is not the id of a synthetic ticket: it reads {NAME}-SPLIT-SEED-INDEX.")
    split: Any = found[1]
    return ticket(int(found[2]), split, int(found[3])).joint


@dataclass(frozen=True)
class Bayes:
    """What nobody can beat on one field, expected over tickets.

    ``accuracy`` of the most probable option; ``brier``: mean squared error of its probability p against its being right, E[p(1-p)];
    ``brier_all``: the squared error summed over all options; ``ambiguous``: share of tickets whose p < `AMBIGUOUS`; ``prior``:
    the share of every option among the labels.
    """

    accuracy: float
    brier: float
    brier_all: float
    ambiguous: float
    prior: tuple[float, ...]


def bayes() -> dict[str, Bayes]:
    """The Bayes numbers of every field, by summing over all kinds of evidence and facts (exact, so for every seed and split)."""
    rows: dict[str, list[tuple[float, tuple[float, ...]]]] = {f.name: [] for f in SCHEMA.fields}
    for (w, severity), (v, team), (fact, u) in itertools.product(strata("severity"), strata("team"), FACTS.items()):
        for name, posterior in marginals(severity, team, fact).items():
            rows[name].append((w * v * u, posterior))
    out: dict[str, Bayes] = {}
    for name, weighted in rows.items():
        weights = np.array([w for w, _ in weighted])
        posteriors = np.array([p for _, p in weighted])
        top = posteriors.max(axis=1)
        out[name] = Bayes(
            accuracy=float(weights @ top),
            brier=float(weights @ (top * (1 - top))),
            brier_all=float(weights @ (posteriors * (1 - posteriors)).sum(axis=1)),
            ambiguous=float(weights @ (top < AMBIGUOUS)),
            prior=tuple(map(float, weights @ posteriors)),
        )
    return out


def strata(field: str) -> list[tuple[float, Evidence]]:
    """Every evidence that a field (severity or team) can have, with its probability."""
    out: list[tuple[float, Evidence]] = []
    for kind, share in KINDS[field].items():
        cases = [Evidence(kind, a, b) for a, b in _options_of(kind)]
        out += [(share / len(cases), case) for case in cases]
    return out


def _options_of(kind: str) -> list[tuple[int, int | None]]:
    if kind in ("leaning", "even"):
        return list(itertools.permutations(range(4), 2))
    return [(a, None) for a in range(4)]


def _evidence(rng: random.Random, field: str) -> Evidence:
    kind = _weighted(rng, KINDS[field])
    return Evidence(kind, *_pick(rng, _options_of(kind)))


def _word(rng: random.Random, severity: Evidence, team: Evidence, fact: str) -> str:
    """The ticket as text: greeting, background and the three pieces of evidence in any order, closing."""
    middle = [
        _sentence(rng, severity, SEVERITIES, phrases.SEVERITY_STRONG, phrases.SEVERITY_WEAK),
        _sentence(rng, team, TEAMS, phrases.TEAM_STRONG, phrases.TEAM_WEAK),
        _close(_fill(rng, _pick(rng, phrases.FACTS[fact]))),
        _fill(rng, _pick(rng, phrases.BACKGROUNDS)),
    ]
    middle.sort(key=lambda _: rng.random())
    return "\n".join([_fill(rng, _pick(rng, phrases.GREETINGS)), " ".join(middle), _fill(rng, _pick(rng, phrases.CLOSINGS))])


def _sentence(
    rng: random.Random,
    evidence: Evidence,
    options: Sequence[str],
    strong: Mapping[str, Sequence[str]],
    weak: Mapping[str, Sequence[str]],
) -> str:
    frames = {
        "clear": phrases.CLEAR_FRAMES,
        "leaning": phrases.LEANING_FRAMES,
        "even": phrases.EVEN_FRAMES,
        "hearsay": phrases.HEARSAY_FRAMES,
    }
    cues = {"a": _fill(rng, _pick(rng, strong[options[evidence.a]]))}
    if evidence.b is not None:
        other = weak if evidence.kind == "leaning" else strong
        cues["b"] = _fill(rng, _pick(rng, other[options[evidence.b]]))
    return _close(_pick(rng, frames[evidence.kind]).format(**cues))


def _fill(rng: random.Random, clause: str) -> str:
    for slot, values in phrases.SLOTS.items():
        if f"{{{slot}}}" in clause:
            clause = clause.replace(f"{{{slot}}}", _pick(rng, values))
    return clause


def _close(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}."


def _pick(rng: random.Random, items: Sequence[T]) -> T:
    return items[int(rng.random() * len(items))]  # random() alone is promised to give the same numbers in every Python version


def _weighted(rng: random.Random, shares: Mapping[str, float]) -> str:
    point, total = rng.random(), 0.0
    for name, share in shares.items():
        total += share
        if point < total:
            return name
    return name  # the shares' sum fell short of 1 by rounding
