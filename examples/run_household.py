"""Many groups of simulated agents, observed to their end: what would the paper's gate have saved and cost?

No model runs here. The agents are scripted, and about half of their prompts give equal rewards.

    python examples/run_household.py
"""

import asyncio
from contextlib import aclosing

from selective_rollout import GateConfig, RunConfig, run_groups
from selective_rollout.analysis.accounting import Accounting
from selective_rollout.analysis.rates import Rate
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.runner import Workshop
from selective_rollout.env import HouseholdEnvironment, household_tasks
from selective_rollout.testing.household import SimulatedPolicy

GROUPS = 30
RULE = GateConfig()


def share(rate: Rate) -> str:
    """A rate with its counts and its exact 95% interval; unknown is not 0."""
    if rate.interval is None or rate.value is None:
        return "unknown"
    low, high = rate.interval.low, rate.interval.high
    return f"{rate.value:.0%} ({rate.hits} of {rate.trials}; 95% interval {low:.0%} to {high:.0%})"


async def main() -> None:
    """Run the groups in observe mode and print the accounts."""
    account, ledger = Accounting(RULE.start_step), Ledger()
    shop = Workshop(SimulatedPolicy(), HouseholdEnvironment, RULE, RunConfig())
    async with aclosing(run_groups(household_tasks(GROUPS), shop)) as outcomes:
        async for outcome in outcomes:
            account.add(outcome.group, outcome.would_cut_at)
            ledger.merge(outcome.ledger)
    print(f"{account.groups} groups of 8, gate at step {RULE.start_step}, tau {RULE.tau}, observing only")
    print(f"zero variance, the base rate  {share(account.base_rate)}")
    print(f"precision of the would-be cuts {share(account.precision)}")
    print(f"signal-bearing groups lost    {share(account.loss)}")
    print(f"steps spared                  {account.lossless.steps} lossless + {account.lossy.steps} lossy")
    print(f"                              of {account.steps} steps, {ledger.completion} completion tokens")
    print(
        f"efficiency                    {account.efficiency:.3f} (at or below 1 the gate is not worth having)"
    )


if __name__ == "__main__":
    asyncio.run(main())
