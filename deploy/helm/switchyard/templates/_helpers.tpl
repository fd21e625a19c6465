{{- define "switchyard.selector" -}}
app.kubernetes.io/name: switchyard
{{- end }}

{{- define "switchyard.labels" -}}
{{ include "switchyard.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "switchyard.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The port of an address and port, which may be [::]:10256. */}}
{{- define "switchyard.port" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}

{{- /* What both containers share. */}}
{{- define "switchyard.container" -}}
image: {{ include "switchyard.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
{{- end }}

{{- define "switchyard.args" -}}
- --config=/etc/switchyard/config.yaml
- --hostname-override=$(NODE_NAME)
{{- with .Values.verbosity }}
- --v={{ . }}
{{- end }}
{{- end }}
