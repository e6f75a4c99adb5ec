"""Finds a stage by the outputs of its stack, or by the file that a local stage writes, and calls its functions."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bufferctl import sessions
from bufferctl.errors import Conflict, Failed, NotFound, Unreachable
from lambdas.canary.webhook import generic_secret
from message_buffer.json_object import Json

LOCAL = "local"
ROOT = Path(__file__).parent.parent
LOCAL_OUTPUTS = ROOT / ".local" / "outputs.json"
# The region of a stage for which cdk.json names none; tests compare it with the settings of `infra`.
DEFAULT_REGION = "us-east-1"

# Error codes of the admin function and the responder that have an error of their own.
ERRORS: dict[str, type[Failed]] = {"not_found": NotFound, "unavailable": Unreachable, "conflict": Conflict}

Client = Callable[[str], Any]


class Account(NamedTuple):
    """The AWS account and region of a stage. The stage may be broken or not deployed."""

    client: Client
    api_endpoint: str | None = None
    """The address of a local stage's API. The stack's output is no help, because the emulator writes a wrong address
    into it."""
    aws_cli: str = "aws"
    """The beginning of AWS CLI commands for this account and region, such as `aws --region us-east-1`."""


@dataclass(frozen=True)
class StageClient:
    api_endpoint: str
    event_bus: str
    admin_function: str
    responder_function: Callable[[], str | None]
    """Returns the name of the responder's function, or None in a stage without a responder."""
    webhook_secret_id: Callable[[], str]
    """Returns the id of the secret of all webhooks."""
    client: Client

    def ask(self, operation: str, **fields: Any) -> Json:
        """Return the admin function's response. Leave fields that are None out of the request."""
        return self._ask(self.admin_function, operation, fields)

    def ask_responder(self, operation: str, **fields: Any) -> Json:
        """Return the responder's response. Raise Failed in a stage without a responder."""
        function = self.responder_function()
        if function is None:
            raise Failed("This stage has no responder.")
        return self._ask(function, operation, fields)

    def webhook_secret(self) -> str:
        """Return the secret of the generic webhook."""
        found = self.client("secretsmanager").get_secret_value(SecretId=self.webhook_secret_id())["SecretString"]
        if (secret := generic_secret(found)) is None:
            raise Failed("This stage has no secret for the generic webhook.")
        return secret

    def _ask(self, function: str, operation: str, fields: Json) -> Json:
        given = {name: value for name, value in fields.items() if value is not None}
        event = {"operation": operation, "by": self._caller(), **given}
        response = self.client("lambda").invoke(FunctionName=function, Payload=json.dumps(event).encode())
        body = json.loads(response["Payload"].read())
        if response.get("FunctionError"):
            whose = "admin" if function == self.admin_function else "responder"
            raise Failed(f"The {whose} function failed: {body.get('errorMessage') or body.get('errorType')}.")
        if not body["ok"]:
            error = body["error"]
            raise ERRORS.get(error["code"], Failed)(error["message"])
        result: Json = body["result"]
        return result

    def _caller(self) -> str:
        return str(self.client("sts").get_caller_identity()["Arn"])


def find_stage(name: str, *, profile: str | None, region: str | None, outputs: Path) -> StageClient:
    return _find_local(outputs) if name == LOCAL else _find_in_aws(name, profile=profile, region=region)


def find_account(name: str, *, profile: str | None, region: str | None, outputs: Path) -> Account:
    """Return the stage's account and region without a call to AWS, so that this also works for a broken stage."""
    if name != LOCAL:
        command = f"aws --region {region or _region_of(name)}" + (f" --profile {profile}" if profile else "")
        return Account(_client_of_aws(name, profile=profile, region=region), aws_cli=command)
    found = _outputs_of_local(outputs)
    # The address and the keys are the emulator's, not a real account's.
    keys = " ".join(f"{name}={value}" for name, value in sessions.CREDENTIALS.items())
    command = f"{keys} aws --endpoint-url {found['AwsEndpointUrl']} --region {found['Region']}"
    return Account(_client_of_emulator(found), found["ApiEndpoint"], aws_cli=command)


def deployed_commit(account: Account, name: str) -> str | None:
    """Return the commit that the stage was deployed from, or None if that was no git checkout."""
    return _outputs(account.client, f"MessageBuffer-{name}-Buffer").get("Commit")


def _outputs_of_local(path: Path) -> Json:
    try:
        outputs: Json = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise Unreachable("The local stage is not up: start it with `make up`.") from error
    except (OSError, ValueError) as error:
        raise Failed(f"{path} is not the outputs.json of a local stage: {error}.") from error
    return outputs


def _client_of_emulator(outputs: Json) -> Client:
    def client(service: str) -> Any:
        # The emulator is on this machine, so two refused connections show that it no longer runs.
        attempts = 1 if service == "lambda" else 2
        return sessions.emulator_client(
            service, endpoint_url=outputs["AwsEndpointUrl"], region=outputs["Region"], attempts=attempts
        )

    return client


def _find_local(path: Path) -> StageClient:
    outputs = _outputs_of_local(path)
    client = _client_of_emulator(outputs)
    return StageClient(
        api_endpoint=outputs["ApiEndpoint"],
        event_bus=outputs["EventBusName"],
        admin_function=outputs["Functions"]["admin"],
        responder_function=lambda: outputs["Functions"].get("responder"),
        webhook_secret_id=lambda: _outputs(client, f"MessageBuffer-{LOCAL}-Buffer")["WebhookSecretId"],
        client=client,
    )


def _client_of_aws(name: str, *, profile: str | None, region: str | None) -> Client:
    import boto3  # noqa: PLC0415 - it would make --help slow
    from botocore.config import Config  # noqa: PLC0415

    session = boto3.Session(profile_name=profile, region_name=region or _region_of(name))
    making = threading.Lock()
    made: dict[str, Any] = {}

    def client(service: str) -> Any:
        # The console has several threads, which may share a client, but not the session that makes it.
        with making:
            if service not in made:
                config = Config(**(sessions.ONCE if service == "lambda" else {}))
                made[service] = session.client(service, config=config)
            return made[service]

    return client


def _find_in_aws(name: str, *, profile: str | None, region: str | None) -> StageClient:
    client = _client_of_aws(name, profile=profile, region=region)
    outputs = _outputs(client, f"MessageBuffer-{name}-Buffer")
    return StageClient(
        api_endpoint=outputs["ApiEndpoint"],
        event_bus=outputs["EventBusName"],
        admin_function=outputs["AdminFunction"],
        responder_function=lambda: _responder(client, name),
        webhook_secret_id=lambda: outputs["WebhookSecretId"],
        client=client,
    )


def stages() -> Json:
    """Return the stages of cdk.json."""
    found: Json = json.loads((ROOT / "cdk.json").read_text("utf-8"))["context"]["stages"]
    return found


def _region_of(name: str) -> str:
    """Return the region that cdk.json gives the stage. Raise NotFound if cdk.json does not have the stage."""
    found = stages()
    if name not in found:
        raise NotFound(
            f"cdk.json has no stage '{name}', but {', '.join(sorted(found))}. For a stage of another clone, give its "
            "--region."
        )
    return str(found[name].get("region", DEFAULT_REGION))


def _outputs(client: Client, stack_name: str) -> dict[str, str]:
    (stack,) = client("cloudformation").describe_stacks(StackName=stack_name)["Stacks"]
    return {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", [])}


def _responder(client: Client, name: str) -> str | None:
    from botocore.exceptions import ClientError  # noqa: PLC0415 - it would make --help slow

    try:
        return _outputs(client, f"MessageBuffer-{name}-Responder").get("ResponderFunction")
    except ClientError as error:
        # CloudFormation returns this code for a stack that does not exist.
        if error.response["Error"]["Code"] != "ValidationError":
            raise
        return None
