{{- define "flotilla.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 39 | trimSuffix "-" -}}
{{- end -}}

{{/* 39 characters plus the name of a pool are at most 52: Kubernetes adds 11 to the name of a StatefulSet. */}}
{{- define "flotilla.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 39 | trimSuffix "-" -}}
{{- else if contains (include "flotilla.name" .) .Release.Name -}}
{{- .Release.Name | trunc 39 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "flotilla.name" .) | trunc 39 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select a component's pods; they must never change. Arguments: root, component, pool. */}}
{{- define "flotilla.selector" -}}
app.kubernetes.io/name: {{ include "flotilla.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
flotilla/pool: {{ . }}
{{- end }}
{{- end -}}

{{- define "flotilla.labels" -}}
{{ include "flotilla.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: flotilla
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods: none that depends on the version of the chart, so that an upgrade replaces no pod. */}}
{{- define "flotilla.podLabels" -}}
{{ include "flotilla.selector" . }}
app.kubernetes.io/part-of: flotilla
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- with .part.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "flotilla.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "flotilla.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, image. */}}
{{- define "flotilla.image" -}}
{{- with .root.Values.imageRegistry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{- define "flotilla.kubeVersion" -}}
{{- .Values.kubeVersion | default .Capabilities.KubeVersion.Version -}}
{{- end -}}

{{/* The port of an address. */}}
{{- define "flotilla.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}

{{/* Formats a whole number: Helm parses YAML numbers as floats. */}}
{{- define "flotilla.text" -}}
{{- if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}

{{- define "flotilla.podSecurity" -}}
runAsNonRoot: true
{{- if not .root.Values.assignedUserIds }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "flotilla.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Pod settings that gateways and agents share. Arguments: root, part. */}}
{{- define "flotilla.pod" -}}
serviceAccountName: {{ include "flotilla.serviceAccount" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "flotilla.podSecurity" . | nindent 2 }}
{{- with .part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Arguments: root, part, component, pool, and the topology keys to spread replicas over. */}}
{{- define "flotilla.spread" -}}
{{- if .part.topologySpreadConstraints -}}
topologySpreadConstraints:
  {{- toYaml .part.topologySpreadConstraints | nindent 2 }}
{{- else -}}
topologySpreadConstraints:
  {{- range .keys }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "flotilla.selector" $ | nindent 8 }}
  {{- end }}
{{- end -}}
{{- end -}}

{{/* The Secrets of the join key and of the admin key. */}}
{{- define "flotilla.joinSecret" -}}
{{- .Values.join.existingSecret | default (printf "%s-keys" (include "flotilla.fullname" .)) -}}
{{- end -}}

{{- define "flotilla.adminSecret" -}}
{{- .Values.admin.existingSecret | default (printf "%s-keys" (include "flotilla.fullname" .)) -}}
{{- end -}}

{{/* One file of a Secret as a volume. Arguments: name, secret, key, file. */}}
{{- define "flotilla.secretFile" -}}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    items:
      - key: {{ .key }}
        path: {{ .file }}
{{- end -}}
