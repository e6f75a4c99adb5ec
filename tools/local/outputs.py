"""The addresses, names and secrets of a running local stage, as `up` writes them for its users."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bufferctl import sessions
from tools.local.errors import LocalError

# The emulator serves each function URL under this path, followed by the URL's id.
FUNCTION_URL_PATH = "/_aws/lambda-url/"


@dataclass(frozen=True)
class Outputs:
    """The content of outputs.json. Tests and tools use the names of these fields."""

    ApiEndpoint: str
    EventBusName: str
    AwsEndpointUrl: str
    Region: str
    ValkeyUrl: str | None
    """None in a stage that has only the DynamoDB lane."""
    WebhookSecrets: dict[str, str]
    Functions: dict[str, str]
    LogGroups: dict[str, str]
    DeadLetterQueueUrl: str
    OversizeBucketName: str
    RulesTableName: str
    CacheEndpoint: str | None = None
    """`host:port` of Valkey. In AWS the stack has an output of the same name."""
    WebhookUrls: dict[str, str] = field(default_factory=dict)
    """The URL that each platform calls. If `up` was given the address of a tunnel, the URL begins with it."""

    def write(self, path: Path) -> None:
        # Write to another file and rename it, so that a program that waits for the file never reads half of it.
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(asdict(self), indent=2) + "\n")
        unfinished.replace(path)

    @classmethod
    def read(cls, path: Path) -> Outputs:
        try:
            found = json.loads(path.read_text())
            # Another version may have written the file.
            return cls(**{each.name: found[each.name] for each in fields(cls) if each.name in found})
        except FileNotFoundError as error:
            raise LocalError("The local stage is not up: start it with `make up`.") from error

    def client(self, service: str) -> Any:
        """Return a boto3 client that calls this stage's emulator."""
        return sessions.emulator_client(service, endpoint_url=self.AwsEndpointUrl, region=self.Region)
