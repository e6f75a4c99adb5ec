"""Lambda entry of the operators' function: invoked by `bufferctl`, never by the API; IAM says who may.

`{"operation": "conversation.show", "by": "arn:…", "conversation": "…"}`; `service.py` says what it answers.
"""

from functools import cache
from typing import Any, NamedTuple

from lambdas.admin.conversations import Conversations
from lambdas.admin.letters import Letters
from lambdas.admin.rules import RulesDesk
from lambdas.admin.service import Admin, operations_of
from lambdas.shared import config
from lambdas.shared.senders.cache_token import sign_cache_token
from lambdas.shared.senders.dead_letters import DeadLetterQueue
from lambdas.shared.senders.event_bus import EventBus
from lambdas.shared.senders.functions import Functions
from lambdas.shared.senders.rules_table import RulesTable
from lambdas.shared.senders.starter import ProcessorStarter
from lambdas.shared.store.opening import Opener, open_store
from lambdas.shared.store.store import Store
from lambdas.shared.telemetry import Telemetry


class _Parts(NamedTuple):
    """What is kept from one call to the next."""

    settings: config.AdminSettings
    store: Store
    functions: Functions
    telemetry: Telemetry


@cache
def _parts() -> _Parts:
    settings, telemetry = config.read_admin(), Telemetry()
    assert settings.valkey
    opener = Opener(settings.valkey, sign_cache_token, count_swallowed=lambda: telemetry.count("StoreRetries"))
    return _Parts(settings, open_store(settings.valkey, opener), Functions(), telemetry)


def handler(event: Any, context: Any) -> dict[str, Any]:
    settings, store, functions, telemetry = _parts()
    assert settings.processor_function
    starter = ProcessorStarter(functions, settings.processor_function, telemetry)
    operations = operations_of(
        Conversations(store, starter, EventBus(settings.event_bus)),
        RulesDesk(
            table=RulesTable(settings.rules_table),
            stage_rules=settings.rules,
            store=store,
            starter=starter,
            telemetry=telemetry,
            time_left=context.get_remaining_time_in_millis,
        ),
        Letters(
            DeadLetterQueue(settings.dead_letter_queue_url),
            functions,
            settings.redrive_function,
            context.get_remaining_time_in_millis,
        ),
    )
    try:
        return Admin(operations, telemetry).answer(event)
    finally:
        telemetry.flush()
