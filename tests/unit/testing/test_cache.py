from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.testing import cache
from selective_rollout.testing.cache import PrefixCache

tokens = st.lists(st.sampled_from("ab"), max_size=20)


def oracle(prompt: list[str], known: list[list[str]], block: int) -> int:
    """Longest run of full blocks, short of the last token, that some known text begins with."""
    best = 0
    for length in range(block, len(prompt), block):
        if any(text[:length] == prompt[:length] and len(text) >= length for text in known):
            best = length
    return best


@given(st.lists(tokens, max_size=6), tokens, st.integers(1, 5))
@settings(deadline=None)
def test_hits_are_the_longest_known_run_of_full_blocks(
    known: list[list[str]], prompt: list[str], block: int
) -> None:
    prefixes = PrefixCache(block)
    for text in known:
        prefixes.add(text)
    assert prefixes.cached_tokens(prompt) == oracle(prompt, known, block)


def test_another_salt_shares_nothing() -> None:
    prefixes = PrefixCache(2)
    prefixes.add(list("abcdef"), salt="x")
    assert prefixes.cached_tokens(list("abcdef"), salt="x") == 4
    assert prefixes.cached_tokens(list("abcdef")) == 0


def test_it_forgets_the_oldest_blocks(monkeypatch) -> None:
    monkeypatch.setattr(cache, "_MAX_BLOCKS", 3)
    prefixes = PrefixCache(1)
    prefixes.add(list("ab"))
    prefixes.add(list("xyz"))
    assert prefixes.cached_tokens(list("abc")) == 0
    assert prefixes.cached_tokens(list("xyzw")) == 3
