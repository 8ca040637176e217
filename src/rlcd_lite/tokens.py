"""Text to token ids, with a wall between the prompt's own text and everything that users write.

The chat template's text may hold special tokens. Contexts, field names, options and descriptions are data: a special token
written in them (``<|im_end|>``, ``<start_of_turn>``, …) is tokenised as the plain characters it is made of, so that no text can
end the prompt, open another turn or add a field.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from rlcd_lite.errors import UserError

_PLACEHOLDER = "rlcd-lite-user-content"


@dataclass(frozen=True)
class ChatFrame:
    """What the chat template puts before and after the user's message, up to where the assistant's answer starts."""

    before: tuple[int, ...]
    after: tuple[int, ...]


class Encoder:
    """The two ways a tokenizer is used here: `data` for text that users write, `frame` for the chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise UserError("the model's tokenizer has no tokenizer.json (a fast tokenizer): convert it with transformers.")
        self.tokenizer = tokenizer
        self._plain, self._control = _without_added_tokens(tokenizer.backend_tokenizer)

    def data(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Ids of each text as plain characters; the texts are tokenised on their own, never across a seam."""
        encoded = [tuple(e.ids) for e in self._plain.encode_batch(list(texts), add_special_tokens=False)]
        if any(self._control.intersection(ids) for ids in encoded):
            raise UserError(
                "the tokenizer turns plain text into special tokens, so texts can't be kept apart from the prompt: use another."
            )
        return encoded

    @cached_property  # asked for by every prompt
    def frame(self) -> ChatFrame:
        """The chat template around one user message; without a template, what the tokenizer puts before any text."""
        if not self.tokenizer.chat_template:
            return ChatFrame(tuple(self.tokenizer("").input_ids), ())
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": _PLACEHOLDER}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,  # Qwen3: the answer comes at once
            date_string="26 Jul 2024",  # Llama 3.2 writes today's date otherwise, and a decision must not depend on it
        )
        before, mark, after = str(text).partition(_PLACEHOLDER)
        if not mark or _PLACEHOLDER in after:
            raise UserError("the tokenizer's chat template does not show the user's message exactly once: it can't frame a prompt.")
        return ChatFrame(*(tuple(self.tokenizer(part, add_special_tokens=False).input_ids) for part in (before, after)))


def _without_added_tokens(backend: Tokenizer) -> tuple[Tokenizer, frozenset[int]]:
    """A copy of the tokenizer that knows no added tokens, and the ids of those it forgot.

    Runs of white space that a tokenizer lists as added tokens stay: they are spelling, not control.
    """
    spec = json.loads(backend.to_str())
    added = spec["added_tokens"]
    spec["added_tokens"] = [token for token in added if not token["content"].strip()]
    spec["truncation"] = spec["padding"] = None
    forgotten = frozenset(token["id"] for token in added if token["content"].strip())
    return Tokenizer.from_str(json.dumps(spec)), forgotten
