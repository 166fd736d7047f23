# Sourced by the scripts of this folder and by the demo: how they speak, wait,
# install, start and stop.
# shellcheck shell=bash disable=SC2034 # its variables are for those scripts
set -Eeuo pipefail

PROG=$(basename "$0")
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/cmwa

trap 'echo "$PROG: failed at line $LINENO of ${BASH_SOURCE[0]##*/}: $BASH_COMMAND" >&2' ERR

# die TEXT...: says on standard error why the script ends, and ends it.
die() {
  echo "$PROG: $*" >&2
  exit 1
}

# at_exit COMMAND...: to be run when the script ends, however it ends; the last
# one registered runs first.
at_exit() {
  local quoted
  printf -v quoted '%q ' "$@"
  AT_EXIT=("$quoted" ${AT_EXIT[@]+"${AT_EXIT[@]}"})
}
AT_EXIT=()
STEP_PID=
run_at_exit() {
  local rc=$? command
  trap - ERR EXIT
  trap '' INT TERM HUP
  set +e
  [ -z "$STEP_PID" ] || { kill "$STEP_PID" && wait "$STEP_PID"; } 2>/dev/null
  for command in ${AT_EXIT[@]+"${AT_EXIT[@]}"}; do eval "$command"; done
  exit "$rc"
}
trap run_at_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# usage_if_asked "$@": prints the script's leading comment for -h and --help,
# and refuses any other argument.
usage_if_asked() {
  case "${1:-}" in
  '') ;;
  -h | --help)
    awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "$0"
    exit 0
    ;;
  *) die "takes no argument '$1'; $PROG --help tells its use" ;;
  esac
}

# step WHAT COMMAND...: runs a command that may take long. Its output is kept
# aside and shown only if it fails; meanwhile standard error tells what is done,
# for how long, and the last thing the command said: on a terminal in one line
# that is written over, elsewhere in a new line now and then.
step() {
  local what=$1 log pid start=$SECONDS next=15 last rc=0
  shift
  log=$(mktemp)
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  STEP_PID=$pid # of no use to the signals of a terminal: it runs in the background
  while kill -0 "$pid" 2>/dev/null; do
    if [ -t 2 ]; then
      last=$(tail -n 1 "$log" | tr -cd '[:print:]' | cut -c "1-$((${COLUMNS:-80} - ${#what} - 16))")
      printf '\r\033[K  %s ... %d s  %s' "$what" $((SECONDS - start)) "$last" >&2
    elif [ $((SECONDS - start)) -ge "$next" ]; then
      last=$(tail -n 1 "$log" | tr -cd '[:print:]' | cut -c 1-60)
      printf '  %s ... %d s  %s\n' "$what" $((SECONDS - start)) "$last" >&2
      next=$((next * 2))
    fi
    sleep 0.1
  done
  wait "$pid" || rc=$?
  STEP_PID=
  [ ! -t 2 ] || printf '\r\033[K' >&2
  if [ "$rc" != 0 ]; then
    tail -n 40 "$log" >&2
    rm -f "$log"
    die "failed after $((SECONDS - start)) s: $what"
  fi
  rm -f "$log"
  [ $((SECONDS - start)) -lt 2 ] || printf '  %s: %d s\n' "$what" $((SECONDS - start)) >&2
}

# digest: the SHA-256 of standard input.
digest() { sha256sum | cut -d' ' -f1; }

# need PACKAGE=COMMAND...: installs the Debian packages whose command is missing,
# or says what to install. A command with a slash is looked for as a file.
need() {
  local pair missing=()
  for pair in "$@"; do
    case ${pair#*=} in
    /*) [ -e "${pair#*=}" ] || missing+=("${pair%%=*}") ;;
    *) command -v "${pair#*=}" >/dev/null || missing+=("${pair%%=*}") ;;
    esac
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "please install: ${missing[*]} (named as Debian names them)"
  [ "$(id -u)" = 0 ] || die "please install, as root: apt-get install ${missing[*]}"
  install_packages "${missing[@]}"
}

install_packages() { # PACKAGE...
  export DEBIAN_FRONTEND=noninteractive
  step "apt-get update" apt-get -o DPkg::Lock::Timeout=300 -o APT::Update::Error-Mode=any update
  step "installing $*" apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
}

# lock FILE: one such script at a time; released when the script ends.
lock() {
  mkdir -p "$(dirname "$1")"
  exec 9>"$1"
  flock -w 3600 9 || die "another run holds $1"
}

# alive PIDFILE NAME: whether the file names a live process whose program is
# NAME, so that a stale file never points at somebody else's.
alive() {
  local pid argv
  [ -s "$1" ] && pid=$(<"$1") && [ -r "/proc/$pid/cmdline" ] || return 1
  mapfile -d '' -t argv 2>/dev/null <"/proc/$pid/cmdline" || return 1
  [ "$(basename -- "${argv[0]:-none}")" = "$2" ]
}

# daemon PIDFILE LOG COMMAND...: starts it in a session of its own. Returns when
# PIDFILE holds the pid of this start; one that a killed daemon left goes first.
daemon() {
  local pidfile=$1 log=$2
  shift 2
  rm -f "$pidfile"
  # exec keeps the pid that is written, so the file names the daemon itself.
  # shellcheck disable=SC2016 # for the inner shell
  setsid bash -c 'echo $$ >"$0"; exec "$@"' "$pidfile" "$@" </dev/null >>"$log" 2>&1 9>&- &
  disown
  until [ -s "$pidfile" ]; do sleep 0.01; done
}

# stop_pid PIDFILE NAME SECONDS: TERM, and KILL after SECONDS.
stop_pid() {
  local pid turns=0
  if alive "$1" "$2"; then
    pid=$(<"$1")
    kill -TERM "$pid" 2>/dev/null || true
    while alive "$1" "$2"; do
      turns=$((turns + 1))
      [ "$turns" -lt $(($3 * 50)) ] || kill -KILL "$pid" 2>/dev/null || true
      [ "$turns" -lt $(($3 * 50 + 500)) ] || die "$2 (pid $pid) does not end"
      sleep 0.02
    done
  fi
  rm -f "$1"
}

# wait_for SECONDS PID COMMAND...: tries COMMAND until it succeeds; fails when the
# time is over, or the process PID, without which it never will, has ended.
wait_for() {
  local end=$((SECONDS + $1)) pid=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    if [ "$SECONDS" -ge "$end" ] || ! kill -0 "$pid" 2>/dev/null; then
      return 1
    fi
    sleep 0.1
  done
}

# engine_answers: whether a Docker engine can be talked to.
engine_answers() {
  command -v docker >/dev/null && timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1
}

# engine_has IMAGE KEY: whether the engine holds the image, made of what KEY
# stands for.
engine_has() {
  [ "$(docker image inspect --format "{{index .Config.Labels \"$IMAGE_LABEL\"}}" "$1" 2>/dev/null)" = "$2" ]
}
IMAGE_LABEL=cmwa.toolchain.key

# load_image IMAGE KEY CONFIG LAYER.tar...: makes an image of the layers in the
# engine, in place of what had that name. CONFIG is the image's configuration as
# a JSON object without labels.
load_image() {
  local name=$1 key=$2 config=$3 old
  shift 3
  old=$(docker image inspect --format '{{.Id}}' "$name" 2>/dev/null) || old=
  image_archive "$name" "$(docker version --format '{{.Server.Arch}}')" \
    "${config%\}},\"Labels\":{\"$IMAGE_LABEL\":\"$key\"}}" "$@" | docker load
  if [ -n "$old" ] && [ "$old" != "$(docker image inspect --format '{{.Id}}' "$name")" ]; then
    docker image rm "$old" || true # a container may use it yet
  fi
}

# image_archive IMAGE ARCHITECTURE CONFIG LAYER.tar...: writes an image of the
# layers to standard output, in the format of docker save. CONFIG is the image's
# configuration as a JSON object. The same input gives the same image id.
image_archive() {
  local name=$1 architecture=$2 config=$3 work layer sum layers=() diffs=()
  shift 3
  work=$(mktemp -d)
  for layer in "$@"; do
    sum=$(digest <"$layer")
    ln -s "$layer" "$work/$sum.tar"
    layers+=("\"$sum.tar\"")
    diffs+=("\"sha256:$sum\"")
  done
  printf '{"architecture":"%s","os":"linux","created":"1970-01-01T00:00:00Z","config":%s,"rootfs":{"type":"layers","diff_ids":[%s]}}' \
    "$architecture" "$config" "$(IFS=, && echo "${diffs[*]}")" >"$work/config"
  sum=$(digest <"$work/config")
  mv "$work/config" "$work/$sum.json"
  printf '[{"Config":"%s.json","RepoTags":["%s"],"Layers":[%s]}]' "$sum" "$name" "$(IFS=, && echo "${layers[*]}")" >"$work/manifest.json"
  (cd "$work" && tar -ch -- *)
  rm -rf "$work"
}
