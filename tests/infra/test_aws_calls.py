"""Everything that our code asks of AWS is in the SDK's models of its services, and in the cache's list of commands.

No model says whether AWS does what it lists. docs/deploy.md says what is proved how.
"""

import re

import pytest

from infra.cache import ACCESS
from tests.infra.conftest import ROOT
from tests.support.aws_calls import mistakes, services_in
from tests.support.valkey_server import SERVERLESS_COMMANDS


def test_the_cache_has_every_command_that_its_user_may_run() -> None:
    """The strict server of the integration tests allows the application only these commands."""
    assert set(re.findall(r"\+(\S+)", ACCESS)) - SERVERLESS_COMMANDS == set()


CODE = [
    path
    for room in ("message_buffer", "lambdas", "infra", "bufferctl", "tools", "examples")
    for path in (ROOT / room).rglob("*.py")
]


def test_every_call_of_aws_has_the_arguments_of_the_sdks_model() -> None:
    texts = {path.relative_to(ROOT): path.read_text("utf-8") for path in CODE if "node_modules" not in path.parts}
    services = sorted({service for text in texts.values() for service in services_in(text)})
    found = {path: mistakes(text, services) for path, text in texts.items()}
    assert sum(each.calls for each in found.values()) > 80
    assert {str(path): list(each) for path, each in found.items() if each} == {}


@pytest.mark.parametrize(
    ("call", "mistake"),
    [
        ("client('sqs').send_mesage(QueueUrl=url)", "sqs has no send_mesage"),
        ("client('sqs').delete_message(url, receipt)", "delete_message takes no positional arguments"),
        ("client('sqs').delete_message(QueueUrl=url)", "ReceiptHandle is missing"),
        ("client('sqs').delete_message(QueueURL=url, **more)", "no argument QueueURL"),
        ("client('ec2').describe_subnets(Filters=[{'Nam': 'a'}])", "no argument Nam"),
        ("client('lambda').invoke(FunctionName=name, InvocationType='Evnt')", "Evnt is none of"),
        ("client('s3').get_paginator('list_objects_v2').paginate(Buckt=b)", "no argument Buckt"),
        ("self._client.batch_get_item(RequestItem=items)", "no argument RequestItem"),
        ("client.exceptions.ConditionalCheckFailed", "no service has the exception"),
    ],
)
def test_a_mistake_in_a_call_is_found(call: str, mistake: str) -> None:
    found = mistakes(call, ["dynamodb", "s3"])
    assert [each for each in found if mistake in each], found
