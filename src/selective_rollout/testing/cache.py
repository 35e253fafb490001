"""Cost model of a prefix cache: which leading blocks of a prompt were computed before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

_MAX_BLOCKS = 100_000


class PrefixCache:
    """Remembers full blocks of tokens, each together with everything before it.

    Args:
        block_size: tokens per block; hits are multiples of it.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def cached_tokens(self, tokens: Sequence[str], salt: str | None = None) -> int:
        """Leading tokens that need no computing.

        The last token of a prompt is always computed, since its output is what the first new token is drawn
        from.
        """
        hits = 0
        for key in self._keys(tokens[:-1], salt):
            if key not in self._blocks:
                break
            self._blocks.move_to_end(key)
            hits += 1
        return hits * self._block_size

    def add(self, tokens: Sequence[str], salt: str | None = None) -> None:
        """Remember every full block; the least recently used ones are forgotten first."""
        for key in self._keys(tokens, salt):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > _MAX_BLOCKS:
            self._blocks.popitem(last=False)

    def _keys(self, tokens: Sequence[str], salt: str | None) -> Iterator[int]:
        key = hash(salt)
        for end in range(self._block_size, len(tokens) + 1, self._block_size):
            key = hash((key, *tokens[end - self._block_size : end]))
            yield key
