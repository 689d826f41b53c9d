{{- define "everbeat.labels" -}}
app.kubernetes.io/name: everbeat
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "everbeat.selector" -}}
app.kubernetes.io/name: everbeat
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "everbeat.fullname" -}}
{{- if contains "everbeat" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-everbeat" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "everbeat.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "everbeat.databaseSecret" -}}
{{ .Values.database.existingSecret | default (printf "%s-database" (include "everbeat.fullname" .)) }}
{{- end }}

{{- define "everbeat.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "everbeat.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "everbeat.env" -}}
- name: EVERBEAT_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "everbeat.databaseSecret" . }}
      key: {{ .Values.database.secretKey }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
