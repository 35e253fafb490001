"""Symbols as characters, so that a prefix becomes one string and edit distances compare code points.

Edit-distance libraries compare sequences by the *hash* of their elements, which confuses -1 with -2, "" with
0 and "a" with 97. A dict compares by `==`, so symbols are numbered through one first.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any, Final

from selective_rollout.errors import ConfigError
from selective_rollout.types import END

END_CODE: Final = "\0"
"""Code of END, the padding of a finished rollout; never handed out to a symbol."""

_SURROGATES: Final = range(0xD800, 0xE000)
_LAST_CODE_POINT: Final = 0x10FFFF


class _List:
    """Marks a frozen list: (_List, items) equals no tuple that a caller could pass."""


class _Dict:
    """Marks a frozen dict."""


class SymbolTable(dict[Any, str]):
    """Maps each symbol to one character; symbols that are `==` share it.

    Numbers compare across types (1, 1.0 and True are one symbol). A NaN equals only the same object. Lists,
    dicts, sets and bytearrays are compared by value as they were when they came in.
    """

    def code(self, symbol: object) -> str:
        """Return the character of a symbol.

        Raises:
            ConfigError: the symbol is END, unhashable, or the 1,112,064th distinct one.
        """
        try:
            return self[symbol]
        except TypeError:
            return self[_freeze(symbol)]

    def encode(self, symbols: Collection[object]) -> str:
        """Return a prefix, one character a symbol; errors as for `code`. May read `symbols` twice."""
        try:
            return "".join(map(self.__getitem__, symbols))
        except TypeError:
            return "".join(map(self.code, symbols))

    def __missing__(self, symbol: object) -> str:
        if symbol is END:
            raise ConfigError("END is not a symbol of a prefix: leave it out, or call finish(member)")
        number = len(self) + 1
        if number >= _SURROGATES.start:
            number += len(_SURROGATES)
        if number > _LAST_CODE_POINT:
            raise ConfigError(f"a group may hold {len(self):,} distinct symbols: compare coarser actions")
        self[symbol] = chr(number)
        return self[symbol]


def _freeze(symbol: object) -> Hashable:
    """Make a container of plain data hashable without changing what it is equal to."""
    if type(symbol) is list:
        return _List, tuple(map(_freeze, symbol))
    if type(symbol) is dict:
        return _Dict, frozenset((key, _freeze(value)) for key, value in symbol.items())
    if type(symbol) is tuple:
        return tuple(map(_freeze, symbol))
    if isinstance(symbol, set):
        return frozenset(symbol)
    if isinstance(symbol, bytearray):
        return bytes(symbol)
    if isinstance(symbol, Hashable):
        return symbol
    raise ConfigError(
        f"an action of type {type(symbol).__name__} is unhashable and cannot be compared: "
        "pass a string, or plain tuples, lists and dicts"
    )
