"""The numbers that several modules of the infrastructure or of `bufferctl/cost/` share. Others are beside their use.

Operators change `infra/settings_and_defaults.py`. Nothing here imports the CDK: `infra/settings_and_defaults.py` and
`bufferctl/cost/` use these numbers without it.
"""

from message_buffer.limits import SECOND_MS, WATCHDOG_PASS_MS

# Less than 29 s, after which API Gateway would answer the platform instead of ingest.
INGEST_TIMEOUT_SECONDS = 15
# A rule of EventBridge runs once a minute at most.
RULE_SECONDS = 60
# The time between two passes of the watchdog.
WATCHDOG_PASS_SECONDS = WATCHDOG_PASS_MS // SECOND_MS
# The sweep of the DynamoDB lane finds windows whose trigger was lost.
SWEEP_SECONDS = RULE_SECONDS
CANARY_RUN_SECONDS = 300
# The longest time that SQS keeps a message.
DEAD_LETTER_RETENTION_DAYS = 14
# AWS recommends hiding a message for six time-outs of the function that consumes it, since Lambda may have to hold the
# message back while the function is throttled.
VISIBILITY_TIMEOUTS = 6
# How long a processor may run: Lambda's longest time-out.
PROCESSOR_LIFE_SECONDS = 900
