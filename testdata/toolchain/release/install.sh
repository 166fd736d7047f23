#!/bin/sh
# install.sh: downloads an archive of cmwa, checks its SHA-256 with checksums.txt, and installs the programs, pages
# for man and completions below a prefix. It needs curl or wget, and runs no program that it has downloaded.
#
# usage: install.sh [--version 1.2.3] [--prefix /usr/local] [--url URL]
#
# URL is where the files of the release are, for example a mirror. If you do not trust a mirror, compare the checksums
# with those of the release first.
set -eu
version=
prefix=/usr/local
url=
platforms="linux-amd64 linux-arm64 darwin-amd64 darwin-arm64"

die() {
  echo "install.sh: $*" >&2
  exit 1
}

download() { # URL FILE
  if command -v curl >/dev/null; then
    curl --fail --silent --show-error --location --retry 3 --connect-timeout 30 --max-time 900 --output "$2" "$1"
  elif command -v wget >/dev/null; then
    wget -q -T 30 -O "$2" "$1" # those of busybox, too
  else
    die "install curl or wget"
  fi || die "cannot download $1"
}

sum() { # FILE
  if command -v sha256sum >/dev/null; then
    sha256sum "$1"
  else
    shasum -a 256 "$1" # macOS
  fi | cut -d ' ' -f 1
}

# A function, so that a shell that has read only a part of this file does nothing.
main() {
  while [ $# -gt 0 ]; do
    case $1 in
    --version | --prefix | --url) [ $# -gt 1 ] || die "$1 needs a value" ;;
    *) die "unknown argument $1; usage: install.sh [--version 1.2.3] [--prefix /usr/local] [--url URL]" ;;
    esac
    case $1 in
    --version) version=${2#v} ;;
    --prefix) prefix=$2 ;;
    --url) url=${2%/} ;;
    esac
    shift 2
  done
  [ -n "$version" ] || die "pass --version"
  [ -n "$url" ] || url=https://github.com/cmwa-project/cmwa/releases/download/v$version

  system=$(uname -s | tr '[:upper:]' '[:lower:]')
  machine=$(uname -m)
  case $machine in
  x86_64) machine=amd64 ;;
  aarch64) machine=arm64 ;;
  esac
  case " $platforms " in
  *" $system-$machine "*) ;;
  *) die "there is no archive for $system-$machine: there are $platforms; build it with make build" ;;
  esac

  name=cmwa_${version}_${system}_$machine
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  download "$url/checksums.txt" "$work/checksums.txt"
  want=$(awk -v name="$name.tar.gz" '$2 == name { print $1 }' "$work/checksums.txt")
  [ -n "$want" ] || die "$url/checksums.txt does not name $name.tar.gz"
  download "$url/$name.tar.gz" "$work/archive"
  got=$(sum "$work/archive")
  [ "$got" = "$want" ] || die "$url/$name.tar.gz has the SHA-256 $got, want $want: nothing was installed"

  tar -xzf "$work/archive" -C "$work"
  mkdir -p "$prefix" 2>/dev/null && [ -w "$prefix" ] ||
    die "cannot write to $prefix: run this script as root, or pass --prefix"
  cd "$work/$name"
  find bin share -type d -exec mkdir -p "$prefix/{}" \;
  # A program that runs cannot be overwritten, but replaced.
  find bin share ! -type d -exec cp -P "{}" "$prefix/{}.new" \; -exec mv -f "$prefix/{}.new" "$prefix/{}" \;
  echo "installed cmwa $version in $prefix/bin; next: cmwa configure"
}

main "$@"
