{{/* Volumes with the gateway's files, mounted in the folders of "flotilla.folders". */}}
{{- define "flotilla.gatewayMounts" -}}
- name: config
  mountPath: /etc/flotilla/config
  readOnly: true
- name: join
  mountPath: /etc/flotilla/join
  readOnly: true
- name: admin
  mountPath: /etc/flotilla/admin
  readOnly: true
- name: keys
  mountPath: /etc/flotilla/keys
  readOnly: true
# For a state_file: it survives a restart of the container, but not the replacement of the pod.
- name: state
  mountPath: /var/lib/flotilla
{{- range $name, $_ := .Values.gateway.secrets }}
- name: secret-{{ $name }}
  mountPath: /etc/flotilla/secrets/{{ $name }}
  readOnly: true
{{- end }}
{{- end -}}

{{- define "flotilla.gatewayVolumes" -}}
{{- $name := include "flotilla.fullname" . -}}
- name: config
  configMap:
    name: {{ $name }}-gateway
{{ include "flotilla.secretFile" (dict "name" "join" "secret" (include "flotilla.joinSecret" .) "key" .Values.join.secretKey "file" "join.key") }}
{{ include "flotilla.secretFile" (dict "name" "admin" "secret" (include "flotilla.adminSecret" .) "key" .Values.admin.secretKey "file" "admin.key") }}
{{ include "flotilla.secretFile" (dict "name" "keys" "secret" (.Values.apiKeys.existingSecret | default (printf "%s-api-keys" $name)) "key" .Values.apiKeys.secretKey "file" "keys.yaml") }}
    optional: true
- name: state
  emptyDir:
    sizeLimit: 64Mi
{{- range $name, $secret := .Values.gateway.secrets }}
- name: secret-{{ $name }}
  secret:
    secretName: {{ $secret }}
    defaultMode: 0440
{{- end }}
{{- end -}}
