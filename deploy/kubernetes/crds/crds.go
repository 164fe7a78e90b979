// Package crds pins the Go types from which the CustomResourceDefinitions of the monitoring component are made, and the
// module that has that of the tensor-parallel component.
package crds

import (
	_ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	_ "sigs.k8s.io/lws/api/leaderworkerset/v1"
)
