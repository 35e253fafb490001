"""A loop of your own, recorded with three lines and watched by a rule; then the trace is asked what it says.

Nothing is stopped here. To act on the gate, leave the loop once `decision.fires` is true.

    python examples/own_loop.py
"""

import random
import tempfile
from pathlib import Path

from selective_rollout import GateConfig, Recorder, read_groups
from selective_rollout.analysis.accounting import Accounting

PROMPTS, SIZE, STEPS = 20, 6, 12
RULE = GateConfig(start_step=4)


def act(prompt: int, rollout: int, step: int) -> str:
    """Stand in for your agent: sure of itself on even prompts, trying things out on odd ones."""
    key = f"{prompt}/{step}" if prompt % 2 == 0 else f"{prompt}/{step}/{rollout}"
    return f"open(box {random.Random(key).randrange(20)})"


def reward(prompt: int, rollout: int) -> float:
    """Stand in for your scorer: even prompts are all right or all wrong, except for 8 and 18."""
    key = f"{prompt}" if prompt % 2 == 0 and prompt % 10 != 8 else f"{prompt}/{rollout}"
    return float(random.Random(key).random() < 0.5)


def roll_out(recorder: Recorder, prompt: int) -> None:
    """Your loop; the recorder's three lines are `recorder.group`, `group.step` and `group.finish`."""
    with recorder.group(f"prompt-{prompt}", SIZE, gate=RULE) as group:
        for step in range(1, STEPS + 1):
            for rollout in range(SIZE):
                group.step(rollout, act(prompt, rollout, step))
        for rollout in range(SIZE):
            group.finish(rollout, reward(prompt, rollout))


def main() -> None:
    """Roll out the prompts, then read the trace and account for every cut that the gate would have made."""
    account = Accounting(RULE.start_step)
    with tempfile.TemporaryDirectory() as folder:
        with Recorder(Path(folder)) as recorder:
            for prompt in range(PROMPTS):
                roll_out(recorder, prompt)
        for recorded in read_groups(folder):
            (decision,) = recorded.decisions
            label = account.add(recorded.group, decision.step if decision.fires else None)
            would = "cut " if decision.fires else "keep"
            print(f"{recorded.group.id:>9}  distance {decision.distance:.2f}  {would}  {label.kind}")
    print(f"\nzero variance: {account.zero_variance} of {account.groups} groups")
    print(f"would-be cuts: {account.cuts} ({account.right} right, {account.wrong} wrong)")
    print(f"missed:        {account.missed}")
    print(
        f"steps spared:  {account.lossless.steps} lossless, {account.lossy.steps} lossy, of {account.steps}"
    )


if __name__ == "__main__":
    main()
