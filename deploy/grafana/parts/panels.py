"""The panels of all dashboards: one look, a unit and a description each, and queries named A, B, C..."""

from dataclasses import dataclass

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

# How a stat shows a gauge that is 0 or 1: (text, colour) of 0 and of 1.
Names = tuple[tuple[str, str], tuple[str, str]]
GONE_OR_UP: Names = (("gone", "red"), ("up", "green"))
# The colour below the first value, then (value, colour from there on)...
Steps = tuple[str, tuple[tuple[float, str], ...]]


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str = ""


def graph(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    width: int = 8,
    stacked: bool = False,
    top: float | None = None,
    from_zero: bool = True,
    window: str = "",
    steps: Steps | None = None,
) -> timeseries.Panel:
    """Lines over time. `window` is the smallest $__rate_interval, for queries that need much data."""
    panel = _common(timeseries.Panel(), title, description, queries, unit, width, 8)
    panel.legend(
        common.VizLegendOptions()
        .display_mode(models.LegendDisplayMode.LIST)
        .show_legend(True)
        .placement(models.LegendPlacement.BOTTOM)
    )
    panel.tooltip(common.VizTooltipOptions().mode(models.TooltipDisplayMode.MULTI).sort(models.SortOrder.DESCENDING))
    panel.line_width(1).fill_opacity(40 if stacked else 8).show_points(models.VisibilityMode.NEVER)
    if stacked:
        panel.stacking(common.StackingConfig().mode(models.StackingMode.NORMAL).group("A"))
    if from_zero:
        panel.min(0)
    if top is not None:
        panel.max(top)
    if window:
        panel.interval(window)
    if steps:
        panel.thresholds(_thresholds(steps))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(models.GraphThresholdsStyleMode.DASHED))
    return panel


def number(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str,
    width: int = 4,
    names: Names | None = None,
    steps: Steps | None = None,
    decimals: int | None = None,
    window: str = "",
) -> stat.Panel:
    """The latest value in large digits, above its history."""
    panel = _common(stat.Panel(), title, description, [query], unit, width, 4)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.graph_mode(models.BigValueGraphMode.NONE if names else models.BigValueGraphMode.AREA)
    panel.color_mode(models.BigValueColorMode.VALUE).no_value("no data")
    panel.thresholds(_thresholds(steps or ("text", ())))
    if names:
        panel.mappings([
            ValueMap({
                str(value): ValueMappingResult(text=text, color=color, index=value)
                for value, (text, color) in enumerate(names)
            })
        ])
    if decimals is not None:
        panel.decimals(decimals)
    if window:
        panel.interval(window)
    return panel


def bars(
    title: str, description: str, query: Query, *, unit: str, width: int = 8, top: float | None = None
) -> bargauge.Panel:
    """The latest values, one bar per series."""
    panel = _common(bargauge.Panel(), title, description, [query], unit, width, 8)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.orientation(models.VizOrientation.VERTICAL).display_mode(models.BarGaugeDisplayMode.BASIC)
    panel.min(0).no_value("no data").thresholds(_thresholds(("blue", ())))
    if top is not None:
        panel.max(top)
    return panel


def spread(title: str, description: str, buckets: str, *, unit: str, width: int = 8) -> heatmap.Panel:
    """A histogram over time; `buckets` is by le."""
    description += " Each row counts values above the row below, up to its own label."
    panel = _common(heatmap.Panel(), title, description, [], unit, width, 8)
    panel.with_target(_target(0, Query(buckets, "{{le}}")).format(PromQueryFormat.HEATMAP))
    panel.calculate(False).y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(models.AxisPlacement.LEFT))
    panel.color(
        heatmap.HeatmapColorOptions()
        .mode(HeatmapColorMode.SCHEME)
        .scheme("Blues")
        .steps(64)
        .exponent(0.5)
        .fill("blue")
        .scale(HeatmapColorScale.EXPONENTIAL)
        .reverse(False)
    )
    panel.cell_gap(1).mode(models.TooltipDisplayMode.SINGLE)
    return panel


def listing(
    title: str, description: str, *exprs: str, columns: list[str], width: int = 24, height: int = 6
) -> table.Panel:
    """The labels `columns` of the series, one row each. Series with common labels are joined."""
    panel = _common(table.Panel(), title, description, [], "none", width, height)
    for i, expr in enumerate(exprs):
        panel.with_target(_target(i, Query(expr)).format(PromQueryFormat.TABLE).instant())
    panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    hidden = ["Time", "Value", *(f"Value #{_ref(i)}" for i in range(len(exprs)))]
    panel.with_transformation(
        DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {name: True for name in hidden},
                "indexByName": {name: i for i, name in enumerate(columns)},
            },
        )
    )
    panel.override_by_name(columns[0], [DynamicConfigValue(id_val="custom.width", value=220)])
    return panel.show_header(True)


def _common(panel, title: str, description: str, queries, unit: str, width: int, height: int):
    panel.title(title).description(description).datasource(DATASOURCE).span(width).height(height).unit(unit)
    if not isinstance(panel, heatmap.Panel):
        panel.color_scheme(
            dashboard.FieldColor().mode(
                FieldColorModeId.THRESHOLDS
                if isinstance(panel, stat.Panel | bargauge.Panel)
                else FieldColorModeId.PALETTE_CLASSIC
            )
        )
    for i, query in enumerate(queries):
        panel.with_target(_target(i, query).range())
    return panel


def _target(index: int, query: Query) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery().ref_id(_ref(index)).expr(query.expr).legend_format(query.legend).datasource(DATASOURCE)
    )


def _ref(index: int) -> str:
    return chr(ord("A") + index)


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    base, above = steps
    return (
        dashboard.ThresholdsConfig()
        .mode(ThresholdsMode.ABSOLUTE)
        .steps([Threshold(value=None, color=base), *(Threshold(value=value, color=color) for value, color in above)])
    )
