"""`serve`: a gateway between any agents and one OpenAI-compatible server."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from selective_rollout.actions import DEFAULT_OPTIONS, ActionOptions
from selective_rollout.cli.console import remark, stdout
from selective_rollout.cli.options import rule_options, runs_options
from selective_rollout.cli.rule import rule_of
from selective_rollout.cli.runfolder import RunFolder
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.rule import AcceptedRule, warn_about
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.gateway import ClientKeys, Gateway, GatewayConfig, Limits, new_key, serve
from selective_rollout.integrations.gateway.config import LOOPBACK_HOSTS
from selective_rollout.integrations.gateway.keys import hide, kept_salt, read_keys
from selective_rollout.integrations.gateway.lock import only_writer
from selective_rollout.integrations.gateway.resume import take_up
from selective_rollout.integrations.gateway.server import listen_on
from selective_rollout.policy.endpoint import NO_KEY, Endpoint
from selective_rollout.trace.reader import ReadReport
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Mode

CLIENT_KEY: Final = "SELECTIVE_ROLLOUT_CLIENT_KEY"
_ENDLESS: Final = 10**9
EPILOG = """
\b
Examples:
  selective-rollout serve --upstream http://127.0.0.1:8000/v1
  selective-rollout serve --upstream http://127.0.0.1:8000/v1 --gate gate.toml --mode enforce
"""


@dataclass(frozen=True, slots=True)
class Keys:
    """The clients' keys, and whether they were made just now."""

    clients: ClientKeys
    made: str | None = None


@click.command("serve", epilog=EPILOG)
@click.option("--upstream", "--base-url", "upstream", help="The model server, up to and including /v1.")
@click.option("--api-key", help="Its key; better set in the environment.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=8790, show_default=True, help="0: any free one.")
@click.option(
    "--client-keys", type=click.Path(path_type=Path), help="File of `name key` lines: who may come in."
)
@click.option("--allow-host", multiple=True, help="A name that clients may call the gateway by; repeatable.")
@click.option("--allow-origin", multiple=True, help="A web page's origin that may use it; repeatable.")
@click.option("--group-size", type=int, help="Size of groups whose requests name none.")
@click.option("--inject-usage", is_flag=True, help="Ask for the usage of groups' streams, unseen by clients.")
@click.option("--mode", type=click.Choice(["observe", "enforce"]), default="observe", show_default=True)
@click.option("--hold", type=click.Choice(["none", "all", "followers"]), help="Who waits at a check.")
@click.option("--hold-timeout", type=float, default=120.0, show_default=True, help="Longest wait, seconds.")
@click.option(
    "--gate", type=click.Path(path_type=Path), help="Rule and certificate; flags given override it."
)
@click.option("--actions", type=click.Path(path_type=Path), help="TOML file: what counts as the same action.")
@click.option("--uncertified", is_flag=True, help="Enforce a rule that no certificate covers.")
@click.option(
    "--audit-rate", type=float, default=0.0, show_default=True, help="Share of would-be cuts that run on."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the audits.")
@click.option("--idle-timeout", type=float, default=600.0, show_default=True, help="A silent rollout ends.")
@click.option(
    "--final-after",
    type=float,
    default=30.0,
    show_default=True,
    help="The same, in seconds, after an answer that calls none of the tools offered.",
)
@click.option("--record-observations", is_flag=True)
@click.option("--record-completions", is_flag=True)
@click.option("--resume", is_flag=True, help="Take up the groups of this --name where they stopped.")
@rule_options
@runs_options
@click.pass_context
def serve_command(context: click.Context, /, **options: Any) -> None:
    """Stand between agents and one model server.

    Requests with group headers are recorded as rollouts of a group; all others pass untouched. Observe mode,
    the default, stops nothing. Ctrl-C ends it once the requests under way have ended.
    """
    accepted = rule_of(context, options)
    run = _run_config(options)
    warn_about(accepted.rule, run, accepted.certified)
    endpoint = Endpoint.resolve(options["upstream"], options["api_key"])
    keys = _keys(options, endpoint)
    config = _config(options, accepted, run, endpoint, keys.clients)
    with ExitStack() as stack:
        listening = listen_on(options["host"], options["port"])
        stack.callback(listening.close)
        folder = RunFolder(
            options["runs"],
            options["name"],
            _tables(options, accepted.rule, endpoint),
            prefix="serve",
            resume=options["resume"],
        )
        stack.enter_context(only_writer(folder.path / "lock"))
        if not keys.clients.required:
            config = replace(config, clients=ClientKeys(salt=kept_salt(folder.path / "scope.salt")))
        gateway = _gateway(stack, config, folder)
        address = _address(options["host"], listening.getsockname()[1])
        serve(gateway, listening, on_ready=lambda: _say_ready(address, config, folder, keys))
    _say_end(gateway, folder)


def _run_config(options: Mapping[str, Any]) -> RunConfig:
    mode: Mode = options["mode"]
    return RunConfig(
        group_size=options["group_size"] or 2,
        max_steps=_ENDLESS,
        mode=mode,
        hold=options["hold"],
        hold_timeout_s=options["hold_timeout"],
        audit_rate=options["audit_rate"],
        seed=options["seed"],
        actions=_actions(options["actions"]),
    )


def _actions(path: Path | None) -> ActionOptions:
    """What counts as the same action, as `ActionOptions.to_dict` names it.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    if path is None:
        return DEFAULT_OPTIONS
    try:
        return ActionOptions.from_dict(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the action options ({error})") from None


def _config(
    options: Mapping[str, Any],
    accepted: AcceptedRule,
    run: RunConfig,
    endpoint: Endpoint,
    clients: ClientKeys,
) -> GatewayConfig:
    return GatewayConfig(
        upstream=endpoint,
        rule=accepted.rule,
        run=run,
        clients=clients,
        inject_usage=options["inject_usage"],
        group_size=options["group_size"],
        hosts=LOOPBACK_HOSTS | {name.lower() for name in options["allow_host"]},
        origins=frozenset(options["allow_origin"]),
        limits=Limits(idle_s=options["idle_timeout"], final_s=options["final_after"]),
        tau_of=accepted.tau_for,
        alarm=accepted.alarm(run),
        record_observations=options["record_observations"],
        record_completions=options["record_completions"],
    )


def _keys(options: Mapping[str, Any], endpoint: Endpoint) -> Keys:
    """Who may come in. A gateway that lends out a key, or that others can reach, lets in nobody unknown.

    Raises:
        ConfigError: a key cannot be used.
    """
    if options["client_keys"] is not None:
        return Keys(ClientKeys(read_keys(options["client_keys"])))
    if given := os.environ.get(CLIENT_KEY, "").strip():
        return Keys(ClientKeys({"": given}))
    if endpoint.api_key != NO_KEY or options["host"] not in LOOPBACK_HOSTS:
        made = new_key()
        return Keys(ClientKeys({"": made}), made)
    return Keys(ClientKeys())


def _gateway(stack: ExitStack, config: GatewayConfig, folder: RunFolder) -> Gateway:
    """The gateway, with the groups of its trace if there is one."""
    path = folder.path / "trace.jsonl"
    recorder = Recorder(
        path,
        record_observations=config.record_observations,
        record_completions=config.record_completions,
        redact=_redaction(config),
        metadata={"source": "gateway", "upstream": config.upstream.base_url},
    )
    stack.callback(recorder.close)
    gateway = Gateway(config, recorder.write)
    if folder.resumed:
        report = ReadReport()
        going, over = take_up(path, gateway.book, config, gateway.write, report)
        for problem in report.problems:
            remark(problem)
        remark(f"resuming: {going} groups go on, {over} have ended")
    return gateway


def _redaction(config: GatewayConfig) -> Callable[[str], str]:
    secrets = [*config.clients.keys.values()]
    if config.upstream.api_key != NO_KEY:
        secrets.append(config.upstream.api_key)
    return lambda text: hide(text, secrets)


def _tables(options: Mapping[str, Any], rule: GateConfig, endpoint: Endpoint) -> dict[str, dict[str, Any]]:
    """For config.toml; never holds a key."""
    actions = _actions(options["actions"]).to_dict()
    names = ("mode", "hold", "hold_timeout", "audit_rate", "seed", "group_size", "inject_usage")
    return {
        "serve": {**{name: options[name] for name in names}, "actions": json.dumps(actions, sort_keys=True)},
        "endpoint": {"base_url": endpoint.base_url},
        "gate": rule.to_dict(),
    }


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _say_ready(address: str, config: GatewayConfig, folder: RunFolder, keys: Keys) -> None:
    rule = config.rule
    console = stdout()
    console.print(f"serving {address}/v1 for {config.upstream.base_url}", markup=False, soft_wrap=True)
    console.print(
        f"{config.run.mode}: tau {rule.tau:g} at step {rule.start_step}, outcome {rule.outcome}", markup=False
    )
    if keys.made is not None:
        console.print(f"client key, shown once: {keys.made}", markup=False, soft_wrap=True)
    console.print(f"live page {address}/", markup=False, soft_wrap=True)
    console.print(f"recording into {folder.path / 'trace.jsonl'}", markup=False, soft_wrap=True)
    console.file.flush()


def _say_end(gateway: Gateway, folder: RunFolder) -> None:
    counts = gateway.counts
    cut = sum(counts.groups[outcome] for outcome in ("drop", "survivor"))
    remark(
        f"stopped: {sum(counts.groups.values())} groups ended, {cut} of them cut, "
        f"{gateway.book.open_count} go on with --resume; recorded in {folder.path}"
    )
    if gateway.config.alarm is not None:
        remark(f"audit: {gateway.config.alarm.describe()}")
