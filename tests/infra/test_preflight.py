"""Every sentence that preflight can print, and that it prints nothing if nothing is missing.

The answers of AWS are checked against the SDK's own description of the services.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import boto3
import pytest
from aws_cdk.assertions import Template
from botocore.stub import Stubber

from infra import preflight
from infra.preflight import Advice, Stuck, identify, problems, problems_there
from infra.settings_and_defaults import STACKS, NetworkConfig, StageConfig

# One process synthesizes for all tests of this file.
pytestmark = pytest.mark.xdist_group("synth")

ROOT = Path(__file__).parents[2]
ACCOUNT = "111122223333"
OTHER_ACCOUNT = "444455556666"
ZONES = ["us-east-1a", "us-east-1b"]
RULES = {"rules": {"preset": "customers"}}
STAGES = {"dev": RULES, "prod": {**RULES, "termination_protection": True}}

# The tests replace boto3.Session.
REAL_SESSION = boto3.Session

Answer = tuple[str, str, Mapping[str, Any] | str]
IDENTITY: Answer = ("sts", "get_caller_identity", {"Account": ACCOUNT, "Arn": f"arn:aws:iam::{ACCOUNT}:user/one"})
NOTHING_DEPLOYED: Answer = ("resourcegroupstaggingapi", "get_resources", {"ResourceTagMappingList": []})


def quota(value: int) -> Answer:
    return ("service-quotas", "get_service_quota", {"Quota": {"Value": value}})


def vpcs(count: int) -> Answer:
    return ("ec2", "describe_vpcs", {"Vpcs": [{}] * count})


def addresses(count: int) -> Answer:
    return ("ec2", "describe_addresses", {"Addresses": [{}] * count})


def caches(count: int) -> Answer:
    return ("elasticache", "describe_serverless_caches", {"ServerlessCaches": [{}] * count})


# Preflight asks about quotas after everything else.
EMPTY_AND_LARGE = [*[NOTHING_DEPLOYED] * 3, *[quota(40)] * 3, vpcs(0), addresses(0), caches(0)]


class Session:
    """A boto3 session whose clients give these answers, in this order, a string being an error's code."""

    def __init__(self, *answers: Answer) -> None:
        self._real = REAL_SESSION(aws_access_key_id="testing", aws_secret_access_key="testing")
        self._clients = {
            service: self._answering(service, list(those))
            for service, those in itertools.groupby(sorted(answers, key=lambda answer: answer[0]), lambda a: a[0])
        }

    def _answering(self, service: str, answers: list[Answer]) -> Any:
        client = self._real.client(service, region_name="us-east-1")
        stubber = Stubber(client)
        for _, operation, answer in answers:
            if isinstance(answer, str):
                stubber.add_client_error(operation, service_error_code=answer)
            else:
                stubber.add_response(operation, answer)
        stubber.activate()
        return client

    def client(self, service: str, **_: Any) -> Any:
        return self._clients[service]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def limits(concurrent: int, unreserved: int) -> Answer:
    limit = {"ConcurrentExecutions": concurrent, "UnreservedConcurrentExecutions": unreserved}
    return ("lambda", "get_account_settings", {"AccountLimit": limit})


def zones(*names: str) -> Answer:
    found = [{"ZoneName": name, "State": "available"} for name in names]
    return ("ec2", "describe_availability_zones", {"AvailabilityZones": found})


def network_in(*names: str) -> Answer:
    """Return EC2's answer about the subnets of a network in these zones, the highest addresses first."""
    places = list(enumerate([*names, *names]))
    found = [{"AvailabilityZone": name, "CidrBlock": f"10.0.{place * 4}.0/22"} for place, name in reversed(places)]
    return ("ec2", "describe_subnets", {"Subnets": found})


def endpoints(**services: Sequence[str]) -> Answer:
    found = [
        {"ServiceName": f"com.amazonaws.us-east-1.{name}", "AvailabilityZones": where}
        for name, where in services.items()
    ]
    return ("ec2", "describe_vpc_endpoint_services", {"ServiceDetails": found})


def stacks(**states: str) -> list[Answer]:
    """Return CloudFormation's answer about each stack. A `+` after a given state means that the stack is protected."""
    return [
        (
            "cloudformation",
            "describe_stacks",
            {"Stacks": [stack_in(word, states[word])]} if word in states else "ValidationError",
        )
        for word in STACKS
    ]


def stack_in(word: str, state: str) -> dict[str, Any]:
    return {
        "StackName": f"MessageBuffer-prod-{word}",
        "CreationTime": "2030-01-01T00:00:00Z",
        "StackStatus": state.rstrip("+"),
        "EnableTerminationProtection": state.endswith("+"),
    }


@pytest.fixture
def prod(stage_config: Callable[..., StageConfig]) -> StageConfig:
    """Return the stage prod, which reserves 206 and names two zones."""
    concurrency = {"ingest": 100, "processor": 4, "conversation_processor": 100, "watchdog": 2}
    return stage_config("prod", account=ACCOUNT, concurrency=concurrency, network={"availability_zones": ZONES})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Return a machine on which nothing is missing."""
    monkeypatch.setattr(preflight, "lambda_interpreter", lambda: "/usr/bin/python3.13")
    return monkeypatch


def in_account(config: StageConfig, *answers: Answer) -> list[str]:
    """Return what is missing in an account that gives these answers. Without an answer about stacks, it has none."""
    asked = {operation for _, operation, _ in answers}
    nothing = [network_in(), *stacks()]
    answers = (*(answer for answer in nothing if answer[1] not in asked), *answers, *EMPTY_AND_LARGE)
    return list(problems_there(config, Session(*answers).client))


# -- this machine and cdk.json -----------------------------------------------------------------------------------


def test_all_that_is_missing_is_said_at_once(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(preflight, "lambda_interpreter", lambda: None)
    python, stage, *rest = problems(STAGES, "prdo")
    assert python.startswith("Python 3.13 is missing")
    assert stage == "Unknown stage 'prdo'. Valid stages: dev, prod."
    assert not rest


def test_rules_that_the_functions_would_ignore_are_said_before(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(boto3, "Session", lambda: pytest.fail("asked for credentials"))
    (sentence,) = problems({"dev": {"rules": {"silenceMs": 60_000}}}, "dev")
    assert "silenceMs: 60000 is not below maxWaitMs (30000)" in sentence


# -- the credentials ---------------------------------------------------------------------------------------------


def signed_in(config: StageConfig, machine: pytest.MonkeyPatch, session: Session) -> None:
    machine.setattr(boto3, "Session", lambda: session)
    identify(config)


def test_credentials_that_aws_does_not_take_are_said_with_its_reason(
    prod: StageConfig, machine: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stuck, match=r"do not work in us-east-1: .*\(ExpiredToken\).*Sign in"):
        signed_in(prod, machine, Session(("sts", "get_caller_identity", "ExpiredToken")))


def test_credentials_of_another_account_are_refused(prod: StageConfig, machine: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stuck, match=f"are for account {OTHER_ACCOUNT}, but stage 'prod' belongs to {ACCOUNT}"):
        signed_in(prod, machine, Session(("sts", "get_caller_identity", {"Account": OTHER_ACCOUNT})))


@pytest.mark.parametrize("where", ["environment", "configuration"])
def test_an_endpoint_that_is_not_aws_is_named_before_anything_is_asked(
    prod: StageConfig, machine: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    if where == "environment":
        machine.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4566")
    else:
        (tmp_path / "config").write_text("[default]\nendpoint_url = http://127.0.0.1:4566\n")
        machine.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(Stuck, match=r"Unset AWS_ENDPOINT_URL.* names http://127\.0\.0\.1:4566, not AWS"):
        signed_in(prod, machine, Session(("sts", "get_caller_identity", {"Account": ACCOUNT})))
    machine.setenv("AWS_ENDPOINT_URL", "https://vpce-1-2.sts.us-east-1.vpce.amazonaws.com")
    signed_in(prod, machine, Session(("sts", "get_caller_identity", {"Account": ACCOUNT})))


# -- the account -------------------------------------------------------------------------------------------------


def test_an_account_that_has_everything_is_ready(prod: StageConfig) -> None:
    answers = [limits(1_000, 306), NOTHING_DEPLOYED]
    assert not in_account(prod, *answers)


@pytest.mark.parametrize(("concurrent", "unreserved", "available"), [(1_000, 305, 205), (10, 10, 0)])
def test_concurrency_that_lambda_would_refuse_is_said_before(
    concurrent: int, unreserved: int, available: int, prod: StageConfig
) -> None:
    answers = [limits(concurrent, unreserved), NOTHING_DEPLOYED]
    (sentence,) = in_account(prod, *answers)
    assert f"reserves 206 concurrent executions, but {available} are left to reserve" in sentence


def test_an_existing_network_cannot_move(prod: StageConfig) -> None:
    answers = [limits(1_000, 1_000), NOTHING_DEPLOYED]
    assert not in_account(prod, *answers, network_in(*ZONES))
    for elsewhere in (["us-east-1b", "us-east-1c"], ZONES[::-1]):
        (sentence,) = in_account(prod, *answers, network_in(*elsewhere))
        assert f"is in {' and '.join(elsewhere)}, and cannot be moved. Name these, in this order, as" in sentence
    # If the settings name no zones, the stage keeps its present zones.
    anywhere = prod.model_copy(update={"account": None, "network": NetworkConfig()})
    assert not in_account(anywhere, *answers, network_in("us-east-1b", "us-east-1c"))


@pytest.mark.parametrize("named", [True, False])
def test_a_zone_without_an_interface_endpoint_is_said_before_the_first_deployment(
    named: bool, stage_config: Callable[..., StageConfig]
) -> None:
    config = stage_config("dev", network={"egress": "endpoints", "availability_zones": ZONES if named else []})
    everywhere = [*ZONES, "us-east-1c"]
    services = dict.fromkeys(preflight.ENDPOINT_SERVICES, everywhere)
    ready = [limits(1_000, 1_000)]
    asked = [*ready, network_in(), zones(*everywhere)]
    assert not in_account(config, *asked, endpoints(**services))
    (sentence,) = in_account(config, *asked, endpoints(**services | {"sqs": everywhere[1:]}))
    assert sentence.startswith("sqs has no interface endpoint in us-east-1a.")
    assert "name zones with all endpoints (us-east-1b, us-east-1c)" in sentence
    # If the network exists, preflight does not ask about zones, because its endpoints exist, too.
    assert not in_account(config, *ready, network_in(*ZONES))


@pytest.mark.parametrize(
    ("quotas", "used", "sentence"),
    [
        ((6, 9, 9), (5, 5, 5), ""),
        (
            (5, 9, 9),
            (5, 5, 5),
            "needs 1 more vpcs, but the account's quota in us-east-1 leaves 0",
        ),
        (
            (9, 6, 9),
            (5, 5, 5),
            "needs 2 more addresses, but the account's quota in us-east-1 leaves 1",
        ),
        ((9, 9, 5), (5, 5, 5), "needs 1 more serverless_caches, but"),
    ],
)
def test_a_quota_that_is_used_up_is_said_before(
    quotas: Sequence[int], used: Sequence[int], sentence: str, prod: StageConfig
) -> None:
    left = [*map(quota, quotas), vpcs(used[0]), addresses(used[1]), caches(used[2])]
    found = in_account(prod, limits(1_000, 1_000), NOTHING_DEPLOYED, *left)
    assert len(found) == bool(sentence)
    assert all(sentence in each for each in found)


@pytest.mark.parametrize("agreement", ["AVAILABLE", "NOT_AVAILABLE"])
def test_a_model_that_the_account_may_not_use_yet_is_advice(
    agreement: str, stage_config: Callable[..., StageConfig]
) -> None:
    responder = {"assistant": "bedrock", "model": "us.amazon.nova-lite-v1:0"}
    available: Answer = (
        "bedrock",
        "get_foundation_model_availability",
        {
            "modelId": "amazon.nova-lite-v1:0",
            "agreementAvailability": {"status": agreement},
            "authorizationStatus": "AUTHORIZED",
            "entitlementAvailability": "AVAILABLE",
            "regionAvailability": "NOT_AVAILABLE",
        },
    )
    config = stage_config("dev", responder=responder)
    found = in_account(config, limits(1_000, 1_000), available)
    assert len(found) == (agreement != "AVAILABLE")
    for sentence in found:
        assert isinstance(sentence, Advice)
        assert "may not use us.amazon.nova-lite-v1:0 yet (agreement NOT_AVAILABLE), so replies would fail" in sentence


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("ROLLBACK_COMPLETE+", "failed (ROLLBACK_COMPLETE). Run `make prune STAGE=prod`"),
        ("ROLLBACK_FAILED+", "failed (ROLLBACK_FAILED). Run `make prune STAGE=prod`"),
        ("ROLLBACK_COMPLETE", ""),
        ("UPDATE_COMPLETE+", ""),
    ],
)
def test_a_stack_that_an_earlier_deployment_left_behind_is_said_with_the_way_out(
    state: str, sentence: str, prod: StageConfig
) -> None:
    answers = [limits(1_000, 1_000), NOTHING_DEPLOYED]
    found = in_account(prod, *answers, *stacks(Network="CREATE_COMPLETE", Buffer=state))
    assert len(found) == bool(sentence)
    assert all(sentence in each for each in found)


def test_a_rest_api_needs_a_role_that_the_account_gives_to_all_of_them(
    stage_config: Callable[..., StageConfig],
) -> None:
    config = stage_config("dev", api={"kind": "rest"})
    account = [limits(1_000, 1_000)]
    (sentence,) = in_account(config, *account, ("apigateway", "get_account", {}))
    assert "no role for CloudWatch Logs" in sentence
    paragraph = sentence.rpartition("#")[2].rstrip(".").replace("-", " ")
    assert f"\n## {paragraph}\n" in (ROOT / "docs" / "deploy.md").read_text().lower()
    given = {"cloudwatchRoleArn": f"arn:aws:iam::{ACCOUNT}:role/logs"}
    assert not in_account(config, *account, ("apigateway", "get_account", given))


def test_a_question_that_is_not_allowed_does_not_keep_the_others_from_being_asked(prod: StageConfig) -> None:
    refused: Answer = ("lambda", "get_account_settings", "AccessDenied")
    concurrency, zones = in_account(prod, refused, network_in(*ZONES[::-1]))
    assert isinstance(concurrency, Advice)
    assert concurrency.startswith("The check for concurrency problems ended: An error occurred (AccessDenied)")
    assert "cannot be moved" in zones


# -- what the stacks themselves say ------------------------------------------------------------------------------------


def test_the_endpoints_asked_for_are_those_of_the_network(synthesize: Callable[..., Mapping[str, Template]]) -> None:
    network = synthesize("prod", network={"egress": "endpoints"}, tracing=True)["Network"]
    found = network.find_resources("AWS::EC2::VPCEndpoint", {"Properties": {"VpcEndpointType": "Interface"}})
    names = {str(each["Properties"]["ServiceName"]).rpartition(".")[2] for each in found.values()}
    assert names == {*preflight.ENDPOINT_SERVICES, preflight.TRACING_SERVICE}


def test_advice_is_printed_and_does_not_fail_the_command(
    machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.setattr(preflight, "problems", lambda *_, **__: iter([Advice("The account is small.")]))
    assert preflight.main(["--stage", "dev"]) == 0
    assert capsys.readouterr().err == "Good to know: The account is small.\n"
