"""Carries out the commands, and prints their results for people."""

import json
import sys
import time
import uuid
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from bufferctl.columns import AGES_OUT, EXPLAINED, LETTERS, LISTED, RULES, SHARDS, WAITS
from bufferctl.errors import Failed, Incomplete, Misused, Unreachable, errors_of_aws
from bufferctl.events import EVERYTHING, Event, subscribe
from bufferctl.forgetting import MAX_FORGET_CALLS, erase
from bufferctl.formatting import (
    Block,
    Lines,
    Pairs,
    TextLine,
    Tone,
    as_json,
    counted,
    moment,
    printable,
    second_of,
    table,
)
from bufferctl.interrupts import endings_interrupt
from bufferctl.stage import StageClient
from bufferctl.terminal import show, show_result, working
from lambdas.canary import webhook
from lambdas.canary.listening import LONG_POLL_SECONDS
from lambdas.canary.webhook import GenericWebhook
from message_buffer.json_object import Json
from message_buffer.limits import MAX_LISTED

# The events that a terminal shows in colour.
TONES: dict[str, Tone] = {"messages.batch.ready": "good", "messages.buffer.cancelled": "warning"}


def status(stage: StageClient, given: Namespace) -> None:
    result = stage.ask("status")
    shown: list[Block] = []
    if result["shards"]:
        totals = {name: result[name] for name in ("pending", "inflight", "nextDueAt", "overdueMs")}
        shown += [table(result["shards"], SHARDS), Pairs(totals)]
    if "windows" in result:
        shown += ["DynamoDB lane", Pairs(result["windows"])]
    show_result(given, result, *shown)


def look_up(stage: StageClient, given: Namespace) -> None:
    result = stage.ask("id.look_up", id=given.id)
    show_result(given, result, str(result["logged"]))


# -- conversations ---------------------------------------------------------------------------------


def list_conversations(stage: StageClient, given: Namespace) -> None:
    """Show up to `--limit` conversations, the earliest due first. The admin function returns them in pages."""
    wanted = {"tenant": given.tenant, "platform": given.platform, "shard": given.shard}
    found: dict[tuple[str, str], Json] = {}
    cursor, more = None, True
    with working(given, "List conversations"):
        while more and len(found) < max(given.limit, 1):
            limit = min(given.limit - len(found), MAX_LISTED)
            response = stage.ask("conversation.list", **wanted, cursor=cursor, limit=limit)
            # A conversation whose state changes between two requests may be on both pages. Keep it only once.
            found |= {(each["lane"], each["conversation"]): each for each in response["conversations"]}
            cursor, more = response["next"], response["more"]
            if cursor is None:
                break
    shown = list(found.values())[: given.limit]
    shown.sort(key=lambda each: (each["dueAt"] is None, each["dueAt"] or 0))
    result = {"conversations": shown, "more": more or len(found) > len(shown)}
    notes = ["There are more: filter them, or raise --limit."] if result["more"] else []
    has_reply_windows = any("replyUntil" in each for each in shown)
    columns = LISTED if has_reply_windows else [name for name in LISTED if name != "replyUntil"]
    show_result(given, result, table(shown, columns, notes=notes) if shown else "\n".join(["Nothing waits.", *notes]))


def show_conversation(stage: StageClient, given: Namespace) -> None:
    result = stage.ask("conversation.show", conversation=given.conversation, messages=given.messages)
    shown = _conversation(result)
    if "dynamodb" in result:
        shown += ["DynamoDB lane", *_conversation(result["dynamodb"])]
    show_result(given, result, *shown)


def _conversation(seen: Json) -> list[Block]:
    fields = {name: value for name, value in seen.items() if name not in ("messages", "batch", "dynamodb")}
    holds = [f"{each['holder']} ({each['cause']}) until {moment(each['until'])}" for each in seen["holds"]]
    fields["holds"] = ", ".join(holds) or None
    batch = seen["batch"]
    fields["batch"] = batch and f"{batch['batchId']}, attempt {batch['attempt']}, {counted(batch['count'], 'message')}"
    shown: list[Block] = [Pairs(fields)]
    if seen.get("messages"):
        shown.append(table(seen["messages"], ("receivedAt", "id", "author", "text")))
    return shown


def flush(stage: StageClient, given: Namespace) -> None:
    result = stage.ask("conversation.flush", conversation=given.conversation)
    show_result(given, result, f"Due at {moment(result['dueAt'])}, with {counted(result['count'], 'waiting message')}.")


def cancel(stage: StageClient, given: Namespace) -> None:
    _confirm(given, f"Drop all waiting messages of {given.conversation}?")
    result = stage.ask("conversation.cancel", conversation=given.conversation)
    text = "Dropped. Valkey's answer was lost, so the number of messages is unknown."
    if result["dropped"] is not None:
        text = f"Dropped {counted(result['dropped'], 'waiting message')} and {result['frozen']} of a frozen batch."
    if result["leaving"]:
        text += " That batch was just being sent, and may still be published once."
    show_result(given, result, text)


def forget(stage: StageClient, given: Namespace) -> None:
    """Erase everything that the stage and its responder store about a conversation.

    If a batch of the conversation is being emitted, wait until this is over, and erase the rest.
    """
    if given.dry_run:
        with working(given, f"Count what the stage stores about {given.conversation}"):
            result = stage.ask("conversation.forget", conversation=given.conversation, dryRun=True)
            result["counts"] |= _forget_at_responder(stage, given, dryRun=True)
        show_result(given, result, "It would erase:", *_erased(result))
        return
    _confirm(given, f"Erase everything that this stage stores about {given.conversation}? This cannot be undone.")
    with working(given, f"Erase {given.conversation}"):
        held = _forget_at_responder(stage, given, dryRun=True)
        result = erase(stage, given.conversation)
        counts: Counter[str] = result["counts"]
        # The stage publishes an event about the erasure. The responder may erase its items because of that event,
        # before this request asks it to. So use the count from before the event.
        counts.update(held | _forget_at_responder(stage, given, at=result["at"]))
    if result["againInMs"] is not None:
        raise Incomplete("This command could not erase everything: run it again.")
    result["counts"] = dict(counts)
    show_result(given, result, "Erased, and published an event for consumers:", *_erased(result))


def _forget_at_responder(stage: StageClient, given: Namespace, **fields: Any) -> Counter[str]:
    """Return how many items the responder erased, or would erase, by kind. Empty on a stage without a responder."""
    counts: Counter[str] = Counter()
    if stage.responder_function() is None:
        return counts
    for _ in range(MAX_FORGET_CALLS):
        response = stage.ask_responder("forget", conversation=given.conversation, **fields)
        counts.update(response["counts"])
        if response["finished"] or "dryRun" in fields:
            return counts
    raise Incomplete("This command could not erase everything that the responder keeps: run it again.")


def _erased(result: Json) -> list[Block]:
    shown: list[Block] = [
        Pairs(result["counts"]),
        "These copies cannot be erased, but expire:",
        table(result["agesOut"], AGES_OUT),
    ]
    if other := result.get("otherName"):
        shown.append(f"The author also has the name {other}: forget that, too.")
    return shown


def hold(stage: StageClient, given: Namespace) -> None:
    _hold(stage, given, cause="operator", done="On hold")


def hand_off(stage: StageClient, given: Namespace) -> None:
    _hold(stage, given, cause="handoff", done="Handed off")


def _hold(stage: StageClient, given: Namespace, *, cause: str, done: str) -> None:
    result = stage.ask("conversation.hold", conversation=given.conversation, holdMs=given.duration, cause=cause)
    show_result(given, result, f"{done} until {moment(result['heldUntil'])}, or until it is resumed.{_warning(result)}")


def _warning(result: Json) -> str:
    if "warning" not in result:
        return ""
    return f"\nWarning: {result['warning']}\nreplyUntil  {moment(result['replyUntil'])}"


def history(stage: StageClient, given: Namespace) -> None:
    result = stage.ask_responder("history", conversation=given.conversation, texts=given.messages, limit=given.older)
    columns = ("at", "role", "batchId", *(("text",) if given.messages else ()))
    head = Pairs({name: result[name] for name in ("status", "older")})
    turns = table(result["turns"], columns) if result["turns"] else "The responder remembers no turn."
    show_result(given, result, head, turns)


def resume(stage: StageClient, given: Namespace) -> None:
    result = stage.ask("conversation.resume", conversation=given.conversation)
    due_at_ms = result["dueAt"]
    show_result(given, result, "No message is waiting." if due_at_ms is None else f"Due at {moment(due_at_ms)}.")


# -- rules -----------------------------------------------------------------------------------------


def list_rules(stage: StageClient, given: Namespace) -> None:
    result = stage.ask("rules.list", prefix=given.prefix)
    notes = ["There are more. Narrow the list with a prefix."] if result["more"] else []
    nothing = f"No scope that begins with {given.prefix} has rules." if given.prefix else "No scope has rules."
    show_result(given, result, table(result["rules"], RULES, notes=notes) if result["rules"] else nothing)


def get_rules(stage: StageClient, given: Namespace) -> None:
    result = stage.ask("rules.get", scope=given.scope)
    show_result(given, result, Pairs({name: result.get(name) for name in RULES}), as_json(result["rules"]))


def set_rules(stage: StageClient, given: Namespace) -> None:
    text = sys.stdin.read() if given.rules == "-" else given.rules
    try:
        rules = json.loads(text)
    except ValueError as error:
        raise Misused(f"The rules are not JSON: {error}.") from error
    with working(given, "Set the rules, and reschedule open buffers"):
        result = stage.ask("rules.set", scope=given.scope, rules=rules, expectedVersion=given.expected_version)
    show_result(given, result, f"Version {result['version']}, in force within 10 s. {_retimed(result['open'])}")


def delete_rules(stage: StageClient, given: Namespace) -> None:
    with working(given, "Delete the rules, and reschedule open buffers"):
        result = stage.ask("rules.delete", scope=given.scope, expectedVersion=given.expected_version)
    show_result(given, result, f"Deleted. {_retimed(result['open'])}")


def _retimed(found: Json) -> str:
    if found["complete"] and not found["looked"]:
        return "No buffer is open in this scope."
    text = f"Rescheduled {found['retimed']} of {counted(found['looked'], 'open buffer')} in this scope."
    if found["complete"]:
        return text
    why = found.get("problem", "the function ran out of time")
    return (
        f"{text} Some were not reached ({why}). They follow with their next message, or when you set the rules again."
    )


def explain_rules(stage: StageClient, given: Namespace) -> None:
    result = stage.ask("rules.explain", conversation=given.conversation, agent=given.agent)
    rules = table([{"rule": name, **why} for name, why in result["rules"].items()], EXPLAINED)
    skipped = [f"Not in force: {each['layer']}: {each['reason']}" for each in result["skipped"]]
    show_result(given, result, rules, table(result["waits"], WAITS, notes=skipped))


# -- dead letters ----------------------------------------------------------------------------------


def list_letters(stage: StageClient, given: Namespace) -> None:
    with working(given, "List dead letters"):
        result = stage.ask("dead.list", limit=given.limit)
    letters = table(result["letters"], LETTERS) if result["letters"] else "No dead letter is visible."
    show_result(given, result, letters, f"In the queue: about {result['inQueue']}.")


def show_letter(stage: StageClient, given: Namespace) -> None:
    result = stage.ask("dead.show", batchId=given.batch, payloads=given.payloads)
    payloads = {name: value for name, value in result.items() if name.startswith("payloads")}
    head = Pairs({name: value for name, value in result.items() if name not in payloads})
    show_result(given, result, head, *([as_json(payloads)] if payloads else []))


def redrive(stage: StageClient, given: Namespace) -> None:
    batches, unreadable = given.batches, 0
    if given.all == bool(batches):
        raise Misused("Give the ids of batches, or --all.")
    if given.all:
        listed = stage.ask("dead.list", limit=MAX_LISTED)
        batches = list(dict.fromkeys(each["batchId"] for each in listed["letters"] if each["batchId"]))
        unreadable = sum(not each["batchId"] for each in listed["letters"])
        _confirm(
            given, f"Send {counted(len(batches), 'batch')} again? Dead letters in the queue: about {listed['inQueue']}."
        )
    done: list[str] = []
    failed: list[Json] = []
    refusals: set[type[Failed]] = set()
    with working(given, "Send batches again", total=len(batches)) as step:
        for batch in batches:
            try:
                with errors_of_aws():
                    done.append(stage.ask("dead.redrive", batchId=batch)["redriven"])
            except Failed as error:
                failed.append({"batchId": batch, "message": str(error)})
                refusals.add(type(error))
            step.advance()
    lines = [TextLine(f"{batch}  sent again", "good") for batch in done]
    lines += [TextLine(each["batchId"], "bad", rest=each["message"]) for each in failed]
    result = {"redriven": done, "failed": failed, "unreadable": unreadable}
    show_result(given, result, Lines(lines) if lines else "There is no batch to send again.")
    problems = [f"{len(failed)} of {len(batches)} were not sent again."] if failed else []
    if unreadable:
        problems.append(
            f"{counted(unreadable, 'letter')} without a batch id stayed in the queue: "
            "docs/bufferctl.md says how to remove one."
        )
    if problems:
        in_part = bool(done or unreadable)
        same = refusals.pop() if len(refusals) == 1 else Failed
        raise (Incomplete if in_part else same)(" ".join(problems))


# -- the stage from outside ------------------------------------------------------------------------


def send(stage: StageClient, given: Namespace) -> None:
    """Send a message to the generic webhook, as a customer's program would."""
    message = {"account": given.account, "conversation": given.user, "id": given.id or f"test-{uuid.uuid4().hex}"}
    message |= {"text": given.text} | ({"tenant": given.tenant} if given.tenant else {})
    try:
        response = GenericWebhook(stage.api_endpoint, stage.webhook_secret()).post(message)
    except webhook.WebhookUnreachable as error:
        raise Unreachable(str(error)) from error
    if response.status != 200:
        comes_later = (
            response.status == HTTPStatus.TOO_MANY_REQUESTS or response.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        )
        raise (Unreachable if comes_later else Failed)(f"The webhook answers {response.status}: {response.body}")
    result = response.json
    rows = [{"conversation": name, **found} for name, found in result["conversations"].items()]
    show_result(given, result, table(rows, ("conversation", "count", "dueAt")))


def tail(stage: StageClient, given: Namespace) -> None:
    """Show events until Ctrl-C, or until `seconds` or `count` is reached."""
    pattern: Json = dict(EVERYTHING)
    if given.conversation:
        pattern["detail"] = {"conversationId": [given.conversation]}
    try:
        with (
            endings_interrupt(),
            subscribe(stage.client, stage.event_bus, pattern=pattern, prefix="bufferctl-tail") as subscription,
        ):
            print("Listening; Ctrl-C ends it.", file=sys.stderr, flush=True)
            for event in _until_enough(subscription, given):
                if given.json:
                    print(as_json(event, indent=None), flush=True)
                else:
                    show(_line(event, given))
    except KeyboardInterrupt:
        return


def _until_enough(subscription: Any, given: Namespace) -> Iterator[Event]:
    deadline = time.monotonic() + given.seconds if given.seconds else None
    seen = 0
    while deadline is None or time.monotonic() < deadline:
        for arrival in subscription.poll(wait_seconds=LONG_POLL_SECONDS):
            yield arrival.event
            seen += 1
            if seen == given.count:
                return


def _line(event: Event, given: Namespace) -> Lines:
    detail = event["detail"]
    reason = detail.get("flushReason") or detail.get("reason") or detail.get("change")
    count = detail.get("messageCount")
    more = (
        reason,
        None if count is None else counted(count, "message"),
        detail.get("batchId"),
        detail.get("text") if given.messages else None,
    )
    named = (second_of(event["time"]), event["detail-type"], detail.get("conversationId"))
    text, rest = ("  ".join(printable(str(each)) for each in parts if each) for parts in (named, more))
    return Lines([TextLine(text, TONES.get(event["detail-type"], "plain"), rest)])


def _confirm(given: Namespace, question: str) -> None:
    if given.yes:
        return
    if not sys.stdin.isatty():
        raise Misused("There is no terminal to ask at: add --yes.")
    # Ask on stderr, because stdout may be a pipe, and with `--json` it may contain only JSON.
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = input()
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise Failed("Nothing was done.")
