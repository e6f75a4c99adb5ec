"""Implements `bufferctl verify`, which tests a stage from outside, and then removes everything that the test created.

A trial sends messages as a customer's program does, but for a tenant that only trials use. It receives the events by
its own rule and queue. The queue is created first and removed last. Its name contains the trial's id and the time at
which the trial must have ended, so that a later trial can remove what a killed trial has left.
"""

import json
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, NamedTuple

from bufferctl.commands.conversation import erase
from bufferctl.errors import Failed, FoundProblems, Unreachable
from bufferctl.events import Subscription, subscribe
from bufferctl.formatting import Block, blocks_of, counted, table
from bufferctl.interrupts import endings_interrupt
from bufferctl.load import MAX_SECOND_EVENT_SECONDS, LoadPlan, faults_of, run_load
from bufferctl.options import Given
from bufferctl.stage import StageClient
from bufferctl.terminal import show_result, working
from lambdas.canary.burst import BATCH_READY, MAX_LATE_SECONDS, TENANT, Burst, Fragment, WebhookRefused, accepted
from lambdas.canary.listening import LONG_POLL_SECONDS, ArrivedEvent
from lambdas.canary.webhook import GenericWebhook
from lambdas.canary.webhook import WebhookUnreachable as NoAnswer
from message_buffer.json_object import Json

VERIFY_FRAGMENTS = 5
FRAGMENT_PAUSE_SECONDS = 0.2
# These messages together exceed the default of `limits.max_event_bytes`. Each is below the size limit of a message.
OVERSIZE_MESSAGES, OVERSIZE_CHARACTERS = 5, 60_000
# A new EventBridge rule may match events only after a minute, and the functions may need cold starts.
MAX_RULE_SECONDS = 120
WARM_UP_PAUSE_SECONDS = 5
# The stage applies changed rules within this time.
RULES_IN_FORCE_SECONDS = 10
# A trial takes at most this time plus the time of its `--load`. After that a later trial may remove its leftovers.
MAX_TRIAL_SECONDS = 600
PREFIX = "bufferctl-verify"
LEFT_BEHIND = re.compile(rf"{PREFIX}-(?P<ends>\d+)-(?P<trial>[0-9a-f]{{8}})-[0-9a-f]+$")
ACCOUNT, FALLBACK = "verify", "verify-fallback"
STOP_WORD = "stop the trial"
AS_EDITED = "as edited"
CANCELLED = "messages.buffer.cancelled"
LANES = {"valkey": "Valkey lane", "dynamodb": "DynamoDB lane"}
# The suffixes of a trial's conversation ids, which begin with the trial's id.
NAMES = ("first", "five", "edit", "stop", "large", "fallback")

Say = Callable[[str], None]
# Returns a description of a batch's detail, and whether the batch is right.
Describe = Callable[[Json], tuple[str, bool]]


class Result(NamedTuple):
    check: str
    found: str
    ok: bool
    time: str | None = None

    @property
    def row(self) -> Json:
        return self._asdict() | {"found": self.found if self.ok else f"FAILED: {self.found}"}


def verify(stage: StageClient, given: Given, *, with_fallback: bool, plan: LoadPlan | None) -> None:
    """Print the results of all checks. Raise FoundProblems if one failed, or the error that ended the trial."""
    print("This takes half a minute, or some minutes if batches are late.", file=sys.stderr)
    if plan:
        print(plan.announcement(given.stage), file=sys.stderr, flush=True)
    results, load, error = list[Result](), None, None
    with endings_interrupt():
        remove_leftovers(stage, given.stage)
        with _trial(stage, given, plan) as trial, working(given, "Try the stage") as step:
            try:
                # Add the results one by one, so that an error that ends the trial leaves the earlier results.
                for result in trial.run(step.say, with_fallback=with_fallback):
                    results.append(result)
                if plan and all(each.ok for each in results):
                    load = run_load(plan, [trial.burst(name) for name in plan.names], trial.poll, step.say)
            except Failed as raised:
                error = raised
    problems = [f"{each.check}: {each.found}" for each in results if not each.ok]
    problems += [f"Under load: {faults}"] if load and (faults := faults_of(load)) else []
    shown: list[Block] = [table([each.row for each in results]), *(blocks_of(load) if load else ())]
    if not problems and not error:
        shown.append(f"All {len(results)} checks passed, so this stage works.")
    show_result(given, {"checks": [each._asdict() for each in results], "load": load}, *shown)
    hint = f"`make doctor STAGE={given.stage}` may say why."
    if error:
        raise type(error)(f"{error} {hint}") from error
    if problems:
        raise FoundProblems(f"{'. '.join(problems)}. {hint}")


def remove_leftovers(stage: StageClient, stage_name: str) -> None:
    """Remove the rules, queues and conversations of trials that were killed."""
    sqs, events = stage.client("sqs"), stage.client("events")
    for url in sqs.list_queues(QueueNamePrefix=PREFIX).get("QueueUrls", []):
        name = url.rpartition("/")[2]
        left = LEFT_BEHIND.fullmatch(name)
        if left is None or int(left["ends"]) > time.time():
            continue
        # A queue may belong to another stage of the account. It belongs to this stage if its rule is on this stage's
        # bus.
        rules = events.list_rules(NamePrefix=name, EventBusName=stage.event_bus)["Rules"]
        for rule in rules:
            events.remove_targets(Rule=rule["Name"], EventBusName=stage.event_bus, Ids=["queue"], Force=True)
            events.delete_rule(Name=rule["Name"], EventBusName=stage.event_bus, Force=True)
        if rules:
            _forget_all(stage, stage_name, left["trial"])
            sqs.delete_queue(QueueUrl=url)
            print(f"Removed what an earlier trial, {name}, had left.", file=sys.stderr)


@contextmanager
def _trial(stage: StageClient, given: Given, plan: LoadPlan | None) -> Iterator["Trial"]:
    trial_id = uuid.uuid4().hex[:8]
    pattern = {"source": ["message-buffer"], "detail": {"tenant": [TENANT]}}
    ends = time.time() + MAX_TRIAL_SECONDS + (plan.seconds if plan else 0)
    with subscribe(stage.client, stage.event_bus, pattern=pattern, prefix=f"{PREFIX}-{ends:.0f}-{trial_id}") as events:
        try:
            yield Trial(stage, events, trial_id)
        finally:
            with working(given, "Remove the trial"):
                _forget_all(stage, given.stage, trial_id, (*NAMES, *(plan.names if plan else ())))


def _forget_all(stage: StageClient, stage_name: str, trial_id: str, names: Sequence[str] = NAMES) -> None:
    for name in names:
        conversation = f"{TENANT}/generic/{FALLBACK if name == 'fallback' else ACCOUNT}/{trial_id}-{name}"
        try:
            erased = erase(stage, conversation)["againInMs"] is None
            problem = "" if erased else "its batches are still being emitted."
        except Failed as error:
            problem = str(error)
        if problem:
            # Only print this error. If it were raised, it would hide why the trial itself has failed.
            print(
                f"Could not erase {conversation}, and did not try the conversations after it: {problem}\n"
                f"Later, `bufferctl --stage {stage_name} conversation list --tenant {TENANT}` and `rules list "
                f"conversation:{TENANT}` show what is left; `conversation forget` and `rules delete` erase it.",
                file=sys.stderr,
            )
            return


class Trial:
    """One run of all checks."""

    def __init__(self, stage: StageClient, subscription: Subscription, trial_id: str) -> None:
        self._stage = stage
        self._id = trial_id
        self._secret = stage.webhook_secret()
        self._webhook = GenericWebhook(stage.api_endpoint, self._secret)
        self.poll = subscription.poll
        self._arrivals: list[ArrivedEvent] = []

    def run(self, say: Say, *, with_fallback: bool) -> Iterator[Result]:
        """Yield the results of all checks. If the first event does not arrive, skip the remaining checks."""
        try:
            say("Send a message with a wrong signature")
            yield self._a_wrong_signature()
            scope = f"conversation:{self.burst('stop').conversation}"
            self._stage.ask("rules.set", scope=scope, rules={"stopWords": [STOP_WORD]})
            rules_in_force_at = time.monotonic() + RULES_IN_FORCE_SECONDS
            say("Wait for the first event; a new rule may need a minute")
            first = self._wait_for_the_rule()
            yield first
            if first.ok:
                yield from self._of_messages(say, rules_in_force_at, with_fallback=with_fallback)
        except NoAnswer as error:
            raise Unreachable(f"{str(error).rstrip('.')}.") from error
        except WebhookRefused as error:
            raise FoundProblems(f"A message was refused: {error}.") from error

    def _of_messages(self, say: Say, rules_in_force_at: float, *, with_fallback: bool) -> Iterator[Result]:
        say("Send five fragments, an edit and a large batch")
        five = self._five_fragments()
        sent: list[tuple[str, Burst, Describe]] = [
            ("five fragments", five, lambda _: (f"{counted(len(five.expected), 'batch')}, in order", True)),
            ("an edit", self._an_edit(), _edited),
            ("a batch of 300 KB", self._a_large_batch(), _placed),
        ]
        if with_fallback:
            sent.append(("the fallback", self._a_batch_of_the_fallback(), _by_the_fallback))
        yield self._a_redelivery(five)
        say("Wait until the rules are in force, then send a stop word")
        time.sleep(max(rules_in_force_at - time.monotonic(), 0))
        yield self._a_stop_word()
        self._collect(*(burst for _, burst, _ in sent))
        say("Listen for second events, which would be errors")
        self._collect_until(MAX_SECOND_EVENT_SECONDS)
        for check, burst, describe in sent:
            yield self._judged(check, burst, describe)

    # -- the checks --------------------------------------------------------------------------------

    def _a_wrong_signature(self) -> Result:
        forged = GenericWebhook(self._stage.api_endpoint, f"not {self._secret}")
        status = forged.post(self.burst("first").message("forged", "Hey")).status
        return Result("a wrong signature", f"answered {status}", ok=status == HTTPStatus.UNAUTHORIZED)

    def _wait_for_the_rule(self) -> Result:
        """Send one message after another until an event arrives, because a new rule may match nothing for a minute."""
        burst, began = self.burst("first"), time.monotonic()
        while time.monotonic() - began < MAX_RULE_SECONDS:
            burst.send(f"{self._id}-first-{len(burst.fragments)}", "Hey")
            # Another message before the due time would only prolong the wait.
            seconds = max(burst.due_at_ms / 1_000 - time.time(), 0) + WARM_UP_PAUSE_SECONDS
            if self._collect_until(seconds, lambda: bool(burst.of(self._arrivals))):
                took = f"{time.monotonic() - began:.1f} s"
                return Result("the first event", "the rule works, functions are warm", ok=True, time=took)
        return Result("the first event", f"no event arrived within {MAX_RULE_SECONDS:.0f} s", ok=False)

    def _five_fragments(self) -> Burst:
        burst = self.burst("five")
        for number in range(VERIFY_FRAGMENTS):
            burst.send(f"{self._id}-{number}", f"fragment {number}")
            time.sleep(FRAGMENT_PAUSE_SECONDS)
        return burst

    def _a_redelivery(self, burst: Burst) -> Result:
        """Send one of the fragments again. The stage should recognise its id, even after the batch was emitted."""
        began = time.monotonic()
        repeat = accepted(self._webhook.post(burst.message(burst.fragments[1].id, "fragment 1")))
        found, took = f"{repeat['duplicates']} duplicate, {repeat['accepted']} accepted", time.monotonic() - began
        return Result("a redelivery", found, ok=found == "1 duplicate, 0 accepted", time=f"{took * 1_000:.0f} ms")

    def _an_edit(self) -> Burst:
        burst = self.burst("edit")
        first, second = (burst.message(f"{self._id}-{name}", "as first written") for name in ("e1", "e2"))
        _send_together(burst, first, second, first | {"text": AS_EDITED, "edited": True})
        return burst

    def _a_large_batch(self) -> Burst:
        burst, text = self.burst("large"), "x" * OVERSIZE_CHARACTERS
        _send_together(burst, *(burst.message(f"{self._id}-l{number}", text) for number in range(OVERSIZE_MESSAGES)))
        return burst

    def _a_batch_of_the_fallback(self) -> Burst:
        burst = self.burst("fallback", account=FALLBACK)
        _send_together(burst, *(burst.message(f"{self._id}-f{number}", "Hey") for number in range(2)))
        return burst

    def _a_stop_word(self) -> Result:
        burst = self.burst("stop")
        said = [burst.message(f"{self._id}-s1", "Hey"), burst.message(f"{self._id}-s2", STOP_WORD)]
        status = self._webhook.post(said).status
        if status != HTTPStatus.OK:
            return Result("a stop word", f"answered {status}", ok=False)

        def came(detail_type: str) -> list[Json]:
            mine = [each for each in self._arrivals if each.batch["conversationId"] == burst.conversation]
            return [each.batch for each in mine if each.event["detail-type"] == detail_type]

        self._collect_until(MAX_LATE_SECONDS, lambda: bool(came(CANCELLED) or came(BATCH_READY)))
        if not came(CANCELLED):
            return Result("a stop word", "no cancel arrived", ok=False)
        dropped = came(CANCELLED)[0]["dropped"]
        return Result("a stop word", f"cancelled, {dropped} message dropped", ok=dropped == 1)

    def _judged(self, check: str, burst: Burst, describe: Describe) -> Result:
        problem = burst.problem(self._arrivals, fetch=self._fetch)
        if problem:
            return Result(check, problem, ok=False)
        late_ms, detail = burst.late_ms(self._arrivals), burst.of(self._arrivals)[0].batch
        found, ok = describe(detail)
        ok &= late_ms <= MAX_LATE_SECONDS * 1_000
        lane = LANES.get(detail["lane"], detail["lane"])
        return Result(check, f"{found} ({lane})", ok=ok, time=f"{late_ms:,} ms late")

    def _fetch(self, reference: Json) -> list[Any]:
        stored = self._stage.client("s3").get_object(Bucket=reference["bucket"], Key=reference["key"])
        messages: list[Any] = json.loads(stored["Body"].read())["messages"]
        return messages

    # -- steps -------------------------------------------------------------------------------------

    def burst(self, name: str, *, account: str = ACCOUNT) -> Burst:
        return Burst(self._webhook, account, f"{self._id}-{name}")

    def _collect(self, *bursts: Burst) -> None:
        """Collect events until all batches of these bursts have arrived, or MAX_LATE_SECONDS after the last is due."""
        due_in_seconds = max((each.due_at_ms for each in bursts), default=0) / 1_000 - time.time()
        self._collect_until(
            max(due_in_seconds, 0) + MAX_LATE_SECONDS, lambda: all(each.is_out(self._arrivals) for each in bursts)
        )

    def _collect_until(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Collect events until `is_over` returns True, for at most `seconds`. Return whether it is over."""
        until = time.monotonic() + seconds
        while not is_over() and time.monotonic() < until:
            self._arrivals += self.poll(wait_seconds=LONG_POLL_SECONDS)
        return is_over()


def _send_together(burst: Burst, *messages: Json) -> None:
    """Send several messages, and edits of them, in one webhook. Raise like `Burst.send`."""
    waits = accepted(burst.webhook.post(messages))["conversations"][burst.conversation]
    ids = [each["id"] for each in messages if not each.get("edited")]
    burst.fragments += [Fragment(each, waits["dueAt"], place) for place, each in enumerate(ids, 1)]


def _edited(detail: Json) -> tuple[str, bool]:
    ok = detail["messages"][0]["text"] == AS_EDITED
    return ("the new text is in its batch" if ok else "the old text is in its batch"), ok


def _placed(detail: Json) -> tuple[str, bool]:
    return ("by S3" if detail.get("messagesRef") else "in the event, which limits.max_event_bytes allows"), True


def _by_the_fallback(detail: Json) -> tuple[str, bool]:
    ok = detail["lane"] == "dynamodb"
    return ("one batch" if ok else "the stage has no fallback"), ok
