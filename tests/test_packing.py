"""Layout and masks against their definition, on random trees."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcd_lite.packing import ROOT, Segment, TokenTree, attention_mask, pack


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    tree = TokenTree()
    for i in range(draw(st.integers(1, 8))):
        ids = draw(st.lists(st.integers(0, 99), min_size=1, max_size=5))
        tree.add(ids, draw(st.integers(0, len(tree.segments) - 1)) if i else ROOT)
    for segment in draw(st.lists(st.integers(0, len(tree.segments) - 1), min_size=1, max_size=5)):
        tree.read(segment, (1, 2))
    return tree


def ancestry(tree: TokenTree, segment: int) -> list[int]:
    line = []
    while segment != ROOT:
        line.append(segment)
        segment = tree.segments[segment].parent
    return line


@given(trees())
def test_a_token_sees_its_path_and_nothing_else(tree: TokenTree) -> None:
    packed = pack(tree)
    tokens = [(i, k) for i, segment in enumerate(tree.segments) for k in range(len(segment.ids))]
    for row, (i, k) in enumerate(tokens):
        line = ancestry(tree, i)
        for column, (j, m) in enumerate(tokens):
            assert bool(packed.visible[row, column]) == (j in line and (j != i or m <= k))
        assert int(packed.positions[0, row]) == len(tree.path(i)) - len(tree.segments[i].ids) + k
    assert packed.ids[0].tolist() == [token for segment in tree.segments for token in segment.ids]
    for readout, where in zip(tree.readouts, packed.readouts.tolist(), strict=True):
        assert tokens[where] == (readout.segment, len(tree.segments[readout.segment].ids) - 1)
        seen = packed.visible[where].nonzero().flatten()
        assert packed.ids[0, seen].tolist() == list(tree.path(readout.segment))
        assert packed.positions[0, seen].tolist() == list(range(len(seen)))


@given(trees(), st.integers(1, 6))
def test_a_window_is_measured_on_positions(tree: TokenTree, window: int) -> None:
    packed = pack(tree)
    mask = attention_mask(packed, window)[0, 0]
    for where in packed.readouts.tolist():
        depth = int(packed.positions[0, where])
        assert packed.positions[0, mask[where]].tolist() == list(range(max(0, depth - window + 1), depth + 1))


@given(trees(), trees())
def test_a_cached_prefix_leaves_the_rest_as_it_was(first: TokenTree, branches: TokenTree) -> None:
    """Whatever tree was run before, of several roots and with branches, and wherever in it the new segments stand."""
    tree = TokenTree()
    for segment in first.segments:
        tree.add(segment.ids, segment.parent)
    prefix = list(tree.segments)
    at = {ROOT: len(prefix) - 1}
    for i, segment in enumerate(branches.segments):
        at[i] = tree.add((*segment.ids, 100), at[segment.parent])  # 100: no segment of the prefix ends so
    for readout in branches.readouts:
        tree.read(at[readout.segment], readout.label_ids)
    whole, rest = pack(tree), pack(tree, prefix)
    p = sum(len(segment.ids) for segment in prefix)
    assert torch.equal(rest.ids, whole.ids[:, p:])
    assert torch.equal(rest.positions, whole.positions[:, p:])
    assert torch.equal(rest.visible, whole.visible[p:])
    assert torch.equal(rest.key_positions, whole.key_positions)
    assert torch.equal(rest.readouts, whole.readouts - p)
    for window in (None, 3):
        assert torch.equal(attention_mask(rest, window), attention_mask(whole, window)[:, :, p:])


@given(trees())
def test_the_additive_mask_says_the_same(tree: TokenTree) -> None:
    packed = pack(tree)
    additive = attention_mask(packed, additive=torch.float32)
    assert torch.equal(additive == 0, attention_mask(packed))
    assert (additive[~attention_mask(packed)] == torch.finfo(torch.float32).min).all()
    assert packed.visible.any(dim=1).all()  # no query is left with nothing to see


def test_an_empty_segment_stands_for_its_parent() -> None:
    tree = TokenTree()
    root = tree.add((1, 2), ROOT)
    assert tree.add((), root) == root
    assert tree.add((), ROOT) == ROOT


def test_what_is_there_already_is_not_added_again() -> None:
    tree = TokenTree()
    root = tree.add((1, 2), ROOT)
    first, other = tree.add((3,), root), tree.add((4,), root)
    assert tree.add((1, 2), ROOT) == root
    assert tree.add((3,), root) == first != other
    assert tree.add((3,), other) not in (first, other)
    assert len(tree.segments) == 4


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ([Segment((1, 9), ROOT)], "other segments"),
        ([Segment((1, 2), ROOT), Segment((3,), ROOT)], "other segments"),
        ([Segment((1, 2), ROOT), Segment((3,), 0), Segment((4,), 1)], "other segments"),
        ([Segment((1, 2), ROOT), Segment((3,), 0)], "nothing is left"),
    ],
)
def test_a_prefix_of_other_segments_is_refused(prefix: list[Segment], message: str) -> None:
    tree = TokenTree()
    tree.read(tree.add((3,), tree.add((1, 2), ROOT)), (5,))
    with pytest.raises(ValueError, match=message):
        pack(tree, prefix)


def test_a_read_out_inside_the_prefix_is_refused() -> None:
    tree = TokenTree()
    root = tree.add((1, 2), ROOT)
    trunk = tree.add((3,), root)
    tree.read(tree.add((4,), trunk), (5,))
    assert pack(tree, tree.segments[:2]).ids.tolist() == [[4]]
    tree.read(trunk, (5,))
    with pytest.raises(ValueError, match="inside the prefix"):
        pack(tree, tree.segments[:2])


def test_unknown_segments_are_refused() -> None:
    tree = TokenTree()
    with pytest.raises(IndexError):
        tree.add((1,), 0)
    with pytest.raises(IndexError):
        tree.read(ROOT, (1,))
