"""Grants the functions all of their permissions. No other module grants any.

The `grant_…` methods of a resource's construct name the actions; this module says which function gets which of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .buffer import BufferStack
    from .cache import CacheStack
    from .responder import ResponderStack


def grant_to_entrances(stack: BufferStack) -> None:
    """Grant ingest, admin and gate access to secrets, rules, bus, dead letters and the lanes."""
    stack.webhook_secrets.grant_get_value(stack.ingest)
    stack.rules_table.grant_read_rules(stack.ingest)
    stack.takeovers_table.grant_record_replies(stack.ingest)
    stack.aliases_table.grant_learn(stack.ingest)
    stack.bus.grant_publish(stack.ingest)
    stack.dead_letters.grant_send(stack.ingest)
    if stack.whatsapp_queues:
        stack.whatsapp_queues.unreadable.grant_send(stack.ingest)

    stack.emitter.grant_invoke_function(stack.admin)
    stack.ingest.grant_invoke_function(stack.admin)
    stack.bus.grant_publish(stack.admin)
    stack.dead_letters.grant_inspect(stack.admin)
    # For `conversation.forget`, which erases objects.
    stack.oversize.grant_forget(stack.admin)
    stack.rules_table.grant_change_rules(stack.admin)
    stack.takeovers_table.grant_resume_and_forget(stack.admin)
    stack.aliases_table.grant_forget(stack.admin)

    if valkey := stack.valkey_lane:
        valkey.grant_start_processor(stack.ingest)
        valkey.grant_start_processor(stack.admin)
        valkey.grant_start_processor(stack.gate)
    if dynamodb := stack.dynamodb_lane:
        dynamodb.grant_store_messages(stack.ingest)
        dynamodb.grant_end_windows(stack.admin)
        dynamodb.table.grant_forget(stack.admin)
        dynamodb.table.grant_hold(stack.gate)
        dynamodb.triggers.grant_send(stack.gate)


def grant_to_lanes(stack: BufferStack) -> None:
    """Let the functions of each lane start each other, end windows, and emit batches."""
    if valkey := stack.valkey_lane:
        for function in (valkey.processor, valkey.conversation_processor, valkey.watchdog):
            valkey.grant_start_processor(function)
        valkey.conversation_processor.grant_invoke_function(valkey.processor)
        stack.destinations.grant_emit(valkey.conversation_processor)
    if dynamodb := stack.dynamodb_lane:
        stack.destinations.grant_emit(dynamodb.processor)
        dynamodb.grant_end_windows(dynamodb.processor)


def grant_cache(cache: CacheStack, buffer: BufferStack) -> None:
    """Let the functions that call Valkey sign in to the cache."""
    for function in buffer.functions.values():
        if function.calls_valkey:
            cache.grant_connect(function)


def grant_to_canary(stack: BufferStack) -> None:
    """Let the canary read the secret with which it signs, receive from its queue, and read its stack's state."""
    if canary := stack.canary:
        stack.webhook_secrets.grant_get_value(canary.function)
        canary.queue.grant_take(canary.function)
        canary.grant_ask_whether_it_is_deployed()


def grant_to_responder(stack: ResponderStack, buffer: BufferStack) -> None:
    """Grant the responder access to its own storage, and the access to the buffer that any consumer could have."""
    stack.table.grant_read_write(stack.function)
    stack.secrets.grant_get_value(stack.function)
    stack.dead_letters.grant_send(stack.function)
    stack.dead_letters.grant_inspect(stack.function)
    buffer.gate.grant_invoke_function(stack.function)
    buffer.bus.grant_publish(stack.function)
    buffer.oversize.grant_read_batches(stack.function)
    stack.grant_model()
