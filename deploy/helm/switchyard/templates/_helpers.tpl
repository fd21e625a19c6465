{{- /* The name of objects: switchyard for the release of that name, and RELEASE-switchyard for others. No two releases of a namespace have the same. */}}
{{- define "switchyard.fullname" -}}
{{- $name := eq .Release.Name "switchyard" | ternary "switchyard" (printf "%s-switchyard" .Release.Name) }}
{{- $name = .Values.fullnameOverride | default $name }}
{{- if gt (len $name) 56 }}
{{- fail (printf "%s is too long for the names of objects: set fullnameOverride to a name of at most 56 characters" $name) }}
{{- end }}
{{- $name }}
{{- end }}

{{- /* The name of objects without a namespace. Releases of two namespaces may have the same name. */}}
{{- define "switchyard.clusterName" -}}
{{- eq .Release.Namespace "kube-system" | ternary "" (printf "%s:" .Release.Namespace) }}{{ include "switchyard.fullname" . }}
{{- end }}

{{- /* What selects the pods of this release, and of no other. */}}
{{- define "switchyard.selector" -}}
app.kubernetes.io/name: {{ include "switchyard.fullname" . }}
{{- end }}

{{- define "switchyard.labels" -}}
{{ include "switchyard.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* Mode iptables runs programs, which the flavour iptables of the image has. */}}
{{- define "switchyard.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ eq (include "switchyard.mode" .) "iptables" | ternary "-iptables" "" }}
{{- end }}
{{- end }}

{{- define "switchyard.mode" -}}
{{- .Values.config.mode | default "nftables" }}
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
  {{- with include "switchyard.goMemoryLimit" .Values.resources }}
  - name: GOMEMLIMIT
    value: {{ . }}
  {{- end }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
{{- end }}

{{- /* 60% of the limit of memory, as the program takes by itself; nothing for limits in other units than Mi and Gi. */}}
{{- define "switchyard.goMemoryLimit" -}}
{{- $limit := dig "limits" "memory" "" . | toString }}
{{- if regexMatch "^[0-9]+[MG]i$" $limit }}
{{- $mebibytes := regexFind "^[0-9]+" $limit | int64 | mul (hasSuffix "Gi" $limit | ternary 1024 1) }}
{{- div (mul $mebibytes 3) 5 }}MiB
{{- end }}
{{- end }}

{{- define "switchyard.args" -}}
- --config=/etc/switchyard/config.yaml
- --hostname-override=$(NODE_NAME)
{{- with .Values.verbosity }}
- --v={{ . }}
{{- end }}
{{- end }}

{{- /* Where the kubelet asks how a container is: at the port with a name, on an address and port. */}}
{{- define "switchyard.probes" -}}
livenessProbe:
  httpGet:
    {{- with include "switchyard.host" .address }}
    host: {{ . | quote }}
    {{- end }}
    path: /livez
    port: {{ .port }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet:
    {{- with include "switchyard.host" .address }}
    host: {{ . | quote }}
    {{- end }}
    path: /healthz
    port: {{ .port }}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}

{{- /* The host of an address and port; nothing if it is all addresses. */}}
{{- define "switchyard.host" -}}
{{- if not (or (hasPrefix "0.0.0.0:" .) (hasPrefix "[::]:" .)) }}
{{- regexReplaceAll ":[0-9]+$" . "" | trimPrefix "[" | trimSuffix "]" }}
{{- end }}
{{- end }}

{{- /* Whether an address and port can be reached on the node only. */}}
{{- define "switchyard.loopback" -}}
{{- if regexMatch "^(127\\.|\\[::1\\])" . }}true{{ end }}
{{- end }}

{{- /* Whether nodes have the cluster's objects from relays: then they ask no API server. */}}
{{- define "switchyard.relayed" -}}
{{- if and .Values.split.enabled .Values.split.relays -}}
true
{{- end }}
{{- end }}

{{- /* Whether nodes hand connections over to each other. */}}
{{- define "switchyard.edge" -}}
{{- if ne ((.Values.config.edge | default dict).mode | default "none") "none" }}true{{ end }}
{{- end }}

{{- /* Whether Switchyard may annotate Nodes. */}}
{{- define "switchyard.annotates" -}}
{{- if and (or (include "switchyard.edge" .) .Values.edge.keepPermission) (not .Values.split.enabled) }}true{{ end }}
{{- end }}

{{- /* The capabilities of the container that programs the node, as a list in JSON: those of the values, and what the mode and the edge take beside them. */}}
{{- define "switchyard.capabilityList" -}}
{{- $more := dict "ebpf" (list "BPF" "PERFMON" "DAC_READ_SEARCH") "iptables" (list "NET_RAW") }}
{{- $edge := eq (include "switchyard.edge" .) "true" | ternary (list "BPF" "PERFMON") list }}
{{- concat .Values.capabilities (get $more (include "switchyard.mode" .) | default list) $edge | uniq | toJson }}
{{- end }}

{{- define "switchyard.capabilities" -}}
{{- include "switchyard.capabilityList" . | fromJsonArray | toYaml }}
{{- end }}

{{- /* Whether the lock of iptables-legacy is needed. */}}
{{- define "switchyard.locksIPTables" -}}
{{- if has "NET_RAW" (include "switchyard.capabilityList" . | fromJsonArray) }}true{{ end }}
{{- end }}

{{- define "switchyard.kubeconfig" -}}
apiVersion: v1
kind: Config
clusters:
  - name: default
    cluster:
      server: {{ required "apiServer is missing: set it to the address of the API server, such as https://control-plane.example.org:6443" .Values.apiServer | quote }}
      certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
users:
  - name: default
    user:
      tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
contexts:
  - name: default
    context:
      cluster: default
      user: default
current-context: default
{{- end }}

{{- define "switchyard.relayLabels" -}}
{{- /* Not the name of the pods that program nodes: what selects those must not find a relay. */ -}}
{{ include "switchyard.relaySelector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "switchyard.relaySelector" -}}
app.kubernetes.io/name: {{ include "switchyard.fullname" . }}-relay
{{- end }}
