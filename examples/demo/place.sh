# Sourced by run: where the job runs, and in which image.
# shellcheck shell=bash disable=SC2154 # HERE comes from lib.sh, work from run

# choose_target: sets target to docker if an engine answers or can be started
# (one that was started is stopped at the end), else to process; TARGET, if set,
# decides. An engine also holds the image for jobs in a cluster.
choose_target() {
  local refusal
  target=${TARGET:-docker}
  case $target in
  docker | kubernetes) ;;
  process) return 0 ;;
  *) die "TARGET must be docker, kubernetes or process, not $target" ;;
  esac
  ! engine_answers || return 0
  if refusal=$("$HERE/docker-up" 2>&1 >"$work/docker-up.log"); then
    note "started an engine; it is stopped again at the end"
    at_exit "$HERE/docker-down"
    return 0
  fi
  note "$refusal"
  [ "$target" != kubernetes ] || die "no Docker engine can be had, which makes the image for jobs"
  note "no engine can be had: the job runs as a process of this machine, isolated from nothing"
  target=process
}

# choose_image: sets image to one that holds pulumi and git: the published one if
# it is there or can be pulled, else one that is made here.
choose_image() {
  local published=pulumi/pulumi:latest
  if docker image inspect "$published" >/dev/null 2>&1; then
    image=$published
  elif docker image inspect cmwa/job:local >/dev/null 2>&1 || ! pull "$published"; then
    image=$("$HERE/job-image") || exit 1
  else
    image=$published
  fi
}

# pull IMAGE: whether it could be pulled. A registry from which nothing comes
# within ten seconds is given up.
pull() {
  local log=$work/pull.log pid turn
  docker pull "$1" >"$log" 2>&1 &
  pid=$!
  for ((turn = 0; turn < 100; turn++)); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  if kill -0 "$pid" 2>/dev/null; then
    if grep -q -E 'Pulling fs layer|Downloading|Download complete' "$log"; then
      step "pulling $1" timeout 1800 tail --pid "$pid" -n 1 -f "$log"
    else
      kill "$pid"
    fi
  fi
  wait "$pid" && return 0
  note "$1 cannot be pulled: $(tail -n 1 "$log" | cut -c 1-120)"
  return 1
}
