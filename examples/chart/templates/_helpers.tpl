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

{{- define "cmwa.image" -}}
{{- with .Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}
{{- .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{/* cmwa.podSecurityContext is the security context of the agent's Pod. On OpenShift it does not
have the default fsGroup: the platform sets one, and refuses others. */}}
{{- define "cmwa.podSecurityContext" -}}
{{- $context := .Values.podSecurityContext | default dict }}
{{- if and (.Capabilities.APIVersions.Has "security.openshift.io/v1") (eq (toString $context.fsGroup) "65532") }}
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
