"""Implements `bufferctl doctor`, which prints what is wrong with a stage, worst first, and changes nothing."""

import json
from argparse import Namespace
from collections import defaultdict
from typing import NamedTuple

from bufferctl.diagnoses import DIAGNOSES, Finding, Severity
from bufferctl.errors import Failed, Unreachable
from bufferctl.facts import Facts, Unreadable
from bufferctl.stage import Account


class Report(NamedTuple):
    findings: list[Finding]
    unread: dict[str, str]
    """The diagnoses that were not made, each with the reason."""


def examine(facts: Facts) -> Report:
    """Make all diagnoses. If a diagnosis cannot read something, note the reason, and continue with the others."""
    from botocore.exceptions import ClientError  # noqa: PLC0415 - it would make --help slow

    findings: list[Finding] = []
    unread: dict[str, str] = {}
    for name, diagnosis in DIAGNOSES.items():
        try:
            findings += diagnosis(facts)
        except Unreadable as error:
            unread[name] = str(error)
        except ClientError as error:
            unread[name] = f"{error.operation_name}: {error.response['Error'].get('Message') or 'refused'}"
    return Report(sorted(findings, key=lambda finding: finding.severity), unread)


def doctor(account: Account, given: Namespace) -> None:
    """Print all findings. Raise Failed if one of them is more than advice, or if nothing could be read."""
    found = examine(Facts(given.stage, account.client, api_endpoint=account.api_endpoint))
    if given.json:
        shown = [{"severity": each.severity.name.lower(), "what": each.what, "do": each.do} for each in found.findings]
        print(json.dumps({"findings": shown, "unread": found.unread}, indent=2, ensure_ascii=False))
    else:
        print(_text(found))
    if len(found.unread) == len(DIAGNOSES):
        raise Unreachable("Nothing could be read, so nothing is known about this stage.")
    if bad := [each for each in found.findings if each.severity < Severity.ADVICE]:
        raise Failed(f"{len(bad)} {'problem' if len(bad) == 1 else 'problems'}.")


def _text(found: Report) -> str:
    lines = []
    for finding in found.findings:
        word = finding.severity.name.lower()
        lines.append(f"{word:<8} {finding.what}\n{'':<8} {finding.do}")
    if not found.findings and len(found.unread) < len(DIAGNOSES):
        lines.append(f"Nothing is wrong with what could be read: {len(DIAGNOSES) - len(found.unread)} diagnoses.")
    if found.unread:
        names = defaultdict[str, list[str]](list)
        for name, reason in found.unread.items():
            names[reason].append(name)
        lines.append("Not diagnosed:")
        lines += [f"  {', '.join(each)}: {reason}" for reason, each in names.items()]
    return "\n".join(lines)
