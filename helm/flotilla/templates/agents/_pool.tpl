{{/* Merges 'over' into 'base', recursively. Helm's own merge skips false, 0 and "". */}}
{{- define "flotilla.merge" -}}
{{- $base := .base -}}
{{- range $key, $value := .over -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $base $key -}}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $base $key)) -}}
{{- include "flotilla.merge" (dict "base" (get $base $key) "over" $value) -}}
{{- else -}}
{{- $_ := set $base $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" if the agent chooses the model's file in a repository, hf:owner/repo[:quantization], and stores it
in its own cache. Arguments: pool. */}}
{{- define "flotilla.isRepository" -}}
{{- $model := .pool.model -}}
{{- if and (not $model.file) (regexMatch "^hf:[^/]+/[^/]+$" $model.source) }}true{{ end -}}
{{- end -}}

{{/* The model's file in the cache. Arguments: pool, path. */}}
{{- define "flotilla.modelFile" -}}
{{- $model := .pool.model -}}
{{- if $model.file -}}
{{- $model.file -}}
{{- else if include "flotilla.isRepository" . -}}
{{- if $model.revision -}}
{{- fail (printf "%s.model.revision: %s leaves the file to the agent, which takes the newest; name a file, as hf:owner/repo/file.gguf or in %s.model.file" .path $model.source .path) -}}
{{- end -}}
{{- else if $model.source -}}
{{- base (regexReplaceAll "[?#].*$" $model.source "") -}}
{{- else -}}
{{- fail (printf "%s.model.source: name a model, such as hf:owner/repo:Q4_K_M, or set %s.model.file to one that is in the cache" .path .path) -}}
{{- end -}}
{{- end -}}

{{/* The gateways that agents join, one URL per line. */}}
{{- define "flotilla.joinUrls" -}}
{{- if .Values.gateway.enabled }}
{{ include "flotilla.scheme" .Values.gateway.config }}://{{ include "flotilla.fullname" . }}-nodes.{{ .Release.Namespace }}.svc:{{ include "flotilla.publicPort" . }}
{{- end }}
{{- range .Values.join.urls }}
{{ . }}
{{- end }}
{{- end -}}

{{- define "flotilla.serveArgs" -}}
- serve
- --model={{ if .file }}/models/{{ .file }}{{ else }}{{ .pool.model.source }}{{ end }}
{{- with .pool.model.name | default (trimSuffix ".gguf" .file) }}
- --model-name={{ . }}
{{- end }}
- --listen={{ .pool.listen }}
- --key-file=/etc/flotilla/join/join.key
- --join-key-file=/etc/flotilla/join/join.key
{{- range splitList "\n" (include "flotilla.joinUrls" .root | trim) }}
- --join={{ . }}
{{- end }}
{{- if .root.Values.join.caSecret }}
- --join-ca-file=/etc/flotilla/ca/ca.crt
{{- end }}
{{- if .root.Values.join.certSecret }}
- --join-cert-file=/etc/flotilla/cert/tls.crt
- --join-cert-key-file=/etc/flotilla/cert/tls.key
{{- end }}
{{- range $flag, $value := .pool.flags }}
{{- if kindIs "bool" $value }}
{{- if $value }}
- --{{ $flag }}
{{- end }}
{{- else }}
{{- range (kindIs "slice" $value | ternary $value (list $value)) }}
- {{ printf "--%s=%s" $flag (include "flotilla.text" .) | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The order of the digests is the order of the files. */}}
{{- define "flotilla.pullArgs" -}}
- pull
{{- if include "flotilla.isRepository" . }}
# 'serve' finds it there by its name, without network access.
- --cache
- --if-missing
{{- else }}
- --to=/models/{{ if .pool.model.file }}{{ .pool.model.file }}{{ end }}
{{- end }}
- --no-progress
{{- with .pool.model.revision }}
- --revision={{ . }}
{{- end }}
{{- range .pool.model.sha256 }}
- --sha256={{ . }}
{{- end }}
- {{ .pool.model.source | quote }}
{{- end -}}

{{- define "flotilla.agentEnv" -}}
- name: RUST_LOG
  value: {{ .pool.logLevel | quote }}
# For models from repositories, and for the results of tuning.
- name: FLOTILLA_CACHE_DIR
  value: /models/.flotilla
{{- with .pool.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "flotilla.agentVolumes" -}}
{{- $cache := .pool.cache -}}
{{ include "flotilla.secretFile" (dict "name" "join" "secret" (include "flotilla.joinSecret" .root) "key" .root.Values.join.secretKey "file" "join.key") }}
{{- with .root.Values.join.caSecret }}
- name: ca
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .root.Values.join.certSecret }}
- name: cert
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- if eq $cache.type "emptyDir" }}
- name: models
  emptyDir:
    sizeLimit: {{ $cache.size }}
{{- else if eq $cache.type "ephemeral" }}
- name: models
  ephemeral:
    volumeClaimTemplate:
      spec:
        {{- include "flotilla.claim" $cache | nindent 8 }}
{{- else if eq $cache.type "existingClaim" }}
- name: models
  persistentVolumeClaim:
    claimName: {{ required (printf "%s.cache.existingClaim: name the claim" .path) $cache.existingClaim }}
{{- else if eq $cache.type "hostPath" }}
- name: models
  hostPath:
    path: {{ required (printf "%s.cache.hostPath: name a folder of the machine" .path) $cache.hostPath }}
    type: DirectoryOrCreate
{{- end }}
{{- with .pool.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "flotilla.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .size }}
{{- end -}}

{{/* Fails if the pool is invalid. Arguments: root, name, pool, path. */}}
{{- define "flotilla.checkPool" -}}
{{- if has .name (list "admin" "agents" "dashboard" "gateway" "keys" "nodes" "test") -}}
{{- fail (printf "%s: the chart has another object of that name; choose one of your own" .path) -}}
{{- end -}}
{{- $daemon := eq .pool.kind "DaemonSet" -}}
{{- if and $daemon (eq .pool.cache.type "volumeClaim") -}}
{{- fail (printf "%s.cache.type: a DaemonSet has no claims of its own; use ephemeral, emptyDir, existingClaim or hostPath" .path) -}}
{{- end -}}
{{- if and $daemon .pool.keda.enabled -}}
{{- fail (printf "%s.keda.enabled: a DaemonSet has one agent on each machine; only a StatefulSet can be scaled" .path) -}}
{{- end -}}
{{- if and .pool.keda.enabled (not .pool.keda.serverAddress) -}}
{{- fail (printf "%s.keda.serverAddress: name a Prometheus, such as http://prometheus.monitoring:9090" .path) -}}
{{- end -}}
{{- if not (include "flotilla.joinUrls" .root | trim) -}}
{{- fail "join.urls: without a gateway of this release (gateway.enabled) agents need one to join" -}}
{{- end -}}
{{- if and (not .root.Values.gateway.enabled) (not .root.Values.join.existingSecret) (not .root.Values.join.key) -}}
{{- fail "join.existingSecret: the gateways of join.urls have a key; name its Secret, or set join.key" -}}
{{- end -}}
{{- end -}}
