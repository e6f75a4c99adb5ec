"""Keeps refused messages in the dead-letter queue if their platform reacts badly to refusals.

Meta may unsubscribe an app that often refuses webhooks, and Telegram delivers updates more slowly. A message stays in
the queue until an operator redrives it. This module then buffers it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from hashlib import blake2s
from typing import Any

from lambdas.ingest.platforms.base import to_json
from lambdas.ingest.preparation import PreparedMessage, timing_of
from message_buffer.clock import Clock
from message_buffer.errors import InvalidInput, SendFailed
from message_buffer.events.dead_letters import MESSAGE_LETTER, DeadLetterQueue
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.lane import Lane
from message_buffer.messages.conversation_id import parse_conversation_id
from message_buffer.messages.message import decode
from message_buffer.rules.quota import Charge, Quota
from message_buffer.rules.rule_book import RuleBook

# At most 60 messages of an account are put aside at once, and then one a second, which is at most 3,660 in an hour.
MAX_PUT_ASIDE = Quota(messages_per_minute=60, conversations_per_minute=60)
LETTER_VERSION = 1

Refused = tuple[PreparedMessage, o.RefusalReason]


class MessagesPutAside:
    def __init__(self, lane: Lane, queue: DeadLetterQueue, book: RuleBook, clock: Clock) -> None:
        self._lane = lane
        self._queue = queue
        self._book = book
        self._clock = clock

    def put(self, refused: Collection[Refused], in_time: Callable[[Iterable[Refused]], Iterator[Refused]]) -> bool:
        """Put all of these messages into the queue. Return False, and put none, if an account has put too many aside.

        Raise StoreError or SendFailed.
        """
        of_accounts = Counter(message.charge.quotas[0][0] for message, _ in refused)
        # An unused quota admits any number, so the number itself must be bounded.
        if max(of_accounts.values(), default=0) > MAX_PUT_ASIDE.messages_per_minute:
            return False
        for account, count in of_accounts.items():
            charge = Charge(((f"put-aside:{account}", MAX_PUT_ASIDE),), is_of_one_shard=True)
            if not isinstance(self._lane.charge(account, charge, messages=0, others=count), o.Charged):
                return False
        for message, reason in in_time(refused):
            self._queue.put(to_json(self._letter(message, reason)))
        return True

    def _letter(self, message: PreparedMessage, reason: o.RefusalReason) -> dict[str, Any]:
        name, now_ms = str(message.conversation), self._clock()
        digest = blake2s(f"{name}\n{message.id}".encode(), digest_size=12).hexdigest()
        return {
            "version": LETTER_VERSION,
            "kind": MESSAGE_LETTER,
            "reason": f"refused: {reason}",
            "batchId": f"{MESSAGE_LETTER}-{digest}",
            "conversationId": name,
            "firstAt": now_ms,
            "lastAt": now_ms,
            "payloads": [message.payload.decode()],
        }

    def bring_in(self, letter: Mapping[str, Any]) -> str:
        """Buffer the message of a letter by the present rules, without charging a quota. Return the letter's id.

        Raise InvalidInput if the letter is not valid, StoreError if the lane fails, and SendFailed if the conversation
        is full.
        """
        try:
            letter_id, payload = str(letter["batchId"]), str(letter["payloads"][0]).encode()
            conversation = parse_conversation_id(letter["conversationId"])
        except (KeyError, IndexError, TypeError) as error:
            raise InvalidInput("this is not the body of a dead letter of a message") from error
        message = decode(payload)
        timing = timing_of(message, self._book.for_conversation(conversation, message.agent).rules)
        outcome = self._lane.buffer_message(str(conversation), message.id, payload=payload, timing=timing)
        if isinstance(outcome, o.MessageRefused):
            raise SendFailed("buffer message: too much waits in its conversation")
        return letter_id
