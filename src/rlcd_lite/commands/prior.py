"""``rlcd-lite prior``: what the model answers whatever the text says, measured on texts without labels and kept in a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated

import tyro

from rlcd_lite import ranks
from rlcd_lite.commands.infer import GoodRows
from rlcd_lite.commands.model_flags import ModelFlags
from rlcd_lite.datasets import load
from rlcd_lite.errors import UserError
from rlcd_lite.files import check_writable
from rlcd_lite.priors import CONTEXTS, write_prior
from rlcd_lite.rows import SUFFIXES, inspect
from rlcd_lite.schema import Schema
from rlcd_lite.settings import Permutations


@dataclass
class Prior:
    """Measure a prior on texts that nobody needs to label, for `infer --prior FILE` and `eval --prior FILE`.

    Give the texts with --input and --schema, or with --dataset, whose calibration split is read without its labels.
    """

    model: Annotated[ModelFlags, tyro.conf.OmitArgPrefixes] = field(default_factory=ModelFlags)
    input: Path | None = None
    """File of texts of the kind that will be decided: .jsonl (one object a line) or .csv (with a header)."""
    text_column: str = "text"
    """Key or column of --input that holds the text."""
    schema: Path | None = None
    """File that holds the schema as JSON."""
    dataset: str | None = None
    """Data set (see rlcd-lite data --list) instead of --input."""
    data_dir: Path | None = None
    """Folder that holds the sets' folders; without it RLCD_DATA_DIR, without that the hub."""
    n: int = CONTEXTS
    """Texts to measure on; all of them if there are fewer."""
    permutations: Permutations = 1
    """Orders of the options to measure in: as in infer and eval."""
    output: Path = Path("prior.json")
    """Where to keep it."""
    overwrite: bool = False
    """Replace an existing --output."""

    def run(self) -> None:
        if self.n < 1:
            raise UserError(f"--n is {self.n}: it must be at least 1.")
        if self.output.exists() and not self.overwrite:
            raise UserError(f"output {str(self.output)!r} exists: replace it with --overwrite.")
        check_writable(self.output, "output")
        if self.model.contract().prior.logits:
            raise UserError(f"model {self.model.model!r} was trained with a prior of its own: it takes no other.")
        if (self.input is None) == (self.dataset is None):
            raise UserError("the texts are needed once: give --input with --schema, or --dataset.")
        pairs = self._examples() if self.dataset is not None else None
        schema = self._schema() if pairs is None else None
        engine = self.model.load(prior="none", permutations=self.permutations)
        if pairs is None:
            assert self.input is not None
            assert schema is not None
            inspect(self.input)
            good = GoodRows(self.input, self.text_column, engine, schema)
            pairs = [(schema, text) for text in islice(good.texts(lambda: None), self.n)]
            if not pairs:
                raise UserError(f"no row of {str(self.input)!r} can be read ({good.first_problem}): mend the file or the flags.")
        prior = engine.measure_prior(pairs)
        if ranks.is_main():
            write_prior(self.output, prior, self.model.made_by())
            print(f"{self.output}: {len(prior.logits)} questions over {prior.texts} texts.", file=sys.stderr)

    def _schema(self) -> Schema:
        if self.schema is None:
            raise UserError("--input needs the schema that will be decided: give it with --schema.")
        return Schema.from_file(self.schema)

    def _examples(self) -> list[tuple[Schema, str]]:
        dataset = self.dataset or ""
        if Path(dataset).suffix in SUFFIXES or self.schema is not None:
            raise UserError("--dataset names a set of its own schema: give a file with --input and --schema.")
        n = self.n if dataset == "synthetic" else None
        examples = load(dataset, "calibration", n, data_dir=self.data_dir).examples[: self.n]
        return [(e.schema, e.context) for e in examples]
