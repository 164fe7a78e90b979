"""A dashboard: its name, the variables that all have, and rows of panels."""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from parts.panels import DATASOURCE

Rows = dict[str, list]


def frame(name: str, title: str, description: str, of: str, rows: Rows) -> dashboard.Dashboard:
    """`of` is a regular expression for the series whose jobs and instances can be chosen."""
    served = "outrider_rounds_total|outrider_target_sequences"
    board = dashboard.Dashboard(title).uid(f"outrider-{name}").description(description).tags(["outrider"])
    board.time("now-1h", "now").refresh("30s").tooltip(DashboardCursorSync.CROSSHAIR).timezone("browser").editable()
    board.with_variable(
        dashboard.DatasourceVariable("datasource")
        .label("Data source")
        .type("prometheus")
        .current(VariableOption(text="default", value="default"))
    )
    # Series may lack a namespace if they are scraped without deploy/prometheus.
    board.with_variable(_choice("namespace", f'label_values({{__name__=~"{of}"}}, namespace)', every=".*"))
    board.with_variable(
        _choice("model_name", f'label_values({{__name__=~"{served}", namespace=~"$namespace"}}, model_name)', every=".*")
    )
    board.with_variable(_choice("job", f'label_values({{__name__=~"{of}", namespace=~"$namespace"}}, job)'))
    board.with_variable(
        _choice("instance", f'label_values({{__name__=~"{of}", namespace=~"$namespace", job=~"$job"}}, instance)')
    )
    board.link(
        dashboard.DashboardLink("Outrider")
        .type(DashboardLinkType.DASHBOARDS)
        .tags(["outrider"])
        .as_dropdown(True)
        .include_vars(False)
        .keep_time(True)
        .icon("external link")
    )
    for row, panels in rows.items():
        board.with_row(dashboard.Row(row))
        for panel in panels:
            board.with_panel(panel)
    built = board.build()
    for number, panel in enumerate(built.panels, 1):
        panel.id_val = number
    _leave_out_what_newer_grafana_refuses(built)
    return built


def _leave_out_what_newer_grafana_refuses(built) -> None:
    for variable in built.templating.list_val:
        variable.auto = variable.auto_min = variable.auto_count = None
    for panel in built.panels:
        if getattr(panel, "type_val", "") == "table":
            panel.options.footer = None


def _choice(name: str, query: str, every: str = ".+") -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(name.replace("_", " ").capitalize())
        .datasource(DATASOURCE)
        .query(query)
        .multi(True)
        .include_all(True)
        .all_value(every)
        .current(VariableOption(text=["All"], value=["$__all"]))
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
