"""Stores content that is too large for an event or a queue."""

from message_buffer.aws import clients as aws


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
