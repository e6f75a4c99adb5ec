"""The numbers that several modules of the infrastructure or of `bufferctl/cost/` share. Others are beside their use.

Operators change `infra/settings_and_defaults.py`. Nothing here imports the CDK: `infra/settings_and_defaults.py` and
`bufferctl/cost/` use these numbers without it.
"""

# Less than 29 s, after which API Gateway would answer the platform instead of ingest.
INGEST_TIMEOUT_SECONDS = 15
# A rule of EventBridge runs once a minute at most. The rules of the watchdog and of the sweep do.
RULE_SECONDS = 60
# AWS recommends hiding a message for six time-outs of the function that consumes it, since Lambda may have to hold the
# message back while the function is throttled.
VISIBILITY_TIMEOUTS = 6
# How long a processor may run: Lambda's longest time-out.
PROCESSOR_LIFE_SECONDS = 900
