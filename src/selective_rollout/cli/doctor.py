"""`doctor`: is this machine and this endpoint fit for gating?"""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import sys
from dataclasses import asdict

import click

from selective_rollout._version import __version__
from selective_rollout.cli.console import print_json, stdout, table
from selective_rollout.cli.options import endpoint_options, json_option
from selective_rollout.errors import PrerequisiteError
from selective_rollout.policy.doctor import EndpointReport, check_endpoint
from selective_rollout.policy.doctor_verdicts import Check, fit, judge
from selective_rollout.policy.endpoint import Endpoint

_PACKAGES = {
    "core": ("rapidfuzz", "msgspec", "openai", "click", "rich", "h11"),
    "analysis": ("numpy", "matplotlib", "jinja2"),
    "langgraph": ("langgraph",),
    "langchain": ("langchain",),
    "llm": ("xllamacpp",),
    "textworld": ("textworld",),
}


@click.command()
@endpoint_options
@json_option
@click.pass_context
def doctor(
    context: click.Context, base_url: str | None, model: str | None, api_key: str | None, as_json: bool
) -> None:
    """Check versions, extras and, if one is set, the endpoint; the output can be pasted into an issue.

    The endpoint gets about 30 small requests and a few answers of up to 400 tokens, most of them stopped
    midway; that takes seconds to two minutes. Exits with 1 if it is not fit for gating.
    """
    versions = _versions()
    report: EndpointReport | None = None
    checks: tuple[Check, ...] = ()
    try:
        endpoint = Endpoint.resolve(base_url, api_key, model)
    except PrerequisiteError as missing:
        if base_url is not None:
            raise
        note = str(missing)
    else:
        note = ""
        report = asyncio.run(check_endpoint(endpoint))
        checks = judge(report)
    if as_json:
        document = {
            "versions": versions,
            "endpoint": asdict(report) if report else None,
            "checks": [asdict(check) for check in checks],
            "fit": fit(checks) if report else None,
            "note": note or None,
        }
        print_json(document)
    else:
        _show(versions, report, checks, note)
    if not fit(checks):
        context.exit(1)


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {
        "selective-rollout": __version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
    }
    for extra, packages in _PACKAGES.items():
        for package in packages:
            try:
                version: str | None = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                version = None
            found[f"{package} ({extra})"] = version
    return found


def _show(
    versions: dict[str, str | None], report: EndpointReport | None, checks: tuple[Check, ...], note: str
) -> None:
    console = stdout()
    shown = table("Versions", "package", "version")
    for package, version in versions.items():
        shown.add_row(package, version or "not installed")
    console.print(shown)
    if report is None:
        console.print(f"Endpoint: none checked ({note})", markup=False)
        return
    shown = table(f"Endpoint {report.base_url}", "check", "verdict", "finding")
    for column in shown.columns[1:]:
        column.justify = "left"
        column.no_wrap = False
    for check in checks:
        shown.add_row(check.name, check.verdict, check.finding)
    console.print(shown)
    for check in checks:
        if check.advice:
            console.print(f"{check.name}: {check.advice}", markup=False)
    failed = ", ".join(check.name for check in checks if check.verdict == "fail")
    console.print("Fit for gating." if not failed else f"Not fit for gating: {failed}", markup=False)
