"""Two tiny groups through the gate: in one the rollouts agree, in the other they split.

python examples/quickstart.py
"""

from selective_rollout import GateConfig, GroupDistance, GroupGate

RULE = GateConfig(start_step=4, tau=0.12)

OPENING = ["open(desk)", "read(note)"]
GROUPS = {
    "same": [[*OPENING, "go(cellar)", "take(key)"]] * 4,
    "split": [
        [*OPENING, "go(cellar)", "take(key)"],
        [*OPENING, "go(attic)", "open(chest)"],
        [*OPENING, "go(garden)", "dig(tree)"],
        [*OPENING, "go(cellar)", "take(lamp)"],
    ],
}
"""`GROUPS[name][g][t]`: canonical action of rollout g at 0-based step t."""


def watch(name: str, rollouts: list[list[str]]) -> None:
    """Report a group's actions step by step, as a live loop would, and print what the gate says."""
    gate = GroupGate(RULE, len(rollouts), group_id=name)
    distance = GroupDistance(len(rollouts))
    print(f"group {name!r}: {len(rollouts)} rollouts, checked after step {RULE.start_step}, tau {RULE.tau}")
    for step, actions in enumerate(zip(*rollouts, strict=True), start=1):
        distance.append(actions)
        decisions = [gate.report(member, action) for member, action in enumerate(actions)]
        print(f"  step {step}: distance {distance.mean:.3f}, gate says {decisions[-1].reason}")
    print(f"  -> {'stop the group' if gate.fired else 'let it run'}\n")


if __name__ == "__main__":
    for group_name, group in GROUPS.items():
        watch(group_name, group)
