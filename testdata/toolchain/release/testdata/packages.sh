#!/usr/bin/env bash
# packages.sh: installs /cmwa.deb in a container of Debian, lets the agent run a job, and removes and purges the
# package.
set -euo pipefail
die() {
  echo "packages.sh: $*" >&2
  cat /tmp/*.log >&2
  exit 1
}
# await FILE TEXT: waits until a line of a log contains the text.
await() { timeout 60 grep -m 1 -F -e "$2" <(tail -n +1 -F "$1" 2>/dev/null) || die "no \"$2\" in $1"; }
as_agent=(setpriv --reuid cmwa --regid cmwa --init-groups env HOME=/var/lib/cmwa STATE_DIRECTORY=/var/lib/cmwa)

# 1. dpkg installs everything, and starts nothing.
dpkg -i /cmwa.deb
dpkg --verify cmwa
modes=$(stat -c '%U:%G %a' /etc/cmwa /var/lib/cmwa | tr '\n' ' ')
[ "$modes" = "cmwa:cmwa 750 cmwa:cmwa 700 " ] || die "the directories have $modes"
ls /usr/lib/systemd/system/cmwa.service /usr/share/doc/cmwa/copyright
! "${as_agent[@]}" cmwa status 2>/dev/null || die "an agent runs"

# 2. cmwa configure writes the configuration, and the agent runs a job of the service.
cmwa-cloud serve --data /tmp/service --listen 127.0.0.1:8585 >/tmp/service.log 2>&1 &
service=$!
await /tmp/service.log "listening on"
export CMWA_CLOUD_URL=http://127.0.0.1:8585
CMWA_CLOUD_TOKEN=$(cat /tmp/service/access-token)
export PULUMI_ACCESS_TOKEN=$CMWA_CLOUD_TOKEN
cmwa-cloud pool create tests --output /tmp/pool.token
(cd /etc/cmwa &&
  "${as_agent[@]}" cmwa configure --token-stdin --service-url "$CMWA_CLOUD_URL" --target process </tmp/pool.token)
"${as_agent[@]}" PULUMI_AGENT_POLLING_INTERVAL=1s \
  cmwa run --config /etc/cmwa/pulumi-workflow-agent.yaml >/tmp/agent.log 2>&1 &
agent=$!
await /tmp/agent.log converged
git init --quiet --initial-branch main /tmp/program
printf 'name: project\nruntime: yaml\noutputs: {greeting: hello}\n' >/tmp/program/Pulumi.yaml
git -C /tmp/program add Pulumi.yaml
git -C /tmp/program -c user.name=test -c user.email=test@example.com commit --quiet --message program
git config --system --add safe.directory '*' # the job runs as another user
cmwa-cloud deploy organization/project/stack --operation preview --repo file:///tmp/program --branch main --follow \
  >/tmp/deploy.log 2>&1 || die "the deployment failed"
await /tmp/deploy.log "the deployment succeeded"

# 3. The removal keeps the configuration and the state, and a purge removes both and the user.
kill "$agent"
wait "$agent" || die "the agent failed"
kill "$service"
dpkg --remove cmwa
[ ! -e /usr/bin/cmwa ] && [ -s /etc/cmwa/pulumi-workflow-agent.yaml ] && [ -e /var/lib/cmwa/records ] ||
  die "the removal took too much or too little"
dpkg -i /cmwa.deb
[ -s /etc/cmwa/pulumi-workflow-agent.yaml ] || die "the second installation removed the configuration"
dpkg --purge cmwa
[ ! -e /etc/cmwa ] && [ ! -e /var/lib/cmwa ] && ! getent passwd cmwa || die "the purge left something"
echo "all steps passed in $SECONDS s"
