"""Draws panels from data as Grafana would show them, near enough for a reader to know what to expect."""

import math
import re
from dataclasses import dataclass

import matplotlib

matplotlib.use("Agg")
import matplotlib.dates
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

PALETTE = ["#3274d9", "#d9822b", "#299c46", "#aa4499", "#e0b400", "#c4162a", "#5794f2", "#8a8a8a"]
COLORS = {"green": "#299c46", "orange": "#d9822b", "red": "#c4162a", "blue": "#3274d9", "text": "#222222"}
GREY = "#8a8a8a"
STYLE = {
    "figure.dpi": 110,
    "font.size": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#ececec",
    "axes.axisbelow": True,
    "axes.edgecolor": "#bbbbbb",
    "legend.frameon": False,
}
# Of Grafana's grid: 24 columns, and rows of 38 pixels.
COLUMN, ROW = 0.66, 0.32


@dataclass(frozen=True)
class Line:
    """A series: its legend, its labels, and its points. NaN where there is none."""

    name: str
    labels: dict[str, str]
    times: list[float]
    values: list[float]


def legend(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), template)


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """A value with its unit, in about three digits."""
    if unit == "percentunit":
        return f"{100 * value:.{1 if decimals is None else decimals}f} %"
    if unit == "s":
        for scale, name in ((1, "s"), (1e-3, "ms")):
            if abs(value) >= scale:
                return f"{value / scale:.3g} {name}"
        return f"{value / 1e-6:.3g} µs" if value else "0 s"
    if decimals is None and abs(value) >= 1000:
        value, scale = value / 1000, "k"
    else:
        scale = ""
    suffix = scale + {"cps": " c/s", "ops": " ops/s", "reqps": " req/s"}.get(unit, "")
    return (f"{value:.{decimals}f}" if decimals is not None else f"{value:.4g}") + suffix


def days(times: list[float]) -> list[float]:
    """As matplotlib counts them."""
    return [t / 86400 for t in times]


def clock(axes: Axes) -> None:
    axes.xaxis_date()
    axes.xaxis.set_major_locator(matplotlib.dates.AutoDateLocator(maxticks=6))
    axes.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M"))


def graph(axes: Axes, panel: dict, lines: list[Line]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    lines = lines[:12]
    times = [days(line.times) for line in lines]
    colors = [PALETTE[i % len(PALETTE)] for i in range(len(lines))]
    if "stacking" in defaults["custom"] and lines:
        axes.stackplot(
            times[0],
            [[0 if math.isnan(v) else v for v in line.values] for line in lines],
            colors=colors,
            alpha=0.75,
            labels=[line.name for line in lines],
        )
    else:
        for line, x, color in zip(lines, times, colors):
            axes.plot(x, line.values, color=color, linewidth=1.2, label=line.name)
    for step in defaults.get("thresholds", {}).get("steps", []):
        if "thresholdsStyle" in defaults["custom"] and step["value"] is not None:
            axes.axhline(step["value"], color=COLORS["red"], linestyle="--", linewidth=0.8)
    clock(axes)
    digits = 0 if defaults["unit"] == "percentunit" else None
    axes.yaxis.set_major_formatter(lambda value, _: shown(value, defaults["unit"], digits))
    axes.margins(y=0.1)
    if "min" in defaults:
        axes.set_ylim(bottom=defaults["min"])
    if "max" in defaults:
        axes.set_ylim(top=1.03 * defaults["max"])
    if any(line.name for line in lines):
        longest = max(len(line.name) for line in lines)
        columns = max(1, min(6, int(6.5 * panel["gridPos"]["w"] / (longest + 5))))
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.1),
            ncols=columns,
            fontsize=6.5,
            handlelength=1.2,
            columnspacing=1,
        )


def number(axes: Axes, panel: dict, lines: list[Line]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    axes.axis("off")
    values = [v for line in lines for v in line.values if not math.isnan(v)]
    text, color = defaults.get("noValue", "no data"), GREY
    if values:
        text, color = shown(values[-1], defaults["unit"], defaults.get("decimals")), COLORS["text"]
        for step in defaults["thresholds"]["steps"]:
            if step["value"] is None or values[-1] >= step["value"]:
                color = COLORS[step["color"]]
        for mapping in defaults.get("mappings", []):
            named = mapping["options"].get(f"{values[-1]:g}")
            text, color = (named["text"], COLORS[named["color"]]) if named else (text, color)
        if panel["options"]["graphMode"] == "area":
            axes.fill_between(range(len(values)), min(0, *values, 0), values, color=color, alpha=0.12, linewidth=0)
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=19, color=color)


def bars(axes: Axes, panel: dict, lines: list[Line]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    latest = {line.name: next((v for v in reversed(line.values) if not math.isnan(v)), math.nan) for line in lines}
    drawn = axes.bar(list(latest), list(latest.values()), color=COLORS["blue"])
    axes.bar_label(drawn, [shown(v, defaults["unit"]) for v in latest.values()], fontsize=7, padding=2)
    axes.yaxis.set_major_formatter(lambda value, _: shown(value, defaults["unit"], 0))
    axes.set_ylim(0, defaults.get("max"))


def spread(axes: Axes, panel: dict, lines: list[Line]) -> None:
    """Buckets are cumulative: each row is less those below it."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    lines = sorted(lines, key=lambda line: float(line.labels["le"]))
    rows, below = [], None
    for line in lines:
        rows.append([max(0.0, v - (below[i] if below else 0)) for i, v in enumerate(line.values)])
        below = line.values
    if not lines:
        return
    # A square root, so that rare rows are seen beside common ones.
    axes.pcolormesh(
        days(lines[0].times),
        range(len(rows)),
        [[math.sqrt(v) if v > 0 else math.nan for v in row] for row in rows],
        cmap="Blues",
        shading="nearest",
        vmin=0,
    )
    clock(axes)
    every = max(1, len(rows) // 8)
    ticks = range(0, len(rows), every)
    axes.set_yticks(
        list(ticks),
        [
            lines[i].labels["le"] if lines[i].labels["le"] == "+Inf" else shown(float(lines[i].labels["le"]), unit)
            for i in ticks
        ],
    )
    axes.grid(visible=False)


def listing(axes: Axes, panel: dict, lines: list[Line]) -> None:
    """Series that agree where both have a label are one row."""
    rows: list[dict[str, str]] = []
    for line in lines:
        for row in rows:
            if all(row[key] == value for key, value in line.labels.items() if key in row):
                row |= line.labels
                break
        else:
            rows.append(dict(line.labels))
    organize = next(t for t in panel["transformations"] if t["id"] == "organize")
    columns = sorted(organize["options"]["indexByName"], key=organize["options"]["indexByName"].get)
    axes.axis("off")
    table = axes.table(
        [[row.get(column, "") for column in columns] for row in rows] or [[""] * len(columns)],
        colLabels=columns,
        loc="upper center",
        cellLoc="left",
        edges="horizontal",
    )
    table.auto_set_font_size(False)
    table.set_fontsize(7.5)
    table.scale(1, 1.25)


KINDS = {"timeseries": graph, "stat": number, "bargauge": bars, "heatmap": spread, "table": listing}


def draw(dashboard: dict, lines_of) -> Figure:
    """`lines_of(panel)` gives a panel's series."""
    plt.rcParams.update(STYLE)
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in dashboard["panels"]) + 1.6
    figure = plt.figure(figsize=(24 * COLUMN, height * ROW), facecolor="white")

    def place(x: float, y: float, w: float, h: float) -> tuple[float, float, float, float]:
        return x / 24, 1 - (y + h + 1.6) / height, w / 24, h / height

    figure.text(0.008, 1 - 0.9 / height, dashboard["title"], fontsize=13, fontweight="bold", va="center")
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        left, bottom, width, tall = place(at["x"], at["y"], at["w"], at["h"])
        if panel["type"] == "row":
            figure.text(
                left + 0.008,
                bottom + tall / 2,
                panel["title"],
                fontsize=10,
                fontweight="bold",
                va="center",
                color="#555555",
            )
            continue
        figure.text(left + 0.008, bottom + tall - 0.5 / height, panel["title"], fontsize=8.5, va="center")
        margins = {
            "timeseries": (1.35, 0.45, 2.0, 1.0),
            "heatmap": (1.35, 0.45, 1.0, 1.0),
            "bargauge": (1.35, 0.45, 1.0, 1.0),
        }
        l, r, b, t = margins.get(panel["type"], (0.3, 0.3, 0.2, 1.0))
        axes = figure.add_axes(place(at["x"] + l, at["y"] + t, at["w"] - l - r, at["h"] - t - b))
        KINDS[panel["type"]](axes, panel, lines_of(panel))
    return figure
