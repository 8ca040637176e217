"""MMLU: exam questions of 57 subjects with four choices (Hendrycks et al. 2021, arXiv 2009.03300).

`mmlu` takes eight subjects, two from each of the paper's four groups, chosen for short questions and many validation rows;
`mmlu:astronomy,virology` takes those named, `mmlu:all` all. The options of an example are the texts of its own choices. The
published dev part (5 rows a subject, for few-shot prompts) and validation part together give train and calibration, half each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlcd_lite.datasets.choices import choice_schema
from rlcd_lite.datasets.sources import NamedSet, hub_table, local_csv
from rlcd_lite.datasets.splits import Row

SUBJECTS = tuple(
    """
    abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology college_chemistry
    college_computer_science college_mathematics college_medicine college_physics computer_security conceptual_physics
    econometrics electrical_engineering elementary_mathematics formal_logic global_facts high_school_biology
    high_school_chemistry high_school_computer_science high_school_european_history high_school_geography
    high_school_government_and_politics high_school_macroeconomics high_school_mathematics high_school_microeconomics
    high_school_physics high_school_psychology high_school_statistics high_school_us_history high_school_world_history
    human_aging human_sexuality international_law jurisprudence logical_fallacies machine_learning management marketing
    medical_genetics miscellaneous moral_disputes moral_scenarios nutrition philosophy prehistory
    professional_accounting professional_law professional_medicine professional_psychology public_relations
    security_studies sociology us_foreign_policy virology world_religions
    """.split()
)
DEFAULT_SUBJECTS = (
    "high_school_biology",  # science
    "conceptual_physics",
    "philosophy",  # humanities
    "prehistory",
    "high_school_psychology",  # social sciences
    "high_school_macroeconomics",
    "miscellaneous",  # other
    "nutrition",
)
PARTS = {"dev": "dev", "val": "validation", "test": "test"}


def chosen(variants: tuple[str, ...]) -> tuple[str, ...]:
    """The subjects that the variants stand for."""
    if "all" in variants:
        return SUBJECTS
    return variants or DEFAULT_SUBJECTS


def local(folder: Path, variants: tuple[str, ...]) -> Iterator[Row]:
    for subject in chosen(variants):
        for short, part in PARTS.items():
            for question, a, b, c, d, letter in local_csv(folder / short / f"{subject}_{short}.csv", columns=6):
                yield _row(part, question, [a, b, c, d], "ABCD".index(letter))


def hub(variants: tuple[str, ...]) -> Iterator[Row]:
    for subject in chosen(variants):
        for part in PARTS.values():
            for item in hub_table("mmlu", SET.hub_id, subject, part):
                yield _row(part, item["question"], item["choices"], item["answer"])


def _row(part: str, question: str, texts: list[str], answer: int) -> Row:
    texts = [text.strip() for text in texts]
    content = "\n".join([question, *texts])
    return Row(part, question.strip(), choice_schema(texts), {"answer": texts[answer]}, content=content)


SET = NamedSet(
    name="mmlu",
    about="exam questions; 8 of 57 subjects unless said otherwise",
    source="Hendrycks et al. 2021",
    licence="MIT",
    fields="answer × 4",
    variants=("all", *SUBJECTS),
    hub_id="cais/mmlu",
    local=local,
    hub=hub,
    shares={
        "dev": {"train": 0.5, "calibration": 0.5},
        "validation": {"train": 0.5, "calibration": 0.5},
        "test": {"test": 1.0},
    },
    rows={"train": 213, "calibration": 172, "test": 3204},
)
