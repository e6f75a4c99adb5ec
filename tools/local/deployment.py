"""Deploys the app onto the emulator with the real CDK CLI, and returns the outputs of the stage."""

import json
import os
import secrets
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from bufferctl import sessions
from infra import cli
from infra.settings_and_defaults import LOCAL_API_ID, Role
from tools.local import emulator, processes
from tools.local.errors import LocalError
from tools.local.outputs import FUNCTION_URL_PATH, Outputs

# How many lines of a failed command's log are shown, from its end. The log itself stays in the stage's folder.
MAX_SHOWN_LOG_LINES = 25
IN_A_LOOP = {"processor", "conversation_processor", "dynamodb_processor"}
WITH_BATCH_CALLS = {"sqs:ChangeMessageVisibility", "sqs:DeleteMessage"}
META = ("whatsapp", "messenger", "instagram")
PLATFORMS = ("generic", *META, "twilio", "telegram")


class Cdk:
    """The CDK CLI, with the emulator in place of AWS."""

    def __init__(self, *, endpoint_url: str, region: str, folder: Path, instance: str) -> None:
        self._endpoint_url = endpoint_url
        self._region = region
        self._folder = folder
        self._instance = instance

    def bootstrap(self) -> None:
        # Run the CLI in a folder without cdk.json, because with that file it would also synthesize the app.
        self._run("bootstrap", f"aws://{emulator.ACCOUNT}/{self._region}", folder=self._folder)

    def deploy(self, *, context: Mapping[str, str]) -> Mapping[str, str]:
        """Deploy every stack of the local stage. Return the outputs of all stacks by name."""
        outputs = self._folder / "stack-outputs.json"
        arguments = [
            "deploy",
            "--all",
            "--outputs-file",
            str(outputs),
            "--output",
            str(self._folder / "cdk.out"),
        ]
        arguments += ["--require-approval", "never", "--method", "direct", "--concurrency", "4"]
        arguments += [word for name, value in context.items() for word in ("--context", f"{name}={value}")]
        self._run(*arguments, *cli.app(), folder=cli.ROOT)
        stacks: dict[str, dict[str, str]] = json.loads(outputs.read_text())
        return {name: value for stack in stacks.values() for name, value in stack.items()}

    def _run(self, *arguments: str, folder: Path) -> None:
        # Ignore the developer's AWS profile and a metadata service, so that the CLI can deploy only to the emulator.
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            **cli.environment(),
            # The CLI caches account numbers by access key. Use a cache of its own, so that the developer's cache does
            # not get the emulator's account.
            "CDK_HOME": str(self._folder / "home" / ".cdk"),
            **sessions.CREDENTIALS,
            "AWS_ENDPOINT_URL": self._endpoint_url,
            "AWS_REGION": self._region,
            "AWS_DEFAULT_REGION": self._region,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }
        log = self._folder / f"cdk-{arguments[0]}.log"
        log.unlink(missing_ok=True)
        process = processes.start(
            cli.command(*arguments), instance=self._instance, log=log, environment=environment, folder=folder
        )
        try:
            failed = process.wait()
        except BaseException:
            # Ctrl-C does not reach the CLI, which runs in a session of its own. If it is not killed, it continues to
            # deploy.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if failed:
            raise LocalError(f"cdk {arguments[0]} failed:\n{_last_lines(log.read_text())}")


def _api_endpoint(deployed: str, endpoint_url: str) -> str:
    """Return the API's address on this machine. Do not return the name from CDK, because it does not resolve."""
    name = deployed.removeprefix("https://")
    if ".lambda-url." in name:
        return f"{endpoint_url}{FUNCTION_URL_PATH}{name.partition('.')[0]}"
    return f"{endpoint_url}/_aws/execute-api/{LOCAL_API_ID}/%24default"


def read_back(
    deployed: Mapping[str, str],
    *,
    endpoint_url: str,
    region: str,
    valkey_url: str | None,
    kept_secrets: Mapping[str, Any],
    address: str | None = None,
) -> Outputs:
    """Apply settings that the emulator's CloudFormation ignores, write the webhook secrets, and return the outputs.

    `address` is that of a tunnel to the emulator, if platforms call the stage through one.
    """

    def client(service: str) -> Any:
        return sessions.emulator_client(service, endpoint_url=endpoint_url, region=region)

    roles = [role for role in get_args(Role) if f"{_camel(role)}Function" in deployed]
    functions = {role: deployed[f"{_camel(role)}Function"] for role in roles}
    # Allow these functions to run in a loop. The template allows it, too, but the emulator needs this call.
    for role in IN_A_LOOP & functions.keys():
        client("lambda").put_function_recursion_config(FunctionName=functions[role], RecursiveLoop="Allow")
    if "responder" in functions:
        configuration = client("lambda").get_function_configuration(FunctionName=functions["responder"])
        _allow_batches(client("iam"), role=configuration["Role"].rpartition("/")[2])
    api_endpoint = _api_endpoint(deployed["ApiEndpoint"], endpoint_url)
    if "canary" in functions:
        # The emulator's CloudFormation returns a wrong address of the API, so set the right one.
        _change_settings(client("lambda"), functions["canary"], api_endpoint=api_endpoint)
    # The emulator's events name neither the tunnel nor the path under which the emulator serves the API.
    called = f"{address or endpoint_url}{urlsplit(api_endpoint).path}"
    _change_settings(client("lambda"), functions["ingest"], address=called)
    webhook_secrets = {**_new_secrets(), **kept_secrets}
    client("secretsmanager").put_secret_value(
        SecretId=deployed["WebhookSecretId"], SecretString=json.dumps(webhook_secrets)
    )
    return Outputs(
        ApiEndpoint=api_endpoint,
        EventBusName=deployed["EventBusName"],
        AwsEndpointUrl=endpoint_url,
        Region=region,
        ValkeyUrl=valkey_url,
        WebhookSecrets={name: secret for name in PLATFORMS if (secret := _first_secret(webhook_secrets[name]))},
        Functions=functions,
        LogGroups={role: deployed[f"{_camel(role)}LogGroup"] for role in roles},
        DeadLetterQueueUrl=deployed["DeadLetterQueueUrl"],
        OversizeBucketName=deployed["OversizeBucketName"],
        RulesTableName=deployed["RulesTableName"],
        CacheEndpoint=urlsplit(valkey_url).netloc if valkey_url else None,
        WebhookUrls={platform: f"{called}/webhook/{platform}" for platform in PLATFORMS},
    )


def _change_settings(aws_lambda: Any, function: str, **changes: str) -> None:
    variables = aws_lambda.get_function_configuration(FunctionName=function)["Environment"]["Variables"]
    variables["SETTINGS"] = json.dumps({**json.loads(variables["SETTINGS"]), **changes})
    aws_lambda.update_function_configuration(FunctionName=function, Environment={"Variables": variables})


def _allow_batches(iam: Any, *, role: str) -> None:
    """Allow a role the batch calls of the actions on queues that it may call. AWS allows both by the same action, and
    has no actions for the batch calls; the emulator asks for these."""
    policies = iam.list_role_policies(RoleName=role)["PolicyNames"]
    statements = [
        {**statement, "Action": [f"{action}Batch" for action in sorted(actions)]}
        for name in policies
        for statement in iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]["Statement"]
        if (actions := WITH_BATCH_CALLS & {*statement["Action"]})
    ]
    document = json.dumps({"Version": "2012-10-17", "Statement": statements})
    iam.put_role_policy(RoleName=role, PolicyName="BatchCalls", PolicyDocument=document)


def _new_secrets() -> dict[str, Any]:
    """Return secrets in the form that ingest reads. On Meta's platforms the secret is also the verify token."""
    made = {platform: secrets.token_hex(16) for platform in PLATFORMS}
    return {**made, **{name: {"secret": made[name], "verifyToken": made[name]} for name in META}}


def _first_secret(described: Any) -> str | None:
    found = described.get("secret") if isinstance(described, dict) else described
    return found[0] if isinstance(found, list) and found else found or None


def _camel(role: str) -> str:
    return "".join(word.capitalize() for word in role.split("_"))


def _last_lines(text: str, count: int = MAX_SHOWN_LOG_LINES) -> str:
    lines: Sequence[str] = text.strip().splitlines()
    return "\n".join(lines[-count:])
