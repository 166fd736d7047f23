#!/usr/bin/env bash
# packages.sh: installs version 1.2.3 of the package in a container of Debian whose process 1 is systemd, with the
# commands of the section Install of /README.md. It starts the agent with its unit, edits and reloads the configuration,
# upgrades to version 1.2.4 while a job runs, kills the agent, and removes and purges the package. Then cloud-init
# installs it with the example /user-data.yml, and rpm installs the rpm package. /release has the files.
set -euo pipefail
shopt -s nullglob
old=(/release/cmwa_1.2.3_*.deb) new=(/release/cmwa_1.2.4_*.deb)
die() {
  trap - ERR
  echo "packages.sh: $*" >&2
  journalctl --unit cmwa --no-pager --lines 50 >&2 || true
  cat /tmp/*.log >&2
  exit 1
}
trap 'die "failed at line $LINENO"' ERR
# await LIMIT WHAT COMMAND...: runs a command until it succeeds, for at most LIMIT seconds.
await() {
  local limit=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$limit" ] || die "not within its time: $what"
    sleep 0.1
  done
}
pid() { systemctl show --property MainPID --value cmwa; }
journal() { journalctl --unit cmwa --no-pager --output cat; }
logged() { journal | grep -F -e "$1"; }
# ended PID: waits until a command in the background has ended, and returns its exit code.
ended() {
  await 60 "command $1 has ended" sh -c "! kill -0 $1"
  wait "$1"
}
another_pid() { [ "$(pid)" != 0 ] && [ "$(pid)" != "$1" ]; }
config=/etc/cmwa/pulumi-workflow-agent.yaml
deploy() { # NAME OPTIONS...
  cmwa-cloud deploy "organization/project/$1" --operation preview --repo file:///srv/program --branch main --follow \
    "${@:2}" >"/tmp/deploy-$1.log" 2>&1
}
# person COMMAND: runs a command of the README as a user who may call sudo, in $directory or in the user's home, which
# no other user can read.
person() { su person -c "cd ${directory:-/home/person} && $1"; }
mapfile -t readme < <(sed -n '/^sudo dpkg -i/,/^```/{ /^```/d; s/ *#.*//; p }' /README.md)
[ ${#readme[@]} = 6 ] || die "README.md has ${#readme[@]} commands to install the package"
useradd --create-home --key HOME_MODE=0700 person
echo 'person ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/person
groupadd docker
await 60 "systemd has started" sh -c "systemctl is-system-running | grep -E 'running|degraded'"

# 1. dpkg installs everything, and starts nothing. Without a configuration, the unit does not start.
directory=/release person "${readme[0]/amd64/$(dpkg --print-architecture)}"
dpkg --verify cmwa
modes=$(stat -c '%U:%G %a' /etc/cmwa /var/lib/cmwa | tr '\n' ' ')
[ "$modes" = "cmwa:cmwa 750 cmwa:cmwa 700 " ] || die "the directories have $modes"
ls /usr/share/doc/cmwa/copyright
! systemctl --quiet is-active cmwa || die "the package has started the agent"
! systemctl start cmwa || die "the agent has started without a configuration"

# 2. cmwa configure writes the configuration, systemctl starts the agent, and the agent runs a job of the service.
cmwa-cloud serve --data /tmp/service --listen 127.0.0.1:8585 >/tmp/service.log 2>&1 &
await 60 "the service listens" grep -F "listening on" /tmp/service.log
export CMWA_CLOUD_URL=http://127.0.0.1:8585
CMWA_CLOUD_TOKEN=$(cat /tmp/service/access-token)
export PULUMI_ACCESS_TOKEN=$CMWA_CLOUD_TOKEN
cmwa-cloud pool create tests --output /tmp/pool.token
person "${readme[1]}"
person "${readme[2]} --token-stdin --service-url $CMWA_CLOUD_URL --target process" </tmp/pool.token \
  >/tmp/configure.log
person "$(grep -F "cmwa vet" /tmp/configure.log)" || die "the command fails that cmwa configure prints"
printf 'polling_interval: 1s\n' >>"$config"
git init --quiet --initial-branch main /srv/program
printf 'name: project\nruntime: yaml\noutputs: {greeting: hello}\n' >/srv/program/Pulumi.yaml
git -C /srv/program add Pulumi.yaml
git -C /srv/program -c user.name=test -c user.email=test@example.com commit --quiet --message program
git config --system --add safe.directory '*' # the job runs as another user
person "${readme[3]}" || die "the agent does not start"
await 60 "the agent is ready" cmwa status
person "${readme[4]}" || die "cmwa doctor fails"
person "${readme[5]}"
deploy first || die "the first deployment failed"
echo "a job was done $SECONDS s after the start of the machine"

# 3. systemctl reload reads the file again, also when its directory cannot be watched. A wrong file changes nothing.
agent=$(pid)
printf 'max_concurrent_workflows: 2\n' >>"$config"
systemctl reload cmwa
await 60 "the edit is in force" sh -c "cmwa status --json | grep -E '\"maxJobs\": ?2\\b'"
cp "$config" /tmp/right.yaml
printf 'max_concurrent_workflows: 3\n' >>"$config" # the key is there twice
systemctl reload cmwa
await 60 "the wrong edit is rejected" sh -c '! cmwa status'
[ "$(pid)" = "$agent" ] || die "the agent was restarted after a wrong edit"
cat /tmp/right.yaml >"$config"
await 60 "the right file is in force" cmwa status

# 4. During an upgrade the agent waits for its job, and then the new one starts. The job is not touched.
deploy upgrade --pre-run 'until [ -e /srv/go ]; do sleep 0.1; done' &
deployment=$!
await 60 "the job runs" grep -Fx "== Pre-run command 1" /tmp/deploy-upgrade.log
dpkg -i "${new[@]}"
await 60 "the agent drains" sh -c "systemctl show cmwa | grep -Fx ActiveState=deactivating"
[ "$(pid)" = "$agent" ] || die "the upgrade has not waited for the job"
touch /srv/go
ended "$deployment" || die "the deployment failed that ran during the upgrade"
await 60 "the new agent runs" another_pid "$agent"
await 60 "the new agent is ready" cmwa status
[ "$(readlink "/proc/$(pid)/exe")" = /usr/bin/cmwa ] || die "the agent is not the one of the new package"

# 5. A killed agent is started again. With deploy_target process, its job is killed too, and reported as failed.
agent=$(pid)
deploy killed --pre-run 'sleep 600' &
deployment=$!
await 60 "the job runs" grep -Fx "== Pre-run command 1" /tmp/deploy-killed.log
kill -KILL "$agent"
! ended "$deployment" || die "the deployment succeeded, although its job was killed"
grep -F "the instance of this job was removed" /tmp/deploy-killed.log || die "the log lacks the reason"
await 60 "systemd has started the agent again" another_pid "$agent"

# 6. The token of LoadCredential= in place of that of the configuration. The agent's user cannot read its file.
install -m 600 /tmp/pool.token /etc/cmwa.token
install -D -m 644 /usr/share/doc/cmwa/credential.conf /etc/systemd/system/cmwa.service.d/credential.conf
grep -v '^token' /tmp/right.yaml >"$config"
systemctl daemon-reload
systemctl restart cmwa || die "the agent does not start with a credential"
deploy credential || die "the deployment failed with a credential"

# 7. A wrong configuration at the start: the agent ends with exit code 2, and is not started again and again.
printf 'deploy_target: nothing\n' >>"$config"
! systemctl restart cmwa || die "the agent has started with a wrong configuration"
state=$(systemctl show --property ActiveState,ExecMainStatus,NRestarts cmwa | sort | tr '\n' ' ')
[ "$state" = "ActiveState=failed ExecMainStatus=2 NRestarts=0 " ] || die "after a wrong start the unit has $state"
await 60 "the journal has the line of the mistake" logged "pulumi-workflow-agent.yaml:"
cat /tmp/right.yaml >"$config"
systemctl reset-failed cmwa
systemctl start cmwa

# 8. The removal stops the agent, and keeps the configuration and the state. A purge removes both and the user.
dpkg --remove cmwa
! grep -qsx cmwa /proc/[0-9]*/comm || die "the agent still runs"
[ ! -e /usr/bin/cmwa ] && [ -s "$config" ] && [ -e /var/lib/cmwa/records ] ||
  die "the removal took too much or too little"
dpkg -i "${new[@]}"
[ -s "$config" ] || die "the second installation removed the configuration"
dpkg --purge cmwa
[ ! -e /etc/cmwa ] && [ ! -e /var/lib/cmwa ] && ! getent passwd cmwa || die "the purge left something"

# 9. cloud-init with the example, on a machine without the package. Only three of its modules run: without a network, it
# cannot install the packages that the example lists.
rm -r /etc/systemd/system/cmwa.service.d /etc/cmwa.token
cloud-init schema --config-file /user-data.yml
install -d /var/lib/cloud/seed/nocloud
echo "instance-id: tests" >/var/lib/cloud/seed/nocloud/meta-data
sed -e "s,VERSION,1.2.4,; s,RELEASE_URL,file:///release,; s,POOL_TOKEN,$(cat /tmp/pool.token)," \
  -e "s,deploy_target: docker,deploy_target: process\n      service_url: $CMWA_CLOUD_URL\n      polling_interval: 1s," \
  /user-data.yml >/var/lib/cloud/seed/nocloud/user-data
cat >/etc/cloud/cloud.cfg.d/90_tests.cfg <<'END'
datasource_list: [NoCloud]
network: {config: disabled}
cloud_init_modules: [write-files]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user]
END
for stage in "init --local" init "modules --mode config" "modules --mode final"; do
  # shellcheck disable=SC2086 # a stage can have arguments
  cloud-init $stage >>/tmp/cloud-init.log 2>&1
done
await 60 "the agent of cloud-init is ready" cmwa status
deploy cloud || die "the deployment failed on the machine of cloud-init"
systemctl is-enabled cmwa || die "the agent would not start with the machine"

# 10. The package for rpm: an installation, an upgrade while a job runs, and the removal.
dpkg --purge cmwa
rm -r /etc/systemd/system/cmwa.service.d /etc/cmwa.token
old=(/release/cmwa_1.2.3_*.rpm) new=(/release/cmwa_1.2.4_*.rpm)
rpm=(rpm --force-debian --nodeps) # Debian's rpm knows no package of Debian
"${rpm[@]}" --install "${old[@]}"
[ "$(stat -c '%U:%G %a' /etc/cmwa /var/lib/cmwa | tr '\n' ' ')" = "$modes" ] ||
  die "rpm: the directories have other owners or modes"
! systemctl --quiet is-active cmwa || die "rpm has started the agent"
cat /tmp/right.yaml >"$config"
chown cmwa:cmwa "$config"
systemctl enable --now cmwa || die "rpm: the agent does not start"
await 60 "the agent of rpm is ready" cmwa status
agent=$(pid)
deploy rpm --pre-run 'until [ -e /srv/rpm ]; do sleep 0.1; done' &
deployment=$!
await 60 "the job runs" grep -Fx "== Pre-run command 1" /tmp/deploy-rpm.log
"${rpm[@]}" --upgrade "${new[@]}"
await 60 "the agent of rpm drains" sh -c "systemctl show cmwa | grep -Fx ActiveState=deactivating"
[ "$(pid)" = "$agent" ] || die "the upgrade with rpm has not waited for the job"
touch /srv/rpm
ended "$deployment" || die "the deployment failed that ran during the upgrade with rpm"
await 60 "the new agent runs" another_pid "$agent"
await 60 "the new agent is ready" cmwa status
"${rpm[@]}" --erase cmwa
! grep -qsx cmwa /proc/[0-9]*/comm || die "the agent still runs after the removal with rpm"
[ ! -e /usr/bin/cmwa ] && [ -s "$config" ] && [ -e /var/lib/cmwa/records ] ||
  die "the removal with rpm took too much or too little"
echo "all steps passed in $SECONDS s"
