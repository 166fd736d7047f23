package main

import (
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

func TestVetDeployment(t *testing.T) {
	const good = `apiVersion: apps/v1
kind: Deployment
metadata: {name: agent-pool}
spec:
  template:
    spec:
      containers:
      - name: agent
        env:
        - {name: DOCKER_HOST, value: "tcp://localhost:2375"}
        - {name: PULUMI_AGENT_SHARED_VOLUME_DIRECTORY, value: /mnt/work}
        - {name: PULUMI_AGENT_TOKEN, valueFrom: {secretKeyRef: {name: agent-secret, key: token}}}
      - {name: dind, image: "docker:dind"}
`
	environ := []string{"PULUMI_AGENT_LOG_LEVEL=loud"} // a variable of this machine, which vet must ignore
	const note = "note: PULUMI_AGENT_TOKEN: the value is not known here; it is from the key token of the Secret " +
		"agent-secret\n"
	file := fileOf(t, "agent.yaml", good)
	if got := cmwa(environ, "vet", file); got != (output{0, file + ":12:18: " + note, ""}) {
		t.Errorf("%+v", got)
	}
	wrong := strings.Replace(good, "{name: DOCKER_HOST, value",
		"{name: PULUMI_AGENT_DEPLOY_TARGET, value: ecs}\n        - {name: PULUMI_AGENT_SERVCE_URL, value", 1)
	file = fileOf(t, "agent.yaml", wrong)
	want := output{cli.ExitFailure, file + ":10:53: warning: PULUMI_AGENT_DEPLOY_TARGET: ecs is not in this release; " +
		"it has docker, kubernetes and process\n" +
		file + ":11:18: PULUMI_AGENT_SERVCE_URL: no key has this variable\n" +
		"  hint: did you mean PULUMI_AGENT_SERVICE_URL?\n" +
		file + ":13:18: " + note, ""}
	if got := cmwa(environ, "vet", file); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
