"""A certificate: which levels an engine has reached, and the evidence that anyone can recompute them from.

It is no signature. It shows that levels, counts and hashes follow from the evidence, and which run to repeat.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import output
from .levels import LEVELS, highest, reached

__all__ = ["certify", "discrepancies", "read_certificate", "write_certificate"]

SCHEMA = 1
CONTENT = ("engine", "dtype", "mode", "gander", "seed", "command")  # as in the evidence


def certify(data: Mapping[str, Any]) -> dict[str, Any]:
    """The certificate of a run: `data` is its report."""
    return {"schema": SCHEMA, **_derived(data), "evidence": data}


def _derived(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Everything in a certificate that follows from its evidence."""
    levels = reached(evidence)
    text = json.dumps(evidence, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    checks = [check for model in evidence["models"] for check in model["checks"]]
    return {
        **{key: evidence[key] for key in CONTENT},
        "level": highest(levels),
        "levels": {name: {"claim": LEVELS[name].claim, "verdict": verdict} for name, verdict in levels.items()},
        "models": [{key: model[key] for key in ("model", "fingerprint")} for model in evidence["models"]],
        "golden": evidence["golden"],
        "checks": dict(sorted(Counter(check["status"] for check in checks).items())),
        "compared": sum(check["compared"] for check in checks),
        "expected": sum(check["expected"] for check in checks),
        "environment": evidence["environment"],
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


def discrepancies(certificate: Mapping[str, Any]) -> list[str]:
    """What a certificate says that does not follow from its evidence. None: it is what it says."""
    try:
        derived = _derived(certificate["evidence"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        return [f"the evidence is not that of a run: {type(error).__name__} {error}"]
    return [
        f"{key}: says {certificate.get(key)!r}, but the evidence gives {value!r}"
        for key, value in derived.items()
        if certificate.get(key) != value
    ]


def write_certificate(certificate: Mapping[str, Any], path: Path) -> None:
    """Write it as JSON, whole or not at all."""
    with output(path) as partial:
        partial.write_text(json.dumps(certificate, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_certificate(path: Path) -> dict[str, Any]:
    """One that was written."""
    try:
        certificate = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", mend="gander check --certificate FILE") from error
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}", expected="what gander check --certificate wrote") from error
    if not isinstance(certificate, dict) or not {"schema", "evidence", "sha256"} <= certificate.keys():
        raise InputError(f"{path} is no certificate", expected="what gander check --certificate wrote")
    if certificate["schema"] != SCHEMA:
        raise InputError(f"{path} has schema {certificate['schema']!r}", expected=f"{SCHEMA}, which this gander reads")
    return certificate
