"""Parses the operators' commands and runs them: `.venv/bin/python -m bufferctl`."""

import argparse
import io
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bufferctl import commands
from bufferctl.console import find_nothing, open_console
from bufferctl.doctor import doctor
from bufferctl.errors import EXIT_STATUSES, Failed, Misused, errors_of_aws
from bufferctl.formatting import as_json
from bufferctl.load import MAX_LOAD_RATE, MAX_LOAD_SECONDS
from bufferctl.stage import LOCAL, LOCAL_OUTPUTS, Account, StageClient, find_account, find_stage
from bufferctl.terminal import show_error
from bufferctl.verify import verify
from message_buffer.limits import HOUR_MS, MAX_HOLD_MS, MAX_LISTED

DEFAULT_LISTED_LETTERS = 50
EXAMPLES = """examples:
  .venv/bin/python -m bufferctl status
  .venv/bin/python -m bufferctl --stage prod conversation list --tenant acme
  .venv/bin/python -m bufferctl --stage prod conversation show acme/whatsapp/106540352242922/491701234567
  .venv/bin/python -m bufferctl --stage prod rules set tenant:acme '{"silenceMs": 2000}'
  .venv/bin/python -m bufferctl --stage prod dead redrive --all
  .venv/bin/python -m bufferctl send 'Hey'

exit statuses:
""" + "".join(f"  {code:<3}  {meaning}\n" for code, meaning in EXIT_STATUSES.items())
UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000}

Run = Callable[[Any, argparse.Namespace], None]
Find = Callable[..., StageClient | Account | None]


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    wants_json = "--json" in arguments
    _prepare_output(wants_json=wants_json)
    try:
        given = make_parser().parse_args(arguments)
        run: Run = given.run
        find: Find = given.find
        with errors_of_aws():
            run(find(given.stage, profile=given.profile, region=given.region, outputs=given.outputs), given)
        print(end="", flush=True)
    except Failed as error:
        problem = {"error": {"message": str(error), "exitStatus": error.code}}
        if wants_json:
            print(as_json(problem, indent=None), file=sys.stderr)
        else:
            show_error(str(error))
        return error.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of a pipe, such as `head`, has closed the pipe. Discard the buffered output, because Python writes
        # buffered output when it exits, and the closed pipe would cause another error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _prepare_output(*, wants_json: bool) -> None:
    """Let stdout and stderr accept every character. JSON is UTF-8. Other encodings may show `?`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace", encoding="utf-8" if wants_json else None)


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        # Refuse abbreviated options, because a new option may change the meaning of an abbreviation. Also, errors are
        # only JSON if `--json` is written in full.
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Print the usage. Raise Misused, so that wrong usage is reported like every other error."""
        self.print_usage(sys.stderr)
        raise Misused(f"{message[0].upper()}{message[1:]}.")


def make_parser() -> _Parser:
    parser = _Parser(
        prog=".venv/bin/python -m bufferctl",
        description="Operate a stage of the message buffer.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--stage", default=LOCAL, help="the stage; default: local, which `make up` starts")
    parser.add_argument("--profile", help="a profile of your AWS configuration")
    parser.add_argument("--region", help="the stage's region; default: that in cdk.json")
    parser.add_argument(
        "--outputs", type=Path, default=LOCAL_OUTPUTS, help="outputs.json of a local stage in another folder"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    topics = parser.add_subparsers(required=True, metavar="COMMAND")
    _command(
        topics, "status", commands.status, "show what waits, is in flight and is late, by shard, and what was refused"
    )
    _add_conversation(topics.add_parser("conversation", help="list, show and control conversations"))
    _add_rules(topics.add_parser("rules", help="read and change rules without a deployment"))
    _add_door(topics.add_parser("door", help="try the mapping of a door, which turns webhooks into messages"))
    _add_dead(topics.add_parser("dead", help="show batches that could not be sent, and send them again"))
    logged = _command(topics, "logged", commands.look_up, "show how the logs name a conversation or a batch")
    logged.add_argument("id", help="tenant/platform/account/user, or a batch id")
    _add_send(_command(topics, "send", commands.send, "send a signed test message to the generic webhook"))
    _add_tail(_command(topics, "tail", commands.tail, "show events as they arrive; AWS may need a minute to begin"))
    _command(topics, "doctor", doctor, "say what is wrong with the stage, worst first; only reads", find=find_account)
    _add_verify(_command(topics, "verify", verify, "try the stage as a customer, then remove what the trial made"))
    page = _command(topics, "console", open_console, "show the stage on a page of this machine", find=find_nothing)
    page.add_argument(
        "--allow-changes", action="store_true", help="let the page send, hold, resume, flush and cancel, too"
    )
    page.add_argument("--show-words", action="store_true", help="also show what people wrote")
    return parser


def _add_conversation(parser: _Parser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    listed = _command(verbs, "list", commands.list_conversations, "list conversations that wait or have a frozen batch")
    listed.add_argument("--tenant", help="only conversations of this tenant")
    listed.add_argument("--platform", help="only conversations on this platform, such as whatsapp")
    listed.add_argument("--shard", type=int, metavar="N", help="only this shard of the Valkey lane")
    listed.add_argument("--limit", type=int, default=50, metavar="N", help="default: 50")
    show = _command(
        verbs, "show", commands.show_conversation, "show a conversation's state, times, generation, hold and batch"
    )
    show.add_argument("--messages", action="store_true", help="also show what people wrote")
    flush = _command(verbs, "flush", commands.flush, "send waiting messages now")
    cancel = _command(verbs, "cancel", commands.cancel, "drop waiting messages, and publish a cancel event")
    cancel.add_argument("--yes", action="store_true", help="do not ask")
    forget = _command(verbs, "forget", commands.forget, "erase a conversation everywhere, and publish an event")
    forget.add_argument("--dry-run", action="store_true", help="only count what would be erased, and where")
    forget.add_argument("--yes", action="store_true", help="do not ask")
    hold = _command(verbs, "hold", commands.hold, "keep messages back, because a human agent has taken over")
    resume = _command(verbs, "resume", commands.resume, "end all holds; messages on hold are due now")
    hand_off = _command(verbs, "handoff", commands.hand_off, "hold, and record that a human agent answers")
    for each in (hold, hand_off):
        each.add_argument(
            "--for",
            dest="duration",
            type=_duration_ms,
            default="1h",
            metavar="TIME",
            help="30s, 15m, at most 24h; default: 1h",
        )
    history = _command(verbs, "history", commands.history, "show the turns that the responder remembers")
    history.add_argument("--messages", action="store_true", help="also show the texts of the turns")
    history.add_argument(
        "--older", type=int, default=0, metavar="N", help="also show N turns that are no longer in the record"
    )
    for each in (show, flush, cancel, forget, hold, resume, hand_off, history):
        each.add_argument("conversation", help="tenant/platform/account/user")


def _add_rules(parser: _Parser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    listed = _command(verbs, "list", commands.list_rules, "list all scopes that have rules")
    listed.add_argument("prefix", nargs="?", default="", help="only scopes that begin with this, such as tenant:")
    get = _command(verbs, "get", commands.get_rules, "show the rules of a scope")
    put = _command(verbs, "set", commands.set_rules, "replace the rules of a scope")
    delete = _command(verbs, "delete", commands.delete_rules, "remove all rules of a scope")
    for each in (get, put, delete):
        each.add_argument(
            "scope",
            help="stage, tenant:T, agent:T/A, conversation:ID, account:PLATFORM/ACCOUNT for the owner of an account,"
            " or door:NAME for a mapping",
        )
    put.add_argument("rules", help="a JSON object; - reads it from standard input")
    for each in (put, delete):
        each.add_argument(
            "--expected-version",
            type=int,
            metavar="N",
            help="refuse unless the scope has this version; 0: unless it has no rules",
        )
    explain = _command(
        verbs, "explain", commands.explain_rules, "show which value is in force, and which layer sets it"
    )
    explain.add_argument("conversation", help="tenant/platform/account/user")
    explain.add_argument("--agent", help="default: the agent that owns the conversation's account")


def _add_door(parser: _Parser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    tried = _command(
        verbs, "try", _try_door, "show the messages that a mapping makes of a body; needs no stage", find=_no_stage
    )
    tried.add_argument("mapping", type=Path, help="a file with the mapping")
    tried.add_argument("body", type=Path, help="a file with the body of a webhook")
    tried.add_argument("--name", help="the door's name; default: that of the file")


def _try_door(_stage: None, given: argparse.Namespace) -> None:
    from bufferctl.doors import try_mapping  # noqa: PLC0415 - the library would make every other command slow

    try_mapping(given)


def _no_stage(_name: str, **_options: Any) -> None:
    """Return None, for a command that needs no stage."""


def _add_dead(parser: _Parser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    listed = _command(verbs, "list", commands.list_letters, "list dead letters, without what people wrote")
    listed.add_argument(
        "--limit",
        type=int,
        default=DEFAULT_LISTED_LETTERS,
        help=f"default: {DEFAULT_LISTED_LETTERS}, at most {MAX_LISTED}",
    )
    show = _command(verbs, "show", commands.show_letter, "show one dead letter")
    show.add_argument("batch", help="its batch id")
    show.add_argument("--payloads", action="store_true", help="also show what people wrote")
    redrive = _command(verbs, "redrive", commands.redrive, "send batches again under their old ids")
    redrive.add_argument("batches", nargs="*", metavar="batch", help="batch ids")
    redrive.add_argument("--all", action="store_true", help=f"every listed batch, at most {MAX_LISTED}")
    redrive.add_argument("--yes", action="store_true", help="do not ask")


def _add_send(parser: _Parser) -> None:
    parser.add_argument("text", help="what the customer writes")
    parser.add_argument("--account", default="bufferctl", help="default: bufferctl")
    parser.add_argument("--user", default="test", help="the conversation's last part; default: test")
    parser.add_argument("--tenant", help="default: default")
    parser.add_argument("--id", help="the message's id; the same id again is a redelivery")


def _add_tail(parser: _Parser) -> None:
    parser.add_argument("--conversation", help="show only the events of this conversation")
    parser.add_argument("--messages", action="store_true", help="also show what people wrote, as --json always does")
    parser.add_argument("--seconds", type=_positive(float), help="end after this time; default: with Ctrl-C")
    parser.add_argument("--count", type=_positive(int), help="end after this number of events")


def _add_verify(parser: _Parser) -> None:
    parser.add_argument("--fallback", action="store_true", help="also send a batch through the fallback")
    parser.add_argument(
        "--load",
        type=_rate,
        metavar="RATE",
        help=f"then send as many customers do, such as 50/s or 30/m, at most {MAX_LOAD_RATE}/s, and print the lateness",
    )
    parser.add_argument(
        "--for",
        dest="load_seconds",
        type=_load_seconds,
        default=60.0,
        metavar="TIME",
        help="how long --load sends, at most 1h; default: 1m",
    )


def _command(
    parsers: "argparse._SubParsersAction[_Parser]",
    name: str,
    run: Run,
    summary: str,
    *,
    find: Find = find_stage,
) -> _Parser:
    parser = parsers.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    parser.set_defaults(run=run, find=find)
    # The operator may write these options before or after the command. They have no default here, because argparse
    # would replace a value from before the command with this default.
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    for option in ("--stage", "--profile", "--region"):
        parser.add_argument(option, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("--outputs", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def _positive(number: Callable[[str], float]) -> Callable[[str], float]:
    """Return a function that parses a number above 0, and refuses 0, because the commands would treat 0 as no limit."""

    def read(text: str) -> float:
        found = number(text)
        if not 0 < found < math.inf:
            raise argparse.ArgumentTypeError(f"use a number above 0, not {text!r}")
        return found

    read.__name__ = "number"  # argparse says "invalid number value"
    return read


def _rate(text: str) -> float:
    """Return the messages per second of a text like 50/s or 30/m."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)/([sm])", text)
    rate = float(match[1]) / (UNITS[match[2]] / UNITS["s"]) if match else 0.0
    if not 0 < rate <= MAX_LOAD_RATE:
        raise argparse.ArgumentTypeError(f"a rate reads 50/s or 30/m and is at most {MAX_LOAD_RATE}/s, not {text!r}")
    return rate


def _load_seconds(text: str) -> float:
    seconds = _duration_ms(text) / 1_000
    if seconds > MAX_LOAD_SECONDS:
        raise argparse.ArgumentTypeError("a load lasts at most 1h")
    return seconds


def _duration_ms(text: str) -> int:
    match = re.fullmatch(r"(\d{1,9})([smh])", text)
    if not match:
        raise argparse.ArgumentTypeError(f"use a time such as 30s, 15m or {MAX_HOLD_MS // HOUR_MS}h, not {text!r}")
    duration_ms = int(match[1]) * UNITS[match[2]]
    if not 0 < duration_ms <= MAX_HOLD_MS:
        raise argparse.ArgumentTypeError(f"a time is at least 1s and at most {MAX_HOLD_MS // HOUR_MS}h")
    return duration_ms


if __name__ == "__main__":
    sys.exit(main())
