"""`demo`: the whole idea in a few minutes: observe, choose a threshold with a bound, enforce, look."""

from __future__ import annotations

import time
from pathlib import Path

import click

from selective_rollout.cli.console import print_json, remark
from selective_rollout.cli.demo_model import show_real_model
from selective_rollout.cli.demo_simulated import show_simulated
from selective_rollout.cli.options import json_option, runs_options
from selective_rollout.cli.runfolder import RunFolder
from selective_rollout.errors import PrerequisiteError

RECORDED, ENFORCED, REAL = 400, 24, 6
QUICK_RECORDED, QUICK_ENFORCED, QUICK_REAL = 120, 8, 2


@click.command()
@click.option("--quick", is_flag=True, help="A shorter form of everything.")
@click.option("--no-model", is_flag=True, help="Leave the real language model out.")
@click.option("--seed", type=int, default=0, show_default=True)
@runs_options
@json_option
def demo(quick: bool, no_model: bool, seed: int, name: str | None, runs: Path, as_json: bool) -> None:
    """Show what a gate saves and loses; needs no key, no GPU and no network.

    Simulated household agents are recorded by the very engine that `run` uses, a threshold is chosen with a
    bound on its harm, and fresh groups are stopped with it through LangGraph and real HTTP. Then a small real
    model runs on this machine's CPU.
    """
    began = time.monotonic()
    recorded, enforced, real = (
        (QUICK_RECORDED, QUICK_ENFORCED, QUICK_REAL) if quick else (RECORDED, ENFORCED, REAL)
    )
    config = {"demo": {"recorded": recorded, "enforced": enforced, "real": real, "seed": seed}}
    folder = RunFolder(runs, name, config, prefix="demo")
    document: dict[str, object] = {"run": str(folder.path)}
    document["simulated"] = show_simulated(folder.path, recorded, enforced, seed, quiet=as_json)
    document["real_model"] = None
    if not no_model:
        try:
            document["real_model"] = show_real_model(folder.path, real, seed, quiet=as_json)
        except PrerequisiteError as missing:
            remark(f"No real model here: {missing} What is above stands.")
    document["seconds"] = round(time.monotonic() - began, 1)
    folder.write_metrics(document)
    if as_json:
        print_json(document)
        return
    click.echo(
        f"\nAll of it is in {folder.path} ({document['seconds']} s). Next: look at your own agents with\n"
        "  selective-rollout import generic rollouts.jsonl     (rollouts you have)\n"
        "  selective-rollout run tasks.jsonl --env my:world    (an endpoint you have; stops nothing)"
    )
