"""`GroupView`: what a signal may read of a group, the same live and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from selective_rollout.errors import GroupError
from selective_rollout.types import END, Group, Step

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupView:
    """The steps of a group's members, `[g][t]` for member g and 0-based step t.

    Rows are held by reference, so a gate can hand over the lists it appends to. Rows of replies may lag
    behind the actions or be absent altogether: what is not there is unknown.

    Raises:
        GroupError: the fields disagree about the number of members or about where one ended.
    """

    actions: Sequence[Sequence[str]]
    """Canonical actions."""
    finished_at: Sequence[int | None]
    """Number of actions of a member that ended normally; None for one that runs, failed or was cut."""
    observation_hashes: Sequence[Sequence[str | None]] = ()
    """Hash of the environment's reply to the step, or the state it led to; None or missing: unknown."""
    errors: Sequence[Sequence[bool | None]] = ()
    """Whether that reply was an error; None or missing: nobody said."""
    history_p: float | None = None
    """Probability of zero variance from the prompt's past alone (`PromptHistory.p_zero_variance`)."""

    def __post_init__(self) -> None:
        size = len(self.actions)
        for name in ("finished_at", "observation_hashes", "errors"):
            rows = len(getattr(self, name))
            if rows != size and (rows or name == "finished_at"):
                raise GroupError(f"view: {name} has {rows} entries for {size} members: give one per member")
        for member, end in enumerate(self.finished_at):
            if end is not None and end != len(self.actions[member]):
                raise GroupError(
                    f"view: member {member} has {len(self.actions[member])} actions but finished at {end}: "
                    "finished_at is the number of its actions"
                )

    @classmethod
    def of(cls, group: Group, history_p: float | None = None) -> GroupView:
        """View a recorded group; rollouts without a normal end stop being present after their last step."""
        rollouts = group.rollouts
        return cls(
            actions=[rollout.actions for rollout in rollouts],
            finished_at=[len(r.steps) if r.status.ended_normally else None for r in rollouts],
            observation_hashes=[[_reply(step) for step in r.steps] for r in rollouts],
            errors=[[step.is_error for step in r.steps] for r in rollouts],
            history_p=history_p,
        )

    @property
    def feeds(self) -> frozenset[str]:
        """The needs (see `signals.base.NEEDS`) of which this view holds at least one fact."""
        held = {
            "actions": any(map(len, self.actions)),
            "observations": _any_known(self.observation_hashes),
            "errors": _any_known(self.errors),
            "history": self.history_p is not None,
        }
        return frozenset(need for need, there in held.items() if there)

    def present(self, k: int) -> tuple[int, ...]:
        """Members with at least k actions, or ended normally before; nobody at a position below 1."""
        if k < 1:
            return ()
        return tuple(
            member
            for member, row in enumerate(self.actions)
            if len(row) >= k or self.finished_at[member] is not None
        )

    def prefixes(self, k: int) -> list[Sequence[str]]:
        """First k actions of every present member, as long as they go."""
        return [self.actions[member][:k] for member in self.present(k)]

    def padded(self, k: int) -> list[tuple[object, ...]]:
        """First k actions of every present member, filled up with END to length k."""
        return [(*row, *[END] * (k - len(row))) for row in self.prefixes(k)]

    def replies(self, known: Sequence[Sequence[T | None]], k: int) -> list[list[T]] | None:
        """What is known of the replies to the first k steps, one row per present member.

        A step that ended its member normally may have had no reply; it is then left out.

        Args:
            known: `observation_hashes` or `errors` of this view.
            k: position, in steps.

        Returns:
            The rows; None if any other reply is unknown.
        """
        rows = []
        for member in self.present(k):
            steps = range(min(k, len(self.actions[member])))
            found = [self.reply(known, member, t) for t in steps]
            if found and found[-1] is None and self.ended_by(member, steps[-1]):
                found.pop()
            if None in found:
                return None
            rows.append([fact for fact in found if fact is not None])
        return rows

    def reply(self, known: Sequence[Sequence[T | None]], member: int, t: int) -> T | None:
        """What is known of the reply to one step."""
        return known[member][t] if known and t < len(known[member]) else None

    def ended_by(self, member: int, t: int) -> bool:
        """Whether the member ended normally with this step."""
        return self.finished_at[member] == t + 1


def _reply(step: Step) -> str | None:
    return step.observation_hash if step.observation_hash is not None else step.state_key


def _any_known(rows: Sequence[Sequence[object]]) -> bool:
    return any(fact is not None for row in rows for fact in row)
