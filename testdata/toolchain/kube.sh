# Sourced by kube-up, kube-down, kube-load and environment, after lib.sh: files and
# addresses of the cluster, and functions that start containerd and remove the cluster.
# shellcheck shell=bash disable=SC2034 # its variables are for those scripts
KUBE_STATE=/var/lib/cmwa-kube # certificates, etcd's data, logs, pids, kubeconfigs, images
KUBE_RUN=/run/cmwa-kube       # sockets
KUBE_BRIDGE=cmwak0            # the bridge of the Pods; it has the node's address
KUBE_BRIDGE_MAC=02:00:0a:f4:00:01 # locally administered: 02:00, and the bridge's IP address
KUBE_NODE=cmwa-node
KUBE_NODE_IP=10.244.0.1
KUBE_POD_NET=10.244.0.0/16
KUBE_SERVICE_NET=10.96.0.0/16
KUBE_SERVICE_IP=10.96.0.1
KUBE_API=127.0.0.1:6443
KUBE_CONTEXT=cmwa-test # tests use a kubeconfig only if its context has this name
KUBE_PARTS=(kube-proxy kubelet kube-scheduler kube-controller-manager kube-apiserver forward etcd)

ctr_k8s() { ctr -a "$KUBE_RUN/containerd.sock" -n k8s.io "$@"; }

# kube_wait SECONDS PART COMMAND...: runs COMMAND until it succeeds. It prints the end
# of PART's log and fails after SECONDS, or when PART has ended.
kube_wait() {
  local part=$2
  wait_for "$1" "$(<"$KUBE_STATE/pid/$part")" "${@:3}" && return
  tail -n 25 "$KUBE_STATE/log/$part" >&2
  die "$part did not start"
}

# kube_programs: prints the directory of the running cluster's programs.
kube_programs() { dirname "$(readlink "/proc/$(<"$KUBE_STATE/pid/kube-apiserver")/exe")"; }

# containerd_start: starts a containerd that shares no state with the one of Docker.
containerd_start() {
  mkdir -p "$KUBE_RUN" "$KUBE_STATE/log" "$KUBE_STATE/pid" "$KUBE_STATE/cni"
  cat >"$KUBE_STATE/containerd.toml" <<EOT
version = 2
root = "$KUBE_STATE/containerd"
state = "$KUBE_RUN/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "$KUBE_RUN/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/cmwa-test/pause:latest"
  stream_server_address = "127.0.0.1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$KUBE_STATE/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
EOT
  daemon "$KUBE_STATE/pid/containerd" "$KUBE_STATE/log/containerd" \
    containerd --config "$KUBE_STATE/containerd.toml" --log-level warn
  kube_wait 30 containerd ctr_k8s version
}

# kube_clear: stops all programs and containers of the cluster and removes its files,
# mounts, network and control groups. It also works after a crash.
kube_clear() {
  local part mount controller
  for part in "${KUBE_PARTS[@]}"; do # KILL at once, because their data is removed too
    stop_pid "$KUBE_STATE/pid/$part" "$part" 0
  done
  [ ! -d "$KUBE_STATE/containerd" ] || containers_clear
  findmnt -rno TARGET | awk -v s="$KUBE_STATE/" -v r="$KUBE_RUN/" 'index($0, s) == 1 || index($0, r) == 1' | sort -r |
    while read -r mount; do
      umount -l "$mount" 2>/dev/null || true
    done
  network_clear
  rm -rf "$KUBE_RUN" "$KUBE_STATE"
  for controller in cpu cpuacct cpuset memory pids blkio devices freezer systemd unified ''; do
    [ ! -d "/sys/fs/cgroup/$controller/kubepods" ] ||
      find "/sys/fs/cgroup/$controller/kubepods" -depth -type d -exec rmdir {} \; 2>/dev/null || true
  done
}

# containers_clear: removes all containers and their network namespaces, and stops
# containerd. If containerd does not run, it starts containerd first.
containers_clear() {
  local id netns
  alive "$KUBE_STATE/pid/containerd" containerd || containerd_start
  for id in $(ctr_k8s containers ls -q); do
    netns=$(ctr_k8s containers info "$id" | grep -o '/var/run/netns/cni-[0-9a-f-]*' | head -n 1 || true)
    ctr_k8s tasks rm -f "$id" >/dev/null 2>&1 || true
    ctr_k8s containers rm "$id" >/dev/null 2>&1 || true
    if [ -n "$netns" ]; then
      umount "$netns" 2>/dev/null || true
      rm -f "$netns"
    fi
  done
  stop_pid "$KUBE_STATE/pid/containerd" containerd 10
}

# network_clear: removes the bridge, the rules of kube-proxy and kube-up, and the Pod
# addresses that the CNI plugin has recorded.
network_clear() {
  local family
  ip link del "$KUBE_BRIDGE" 2>/dev/null || true
  for family in ip ip6; do
    nft delete table "$family" kube-proxy 2>/dev/null || true
  done
  rm -rf /var/lib/cni/networks/cmwa-kube
  if command -v iptables >/dev/null; then
    while iptables -D FORWARD -i "$KUBE_BRIDGE" -j ACCEPT 2>/dev/null; do :; done
    while iptables -D FORWARD -o "$KUBE_BRIDGE" -j ACCEPT 2>/dev/null; do :; done
  fi
}
