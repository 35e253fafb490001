"""The fast metric against the textbook one, through every way of feeding a group."""

import pickle
from itertools import combinations

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from rapidfuzz.distance import Levenshtein

from selective_rollout.distance import GroupDistance, mean_pairwise_distance, should_stop_group
from selective_rollout.distance.curve import prefix_distances
from selective_rollout.distance.reference import edit_distance, mean_distance
from selective_rollout.distance.symbols import SymbolTable
from selective_rollout.types import END

few = settings(max_examples=100, deadline=None)

actions = st.sampled_from(["", "look", "go north", "\ud800", "\U0001f6aa", "NFC é"])
prefixes = st.lists(st.lists(actions, max_size=12), min_size=2, max_size=6)
texts = st.lists(st.text(max_size=20), min_size=2, max_size=5)
paddings = st.sampled_from(["end", "none"])
taus = st.sampled_from([0.0, 0.05, 0.1, 0.12, 0.2, 0.3, 0.5, 0.8, 1.0]) | st.floats(0, 1)

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([1.0, -2.0, "", "a", b"a", 97])
symbols = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.tuples(inner, inner)
        | st.dictionaries(scalars, inner, max_size=2)
        | st.sets(scalars, max_size=2)
    ),
    max_leaves=4,
)


@few
@given(a=st.lists(actions, max_size=15), b=st.lists(actions, max_size=15))
def test_reference_agrees_with_rapidfuzz(a, b):
    assert edit_distance(a, b) == Levenshtein.distance(a, b)


@few
@given(prefixes | texts)
def test_stateless_mean_is_the_reference_rounded_once(rows):
    exact = mean_distance(rows, max(1, *map(len, rows)), "none")
    assert mean_pairwise_distance(rows) == float(exact)


@few
@given(prefixes | texts, taus)
def test_stopping_is_a_strict_comparison(rows, tau):
    assume(any(symbol for row in rows for symbol in row))
    exact = mean_distance(rows, max(map(len, rows)), "none")
    for threshold in (tau, float(exact)):
        assert should_stop_group(rows, threshold) == (float(exact) < threshold)


@few
@given(st.lists(symbols, max_size=8))
def test_symbols_share_a_code_iff_they_are_equal(drawn):
    codes = SymbolTable().encode(drawn)
    for (a, code_a), (b, code_b) in combinations(zip(drawn, codes, strict=True), 2):
        assert (code_a == code_b) == (a == b)


@few
@given(a=st.text("abc", max_size=40), b=st.text("abc", max_size=40), beyond=st.integers(0, 5))
def test_one_pass_gives_the_distance_of_every_prefix(a, b, beyond):
    last = max(len(a), len(b)) + beyond
    expected = [edit_distance(a[:k], b[:k]) for k in range(1, last + 1)]
    assert prefix_distances(a, b, last) == expected


@settings(few, max_examples=50)
@given(
    reference=st.text("abc", min_size=70, max_size=150),
    edits=st.lists(
        st.lists(st.tuples(st.integers(0, 149), st.sampled_from(["", "b", "xy"])), max_size=12),
        min_size=2,
        max_size=5,
    ),
    tau=taus,
)
def test_long_similar_rows_decide_as_rapidfuzz_on_lists(reference, edits, tau):
    """Rows beyond one machine word, close enough that both bounds, the cap and the hint come into play."""
    rows = []
    for row_edits in edits:
        row = list(reference)
        for place, text in row_edits:
            row[place % len(row)] = text
        rows.append(list("".join(row)))
    group = GroupDistance(len(rows))
    pairs = list(combinations(range(len(rows)), 2))
    for k in range(1, max(map(len, rows)) + 1):
        group.append([row[k - 1] if k <= len(row) else END for row in rows])
        padded = [row[:k] + ["END"] * (k - len(row)) for row in rows]
        if k % 7 == 0:
            total = sum(Levenshtein.distance(padded[i], padded[j]) for i, j in pairs)
            for threshold in (tau, total / (len(pairs) * k)):
                assert group.decide(threshold) == (total / (len(pairs) * k) < threshold)


@few
@given(rows=prefixes, padding=paddings, data=st.data())
def test_order_of_arrival_does_not_matter(rows, padding, data):
    """Lockstep, chunks and single symbols in any order give the same mean at every position."""
    last = max(map(len, rows))
    lockstep = GroupDistance(len(rows), padding)
    means = []
    for k in range(1, last + 1):
        lockstep.append([row[k - 1] if k <= len(row) else END for row in rows])
        means.append(lockstep.mean)

    pushed = GroupDistance(len(rows), padding)
    arrivals = [member for member, row in enumerate(rows) for _ in [*row, END]]
    sent = dict.fromkeys(range(len(rows)), 0)
    for member in data.draw(st.permutations(arrivals)):
        if sent[member] < len(rows[member]):
            pushed.push(member, rows[member][sent[member]])
        else:
            pushed.finish(member)
        sent[member] += 1
    for k in range(1, last + 1):
        pushed.advance_to(k)
        assert pushed.mean == means[k - 1]

    chunked = GroupDistance(len(rows), padding)
    cuts = [data.draw(st.integers(0, len(row))) for row in rows]
    chunked.extend([row[:cut] for row, cut in zip(rows, cuts, strict=True)])
    assert chunked.mean == (means[chunked.position - 1] if chunked.position else None)
    chunked.extend([row[cut:] for row, cut in zip(rows, cuts, strict=True)])
    for member in range(len(rows)):
        chunked.finish(member)
    chunked.extend([[]] * len(rows))
    assert chunked.curve() == means


class GroupDistanceMachine(RuleBasedStateMachine):
    """Any order of calls, beside plain lists and the reference."""

    @initialize(size=st.integers(1, 5), padding=paddings, alphabet=st.integers(1, 4))
    def start(self, size, padding, alphabet):
        self.group = GroupDistance(size, padding)
        self.rows = {member: [] for member in range(size)}
        self.running = set(range(size))
        self.position = 0
        self.padding = padding
        self.alphabet = alphabet
        self.ruled_out = []

    def exact(self):
        return mean_distance(list(self.rows.values()), self.position, self.padding)

    def pick(self, data, members):
        return data.draw(st.sampled_from(sorted(members)))

    @precondition(lambda self: self.running)
    @rule(steps=st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=4))
    def append(self, steps):
        for step in steps:
            self.group.append(
                [step[m] % self.alphabet if m in self.running else END for m in range(self.group.size)]
            )
            for member in self.running:
                self.rows[member].append(step[member] % self.alphabet)
        self.position = max(self.position, min(len(self.rows[member]) for member in self.running))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), symbol=st.integers(0, 3))
    def push(self, data, symbol):
        member = self.pick(data, self.running)
        self.group.push(member, symbol % self.alphabet)
        self.rows[member].append(symbol % self.alphabet)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        member = self.pick(data, self.running)
        self.group.finish(member)
        self.running.remove(member)

    @precondition(lambda self: len(self.rows) > 2)
    @rule(data=st.data())
    def drop(self, data):
        member = self.pick(data, self.rows)
        self.group.drop(member)
        del self.rows[member]
        self.running.discard(member)
        self.ruled_out.clear()

    @rule(steps=st.integers(1, 3))
    def advance(self, steps):
        reached = min((len(self.rows[member]) for member in self.running), default=self.position + steps)
        self.position = max(self.position, min(self.position + steps, reached))
        self.group.advance_to(self.position)

    @rule(tau=taus)
    def decide(self, tau):
        exact = self.exact()
        assert self.group.decide(tau) == (exact is not None and float(exact) < tau)
        for earliest, ruled_out in self.ruled_out:
            assert exact is None or self.position >= earliest or float(exact) >= ruled_out

    @rule()
    def decide_on_a_tie(self):
        exact = self.exact()
        if exact is not None:
            assert not self.group.decide(float(exact))

    @rule()
    def mean(self):
        exact = self.exact()
        assert self.group.mean == (None if exact is None else float(exact))

    @rule()
    def bounds(self):
        exact = self.exact()
        before = self.group.evaluations
        lo, hi = self.group.bounds()
        assert self.group.evaluations == before
        assert (lo, hi) == (0.0, 1.0) if exact is None else lo <= float(exact) <= hi

    @rule(tau=taus)
    def earliest_fire(self, tau):
        earliest = self.group.earliest_fire(tau)
        if earliest is None:
            assert tau < 1e-15 or len(self.rows) < 2
        else:
            assert earliest >= self.position
            self.ruled_out.append((earliest, tau))

    @rule()
    def curve(self):
        rows = list(self.rows.values())
        expected = [mean_distance(rows, k, self.padding) for k in range(1, self.position + 1)]
        assert self.group.curve() == ([float(mean) for mean in expected] if len(rows) > 1 else [])

    @rule()
    def pickle(self):
        self.group = pickle.loads(pickle.dumps(self.group))

    def teardown(self):
        if not hasattr(self, "group"):
            return
        self.curve()
        self.mean()
        assert self.group.position == self.position
        assert self.group.members == tuple(self.rows)


TestGroupDistance = GroupDistanceMachine.TestCase
TestGroupDistance.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
