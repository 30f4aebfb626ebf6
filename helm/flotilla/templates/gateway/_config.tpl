{{- define "flotilla.publicPort" -}}
{{- include "flotilla.port" (.Values.gateway.config.listen | default "127.0.0.1:8080") -}}
{{- end -}}

{{- define "flotilla.adminPort" -}}
{{- if .Values.gateway.config.admin -}}
{{- include "flotilla.port" (.Values.gateway.config.admin.listen | default "127.0.0.1:8081") -}}
{{- end -}}
{{- end -}}

{{/* Returns https if the section has tls, otherwise http. */}}
{{- define "flotilla.scheme" -}}
{{- if .tls }}https{{ else }}http{{ end -}}
{{- end -}}

{{/* Folders of the gateway's container that contain files, separated by commas. */}}
{{- define "flotilla.folders" -}}
{{- $folders := list "/etc/flotilla/join/" "/etc/flotilla/admin/" "/etc/flotilla/keys/" "/var/lib/flotilla/" -}}
{{- range $name, $_ := .Values.gateway.secrets -}}
{{- $folders = append $folders (printf "/etc/flotilla/secrets/%s/" $name) -}}
{{- end -}}
{{- range .Values.gateway.extraVolumeMounts -}}
{{- $folders = append $folders (.mountPath | default "/") -}}
{{- end -}}
{{- join "," $folders -}}
{{- end -}}

{{/* Fails if no volume provides the file. Arguments: path, value, folders. */}}
{{- define "flotilla.checkFiles" -}}
{{- $at := . -}}
{{- if kindIs "map" .value -}}
{{- range $key, $value := .value -}}
{{- $path := printf "%s.%s" $at.path $key -}}
{{- if and (hasSuffix "_file" $key) (kindIs "string" $value) -}}
{{- $found := dict -}}
{{- range splitList "," $at.folders -}}
{{- if hasPrefix . $value }}{{ $_ := set $found "yes" true }}{{ end -}}
{{- end -}}
{{- if not $found.yes -}}
{{- fail (printf "%s: no volume brings %s; name its Secret in gateway.secrets, and the file as /etc/flotilla/secrets/NAME/FILE" $path $value) -}}
{{- end -}}
{{- else -}}
{{- include "flotilla.checkFiles" (dict "path" $path "value" $value "folders" $at.folders) -}}
{{- end -}}
{{- end -}}
{{- else if kindIs "slice" .value -}}
{{- range $index, $value := .value -}}
{{- include "flotilla.checkFiles" (dict "path" (printf "%s[%d]" $at.path $index) "value" $value "folders" $at.folders) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails if a listener cannot be reached. */}}
{{- define "flotilla.checkListen" -}}
{{- if or (not .listen) (hasPrefix "127." .listen) (hasPrefix "[::1]" .listen) -}}
{{- fail (printf "%s: a Service cannot reach %s; use 0.0.0.0:PORT, or [::]:PORT" .path (.listen | default "the default, 127.0.0.1")) -}}
{{- end -}}
{{- end -}}

{{/* gateway.yaml */}}
{{- define "flotilla.config" -}}
{{- $config := .Values.gateway.config -}}
{{- include "flotilla.checkListen" (dict "path" "gateway.config.listen" "listen" $config.listen) -}}
{{- if $config.admin -}}
{{- include "flotilla.checkListen" (dict "path" "gateway.config.admin.listen" "listen" $config.admin.listen) -}}
{{- end -}}
{{- include "flotilla.checkFiles" (dict "path" "gateway.config" "value" $config "folders" (include "flotilla.folders" .)) -}}
{{ toYaml $config }}
{{- end -}}
