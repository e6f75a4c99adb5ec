"""Implements `bufferctl doctor`, which prints what is wrong with a stage, worst first, and changes nothing."""

from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from bufferctl.diagnoses import DIAGNOSES, Finding, Severity
from bufferctl.errors import FoundProblems, Unreachable, needs_sign_in
from bufferctl.facts import StageFacts, Unreadable
from bufferctl.formatting import GAP, INDENT, Lines, TextLine, Tone
from bufferctl.stage import Account
from bufferctl.terminal import show_result, working
from message_buffer.json_object import Json

# Each line begins with its finding's severity, padded to the longest one so that the texts are aligned.
SEVERITY_CHARACTERS = max(len(severity.name) for severity in Severity)
TONES: dict[Severity, Tone] = {Severity.BROKEN: "bad", Severity.FAILING: "warning"}


class Report(NamedTuple):
    findings: list[Finding]
    unread: dict[str, str]
    """The names of the diagnoses that could not read something, each with the reason."""


def examine(facts: StageFacts, *, done: Callable[[], None] = lambda: None) -> Report:
    """Return all findings. Call `done` after each diagnosis. Note a diagnosis that cannot read something, and continue.

    Raise the SDK's error if the caller must sign in first.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - it would make --help slow

    findings: list[Finding] = []
    unread: dict[str, str] = {}
    for name, diagnosis in DIAGNOSES.items():
        try:
            findings += diagnosis(facts)
        except (Unreadable, BotoCoreError, ClientError) as error:
            if needs_sign_in(error):
                raise
            unread[name] = str(error)
        done()
    return Report(sorted(findings, key=lambda finding: finding.severity), unread)


def doctor(account: Account, given: Namespace) -> None:
    """Print all findings. Raise FoundProblems if one is worse than ADVICE, or Unreachable if nothing could be read."""
    with working(given, "Diagnose", total=len(DIAGNOSES)) as step:
        facts = StageFacts(given.stage, account.client, api_endpoint=account.api_endpoint, aws_cli=account.aws_cli)
        found = examine(facts, done=step.advance)
    show_result(given, shown(found), Lines(_lines(found)))
    if len(found.unread) == len(DIAGNOSES):
        raise Unreachable("Nothing could be read, so nothing is known about this stage.")
    if bad := [each for each in found.findings if each.severity < Severity.ADVICE]:
        raise FoundProblems(f"{len(bad)} {'problem' if len(bad) == 1 else 'problems'}.")


def shown(found: Report) -> Json:
    findings = [{"severity": each.severity.name.lower(), "what": each.what, "do": each.do} for each in found.findings]
    return {"findings": findings, "unread": found.unread}


def _lines(found: Report) -> list[TextLine]:
    lines = []
    advised = set[str]()
    for finding in found.findings:
        word = finding.severity.name.lower().ljust(SEVERITY_CHARACTERS + GAP)
        hang = len(word)
        tone = TONES.get(finding.severity, "plain")
        do = f"As above: {finding.do.rpartition(' (')[2].rstrip(')')}." if finding.do in advised else finding.do
        advised.add(finding.do)
        lines.append(TextLine(f"{word}{finding.what}\n{' ' * hang}{do}", tone, hang=hang))
    if not found.findings and len(found.unread) < len(DIAGNOSES):
        made = len(DIAGNOSES) - len(found.unread)
        lines.append(TextLine(f"Nothing is wrong with what could be read: {made} diagnoses.", "good"))
    if found.unread:
        names = defaultdict[str, list[str]](list)
        for name, reason in found.unread.items():
            names[reason].append(name)
        lines.append(TextLine("Not diagnosed:"))
        lines += [TextLine(f"  {', '.join(each)}: {reason}", hang=2 * INDENT) for reason, each in names.items()]
    return lines
