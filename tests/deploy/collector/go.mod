module outrider/collector

go 1.26.0

require (
	go.opentelemetry.io/collector/otelcol v0.165.0
	go.opentelemetry.io/collector/exporter/otlphttpexporter v0.165.0
	go.opentelemetry.io/collector/receiver/otlpreceiver v0.165.0
)
