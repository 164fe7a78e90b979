// Package crds pins the Go types from which the CustomResourceDefinitions of the monitoring component are made, and the
// modules that have those of the components tensor-parallel and inference-pool.
package crds

import (
	_ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	_ "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	_ "sigs.k8s.io/lws/api/leaderworkerset/v1"
)
