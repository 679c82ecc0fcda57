#!/usr/bin/env bash
# Forward the ports of the AWS stack's two services to this machine through its bastion, until Ctrl-C.
# Usage: . ~/.chess-grpo/STACK.env; infra/tunnel.sh
# Session Manager closes a connection that was idle for 20 minutes, or when the laptop slept: it is opened again.
set -u
: "${STACK:?source the file that infra.stack_variables wrote first, such as: . ~/.chess-grpo/chess-grpo.env}"
: "${STACK_DoorId:?the stack has no bastion (Door=false): its private addresses need a network that reaches them}"
forward() {
    while :; do
        aws ssm start-session --target "$STACK_DoorId" --document-name AWS-StartPortForwardingSessionToRemoteHost \
            --parameters "host=$1.$STACK.internal,portNumber=$2,localPortNumber=$2" </dev/null
        echo "tunnel: $1 closed; opened again" >&2
        sleep 2
    done
}
trap 'trap - TERM EXIT; kill 0' INT TERM EXIT
forward metadata 8080 &
forward mlflow 5000 &
wait
