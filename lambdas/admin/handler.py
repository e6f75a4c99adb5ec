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
from lambdas.shared.senders.holding_table import HoldingTable
from lambdas.shared.senders.rules_table import RulesTable
from lambdas.shared.senders.starter import NO_PROCESSOR, ProcessorStarter
from lambdas.shared.senders.triggers import TriggerQueue
from lambdas.shared.store.opening import Opener, open_store
from lambdas.shared.store.store import Store
from lambdas.shared.telemetry import Telemetry
from lambdas.shared.window import WindowLane


class _Parts(NamedTuple):
    """What is kept from one call to the next."""

    settings: config.AdminSettings
    main: Store | None
    window: WindowLane | None
    functions: Functions
    telemetry: Telemetry


@cache
def _parts() -> _Parts:
    settings, telemetry = config.read_admin(), Telemetry()
    return _Parts(settings, _main(settings, telemetry), _window(settings), Functions(), telemetry)


def _main(settings: config.AdminSettings, telemetry: Telemetry) -> Store | None:
    if settings.valkey is None:
        return None
    opener = Opener(settings.valkey, sign_cache_token, count_swallowed=lambda: telemetry.count("StoreRetries"))
    return open_store(settings.valkey, opener)


def _window(settings: config.AdminSettings) -> WindowLane | None:
    if settings.holding is None:
        return None
    return WindowLane(HoldingTable(settings.holding.table), TriggerQueue(settings.holding.queue_url))


def handler(event: Any, context: Any) -> dict[str, Any]:
    settings, main, window, functions, telemetry = _parts()
    starter = ProcessorStarter(functions, settings.processor_function or NO_PROCESSOR, telemetry)
    operations = operations_of(
        Conversations(main, starter, EventBus(settings.event_bus), window=window),
        RulesDesk(
            table=RulesTable(settings.rules_table),
            stage_rules=settings.rules,
            store=main,
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
