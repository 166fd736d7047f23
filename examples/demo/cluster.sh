# The script run sources this file: the parts of the demo in a Kubernetes cluster.
# shellcheck shell=bash disable=SC2154 # HERE comes from lib.sh; root, work, workspace, url, image and place from run

# choose_cluster: sets kubectl to a command for the test cluster, and address to the address
# of the node. If the cluster does not run, choose_cluster starts it, and the demo removes it
# at the end.
choose_cluster() {
  local kubeconfig version
  . "$HERE/kube.sh"
  alive "$KUBE_STATE/pid/kube-apiserver" kube-apiserver || {
    note "starting a cluster; it is removed at the end"
    at_exit "$HERE/kube-down"
  }
  kubeconfig=$("$HERE/kube-up") || exit 1
  kubectl=("$(kube_programs)/kubectl" --kubeconfig "$kubeconfig")
  address=$KUBE_NODE_IP
  at_exit remove_namespace
  version=$("${kubectl[@]}" get nodes --output 'jsonpath={.items[0].status.nodeInfo.kubeletVersion}')
  note "Kubernetes $version, namespace $workspace"
}

remove_namespace() { "${kubectl[@]}" delete namespace "$workspace" --ignore-not-found --timeout 2m >/dev/null; }

# load_images: copies the images of the agent and of jobs to the cluster.
load_images() {
  "$HERE/kube-load" --archive "$root/bin/cmwa-image.tar"
  "$HERE/kube-load" "$image"
}

# start_workspace: starts a Pod with the image and the volume of jobs. The script inside
# runs its commands in this Pod. The volume is a directory of this machine, which is also the
# node of the cluster.
start_workspace() {
  mkdir "$work/demo"
  "${kubectl[@]}" create namespace "$workspace" >/dev/null
  "${kubectl[@]}" --namespace "$workspace" apply --filename - >/dev/null <<END
apiVersion: v1
kind: Pod
metadata: {name: workspace}
spec:
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers:
    - name: workspace
      image: $image
      imagePullPolicy: Never
      command: [sleep, infinity]
      workingDir: $place/source
      volumeMounts: [{name: demo, mountPath: $place}]
  volumes: [{name: demo, hostPath: {path: $work/demo}}]
END
  "${kubectl[@]}" --namespace "$workspace" wait --for condition=Ready --timeout 1m pod/workspace >/dev/null
}

# install_agent: installs the agent with the files in examples/kubernetes, and waits until
# it is ready. The overlay adds the token of the pool and the volume of the demo's jobs.
install_agent() {
  mkdir "$work/overlay"
  cp "$work/pool.token" "$work/overlay/token"
  cat >"$work/overlay/kustomization.yaml" <<END
namespace: $workspace
resources: [$(realpath --relative-to "$work/overlay" "$root/examples/kubernetes/base")]
images: [{name: registry.invalid/cmwa, newName: cmwa/cmwa, newTag: demo}]
configMapGenerator:
  - {name: workflow-agent, behavior: replace, files: [pulumi-workflow-agent.yaml]}
secretGenerator:
  - {name: workflow-agent-token, files: [token], options: {disableNameSuffixHash: true}}
END
  cat >"$work/overlay/pulumi-workflow-agent.yaml" <<END
service_url: $url
token_file: /var/run/secrets/cmwa/token
deploy_target: kubernetes
polling_interval: 1s
kubernetes: {service_account: workflow-runner}
pod_template:
  spec:
    containers:
      - name: pulumi-workflow
        imagePullPolicy: Never # the cluster pulls nothing
        volumeMounts: [{name: demo, mountPath: $place}]
    volumes: [{name: demo, hostPath: {path: $work/demo}}]
END
  "$root/bin/cmwa" vet "$work/overlay/pulumi-workflow-agent.yaml" || die "the agent's configuration is invalid"
  "${kubectl[@]}" apply --kustomize "$work/overlay" >"$work/apply.log" 2>&1 || fail "kubectl: $(cat "$work/apply.log")"
  "${kubectl[@]}" --namespace "$workspace" rollout status deployment/workflow-agent --timeout 1m \
    >"$work/apply.log" 2>&1 || {
    "${kubectl[@]}" --namespace "$workspace" logs deployment/workflow-agent >"$work/agent.log" 2>&1 || true
    fail "the agent is not ready: $(tail -n 1 "$work/apply.log")"
  }
  start agent "${kubectl[@]}" --namespace "$workspace" logs --follow deployment/workflow-agent
  note "installed with kubectl apply -k; polls for jobs of the pool demo"
}
