// Package crds pins the Go types that the CustomResourceDefinitions of the monitoring component are made from.
package crds

import (
	_ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
)
