// Package crds pins the Go types from which the CustomResourceDefinitions of the monitoring component are made.
package crds

import (
	_ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
)
