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

    Exits with 1 if the endpoint cannot be used.
    """
    versions = _versions()
    report = None
    try:
        endpoint = Endpoint.resolve(base_url, api_key, model)
    except PrerequisiteError as missing:
        if base_url is not None:
            raise
        note = str(missing)
    else:
        note = ""
        report = asyncio.run(check_endpoint(endpoint))
    if as_json:
        document = {
            "versions": versions,
            "endpoint": asdict(report) if report else None,
            "note": note or None,
        }
        print_json(document)
    else:
        _show(versions, report, note)
    if report is not None and report.problem is not None:
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


def _show(versions: dict[str, str | None], report: EndpointReport | None, note: str) -> None:
    console = stdout()
    shown = table("Versions", "package", "version")
    for package, version in versions.items():
        shown.add_row(package, version or "not installed")
    console.print(shown)
    if report is None:
        console.print(f"Endpoint: none checked ({note})", markup=False)
        return
    shown = table(f"Endpoint {report.base_url}", "question", "answer")
    shown.columns[1].justify = "left"
    shown.columns[1].no_wrap = False
    for question, answer in _answers(report):
        shown.add_row(question, answer)
    console.print(shown)
    verdict = "Fit for gating." if report.problem is None else f"Not usable: {report.problem}"
    console.print(verdict, markup=False)


def _answers(report: EndpointReport) -> list[tuple[str, str]]:
    models = "unknown" if report.models is None else ", ".join(report.models) or "none"
    usage = {
        "all_choices": "all choices summed (vLLM's way)",
        "one_choice": "one choice only (llama.cpp's way): use one request per rollout",
        "none": "not reported",
        None: "unknown",
    }[report.usage_of_n]
    return [
        ("reachable", _yes_no(report.reachable)),
        ("key accepted", _yes_no(report.authorized)),
        ("models served", models),
        ("model tried", report.model or "unknown"),
        ("streams (a cut can stop it mid-answer)", _yes_no(report.streams)),
        ("counts tokens in a stream", _yes_no(report.usage_in_stream)),
        ("siblings differ under their seeds", _yes_no(report.seeds_differ)),
        ("honours n", _yes_no(report.honours_n)),
        ("usage with n = 2", usage),
    ]


def _yes_no(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"
