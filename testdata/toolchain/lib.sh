# Sourced by the scripts of this directory and by the demo: functions for messages,
# waiting, packages, daemons and images.
# shellcheck shell=bash disable=SC2034 # its variables are for those scripts
set -Eeuo pipefail

PROG=$(basename "$0")
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/cmwa
# Without DWARF, compiling takes 12% less time. The programs have no debug information anyway.
GO_BUILD=(go build -v -buildvcs=false -trimpath -gcflags=all=-dwarf=false)

trap 'echo "$PROG: failed at line $LINENO of ${BASH_SOURCE[0]##*/}: $BASH_COMMAND" >&2' ERR

# die TEXT...: prints the text to standard error and ends the script with status 1.
die() {
  echo "$PROG: $*" >&2
  exit 1
}

# at_exit COMMAND...: registers a command that runs when the script ends, also after
# an error or a signal. The last registered command runs first.
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

# usage_if_asked "$@": prints the first comment of the script for -h and --help, and
# fails for any other argument.
usage_if_asked() {
  case "${1:-}" in
  '') ;;
  -h | --help)
    awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "$0"
    exit 0
    ;;
  *) die "unknown argument '$1'; see $PROG --help" ;;
  esac
}

# step WHAT COMMAND...: runs a command that may take long. It prints the output of the
# command only if the command fails. Meanwhile it prints to standard error what it
# does, for how long, and the last line of output: on a terminal in one line that it
# overwrites, elsewhere in a new line after 15 s, 30 s, 60 s and so on.
step() {
  local what=$1 log pid start=$SECONDS next=15 last rc=0
  shift
  log=$(mktemp)
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  STEP_PID=$pid # run_at_exit ends it: signals of a terminal do not reach the background
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

# digest: prints the SHA-256 of standard input.
digest() { sha256sum | cut -d' ' -f1; }

# need PACKAGE=COMMAND...: installs the Debian packages whose command is missing. A
# command with a slash is the path of a file. Without root or apt, or if INSTALL
# is set and not 1, it ends the script and names the packages instead.
need() {
  local pair missing=()
  for pair in "$@"; do
    case ${pair#*=} in
    /*) [ -e "${pair#*=}" ] || missing+=("${pair%%=*}") ;;
    *) command -v "${pair#*=}" >/dev/null || missing+=("${pair%%=*}") ;;
    esac
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "please install: ${missing[*]} (names of Debian's packages)"
  [ "$(id -u)" = 0 ] || die "please install, as root: apt-get install ${missing[*]}"
  [ "${INSTALL:-1}" = 1 ] ||
    die "Debian's packages are missing: ${missing[*]}; set INSTALL=1 to install them, or run: apt-get install ${missing[*]}"
  install_packages "${missing[@]}"
}

install_packages() { # PACKAGE...
  export DEBIAN_FRONTEND=noninteractive
  step "apt-get update" update_lists
  step "installing $*" apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
}

# update_lists: updates apt's lists of packages. Only root can do this.
update_lists() { apt-get -o DPkg::Lock::Timeout=300 -o APT::Update::Error-Mode=any update; }

# lock FILE: waits for the lock of a file. The lock is released when the script ends.
lock() {
  mkdir -p "$(dirname "$1")"
  exec 9>"$1"
  flock -w 3600 9 || die "another run has locked $1"
}

# alive PIDFILE NAME: reports whether the process of the file runs and its program is
# NAME. The pid of an old file may belong to another program.
alive() {
  local pid argv
  [ -s "$1" ] && pid=$(<"$1") && [ -r "/proc/$pid/cmdline" ] || return 1
  mapfile -d '' -t argv 2>/dev/null <"/proc/$pid/cmdline" || return 1
  [ "$(basename -- "${argv[0]:-none}")" = "$2" ]
}

# daemon PIDFILE LOG COMMAND...: starts a command in a new session. It removes an old
# PIDFILE, and returns when the file has the pid of the command.
daemon() {
  local pidfile=$1 log=$2
  shift 2
  rm -f "$pidfile"
  # exec keeps the pid, so the file has the pid of the daemon.
  # shellcheck disable=SC2016 # for the inner shell
  setsid bash -c 'echo $$ >"$0"; exec "$@"' "$pidfile" "$@" </dev/null >>"$log" 2>&1 9>&- &
  disown
  until [ -s "$pidfile" ]; do sleep 0.01; done
}

# stop_pid PIDFILE NAME SECONDS: sends TERM, and KILL after SECONDS.
stop_pid() {
  local pid turns=0
  if alive "$1" "$2"; then
    pid=$(<"$1")
    kill -TERM "$pid" 2>/dev/null || true
    while alive "$1" "$2"; do
      turns=$((turns + 1))
      [ "$turns" -lt $(($3 * 50)) ] || kill -KILL "$pid" 2>/dev/null || true
      [ "$turns" -lt $(($3 * 50 + 500)) ] || die "cannot stop $2 (pid $pid)"
      sleep 0.02
    done
  fi
  rm -f "$1"
}

# wait_for SECONDS PID COMMAND...: runs COMMAND until it succeeds. It fails after
# SECONDS, or when the process PID has ended.
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

# engine_answers: reports whether a Docker engine answers.
engine_answers() {
  command -v docker >/dev/null && timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1
}

# engine_has IMAGE KEY: reports whether the engine has the image, built from the input
# with the digest KEY.
engine_has() {
  [ "$(docker image inspect --format "{{index .Config.Labels \"$IMAGE_LABEL\"}}" "$1" 2>/dev/null)" = "$2" ]
}
IMAGE_LABEL=cmwa.toolchain.key

# load_image IMAGE KEY CONFIG LAYER.tar...: creates an image of the layers in the
# engine, and replaces an image of that name. CONFIG is the image's configuration as a
# JSON object without labels.
load_image() {
  local name=$1 key=$2 config=$3 old
  shift 3
  old=$(docker image inspect --format '{{.Id}}' "$name" 2>/dev/null) || old=
  image_archive "$name" "$(docker version --format '{{.Server.Arch}}')" \
    "${config%\}},\"Labels\":{\"$IMAGE_LABEL\":\"$key\"}}" "$@" | docker load
  if [ -n "$old" ] && [ "$old" != "$(docker image inspect --format '{{.Id}}' "$name")" ]; then
    docker image rm "$old" || true # a container may still use it
  fi
}

# image_archive IMAGE ARCHITECTURE CONFIG LAYER.tar...: writes an image of the layers
# to standard output, in the format of docker save. CONFIG is the image's
# configuration as a JSON object. The same input results in the same image id.
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
