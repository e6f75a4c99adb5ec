#!/bin/sh
# The Node that jsii runs the constructs on. They keep a cache in ~/.cdk, and CDK_HOME does not move it: HOME does.
HOME="$CDK_HOME/.." exec "$MESSAGE_BUFFER_NODE" "$@"
