{{/* cmwa.seconds is a duration of Go, such as 1h30m, in whole seconds, rounded up. */}}
{{- define "cmwa.seconds" -}}
{{- $units := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001
  "us" 0.000001 "µs" 0.000001 "μs" 0.000001 "ns" 0.000000001 }}
{{- $sum := 0.0 }}
{{- range regexFindAll "[0-9.]+(h|ms|m|s|us|µs|μs|ns)" (toString .) -1 }}
{{- $unit := regexFind "[^0-9.]+$" . }}
{{- $sum = addf $sum (mulf (trimSuffix $unit . | float64) (get $units $unit)) }}
{{- end }}
{{- ceil $sum | int64 }}
{{- end }}

{{/* cmwa.config is the content of pulumi-workflow-agent.yaml. It contains the keys that
follow from agent and other values, and the keys of config, which override them. */}}
{{- define "cmwa.config" -}}
{{- $agent := .Values.agent }}
{{- $own := .Values.config | default dict }}
{{- $config := dict "service_url" $agent.serviceUrl "deploy_target" $agent.deployTarget }}
{{- with $agent.sharedVolumeDirectory }}{{ $_ := set $config "shared_volume_directory" . }}{{ end }}

{{- /* The Pods of jobs. */}}
{{- if eq (default $agent.deployTarget $own.deploy_target) "kubernetes" }}
{{- $pods := dict "image_pull_policy" .Values.image.pullPolicy }}
{{- with .Values.workerNamespace.name }}{{ $_ := set $pods "namespace" . }}{{ end }}
{{- with include "cmwa.workerServiceAccount" . }}{{ $_ := set $pods "service_account" . }}{{ end }}
{{- with $agent.numCpus }}{{ $_ := set $pods "cpu" (toString .) }}{{ end }}
{{- with $agent.memQuantity | toString }}
{{- $_ := set $pods "memory" (ternary (printf "%sGi" .) . (regexMatch "^[0-9.]+$" .)) }}
{{- end }}
{{- with $agent.ephemeralStorage }}{{ $_ := set $pods "ephemeral_storage" . }}{{ end }}
{{- $_ := set $config "kubernetes" $pods }}
{{- if include "cmwa.workerPod" . }}{{ $_ := set $config "pod_template_file" "/etc/cmwa/worker-pod.json" }}{{ end }}
{{- end }}

{{- /* The credentials. Pools with their own tokens need none at the top level. */}}
{{- if $agent.oidc.audience }}
{{- $_ := set $config "oidc_token_file" "/var/run/secrets/cmwa/oidc-token" }}
{{- else if $agent.tokenFile }}
{{- $_ := set $config "token_file" $agent.tokenFile }}
{{- else if and (include "cmwa.secret" .) (not $own.pools) }}
{{- $_ := set $config "token_file" "/var/run/secrets/cmwa/PULUMI_AGENT_TOKEN" }}
{{- end }}

{{- /* If the Pod's grace period is set, shutdown_timeout is two minutes shorter: see "How long an
agent needs to stop" in cmd/cmwa/README.md. A shutdown_timeout in config overrides it. */}}
{{- with .Values.terminationGracePeriodSeconds }}
{{- $_ := set $config "shutdown_timeout" (printf "%ds" (max 0 (sub (int64 .) 120))) }}
{{- end }}

{{- $config = mergeOverwrite $config (deepCopy $own) }}
{{- if eq .Values.jobs.podSecurity "restricted" }}
{{- $rule := dict "patch" (include "cmwa.restrictedPod" . | fromYaml) }}
{{- $_ := set $config "pod_template_rules" (prepend ($config.pod_template_rules | default list) $rule) }}
{{- range $config.pools }}
{{- if kindIs "slice" .pod_template_rules }}
{{- $_ := set . "pod_template_rules" (prepend .pod_template_rules $rule) }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{/* cmwa.restrictedPod has the fields that the restricted Pod Security Standard requires of the Pods
of jobs. It is a rule and not the template, so that users can also have a template. The user need
not exist in the job's image: HOME is a writable directory. OpenShift chooses the user. */}}
{{- define "cmwa.restrictedPod" -}}
spec:
  securityContext:
    runAsNonRoot: true
    {{- if not (include "cmwa.openShift" .) }}
    runAsUser: 1000
    runAsGroup: 1000
    {{- end }}
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: pulumi-workflow
      env:
        - name: HOME
          value: /tmp
      securityContext:
        allowPrivilegeEscalation: false
        capabilities:
          drop: [ALL]
{{- end }}

{{/* cmwa.servicePorts is a list of the ports in the URLs of services, with commas between them. */}}
{{- define "cmwa.servicePorts" -}}
{{- $config := include "cmwa.config" . | fromYaml }}
{{- $ports := list }}
{{- range append ($config.pools | default list) $config }}
{{- with .service_url }}
{{- $url := urlParse . }}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" }}
{{- $ports = append $ports ($port | default (ternary "80" "443" (eq $url.scheme "http"))) }}
{{- end }}
{{- end }}
{{- $ports | uniq | join "," }}
{{- end }}

{{/* cmwa.grace is terminationGracePeriodSeconds of the agent's Pod. */}}
{{- define "cmwa.grace" -}}
{{- if .Values.terminationGracePeriodSeconds }}
{{- .Values.terminationGracePeriodSeconds | int64 }}
{{- else }}
{{- $config := include "cmwa.config" . | fromYaml }}
{{- add (include "cmwa.seconds" (default "1h" $config.shutdown_timeout)) 120 }}
{{- end }}
{{- end }}

{{/* cmwa.port is the port of the agent's HTTP server; 0 means no server. */}}
{{- define "cmwa.port" -}}
{{- $config := include "cmwa.config" . | fromYaml }}
{{- dig "http_server_port" 8080 $config | int }}
{{- end }}

{{/* cmwa.namespaces is a list of the namespaces in which jobs run, with commas between them. */}}
{{- define "cmwa.namespaces" -}}
{{- $config := include "cmwa.config" . | fromYaml }}
{{- $top := (default dict $config.kubernetes).namespace | default .Release.Namespace }}
{{- $all := list }}
{{- range $config.pools | default (list dict) }}
{{- $all = append $all ((default dict .kubernetes).namespace | default $top) }}
{{- end }}
{{- $all | uniq | join "," }}
{{- end }}

{{/* cmwa.handoffBySecret is true if a pool has kubernetes.handoff: secret. */}}
{{- define "cmwa.handoffBySecret" -}}
{{- $config := include "cmwa.config" . | fromYaml }}
{{- $result := false }}
{{- range append ($config.pools | default list) $config }}
{{- if eq ((default dict .kubernetes).handoff | default "") "secret" }}{{ $result = true }}{{ end }}
{{- end }}
{{- $result }}
{{- end }}

{{/* cmwa.check fails if values contradict each other or are missing. The error message
contains the hint. */}}
{{- define "cmwa.check" -}}
{{- $agent := .Values.agent }}
{{- $config := include "cmwa.config" . | fromYaml }}
{{- if and $agent.token $agent.existingSecretName }}
{{- fail "agent.token and agent.existingSecretName are both set: keep one of them" }}
{{- end }}
{{- if $config.token }}
{{- fail (print "config.token would be stored in a ConfigMap, which many users may read: "
  "set agent.token or agent.existingSecretName instead") }}
{{- end }}
{{- range $config.pools }}
{{- if .token }}
{{- fail (print "config.pools: the token of pool " .name " would be stored in a ConfigMap, which many users may read: "
  "store it in a Secret, set agent.existingSecretName to its name, and token_file to /var/run/secrets/cmwa/KEY") }}
{{- end }}
{{- end }}
{{- $authenticated := or $config.token_file $config.oidc_token_file }}
{{- if $config.pools }}
{{- $inherited := $authenticated }}
{{- $authenticated = true }}
{{- range $config.pools }}
{{- if not (or .token_file .oidc_token_file $inherited) }}{{ $authenticated = false }}{{ end }}
{{- end }}
{{- end }}
{{- range $agent.extraEnvVars }}
{{- if regexMatch "^PULUMI_AGENT_(OIDC_)?TOKEN(_FILE)?$" .name }}{{ $authenticated = true }}{{ end }}
{{- end }}
{{- if not (or $authenticated $agent.extraEnvFrom) }}
{{- fail (print "there is no pool access token: set agent.token, or agent.existingSecretName to the name of a Secret "
  "with the key PULUMI_AGENT_TOKEN, or agent.tokenFile, or agent.oidc.audience") }}
{{- end }}
{{- if and $agent.oidc.audience (not (and $config.organization_name $config.runner_pool_id)) (not $config.pools) }}
{{- fail "agent.oidc.audience is set: also set config.organization_name and config.runner_pool_id" }}
{{- end }}
{{- if and .Values.workerNamespace.create (not .Values.workerNamespace.name) }}
{{- fail "workerNamespace.create is set: also set workerNamespace.name" }}
{{- end }}
{{- if and $config.pod_template (include "cmwa.workerPod" .) }}
{{- fail "config.pod_template and podTemplate.workerPod are both set: keep one of them" }}
{{- end }}
{{- if and (eq .Values.image.tag "latest") (not .Values.image.digest) }}
{{- fail (print "image.tag is latest: nodes can then run different releases, and a job fails if the releases of its "
  "agent and its runner differ: set image.tag to a release, or also set image.digest") }}
{{- end }}
{{- $one := and (not .Values.autoscaling.enabled) (has (toString .Values.replicaCount) (list "0" "1")) }}
{{- if and .Values.persistence.enabled (not (and $one (eq .Values.deploymentStrategy.type "Recreate"))) }}
{{- fail (print "persistence.enabled is set, and only one agent at a time can use the volume: "
  "set replicaCount to 1, deploymentStrategy.type to Recreate and autoscaling.enabled to false") }}
{{- end }}
{{- with .Values.terminationGracePeriodSeconds }}
{{- if gt (add (include "cmwa.seconds" $config.shutdown_timeout) 120) (int64 .) }}
{{- fail (print "terminationGracePeriodSeconds is " . ", and config.shutdown_timeout is " $config.shutdown_timeout
  ": an agent needs two minutes more than shutdown_timeout to stop: make terminationGracePeriodSeconds longer, "
  "or remove one of the two values") }}
{{- end }}
{{- end }}
{{- end }}
