"""What a started local stage tells whoever wants to use it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bufferctl import sessions
from local.errors import LocalError


@dataclass(frozen=True)
class Outputs:
    """The content of outputs.json; the names are part of the contract with tests and tools."""

    ApiEndpoint: str
    EventBusName: str
    AwsEndpointUrl: str
    Region: str
    ValkeyUrl: str | None
    """None where the DynamoDB lane stands alone."""
    WebhookSecrets: dict[str, str]
    Functions: dict[str, str]
    LogGroups: dict[str, str]
    DeadLetterQueueUrl: str
    OversizeBucketName: str
    RulesTableName: str
    HoldingTableName: str | None = None
    """None, as the queue, where there is no DynamoDB lane."""
    TriggerQueueUrl: str | None = None
    CacheEndpoint: str | None = None
    """`host:port` of Valkey, under the name that the address has among the outputs of a stage in AWS."""

    def write(self, path: Path) -> None:
        # Whoever waits for the file never reads half of it.
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(asdict(self), indent=2) + "\n")
        unfinished.replace(path)

    @classmethod
    def read(cls, path: Path) -> Outputs:
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError as error:
            raise LocalError("The local stage is not up: start it with `make up`.") from error

    def client(self, service: str) -> Any:
        """A boto3 client that talks to this stage's emulator."""
        return sessions.emulator_client(service, endpoint_url=self.AwsEndpointUrl, region=self.Region)
