"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from selective_rollout.analysis.prices import Prices
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig

RULE_FIELDS: Final = ("tau", "start_step", "check_every", "padding", "outcome", "history_mixed")
"""Names under which `rule_options` hands the rule over."""

F = TypeVar("F", bound=Callable[..., Any])


def endpoint_options(command: F) -> F:
    """--base-url, --model, --api-key."""
    for option in (
        click.option("--api-key", help="Key of the endpoint; better set in the environment."),
        click.option(
            "--model", help="Model to ask for; else SELECTIVE_ROLLOUT_MODEL, VLLM_MODEL, OPENAI_MODEL."
        ),
        click.option("--base-url", help="OpenAI-compatible endpoint, up to and including /v1."),
    ):
        command = option(command)
    return command


def rule_options(command: F) -> F:
    """The decision rule, flag by flag; defaults are the paper's."""
    paper = GateConfig()
    for option in (
        click.option(
            "--history-mixed", type=int, default=0, help="Fire only if the last H rewards were equal."
        ),
        click.option(
            "--outcome",
            type=click.Choice(["drop", "survivor", "vote"]),
            default=paper.outcome,
            show_default=True,
        ),
        click.option(
            "--padding", type=click.Choice(["end", "none"]), default=paper.padding, show_default=True
        ),
        click.option("--check-every", type=int, help="Check again every N steps; default: once."),
        click.option(
            "--start-step", type=int, default=paper.start_step, show_default=True, help="First check."
        ),
        click.option(
            "--tau", type=float, default=paper.tau, show_default=True, help="Fire if distance < tau."
        ),
    ):
        command = option(command)
    return command


def price_options(command: F) -> F:
    """--price-prompt, --price-completion, --price-cached; `prices_of` reads them."""
    for option in (
        click.option(
            "--price-cached", type=float, help="Of prompt tokens out of the cache; default: as any other."
        ),
        click.option("--price-completion", type=float, help="Of a million completion tokens."),
        click.option(
            "--price-prompt", type=float, help="Of a million prompt tokens; with prices, money is shown too."
        ),
    ):
        command = option(command)
    return command


def prices_of(options: Mapping[str, Any]) -> Prices | None:
    """The prices that were given; None if none was.

    Raises:
        ConfigError: only one of the two main prices was given, or a price is negative.
    """
    prompt, completion, cached = (options[f"price_{name}"] for name in ("prompt", "completion", "cached"))
    if prompt is None and completion is None and cached is None:
        return None
    if prompt is None or completion is None:
        raise ConfigError("money needs both --price-prompt and --price-completion; 0 if one of them is free")
    return Prices(prompt, completion, cached)


def json_option(command: F) -> F:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")(command)


def runs_options(command: F) -> F:
    """--name and --runs."""
    for option in (
        click.option("--name", help="Name of the run folder."),
        click.option("--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True),
    ):
        command = option(command)
    return command
