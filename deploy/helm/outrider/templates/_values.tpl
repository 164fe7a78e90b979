{{/* Applies the values to the objects that outrider.kustomize made. Each template changes .objects in place. */}}

{{/* A flag's or setting's value as text: numbers as they were written. */}}
{{- define "outrider.text" -}}
{{- ternary . (toJson .) (kindIs "string" .) }}
{{- end }}

{{/* The image .image with registry and tag. */}}
{{- define "outrider.image" -}}
{{- $image := .root.Values.image }}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .image }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* Applies settings, replicas and the pod's values of .role, which is coordinator, draft or target. */}}
{{- define "outrider.role" -}}
{{- $name := printf "outrider-%s" .role }}
{{- $values := index .root.Values .role }}
{{- $workload := get .objects (printf "%s/%s" (ternary "StatefulSet" "Deployment" (eq .role "target")) $name) }}
{{- $settings := (get .objects (printf "ConfigMap/%s" $name)).data }}
{{- range $key, $value := $values.settings }}
{{-   $_ := set $settings $key (include "outrider.text" $value) }}
{{- end }}
{{- if not (kindIs "invalid" $values.replicas) }}
{{-   $_ := set $workload.spec "replicas" $values.replicas }}
{{-   $_ := unset .objects (printf "HorizontalPodAutoscaler/%s" $name) }}
{{- end }}
{{- $annotations := dict "checksum/settings" (toJson $settings | sha256sum) }}
{{- $_ := set $workload.spec.template.metadata "annotations" (merge $annotations $values.podAnnotations) }}
{{- $pod := $workload.spec.template.spec }}
{{- range $field := list "nodeSelector" "affinity" }}
{{-   with get $values $field }}{{ $_ := set $pod $field . }}{{ end }}
{{- end }}
{{- with $values.tolerations }}
{{-   $_ := set $pod "tolerations" (concat ($pod.tolerations | default list) .) }}
{{- end }}
{{- $container := first $pod.containers }}
{{- $_ := set $container "args" (concat $container.args $values.extraArgs) }}
{{- $_ := mergeOverwrite $container.resources $values.resources }}
{{- include "outrider.pod" (dict "pod" $pod "root" .root) }}
{{- end }}

{{/* Sets the images, and the names of Secrets and of the claim, in the pod .pod. */}}
{{- define "outrider.pod" -}}
{{- $values := .root.Values }}
{{- $secrets := dict "outrider-hub" $values.weights.fetch.tokenSecret "outrider-cache-key" $values.tls.secrets.cacheKey
      "outrider-client-tokens" $values.tls.secrets.clientTokens "outrider-coordinator-tls" $values.tls.secrets.coordinator
      "outrider-draft-tls" $values.tls.secrets.draft "outrider-target-tls" $values.tls.secrets.target }}
{{- range .pod.volumes }}
{{-   with .secret }}{{ $_ := set . "secretName" (get $secrets .secretName) }}{{ end }}
{{-   if and .persistentVolumeClaim $values.weights.claim }}
{{-     $_ := set .persistentVolumeClaim "claimName" $values.weights.claim }}
{{-   end }}
{{- end }}
{{- range concat .pod.containers (.pod.initContainers | default list) }}
{{-   $_ := set . "image" (include "outrider.image" (dict "image" .image "root" $.root)) }}
{{-   $_ := set . "imagePullPolicy" $values.image.pullPolicy }}
{{- end }}
{{- range $values.image.pullSecrets }}
{{-   $_ := set $.pod "imagePullSecrets" (append ($.pod.imagePullSecrets | default list) (dict "name" .)) }}
{{- end }}
{{- end }}

{{/* Sets the limits of the autoscaler of .name, if there is one. */}}
{{- define "outrider.limits" -}}
{{- with get .objects (printf "HorizontalPodAutoscaler/%s" .name) }}
{{-   $_ := set .spec "minReplicas" $.limits.minReplicas }}
{{-   $_ := set .spec "maxReplicas" $.limits.maxReplicas }}
{{- end }}
{{- end }}
