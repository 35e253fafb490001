"""`gate.toml`: a rule with its certificate, as a file a person can read and nobody can bend unnoticed.

The file holds plain values only: nothing in it is ever imported or called. A file with `[gate]` alone is a
rule without a certificate.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from selective_rollout.errors import ConfigError
from selective_rollout.gate.certificate import (
    Certificate,
    Stratum,
    Workload,
    accepts,
    workload_differences,
)
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.signals import signal
from selective_rollout.gate.toml_text import Table, to_toml, write_whole

FORMAT: Final = 1

_TABLES: Final = ("gate", "score", "certificate", "strata", "workload")
_NULLABLE: Final = ("check_every", "min_members", "score")
_DERIVED: Final = ("confidence", "bound")
_NUMBER: Final = (int, float)
_CERTIFICATE: Final[Mapping[str, tuple[type, ...]]] = {
    "format": (int,),
    "alpha": _NUMBER,
    "delta": _NUMBER,
    "confidence": _NUMBER,
    "false_cuts": (int,),
    "cuts": (int,),
    "groups": (int,),
    "bound": _NUMBER,
    "grid": (str,),
    "choose_share": _NUMBER,
    "split_seed": (int,),
    "chains": (int,),
    "recertification": (int,),
    "joint": (bool,),
    "rule_hash": (str,),
    "file_hash": (str,),
}
_OPTIONAL: Final[Mapping[str, tuple[type, ...]]] = {
    "n_signal": (int,),
    "audit_rate": _NUMBER,
    "stratum_key": (str,),
    "risk": (str,),
}
_STRATUM: Final[Mapping[str, tuple[type, ...]]] = {
    "name": (str,),
    "tau": _NUMBER,
    "false_cuts": (int,),
    "cuts": (int,),
    "groups": (int,),
    "bound": _NUMBER,
}
_STRATUM_OPTIONAL: Final[Mapping[str, tuple[type, ...]]] = {"n_signal": (int,)}
_WORKLOAD: Final[Mapping[str, tuple[type, ...]]] = {
    "model": (str,),
    "sampling": (str,),
    "max_steps": (int,),
    "source": (str,),
    "group_size": (int,),
}


def write_gate_file(path: Path, certificate: Certificate) -> None:
    """Write the rule and its certificate; an old file stays intact until the new one is complete.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_whole(path, gate_text(certificate))


def gate_text(certificate: Certificate) -> str:
    """The text of a gate file; the same certificate gives the same text."""
    tables: dict[str, Any] = {"gate": {k: v for k, v in certificate.rule.to_dict().items() if k != "score"}}
    if certificate.rule.score is not None:
        tables["score"] = certificate.rule.score.to_dict()
    claim = _claim(certificate)
    tables["certificate"] = claim
    if certificate.strata:
        tables["strata"] = [_stratum_table(certificate, stratum) for stratum in certificate.strata]
    tables["workload"] = {f.name: getattr(certificate.workload, f.name) for f in fields(Workload)}
    claim["file_hash"] = _hash(_without_null(tables))
    return to_toml(tables, comment=certificate.describe())


def read_gate_file(path: Path) -> tuple[GateConfig, Certificate | None]:
    """Read a rule, with its certificate if the file holds one.

    Raises:
        ConfigError: the file cannot be read, is no TOML, holds an unknown or missing key or a value of the
            wrong type, or was changed after it was written.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the gate ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not a TOML file ({error})") from None
    try:
        return _parsed(tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def require_certified(
    path: Path,
    live: GateConfig | None = None,
    *,
    workload: Workload | None = None,
    per_stratum: bool = False,
) -> tuple[Certificate, list[str]]:
    """Read a gate file for enforcing.

    Args:
        path: the gate file.
        live: the rule that is to be enforced; None: the file's own.
        workload: what is known of the live workload.
        per_stratum: each group is given `certificate.tau_for(metadata)` as its own tau.

    Returns:
        The certificate, and one line per fact in which the live workload differs, to warn about.

    Raises:
        ConfigError: see `read_gate_file`; also a file without a certificate, or one that does not cover the
            live rule, with every field that stands against it.
    """
    rule, certificate = read_gate_file(path)
    if certificate is None:
        raise ConfigError(f"{path}: holds a rule without a certificate; write one with `calibrate`")
    reasons = accepts(certificate, live or rule, per_stratum=per_stratum)
    if reasons:
        raise ConfigError(f"{path}: the certificate does not cover this gate: {'; '.join(reasons)}")
    return certificate, workload_differences(certificate, workload or Workload())


def _parsed(tables: Mapping[str, Any]) -> tuple[GateConfig, Certificate | None]:
    _require_keys("the file", tables, _TABLES, required=("gate",))
    for name, table in tables.items():
        if not isinstance(table, list if name == "strata" else dict):
            raise ConfigError(f"{name} must be a table")
    rule = _rule(tables)
    if "certificate" not in tables:
        extra = [name for name in ("strata", "workload") if name in tables]
        if extra:
            raise ConfigError(f"[{extra[0]}] without [certificate]: the file is incomplete")
        return rule, None
    return rule, _certificate(tables, rule)


def _rule(tables: Mapping[str, Any]) -> GateConfig:
    values = dict(tables["gate"])
    if "score" in values:
        raise ConfigError("gate.score: the weights belong in a table of their own, [score]")
    if "score" in tables:
        values["score"] = tables["score"]
    rule = GateConfig.from_dict(values)
    for name in rule.score.features if rule.score is not None else ():
        signal(name)
    return rule


def _certificate(tables: Mapping[str, Any], rule: GateConfig) -> Certificate:
    claim, workload, strata = tables["certificate"], tables.get("workload", {}), tables.get("strata", [])
    _require_typed("certificate", claim, _CERTIFICATE, _OPTIONAL)
    _require_typed("workload", workload, {}, _WORKLOAD)
    for table in strata:
        _require_typed("strata", table, _STRATUM, _STRATUM_OPTIONAL)
    if claim["format"] != FORMAT:
        raise ConfigError(f"certificate.format {claim['format']} is not {FORMAT}: calibrate again")
    absent = [name for name in rule.to_dict() if name not in tables["gate"] and name not in _NULLABLE]
    if absent or claim["rule_hash"] != rule.fingerprint():
        raise ConfigError(_tampered("the rule"))
    content = {**tables, "certificate": {k: v for k, v in claim.items() if k != "file_hash"}}
    if claim["file_hash"] != _hash(content):
        raise ConfigError(_tampered("the certificate"))
    left_out = ("format", "rule_hash", "file_hash", *_DERIVED)
    unknown = {"n_signal": None}
    return Certificate(
        rule=rule,
        **{**unknown, **{name: value for name, value in claim.items() if name not in left_out}},
        strata=tuple(
            Stratum(**{**unknown, **{k: v for k, v in table.items() if k != "bound"}}) for table in strata
        ),
        workload=Workload(**workload),
    )


def _claim(certificate: Certificate) -> dict[str, object]:
    left_out = ("rule", "strata", "workload")
    claim: dict[str, object] = {"format": FORMAT}
    for field in fields(Certificate):
        if field.name not in left_out:
            claim[field.name] = getattr(certificate, field.name)
    claim.update({name: getattr(certificate, name) for name in _DERIVED})
    claim["rule_hash"] = certificate.rule.fingerprint()
    return claim


def _stratum_table(certificate: Certificate, stratum: Stratum) -> Table:
    values = {field.name: getattr(stratum, field.name) for field in fields(Stratum)}
    known = {name: value for name, value in values.items() if value is not None}
    return {**known, "bound": certificate.bound_of(stratum.false_cuts, stratum.trials)}


def _without_null(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {key: value for key, value in table.items() if value is not None}
        if isinstance(table, Mapping)
        else table
        for name, table in tables.items()
    }


def _hash(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _tampered(what: str) -> str:
    return f"{what} does not match its hash: the file was edited after calibration; calibrate again"


def _require_keys(
    where: str, table: Mapping[str, Any], known: tuple[str, ...], required: tuple[str, ...]
) -> None:
    unknown = [name for name in table if name not in known]
    if unknown:
        raise ConfigError(f"{where}: unknown key {', '.join(unknown)}; known keys are {', '.join(known)}")
    missing = [name for name in required if name not in table]
    if missing:
        raise ConfigError(f"{where}: missing key {', '.join(missing)}")


def _require_typed(
    where: str,
    table: object,
    required: Mapping[str, tuple[type, ...]],
    optional: Mapping[str, tuple[type, ...]] | None = None,
) -> None:
    types = {**required, **(optional or {})}
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table, not {table!r}")
    _require_keys(where, table, tuple(types), tuple(required))
    for name, value in table.items():
        if not isinstance(value, types[name]) or (isinstance(value, bool) and bool not in types[name]):
            wanted = " or ".join(kind.__name__ for kind in types[name])
            raise ConfigError(f"{where}.{name} must be {wanted}, not {value!r}")
