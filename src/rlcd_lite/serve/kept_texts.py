"""Texts whose keys and values are kept from one request to the next, within a bound of memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from rlcd_lite.forward import Layers, Prefix, cut, join
from rlcd_lite.packing import Segment

Ids = tuple[int, ...]


class KeptTexts:
    """The texts that were asked about last, where prompts begin with the text: each stands behind the same beginning, the *root*,
    which is kept once.

    ``limit``: bytes of all keys and values together; the text that was not asked about for the longest time goes first.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._root: tuple[Segment, Layers] | None = None
        self._texts: OrderedDict[Ids, Layers] = OrderedDict()

    def __contains__(self, ids: object) -> bool:
        return ids in self._texts

    def __len__(self) -> int:
        return len(self._texts)

    def prefix(self, texts: Iterable[Ids]) -> Prefix | None:
        """The root, once it is known, and those of the texts that are kept."""
        if self._root is None:
            return None
        found = [ids for ids in dict.fromkeys(texts) if ids in self._texts]
        for ids in found:
            self._texts.move_to_end(ids)
        root, layers = self._root
        return join([root, *(Segment(ids, 0) for ids in found)], [layers, *(self._texts[ids] for ids in found)])

    def keep(self, prefix: Prefix) -> None:
        """Keep the texts of a prefix: the segments behind its first one."""
        if not self.limit:
            return
        if self._root is None:
            self._root = prefix.segments[0], cut(prefix, 0)
            self.bytes += _size(self._root[1])
        assert prefix.segments[0] == self._root[0]
        for i, segment in enumerate(prefix.segments):
            if segment.parent != 0 or segment.ids in self._texts:
                continue
            layers = cut(prefix, i)
            self._texts[segment.ids] = layers
            self.bytes += _size(layers)
        while self.bytes > self.limit and self._texts:
            _, layers = self._texts.popitem(last=False)
            self.bytes -= _size(layers)


def _size(layers: Layers) -> int:
    return sum(part.nbytes for layer in layers for part in layer)
