{{/* cmwa.fullname is the name of the agent's objects, and the beginning of the names of the
objects for jobs. By default the name contains "agent". The documentation of Pulumi's agent
has example policies with rules for the Pods of jobs. They exempt Pods with such a name. */}}
{{- define "cmwa.fullname" -}}
{{- $name := .Values.fullnameOverride }}
{{- if not $name }}
{{- $name = .Release.Name }}
{{- if not (contains "agent" $name) }}{{ $name = printf "%s-agent" $name }}{{ end }}
{{- end }}
{{- $name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* cmwa.selectorLabels are the labels that select the agent's Pods. */}}
{{- define "cmwa.selectorLabels" -}}
app.kubernetes.io/name: {{ default "customer-managed-workflow-agent" .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* cmwa.objectLabels are the labels that all objects except Pods have in common. Pods do
not have them, because a new version of the chart in their labels would restart them. */}}
{{- define "cmwa.objectLabels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* cmwa.labels are the labels of the agent's objects. */}}
{{- define "cmwa.labels" -}}
app.kubernetes.io/name: {{ default "customer-managed-workflow-agent" .Values.nameOverride }}
{{ include "cmwa.objectLabels" . }}
{{- end }}

{{/* cmwa.workerLabels are the labels of objects for the Pods of jobs. */}}
{{- define "cmwa.workerLabels" -}}
app.kubernetes.io/name: workflow-runner
{{ include "cmwa.objectLabels" . }}
{{- end }}

{{/* cmwa.metadata is the metadata of an object. It takes a dict. root is the context of the chart.
With runner: true, the object is for the Pods of jobs. The optional name, namespace, labels and
annotations override those of the other objects. */}}
{{- define "cmwa.metadata" -}}
{{- $values := .root.Values }}
{{- $runner := default false .runner }}
{{- $labels := include (ternary "cmwa.workerLabels" "cmwa.labels" $runner) .root | fromYaml -}}
name: {{ .name | default (print (include "cmwa.fullname" .root) (ternary "-runner" "" $runner)) }}
namespace: {{ .namespace | default .root.Release.Namespace }}
labels:
  {{- mergeOverwrite dict ($values.commonLabels | default dict) $labels (.labels | default dict) | toYaml | nindent 2 }}
{{- with mergeOverwrite dict ($values.commonAnnotations | default dict) (.annotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* cmwa.image is registry/repository:tag@digest. A digest needs no tag. A released chart has the digest of its image
as an annotation. */}}
{{- define "cmwa.image" -}}
{{- $image := .Values.image }}
{{- $digest := $image.digest }}
{{- with default $image.registry .Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}
{{- $image.repository }}
{{- if not (or $image.tag $digest) }}
{{- $digest = index (default dict .Chart.Annotations) "cmwa/image-digest" }}:{{ .Chart.AppVersion }}
{{- end }}
{{- with $image.tag }}:{{ . }}{{ end }}
{{- with $digest }}@{{ . }}{{ end }}
{{- end }}

{{/* cmwa.pullSecrets is the field imagePullSecrets of a Pod or of a service account, or empty.
Parent charts also use names in place of objects in global.imagePullSecrets. */}}
{{- define "cmwa.pullSecrets" -}}
{{- $secrets := list }}
{{- range concat (.Values.global.imagePullSecrets | default list) (.Values.imagePullSecrets | default list) }}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) }}
{{- end }}
{{- with uniq $secrets -}}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "cmwa.openShift" -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}true{{ end }}
{{- end }}

{{/* cmwa.podSecurityContext is the security context of the agent's Pod. On OpenShift it does not
have the default fsGroup: the platform sets one, and refuses others. */}}
{{- define "cmwa.podSecurityContext" -}}
{{- $context := .Values.podSecurityContext | default dict }}
{{- if and (include "cmwa.openShift" .) (eq (toString $context.fsGroup) "65532") }}
{{- $context = omit $context "fsGroup" }}
{{- end }}
{{- if $context }}{{ toYaml $context }}{{ end }}
{{- end }}

{{- define "cmwa.serviceAccount" -}}
{{- default (ternary (include "cmwa.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{/* cmwa.workerServiceAccount is the name of the service account of jobs. It is empty if
jobs use the default service account of the namespace. Then the token of that account is
not mounted into their Pods. */}}
{{- define "cmwa.workerServiceAccount" -}}
{{- $own := ternary (printf "%s-runner" (include "cmwa.fullname" .)) "" .Values.workerServiceAccount.create }}
{{- default $own .Values.workerServiceAccount.name }}
{{- end }}

{{/* cmwa.secret is the name of the Secret with the token, or empty. */}}
{{- define "cmwa.secret" -}}
{{- if .Values.agent.token }}{{ include "cmwa.fullname" . }}{{ else }}{{ .Values.agent.existingSecretName }}{{ end }}
{{- end }}

{{/* cmwa.group is the label cmwa.group of the Pods of jobs. The agent derives it from its
Deployment in the same way. */}}
{{- define "cmwa.group" -}}
{{- $group := printf "%s.deployment.%s" .Release.Namespace (include "cmwa.fullname" .) }}
{{- if gt (len $group) 63 }}{{ $group | sha256sum | trunc 32 }}{{ else }}{{ $group }}{{ end }}
{{- end }}

{{/* cmwa.workerPod is podTemplate.workerPod, or empty if it is an empty object. */}}
{{- define "cmwa.workerPod" -}}
{{- $text := .Values.podTemplate.workerPod | default "{}" | trim }}
{{- if $text | mustFromJson }}{{ $text }}{{ end }}
{{- end }}
