"""A slot that moved to another node is asked for at the cluster."""

from typing import Any

from redis.cluster import RedisCluster
from redis.exceptions import MovedError

from message_buffer.lanes.valkey.connection import Connection
from message_buffer.lanes.valkey.scripts import load_script


class FormerOwner:
    def __init__(self) -> None:
        self.asked = 0

    def execute_command(self, *args: Any) -> Any:
        self.asked += 1
        raise MovedError("1234 127.0.0.1:7001")


class ClusterWithAMovedSlot(RedisCluster):
    """Names an owner that has given the slot away; asked again, it finds the new one."""

    def __init__(self, former_owner: FormerOwner) -> None:
        self.former_owner = former_owner
        self.asked = 0

    def __del__(self) -> None:
        """Close nothing: there is no connection."""

    def get_node_from_key(self, key: Any, replica: bool = False) -> Any:
        return None

    def get_redis_connection(self, node: Any) -> Any:
        return self.former_owner

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        return [b"LOST"]


def test_a_moved_slot_is_asked_for_at_the_cluster() -> None:
    former_owner = FormerOwner()
    cluster = ClusterWithAMovedSlot(former_owner)
    connection = Connection(lambda: cluster)
    assert connection.run(load_script("renew_lease"), [b"{b0}:open", b"{b0}:processor"], (1, "me", 2)) == [b"LOST"]
    assert (former_owner.asked, cluster.asked) == (1, 1)
