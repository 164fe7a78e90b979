{{/*
Interprets the part of kustomize that deploy/kubernetes uses. So the chart has no copy of a manifest, and no second list of
the changes that each component makes. `objects` is always a dictionary from "Kind/name" to the object, which templates change in place.
*/}}

{{/* Adds to .objects what kustomization.yaml in .folder defines, and makes the changes that it asks for. */}}
{{- define "outrider.kustomize" -}}
{{- $kustomization := .files.Get (printf "%s/kustomization.yaml" .folder) | fromYaml }}
{{- if not $kustomization }}
{{-   fail (printf "%s is not in the chart: it needs its symbolic links, or `helm package` made where they are" .folder) }}
{{- end }}
{{- range $kustomization.resources }}
{{-   range splitList "\n---\n" ($.files.Get (printf "%s/%s" $.folder .)) }}
{{-     $object := fromYaml . }}
{{-     $_ := set $.objects (printf "%s/%s" $object.kind $object.metadata.name) $object }}
{{-   end }}
{{- end }}
{{- range $kustomization.configMapGenerator }}
{{-   $key := printf "ConfigMap/%s" .name }}
{{-   if not (hasKey $.objects $key) }}
{{-     $_ := set $.objects $key (dict "apiVersion" "v1" "kind" "ConfigMap" "metadata" (dict "name" .name) "data" dict) }}
{{-   end }}
{{-   range .literals }}
{{-     $pair := splitn "=" 2 . }}
{{-     $_ := set (index $.objects $key).data $pair._0 $pair._1 }}
{{-   end }}
{{- end }}
{{- range $kustomization.patches }}
{{-   $text := .patch | default ($.files.Get (printf "%s/%s" $.folder .path)) }}
{{-   include "outrider.patch" (dict "objects" $.objects "target" .target "text" $text) }}
{{- end }}
{{- end }}

{{/* Changes the objects that .target matches: by operations if .text is a list, else by a strategic merge. */}}
{{- define "outrider.patch" -}}
{{- $patch := (printf "patch:\n%s" (indent 2 .text) | fromYaml).patch }}
{{- $target := .target }}
{{- if not $target }}{{ $target = dict "kind" $patch.kind "name" $patch.metadata.name }}{{ end }}
{{- range $key, $object := .objects }}
{{-   if not (regexMatch (printf "^(%s)/(%s)$" $target.kind $target.name) $key) }}
{{-   else if kindIs "slice" $patch }}
{{-     range $patch }}
{{-       include "outrider.operate" (dict "object" $object "operation" (deepCopy .)) }}
{{-     end }}
{{-   else if eq (get $patch "$patch") "delete" }}
{{-     $_ := unset $.objects $key }}
{{-   else }}
{{-     include "outrider.merge" (dict "object" $object "patch" (deepCopy $patch)) }}
{{-   end }}
{{- end }}
{{- end }}

{{/*
A strategic merge: null removes a field, and elements of the lists below are merged with those of the same name or path.
Elements of the patch come first, as in kustomize.
*/}}
{{- define "outrider.merge" -}}
{{- $keys := dict "containers" "name" "initContainers" "name" "volumes" "name" "volumeMounts" "mountPath" }}
{{- range $field, $new := .patch }}
{{-   $old := get $.object $field }}
{{-   if kindIs "invalid" $new }}
{{-     $_ := unset $.object $field }}
{{-   else if and (kindIs "map" $new) (kindIs "map" $old) }}
{{-     include "outrider.merge" (dict "object" $old "patch" $new) }}
{{-   else if and (kindIs "slice" $old) (hasKey $keys $field) }}
{{-     $key := get $keys $field }}
{{-     $merged := list }}
{{-     range $element := $new }}
{{-       range $old }}
{{-         if eq (get . $key) (get $element $key) }}
{{-           include "outrider.merge" (dict "object" . "patch" $element) }}
{{-           $element = . }}
{{-           $old = without $old . }}
{{-         end }}
{{-       end }}
{{-       $merged = append $merged $element }}
{{-     end }}
{{-     $_ := set $.object $field (concat $merged $old) }}
{{-   else }}
{{-     $_ := set $.object $field $new }}
{{-   end }}
{{- end }}
{{- end }}

{{/* One operation of a JSON patch (RFC 6902). A list cannot change in place, so its owner gets a new one. */}}
{{- define "outrider.operate" -}}
{{- $op := .operation.op }}
{{- $value := .operation.value }}
{{- if .operation.from }}
{{-   $from := dict "object" .object "path" .operation.from }}
{{-   include "outrider.locate" $from }}
{{-   $value = deepCopy $from.value }}
{{-   if eq $op "move" }}
{{-     $_ := unset $from.owner $from.field }}
{{-   end }}
{{-   $op = "add" }}
{{- end }}
{{- $at := dict "object" .object "path" .operation.path }}
{{- include "outrider.locate" $at }}
{{- if eq $op "test" }}
{{-   if ne (toJson $at.value) (toJson $value) }}
{{-     fail (printf "%s is %s, not %s" .operation.path (toJson $at.value) (toJson $value)) }}
{{-   end }}
{{- else if hasKey $at "index" }}
{{-   $list := get $at.owner $at.field }}
{{-   $rest := ternary $at.index (add1 $at.index) (eq $op "add") }}
{{-   $between := ternary list (list $value) (eq $op "remove") }}
{{-   $_ := set $at.owner $at.field (concat (slice $list 0 $at.index) $between (slice $list $rest)) }}
{{- else if eq $op "remove" }}
{{-   $_ := unset $at.owner $at.field }}
{{- else }}
{{-   $_ := set $at.owner $at.field $value }}
{{- end }}
{{- end }}

{{/* Follows .path from .object. Sets .owner and .field to where the path ends, .index if that field is a list, and .value. */}}
{{- define "outrider.locate" -}}
{{- $_ := set . "value" .object }}
{{- range splitList "/" (trimPrefix "/" .path) }}
{{-   $step := . | replace "~1" "/" | replace "~0" "~" }}
{{-   if kindIs "map" $.value }}
{{-     $_ := set $ "owner" $.value }}
{{-     $_ := set $ "field" $step }}
{{-     $_ := set $ "value" (get $.owner $step) }}
{{-     $_ := unset $ "index" }}
{{-   else if eq $step "-" }}
{{-     $_ := set $ "index" (len $.value) }}
{{-   else }}
{{-     $_ := set $ "index" (int $step) }}
{{-     $_ := set $ "value" (index $.value $.index) }}
{{-   end }}
{{- end }}
{{- end }}
