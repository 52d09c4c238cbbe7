{{/* vgpu.requests: the policy on amounts that no node can serve, in the words of the plugin and of the hook. A node decides
by its own settings, so a rule is left out where the settings of some pool may differ in what it says. */}}

{{/* vgpu.amount RESOURCE: units of it in the limits of `container`, as CEL. */}}
{{- define "vgpu.amount" -}}
(has(container.resources.limits) && '{{ . }}' in container.resources.limits
&& quantity(container.resources.limits['{{ . }}']).isInteger()
? quantity(container.resources.limits['{{ . }}']).asInteger() : 0)
{{- end }}

{{- define "vgpu.requests" }}
{{- $resources := mergeOverwrite (dict "mode" "vcuda" "core_name" "tencent.com/vcuda-core" "core_unit" 1
  "memory_name" "tencent.com/vcuda-memory" "memory_unit" "256Mi" "gpu_name" "nvidia.com/gpu")
  (deepCopy (dig "resources" dict .Values.settings)) -}}
{{- $sections := concat (list .Values.settings) (dig "profiles" list .Values.settings)
  (values (dig "nodes" dict .Values.settings)) -}}
{{- $same := true }}{{ $refuses := true -}}
{{- range $at, $section := $sections -}}
{{- if and $at (hasKey $section "resources") }}{{ $same = false }}{{ end -}}
{{- if eq (dig "kubernetes" "missing_memory" "refuse" $section) "proportional" }}{{ $refuses = false }}{{ end -}}
{{- end -}}
{{- $sound := regexMatch "^[1-9][0-9]{0,6}[KMG]i$" (toString $resources.memory_unit) -}}
{{- $most := int .Values.admission.mostCards -}}
{{- $largest := and $sound .Values.admission.largestCard -}}
{{- $size := printf "quantity('%s').asInteger()" .Values.admission.largestCard -}}
{{- $unit := printf "quantity('%v').asInteger()" $resources.memory_unit -}}
{{- $pair := "a share needs limits for both resources in the pod\\'s spec" -}}
{{- $vcuda := eq $resources.mode "vcuda" -}}
{{- if and $same (or $vcuda $most) }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: vgpu-requests
  labels:
    {{- include "vgpu.labels" "vgpu-admission" | nindent 4 }}
spec:
  failurePolicy: Ignore
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [pods]
        operations: [CREATE]
  variables:
    - name: containers
      expression: >-
        object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])
    # For each container the line of its refusal, or none. An expression that fails admits the pod.
    - name: refusals
      expression: >-
        variables.containers.map(container,
{{- if $vcuda }}
        [[{{ include "vgpu.amount" $resources.core_name | nindent 8 | trim }} * {{ int $resources.core_unit }},
        {{ include "vgpu.amount" $resources.memory_name | nindent 8 | trim }}]].map(asked,
        asked[0] > 100 && asked[0] % 100 != 0
        ? '{{ $resources.core_name }}: expected 1 to 99 for a share of one card, or a multiple of 100, found ' + string(asked[0])
        + '; ask for whole cards or for less than one'
{{- if $most }}
        : asked[0] > {{ mul 100 $most }}
        ? '{{ $resources.core_name }}: expected at most the {{ $most }} cards of this node, found ' + string(asked[0] / 100)
        + ' cards (' + string(asked[0]) + ' cores)'
{{- end }}
        : asked[0] == 0 && asked[1] > 0
        ? 'grants: expected a grant of cores beside that of memory, found memory alone; {{ $pair }}'
{{- if $refuses }}
        : asked[0] > 0 && asked[0] < 100 && asked[1] == 0
        ? 'grants: expected a grant of memory beside that of cores, found cores alone; {{ $pair }}'
{{- end }}
{{- if $largest }}
        : asked[0] > 0 && asked[0] < 100 && asked[1] > {{ $size }} / {{ $unit }}
        ? 'no card fits 1 card, ' + string(asked[0]) + ' cores and ' + string(asked[1] * {{ $unit }} / 1048576)
        + ' MiB: memory ' + string({{ $size }} / 1048576) + ' MiB in all'
        : asked[0] == 100 && asked[1] > {{ $size }} / {{ $unit }}
        ? 'no card fits 1 card, whole with ' + string(asked[1] * {{ $unit }} / 1048576)
        + ' MiB: memory ' + string({{ $size }} / 1048576) + ' MiB in all'
        : asked[0] > 100 && asked[1] > asked[0] / 100 * {{ $size }} / {{ $unit }}
        ? 'no ' + string(asked[0] / 100) + ' cards have the requested memory together: ' + string(asked[0] / 100)
        + ' cards, whole with ' + string(asked[1] * {{ $unit }} / 1048576) + ' MiB together'
{{- end }}
        : '')
{{- else }}
        [{{ include "vgpu.amount" $resources.gpu_name | nindent 8 | trim }}].map(asked, asked > {{ $most }}
        ? '{{ $resources.gpu_name }}: expected at most {{ $most }}, one of each card of this node, found ' + string(asked) : '')
{{- end }}
        .filter(line, line != '').map(line, 'container ' + container.name + ': ' + line))
  validations:
    - expression: variables.refusals.all(lines, size(lines) == 0)
      messageExpression: variables.refusals.filter(lines, size(lines) > 0)[0][0]
      message: no node of this cluster can serve the limits of a container
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: vgpu-requests
  labels:
    {{- include "vgpu.labels" "vgpu-admission" | nindent 4 }}
spec:
  policyName: vgpu-requests
  validationActions: [Deny]
{{- end }}
{{- end }}
