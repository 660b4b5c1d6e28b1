{{- define "gpu-dra-driver.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "gpu-dra-driver.fullname" -}}
{{- $name := include "gpu-dra-driver.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "gpu-dra-driver.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "gpu-dra-driver.selectorLabels" -}}
{{- if .Values.selectorLabelsOverride }}
{{- toYaml .Values.selectorLabelsOverride }}
{{- else -}}
app.kubernetes.io/name: {{ include "gpu-dra-driver.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- end }}

{{- define "gpu-dra-driver.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{ include "gpu-dra-driver.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Name of a part's objects: (list . "kubelet-plugin") */}}
{{- define "gpu-dra-driver.part" -}}
{{- printf "%s-%s" (include "gpu-dra-driver.fullname" (index . 0)) (index . 1) }}
{{- end }}

{{- define "gpu-dra-driver.account" -}}
{{- $root := index . 0 }}
{{- printf "%s-%s" (default (include "gpu-dra-driver.fullname" $root) $root.Values.serviceAccount.name) (index . 1) }}
{{- end }}

{{/* Metadata of an object in the release's namespace: (list . "part") */}}
{{- define "gpu-dra-driver.metadata" -}}
name: {{ include "gpu-dra-driver.part" . }}
namespace: {{ include "gpu-dra-driver.namespace" (index . 0) }}
labels:
  {{- include "gpu-dra-driver.labels" (index . 0) | nindent 2 }}
  app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* The same for an object of the whole cluster. */}}
{{- define "gpu-dra-driver.clusterMetadata" -}}
name: {{ include "gpu-dra-driver.part" . }}
labels:
  {{- include "gpu-dra-driver.labels" (index . 0) | nindent 2 }}
  app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "gpu-dra-driver.podLabels" -}}
{{- include "gpu-dra-driver.selectorLabels" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "gpu-dra-driver.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* Where Pods may run: (list . .Values.kubeletPlugin) */}}
{{- define "gpu-dra-driver.placement" -}}
{{- with (index . 0).Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with index . 1 }}
priorityClassName: {{ .priorityClassName | quote }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* A folder of the host below hostRoot: (list . "proc") */}}
{{- define "gpu-dra-driver.ofHost" -}}
{{- printf "%s/%s" ((index . 0).Values.hostRoot | trimSuffix "/") (index . 1) }}
{{- end }}

{{- define "gpu-dra-driver.kubelet" -}}
{{- .Values.kubeletRootDir | trimSuffix "/" }}
{{- end }}

{{/* Port of an address such as :8080. */}}
{{- define "gpu-dra-driver.httpPort" -}}
{{- .Values.kubeletPlugin.metrics.gpuHttpEndpoint | splitList ":" | last }}
{{- end }}
