// The types that a dashboard's JSON is checked against: Grafana leaves options and custom field settings open in its
// Dashboard type and publishes them separately for each panel.
import type { GraphFieldConfig, TableFieldOptions } from '@grafana/schema';
import type { Options as BarGauge } from '@grafana/schema/dist/types/raw/composable/bargauge/panelcfg/x/types.gen';
import type { FieldConfig as HeatmapField, Options as Heatmap } from '@grafana/schema/dist/types/raw/composable/heatmap/panelcfg/x/types.gen';
import type { Options as Stat } from '@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/types.gen';
import type { Options as Table } from '@grafana/schema/dist/types/raw/composable/table/panelcfg/x/types.gen';
import type { Options as TimeSeries } from '@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/types.gen';
import type { Dashboard } from '@grafana/schema/dist/types/raw/dashboard/x/types.gen';

export interface Checked {
  dashboard: Dashboard;
  options: { bargauge: BarGauge; heatmap: Heatmap; stat: Stat; table: Table; timeseries: TimeSeries };
  custom: { heatmap: HeatmapField; table: TableFieldOptions; timeseries: GraphFieldConfig };
}
