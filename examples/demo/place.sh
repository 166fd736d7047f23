# The script run sources this file: it chooses where the job runs, and in which image.
# shellcheck shell=bash disable=SC2154 # HERE comes from lib.sh, work from run

# choose_target: sets target to TARGET. Without TARGET, target is docker if an engine
# answers or can be started, and process otherwise. If choose_target starts an engine,
# the demo stops it at the end. The target kubernetes also needs an engine, which
# contains the image of jobs.
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
    note "started an engine; it is stopped at the end"
    at_exit "$HERE/docker-down"
    return 0
  fi
  note "$refusal"
  [ -z "${TARGET:-}" ] || die "TARGET=$target needs a Docker engine"
  note "no Docker engine is available: the job runs as a process of this machine, without isolation"
  target=process
}

# pulumi_programs: prints the directory of the pulumi on the PATH, if it is the whole
# program, with the language of the demo.
pulumi_programs() {
  command -v pulumi-language-yaml >/dev/null && dirname "$(command -v pulumi)"
}

# choose_image: sets image to an image with pulumi and git. It is the published image if
# the engine has it. Otherwise it is the image of job-image, if the engine has that one
# already or cannot pull the published image. Before it builds that image, which takes
# minutes, it chooses the target process, if pulumi is on the PATH and TARGET is not set.
choose_image() {
  local published=pulumi/pulumi:latest
  if docker image inspect "$published" >/dev/null 2>&1; then
    image=$published
  elif docker image inspect cmwa/job:local >/dev/null 2>&1; then
    image=$("$HERE/job-image") || exit 1
  elif pull "$published"; then
    image=$published
  elif [ -z "${TARGET:-}" ] && pulumi_programs >/dev/null; then
    note "the job runs as a process of this machine, with the pulumi on the PATH, and without isolation"
    TARGET=process prepare_target
  else
    image=$("$HERE/job-image") || exit 1
  fi
}

# pull IMAGE: pulls an image, and reports whether that succeeded. It gives up if the
# registry sends nothing within ten seconds.
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
  note "cannot pull $1: $(tail -n 1 "$log" | cut -c 1-120)"
  return 1
}
