"""The event bus: the accounts that may put rules on it, and the archive for replays."""

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from constructs import Construct

from .function import keep_identity, removal_policy
from .settings_and_defaults import StageConfig

SOURCE = "message-buffer"
# The tenant of the canary and of `bufferctl verify`. This module may not import it from `message_buffer/`, so
# tests/infra/test_environment_contract.py compares the two constants.
TRIAL_TENANT = "message-buffer-trial"
# The detail types of the events.
EVENTS = (
    "messages.batch.ready",
    "messages.amended",
    "messages.buffer.cancelled",
    "messages.conversation.completed",
    "messages.conversation.forgotten",
    "messages.conversation.handed_back",
    "messages.conversation.handed_off",
    "messages.conversation.idle",
    "messages.operator.acted",
    "messages.reply.failed",
    "messages.reply.sent",
    "messages.reply.withheld",
)
# The actions with which an account keeps its rules.
RULE_UPKEEP = [f"events:{verb}Rule" for verb in ("Describe", "Enable", "Disable", "Delete")]
RULE_UPKEEP += [f"events:{action}" for action in ("PutTargets", "RemoveTargets", "ListTargetsByRule")]


def bus_name(config: StageConfig) -> str:
    """Return the name of the stage's bus, so that other stacks need not refer to the bus's stack."""
    return f"message-buffer-{config.name}"


class BatchBus(events.EventBus):
    """An event bus. A key of AWS encrypts it, so that archive, replay and rules need no key policy of their own."""

    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        # Consumers refer to the bus by its name, and CloudFormation would replace a bus whose name changes.
        super().__init__(scope, construct_id, event_bus_name=bus_name(config))
        # AWS replays an archive only onto the bus of its events, so bus and archive have the same removal policy.
        self.apply_removal_policy(removal_policy(config))
        keep_identity(self, "Bus")
        if config.bus.archive_days:
            self._keep_events(config)
        if config.bus.consumer_accounts:
            self._let_consume(config.bus.consumer_accounts)

    def _keep_events(self, config: StageConfig) -> None:
        archive = events.Archive(
            self,
            "Archive",
            source_event_bus=self,
            event_pattern=events.EventPattern(source=[SOURCE]),
            description="Events, for a replay",
            retention=cdk.Duration.days(config.bus.archive_days),
        )
        archive.apply_removal_policy(removal_policy(config))
        keep_identity(archive.node.find_child("Archive"), "BusArchive")

    def _let_consume(self, accounts: tuple[str, ...]) -> None:
        """Let each of these AWS accounts make rules for our events, and change only the rules that it made."""
        consumers = [iam.AccountPrincipal(account) for account in accounts]
        rules = cdk.Stack.of(self).format_arn(
            service="events", resource="rule", resource_name=f"{self.event_bus_name}/*"
        )
        # A new rule has no creator yet. So the condition is `StringEqualsIfExists`, which is true if there is no
        # creator.
        own = {"events:creatorAccount": "${aws:PrincipalAccount}"}
        self.add_to_resource_policy(
            iam.PolicyStatement(
                sid="MakeRulesForOurEvents",
                principals=consumers,
                actions=["events:PutRule"],
                resources=[rules],
                conditions={
                    "StringEqualsIfExists": own,
                    "ForAllValues:StringEquals": {"events:source": SOURCE, "events:detail-type": list(EVENTS)},
                    # Require a source and a detail-type, because a rule without them matches every event.
                    # "ForAllValues" does not require them: it is true if there are no values.
                    "Null": {"events:source": "false", "events:detail-type": "false"},
                },
            )
        )
        self.add_to_resource_policy(
            iam.PolicyStatement(
                sid="KeepOwnRules",
                principals=consumers,
                actions=RULE_UPKEEP,
                resources=[rules],
                conditions={"StringEqualsIfExists": own},
            )
        )
