{{/* What several templates have in common. The names of objects do not depend on the release's name: a cluster has one
vgpu, and a second release is refused by the objects of the first. */}}

{{- define "vgpu.labels" -}}
app.kubernetes.io/name: {{ . }}
app.kubernetes.io/part-of: vgpu
{{- end }}

{{/* vgpu.image (list $ NAME): registry, tag or digest. */}}
{{- define "vgpu.image" -}}
{{- $values := (index . 0).Values.image -}}
{{- $name := index . 1 -}}
{{- with $values.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $name }}
{{- with index $values.digests $name }}@{{ . }}{{ else }}:{{ $values.tag | default (index $ 0).Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Where the pods of nodes run, and by which credentials their images come. */}}
{{- define "vgpu.placement" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The settings as /etc/vgpu/config.yaml has them: the values' own over what the DaemonSet needs. */}}
{{- define "vgpu.settings" -}}
{{- $metrics := dict "listen" "" -}}
{{- if .Values.exporter.enabled }}{{ $metrics = set $metrics "group" 65532 }}{{ end -}}
{{- $plugin := dict "cdi" true "http" "127.0.0.1:5679" -}}
{{- with .Values.kubelet }}
{{- if ne .directory "/var/lib/kubelet" }}
{{- $plugin = set $plugin "pod_resources_socket" (printf "%s/pod-resources/kubelet.sock" .directory) }}
{{- end }}
{{- if ne .devicePlugins "/var/lib/kubelet/device-plugins" }}{{ $plugin = set $plugin "socket_dir" .devicePlugins }}{{ end }}
{{- end }}
{{- $paths := dict "libvcuda" (printf "%s/current/usr/lib/vgpu/vcuda" .Values.node.directory) -}}
{{- $defaults := dict "plugin" $plugin "paths" $paths "metrics" $metrics -}}
{{- if .Values.dra.enabled }}
{{- $defaults = set $defaults "kubernetes" (dict "dra" true) }}
{{- if .Values.dra.parts }}{{ $_ := set $defaults.kubernetes "dra_parts" true }}{{ end }}
{{- with .Values.cdi.directory }}{{ $_ := set $defaults.kubernetes "cdi_dir" . }}{{ end }}
{{- end }}
{{- mergeOverwrite $defaults (deepCopy .Values.settings) | toYaml }}
{{- end }}

{{- define "vgpu.state" -}}
{{ dig "paths" "state" "/var/lib/vgpu" .Values.settings }}
{{- end }}

{{/* The folder of the CDI files of prepared claims. */}}
{{- define "vgpu.claims" -}}
{{ dig "kubernetes" "cdi_dir" (.Values.cdi.directory | default "/var/run/cdi") .Values.settings }}
{{- end }}

{{- define "vgpu.run" -}}
{{ dig "paths" "run" "/run/vgpu" .Values.settings }}
{{- end }}

{{- define "vgpu.node-name" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}

{{/* No right: what every container has that needs none. `$` for SELinux. */}}
{{- define "vgpu.no-rights" -}}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- with .Values.node.seLinuxType }}
seLinuxOptions:
  type: {{ . }}
{{- end }}
{{- end }}

{{/* The service account's token lies in the containers that ask the API server, and in no other of the pod. */}}
{{- define "vgpu.account.mount" -}}
- name: account
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end }}

{{- define "vgpu.account.volume" -}}
- name: account
  projected:
    defaultMode: 0400
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3607
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
      - downwardAPI:
          items:
            - path: namespace
              fieldRef:
                fieldPath: metadata.namespace
{{- end }}

{{/* vgpu.exporter (list $ IMAGE): the container. */}}
{{- define "vgpu.exporter" -}}
{{- $ := index . 0 -}}
# The exporter has no right at all. It is not root, and reads vgpud's record by the group 65532, to which vgpud
# gives the record where the settings say metrics.group: 65532. Whoever reaches the pod sees names of pods and
# containers: docs/metrics.md.
- name: exporter
  image: {{ include "vgpu.image" . }}
  imagePullPolicy: {{ $.Values.image.pullPolicy }}
  command: [vgpu-exporter, --listen, "0.0.0.0:{{ $.Values.exporter.port }}"]
  ports:
    - name: metrics
      containerPort: {{ $.Values.exporter.port }}
      protocol: TCP
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    {{- include "vgpu.no-rights" $ | nindent 4 }}
  {{- with $.Values.exporter.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  livenessProbe:
    httpGet:
      path: /healthz
      port: metrics
    initialDelaySeconds: 30
    periodSeconds: 30
    timeoutSeconds: 10
    failureThreshold: 4
  volumeMounts:
    - name: metrics # vgpud's record, and the lock of the node's exporter, which it opens for writing
      mountPath: {{ include "vgpu.run" $ }}/metrics
    - name: settings # the compiled ones; root's files in the folder stay closed to this user
      mountPath: /var/lib/vgpu
      readOnly: true
{{- end }}

{{- define "vgpu.exporter.volumes" -}}
- name: metrics
  hostPath:
    path: {{ include "vgpu.run" . }}/metrics
    type: DirectoryOrCreate
{{- end }}

{{/* What the extender has to know of other names of resources: its options, one a line. */}}
{{- define "vgpu.extender.resources" -}}
{{- with .Values.settings.resources -}}
{{- $core := .core_name | default "tencent.com/vcuda-core" -}}
{{- $memory := .memory_name | default "tencent.com/vcuda-memory" -}}
{{- $unit := .memory_unit | default "256Mi" -}}
{{- if kindIs "float64" $unit }}{{ $unit = int64 $unit }}{{ end -}}
{{- if or .core_name .memory_name .memory_unit -}}
--resource={{ $core }}:{{ $memory }}:{{ $unit }}
{{ end -}}
{{- with .gpu_name -}}
--gpu-name={{ . }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The names that the configurations of kube-scheduler do not have, one a line. */}}
{{- define "vgpu.extender.names" -}}
{{- $known := list "tencent.com/vcuda-core" "tencent.com/vcuda-memory" "nvidia.com/vcuda-core" "nvidia.com/vcuda-memory" "nvidia.com/gpu" -}}
{{- with .Values.settings.resources -}}
{{- $own := compact (list .core_name .memory_name .gpu_name) -}}
{{- range $own -}}
{{- if not (has . $known) }}{{ . }}
{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}
