"""The firewall (web ACL) in front of a REST API.

The bodies of webhooks contain what customers type, so rules against suspicious bodies only count requests, and do not
block them.
"""

from aws_cdk import aws_wafv2 as waf
from constructs import Construct

from .settings_and_defaults import StageConfig

RATE_WINDOW_SECONDS = 300
# Customers write about scripts, paths and addresses, and a webhook with many messages is large. A platform would send a
# blocked webhook again for days and never succeed, so these rules only count matches. So does the rule against requests
# without a user agent, because a platform may send none.
COUNTED_OF_GROUP = {
    "AWSManagedRulesCommonRuleSet": [
        "NoUserAgent_HEADER",
        "SizeRestrictions_BODY",
        "EC2MetaDataSSRF_BODY",
        "GenericLFI_BODY",
        "GenericRFI_BODY",
        "CrossSiteScripting_BODY",
    ],
    "AWSManagedRulesKnownBadInputsRuleSet": [
        "JavaDeserializationRCE_BODY",
        "Log4JRCE_BODY",
        "ReactJSRCE_BODY",
    ],
}

Acl = waf.CfnWebACL


def protect(scope: Construct, stage_arn: str, *, config: StageConfig) -> None:
    """Put a web ACL with a rate limit and AWS's managed rules in front of a stage of a REST API."""
    # Platforms send from few addresses, so one address may send half of the requests that the stage admits.
    limit = int(config.api.requests_per_second * RATE_WINDOW_SECONDS / 2)
    by_address = Acl.RateBasedStatementProperty(
        aggregate_key_type="IP", limit=limit, evaluation_window_sec=RATE_WINDOW_SECONDS
    )
    acl = Acl(
        scope,
        "Firewall",
        scope="REGIONAL",
        default_action=Acl.DefaultActionProperty(allow={}),
        visibility_config=_visibility("MessageBuffer"),
        rules=[
            Acl.RuleProperty(
                name="RatePerAddress",
                priority=0,
                action=Acl.RuleActionProperty(block={}),
                statement=Acl.StatementProperty(rate_based_statement=by_address),
                visibility_config=_visibility("RatePerAddress"),
            ),
            *(_managed_rule(group, priority=priority) for priority, group in enumerate(COUNTED_OF_GROUP, start=1)),
        ],
    )
    waf.CfnWebACLAssociation(acl, "Association", resource_arn=stage_arn, web_acl_arn=acl.attr_arn)


def _managed_rule(group: str, *, priority: int) -> Acl.RuleProperty:
    return Acl.RuleProperty(
        name=group,
        priority=priority,
        override_action=Acl.OverrideActionProperty(none={}),
        statement=Acl.StatementProperty(
            managed_rule_group_statement=Acl.ManagedRuleGroupStatementProperty(
                vendor_name="AWS",
                name=group,
                rule_action_overrides=[
                    Acl.RuleActionOverrideProperty(name=rule, action_to_use=Acl.RuleActionProperty(count={}))
                    for rule in COUNTED_OF_GROUP[group]
                ],
            )
        ),
        visibility_config=_visibility(group),
    )


def _visibility(metric: str) -> Acl.VisibilityConfigProperty:
    # Keep no samples of requests, because headers and query contain signatures and verify tokens.
    return Acl.VisibilityConfigProperty(
        cloud_watch_metrics_enabled=True, metric_name=metric, sampled_requests_enabled=False
    )
