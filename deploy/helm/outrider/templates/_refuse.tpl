{{/* Refuses values that exclude each other or that need others: rendering fails with the reason. The schema checks the rest. */}}

{{- define "outrider.refuse" -}}
{{- $v := .Values }}
{{- $http := or $v.ingress.enabled $v.httpRoute.enabled }}
{{- range list
      (list (and $v.keda.enabled $v.autoscaling.enabled)
        "keda.enabled and autoscaling.enabled exclude each other: both set the replicas of the coordinator")
      (list (and (or $v.keda.enabled $v.autoscaling.enabled) (not (kindIs "invalid" $v.coordinator.replicas)))
        "coordinator.replicas: keda or autoscaling sets them, between its minReplicas and maxReplicas")
      (list (and $v.keda.enabled (not $v.keda.serverAddress)) "keda.serverAddress: keda needs the address of Prometheus")
      (list (and (not $v.pools.enabled) (gt (int $v.draft.replicas) 1)) "draft.replicas: more than 1 need pools.enabled")
      (list (and (not $v.pools.enabled) (gt (int $v.target.replicas) 1)) "target.replicas: more than 1 need pools.enabled")
      (list (and $v.pools.enabled (not (kindIs "invalid" $v.draft.replicas)) (lt (int $v.draft.replicas) 2))
        "draft.replicas: a pool has 2 or more")
      (list (and $v.pools.enabled (not (kindIs "invalid" $v.target.replicas)) (lt (int $v.target.replicas) 2))
        "target.replicas: a pool has 2 or more")
      (list (and $v.pools.enabled $v.tensorParallel.enabled)
        "pools.enabled and tensorParallel.enabled exclude each other: a pool has targets of one pod each")
      (list (and $v.tensorParallel.enabled $v.target.extraArgs)
        "target.extraArgs reach only one rank of tensorParallel: give target.settings OUTRIDER_<FLAG>")
      (list (and $v.weights.fetch.enabled (not $v.gpu.enabled)) "weights.fetch.enabled needs gpu.enabled")
      (list (and $v.weights.claim (not $v.gpu.enabled)) "weights.claim needs gpu.enabled")
      (list (and $v.weights.claim $v.weights.fetch.enabled)
        "weights.claim and weights.fetch.enabled exclude each other: weights come from a claim or from the hub")
      (list (and $v.tls.httpTerminated (not $v.tls.enabled)) "tls.httpTerminated needs tls.enabled")
      (list (and $v.tls.enabled $http (not $v.tls.httpTerminated))
        "ingress and httpRoute speak plain HTTP to the coordinator: with tls.enabled they need tls.httpTerminated")
      (list (and $v.tls.enabled $v.grpcRoute.enabled)
        "grpcRoute.enabled and tls.enabled exclude each other: the Gateway would speak plaintext to port 7070")
      (list (and $v.tls.enabled $v.inferencePool.enabled)
        "inferencePool.enabled and tls.enabled exclude each other: the endpoint picker reads /metrics in plaintext, without a token")
      (list (and $v.httpRoute.enabled $v.grpcRoute.enabled (eq (toJson $v.httpRoute) (toJson $v.grpcRoute)))
        "httpRoute.hostnames and grpcRoute.hostnames exclude each other where a Gateway has both: it takes one kind for a host")
      (list (and $v.httpRoute.enabled (not $v.httpRoute.parentRefs)) "httpRoute.parentRefs: it needs a Gateway")
      (list (and $v.grpcRoute.enabled (not $v.grpcRoute.parentRefs)) "grpcRoute.parentRefs: it needs a Gateway") }}
{{-   if first . }}{{ fail (last .) }}{{ end }}
{{- end }}
{{- range $name, $limits := dict "autoscaling" $v.autoscaling "keda" $v.keda "pools.draft" $v.pools.draft
      "pools.target" $v.pools.target }}
{{-   if gt (int $limits.minReplicas) (int $limits.maxReplicas) }}
{{-     fail (printf "%s.minReplicas: %v is above its maxReplicas, %v" $name $limits.minReplicas $limits.maxReplicas) }}
{{-   end }}
{{- end }}
{{- end }}

{{/* A server with fewer sequences than its coordinators have requests would evict sequences in use. */}}
{{- define "outrider.refuse.sequences" -}}
{{- $v := .root.Values }}
{{- $most := int (get .objects "Deployment/outrider-coordinator").spec.replicas }}
{{- if $v.keda.enabled }}{{ $most = int $v.keda.maxReplicas }}{{ end }}
{{- if $v.autoscaling.enabled }}{{ $most = int $v.autoscaling.maxReplicas }}{{ end }}
{{- $requests := int (get .objects "ConfigMap/outrider-coordinator").data.MAX_REQUESTS }}
{{- range list "draft" "target" }}
{{-   $sequences := int (get $.objects (printf "ConfigMap/outrider-%s" .)).data.MAX_SEQUENCES }}
{{-   if lt $sequences (mul $most $requests | int) }}
{{-     fail (printf "%s.settings.MAX_SEQUENCES: %d is less than %d coordinators with MAX_REQUESTS %d each may have" . $sequences $most $requests) }}
{{-   end }}
{{- end }}
{{- end }}
