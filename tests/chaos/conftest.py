import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from infra.settings_and_defaults import TimingsConfig
from tests.support.aws_proxy import AwsProxy, aws_proxy
from tests.support.judge import TEXT_MARK
from tests.support.local_stage import PASS_SECONDS, LocalStage

CLAIM_TIMEOUT_MS = 7_000
LEASE_MS = TimingsConfig().lease_ms
TOKEN_MS = 4_000
CONVERSATION_PROCESSOR_TIMEOUT_MS = 6_000
# Shorter than those of the stage, since tests wait until they are over.
TIMEOUTS = {"valkey.store.claim_ms": CLAIM_TIMEOUT_MS, "valkey.store.token_ms": TOKEN_MS}
# The killed functions start cold, on a machine that also runs other tests.
MARGIN_MS = 15_000
# A living processor puts a batch back when the claim or the token has ended. If the processor was killed, Lambda's
# record of that starts a pass when the lease has ended.
HEALED_BY_PROCESSOR_MS = max(CLAIM_TIMEOUT_MS, TOKEN_MS, LEASE_MS + 1_000) + MARGIN_MS
# The watchdog puts a batch back in its first pass after the claim, or the conversation processor's token, has expired.
HEALED_MS = max(CLAIM_TIMEOUT_MS, TOKEN_MS) + round(PASS_SECONDS * 1_000) + MARGIN_MS
FUNCTION_SECONDS = {"conversation_processor": CONVERSATION_PROCESSOR_TIMEOUT_MS // 1_000}


@pytest.fixture(scope="package")
def faulty_aws(stage: LocalStage) -> Iterator[AwsProxy]:
    """Yield a proxy through which all functions reach AWS, and which can make calls fail; time-outs are short."""
    since_ms = int(time.time() * 1_000)
    with ExitStack() as until_the_end:
        proxy = until_the_end.enter_context(aws_proxy(stage.outputs.AwsEndpointUrl))
        for role in stage.outputs.Functions:
            until_the_end.enter_context(
                stage.configured(
                    role,
                    timeout_seconds=FUNCTION_SECONDS.get(role),
                    settings=TIMEOUTS if role in ("processor", "conversation_processor") else None,
                    AWS_ENDPOINT_URL=proxy.url,
                )
            )
        stage.warm_up()
        yield proxy
        stage.wait_until_idle()
    # The functions must log what went wrong, but not what people wrote.
    for role in stage.outputs.LogGroups:
        lines = stage.log(role, since_ms=since_ms)
        assert lines or role in ("dynamodb_processor", "admin", "gate"), f"{role} says nothing at all"
        secrets = stage.outputs.WebhookSecrets.values()
        assert not [line for line in lines if TEXT_MARK in line or any(secret in line for secret in secrets)]


@pytest.fixture
def aws(faulty_aws: AwsProxy) -> Iterator[AwsProxy]:
    """Yield the proxy without any faults, and remove the test's faults afterwards."""
    faulty_aws.reset()
    yield faulty_aws
    faulty_aws.reset()


@pytest.fixture
def watchdog(stage: LocalStage) -> Iterator[None]:
    with stage.watched(every_seconds=PASS_SECONDS):
        yield


@pytest.fixture
def no_records(stage: LocalStage) -> Iterator[None]:
    with stage.without_failure_records():
        yield
