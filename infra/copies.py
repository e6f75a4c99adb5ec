"""The copies of a conversation that `conversation forget` cannot erase, and when each of them expires."""

from message_buffer.limits import DEAD_LETTER_RETENTION_DAYS

from .settings_and_defaults import LOG_RETENTION_DAYS, StageConfig


def ages_out(config: StageConfig) -> dict[str, int]:
    """Return the days until each kind of copy expires. A key says in words where the copies are."""
    found = {
        "the conversation's id in the responder's table": config.outbox_days if config.responder else 0,
        "logs, which contain ids and no words": LOG_RETENTION_DAYS[config.log_retention],
        "continuous backups of the tables": 0 if config.is_local else 35,  # DynamoDB keeps them this long
        "webhooks of AWS End User Messaging that wait or could not be read": DEAD_LETTER_RETENTION_DAYS
        if config.end_user_messaging_topic
        else 0,
        "archive of the bus": config.bus.archive_days,
        "daily snapshots of the cache": config.cache.snapshot_days if config.has_valkey_lane else 0,
    }
    return {place: days for place, days in found.items() if days}
