"""The DynamoDB lane's table: the requests for its messages, its windows and quotas."""

from message_buffer.aws import clients as aws
from message_buffer.lanes.dynamodb.messages import Messages
from message_buffer.lanes.dynamodb.quotas import Quotas
from message_buffer.lanes.dynamodb.windows import Windows


class MessageTable:
    def __init__(self, name: str, *, patience: aws.Patience = aws.PATIENT) -> None:
        self.messages = Messages(name, patience=patience)
        self.windows = Windows(name, patience=patience)
        self.quotas = Quotas(name, patience=patience)
