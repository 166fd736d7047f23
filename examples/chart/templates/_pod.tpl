{{/* cmwa.pod is the specification of the agent's Pod. */}}
{{- define "cmwa.pod" -}}
{{- $port := include "cmwa.port" . | int }}
{{- $secret := include "cmwa.secret" . }}
{{- $credentials := or $secret .Values.agent.oidc.audience -}}
serviceAccountName: {{ include "cmwa.serviceAccount" . }}
terminationGracePeriodSeconds: {{ include "cmwa.grace" . }}
{{- with include "cmwa.pullSecrets" . }}{{ . | nindent 0 }}{{ end }}
{{- with include "cmwa.podSecurityContext" . }}
securityContext: {{- . | nindent 2 }}
{{- end }}
{{- with .Values.initContainers }}
initContainers: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: agent
    image: {{ include "cmwa.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [run]
    env:
      # Also for: kubectl exec deployment/{{ include "cmwa.fullname" . }} -- cmwa doctor
      - name: PULUMI_AGENT_CONFIG
        value: /etc/cmwa/pulumi-workflow-agent.yaml
      {{- if .Values.agent.pinServiceUrl }}
      - name: CMWA_SERVICE_URL_PIN
        value: {{ (include "cmwa.config" . | fromYaml).service_url | quote }}
      {{- end }}
      {{- with .Values.agent.extraEnvVars }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- with .Values.agent.extraEnvFrom }}
    envFrom: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if $port }}
    ports:
      - name: http
        containerPort: {{ $port }}
    {{- with .Values.livenessProbe }}
    {{- if .enabled }}
    livenessProbe:
      httpGet:
        path: /healthz
        port: http
      {{- omit . "enabled" | toYaml | nindent 6 }}
    {{- end }}
    {{- end }}
    {{- with .Values.readinessProbe }}
    {{- if .enabled }}
    readinessProbe:
      httpGet:
        path: /readyz
        port: http
      {{- omit . "enabled" | toYaml | nindent 6 }}
    {{- end }}
    {{- end }}
    {{- end }}
    {{- with .Values.resources }}
    resources: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.securityContext }}
    securityContext: {{- toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
      {{- /* Mount the directory: the kubelet never refreshes a file that is mounted by subPath. */}}
      - name: agent-config
        mountPath: /etc/cmwa
        readOnly: true
      {{- if $credentials }}
      - name: agent-credentials
        mountPath: /var/run/secrets/cmwa
        readOnly: true
      {{- end }}
      - name: agent-state
        mountPath: /var/lib/cmwa
      {{- with .Values.agent.sharedVolumeDirectory }}
      - name: agent-work
        mountPath: {{ . }}
      {{- end }}
      {{- with .Values.extraVolumeMounts }}{{ toYaml . | nindent 6 }}{{ end }}
  {{- with .Values.sidecars }}{{ toYaml . | nindent 2 }}{{ end }}
volumes:
  - name: agent-config
    configMap:
      name: {{ include "cmwa.fullname" . }}
  {{- if $credentials }}
  - name: agent-credentials
    projected:
      defaultMode: 0440
      sources:
        {{- with $secret }}
        - secret:
            name: {{ . }}
        {{- end }}
        {{- with .Values.agent.oidc }}
        {{- if .audience }}
        - serviceAccountToken:
            audience: {{ .audience | quote }}
            expirationSeconds: {{ .expirationSeconds | int64 }}
            path: oidc-token
        {{- end }}
        {{- end }}
  {{- end }}
  - name: agent-state
    {{- if .Values.persistence.enabled }}
    persistentVolumeClaim:
      claimName: {{ .Values.persistence.existingClaim | default (include "cmwa.fullname" .) }}
    {{- else }}
    emptyDir: {}
    {{- end }}
  {{- if .Values.agent.sharedVolumeDirectory }}
  - name: agent-work
    emptyDir: {}
  {{- end }}
  {{- with .Values.extraVolumes }}{{ toYaml . | nindent 2 }}{{ end }}
{{- range $field := list "nodeSelector" "affinity" "tolerations" "priorityClassName" "runtimeClassName"
    "hostAliases" "dnsPolicy" "dnsConfig" }}
{{- with index $.Values $field }}{{ dict $field . | toYaml | nindent 0 }}{{ end }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $constraint := deepCopy . }}
  {{- if not .labelSelector }}
  {{- $_ := set $constraint "labelSelector" (dict "matchLabels" (include "cmwa.selectorLabels" $ | fromYaml)) }}
  {{- end }}
  {{- toYaml (list $constraint) | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}
