"""Stores content that is too large for an event or a queue."""

from collections.abc import Sequence

from message_buffer.aws import clients as aws
from message_buffer.errors import SendFailed

# The service deletes at most this many objects in a call.
DELETES = 1_000


class ObjectStore:
    def __init__(self, bucket: str) -> None:
        self.bucket = bucket

    def put(self, key: str, body: bytes) -> None:
        with aws.errors_as_ours("put object"):
            aws.client("s3").put_object(Bucket=self.bucket, Key=key, Body=body, ContentType="application/json")

    def get(self, key: str) -> bytes:
        with aws.errors_as_ours("get object"):
            body: bytes = aws.client("s3").get_object(Bucket=self.bucket, Key=key)["Body"].read()
            return body

    def keys(self, prefix: str) -> list[str]:
        with aws.errors_as_ours("list objects"):
            pages = aws.client("s3").get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
            return [each["Key"] for page in pages for each in page.get("Contents", [])]

    def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), DELETES):
            objects = [{"Key": key} for key in keys[start : start + DELETES]]
            with aws.errors_as_ours("delete objects"):
                response = aws.client("s3").delete_objects(
                    Bucket=self.bucket, Delete={"Objects": objects, "Quiet": True}
                )
            # A successful response may list objects that the service has not deleted.
            if errors := response.get("Errors"):
                raise SendFailed(f"delete objects: {errors[0].get('Code', 'refused')}")
