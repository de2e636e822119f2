# SPDX-License-Identifier: MIT
"""
plots.py - charts as SVG, for pages and for files: lines, steps, bars with intervals, heat maps, areas.

    lines([Series(...)], Axes(...))  ->  Picture  ->  .inline()      for a page: colours are the page's CSS variables
                                                  ->  .file()        a file by itself, light or dark as the viewer is
                                                  ->  .file("light") a file with fixed colours

Text stays text, identifiers are unique by the picture's name, and the same figures give the same bytes.
matplotlib draws with stand-in colours; each becomes `var(--q-NAME)` afterwards, so one drawing serves both themes.

Not here: which figures (report/figures.py, bench/plots.py), flame graphs and maps (report/flame.py, report/map.py).
"""

import io
import re
import warnings
from collections import namedtuple

import ui
from lazily import html, logging

SERIES_MAX = 8
HEAT_LEVELS = 9
TICKS_MAX = 10
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
FONT_POINTS = 9
WIDE_POINTS = 600  # from here on a narrow window scrolls a chart rather than to shrink it
CHAR_INCHES = 0.078

LIGHT = {
    "ink": "#1c2128",
    "soft": "#59636e",
    "grid": "#e1e5ea",
    "paper": "#ffffff",
    "s0": "#0b6bcb",
    "s1": "#c2570c",
    "s2": "#14804a",
    "s3": "#7a4fc9",
    "s4": "#b3286a",
    "s5": "#0e7c86",
    "s6": "#8a6d00",
    "s7": "#6b7280",
}
DARK = {
    "ink": "#e8ebef",
    "soft": "#9aa5b1",
    "grid": "#2c333d",
    "paper": "#14181e",
    "s0": "#5aa9ff",
    "s1": "#ff9b54",
    "s2": "#4cc38a",
    "s3": "#b196ff",
    "s4": "#ff7eb6",
    "s5": "#4fd1d9",
    "s6": "#e3c04b",
    "s7": "#9aa5b1",
}
HEAT_LIGHT = "#e8f1fb #cfe3f7 #aed0f1 #84b6e8 #5899dc #347bca #1d5fae #124688 #0a2f61".split()
HEAT_DARK = "#17283c #1b3a5c #1f4f80 #2467a5 #2f83c9 #4f9fe0 #7dbbef #aed6f8 #e0f1ff".split()
LIGHT.update({f"h{i}": colour for i, colour in enumerate(HEAT_LIGHT)})
DARK.update({f"h{i}": colour for i, colour in enumerate(HEAT_DARK)})

# What matplotlib is told; no figure uses these colours otherwise.
STAND_IN = {name: f"#0a0b{i:02x}" for i, name in enumerate(LIGHT)}

# low, high: the interval of each y, or None.  colour: a name of LIGHT, or None for the next one.
Series = namedtuple("Series", "name xs ys low high colour dashed", defaults=(None,) * 3 + (False,))
Bar = namedtuple("Bar", "name value low high colour", defaults=(None, None, "s0"))
# values[row][column]; None is no cell.
Heat = namedtuple("Heat", "columns rows values")

FORMS = {
    "count": lambda v: ui.count(v) if abs(v) < 1e6 else f"{v / 1e6:g} M",
    "size": lambda v: ui.size(v).replace(".0 ", " "),
    "seconds": lambda v: ui.seconds(v).replace(".0 ", " ").replace(".00 ", " "),
    "percent": ui.percent,
    "plain": lambda v: f"{v:,.3g}" if abs(v) < 1000 else f"{v:,.0f}",
}


class Axes:
    """
    What a chart says around its figures.  name: of the picture: letters, digits, hyphens; unique in a page.  title: for those who cannot see it, and
    in files.  x_form, y_form: keys of FORMS.
    """

    def __init__(self, name, title="", x="", y="", x_form="count", y_form="plain", x_log=False, y_log=False, width_in=7.2, height_in=2.6):
        self.name, self.title, self.x, self.y = name, title, x, y
        self.x_form, self.y_form, self.x_log, self.y_log = x_form, y_form, x_log, y_log
        self.width_in, self.height_in = width_in, height_in


class Picture:
    """One drawing, in stand-in colours."""

    def __init__(self, name, title, svg):
        self.name = name
        self.title = title
        self.svg = tidy(svg, name, title)

    def inline(self):
        """The drawing for a page that defines the variables (see `variables`)."""
        return coloured(self.svg, {name: f"var(--q-{name})" for name in STAND_IN})

    def file(self, theme=None):
        """The drawing as a file: "light", "dark", or None for both by the viewer's own choice."""
        if theme:
            drawn = coloured(self.svg, LIGHT if theme == "light" else DARK)
            ground = (LIGHT if theme == "light" else DARK)["paper"]
        else:
            drawn, ground = self.inline(), "var(--q-paper)"
            drawn = drawn.replace("</title>", f"</title><style>{variables('svg')}</style>", 1)
        drawn = re.sub(' class="plot[^"]*"', f' style="background:{ground}"', drawn, count=1)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + drawn + "\n"


def variables(selector=":root"):
    """CSS that defines the colours, light and dark."""

    def block(colours):
        return " ".join(f"--q-{name}: {colour};" for name, colour in colours.items())

    dark = f"@media (prefers-color-scheme: dark) {{ {selector} {{ {block(DARK)} }} }}"
    return f"{selector} {{ {block(LIGHT)} }}\n{dark}"


def coloured(svg, colours):
    """Stand-in colours replaced."""
    back = {stand_in: colours[name] for name, stand_in in STAND_IN.items()}
    return re.sub("#0a0b[0-9a-f]{2}", lambda found: back[found.group()], svg)


def tidy(svg, name, title):
    """matplotlib's file as an element that can stand in a page beside others."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.S)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg))
    prefix = f"{name}-"
    svg = re.sub(
        r' id="([^"]*)"',
        lambda m: f' id="{prefix}{m.group(1)}"' if m.group(1) in used else "",
        svg,
    )
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", svg)
    svg = re.sub(r" ?font-family: [^;\"]*;?", "", svg)  # the reader's font, from the head below
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = re.sub(r"(\d\.\d\d)\d+", r"\1", svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    head = (
        f'<svg class="plot{" wide" * (float(box.group(1)) > WIDE_POINTS)}" xmlns="http://www.w3.org/2000/svg" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'viewBox="0 0 {box.group(1)} {box.group(2)}" '
        f'font-family="{FONT}" stroke-linejoin="round" stroke-linecap="butt"><title>{html.escape(title)}</title>'
    )
    return head + svg[svg.index(">") + 1 :].strip()


def figure(axes, margins):
    """An empty chart. margins: left, right, top, bottom, in inches. (figure, its axes)"""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its font cache is no news
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "quire", "text.parse_math": False})
    drawn = Figure(figsize=(axes.width_in, axes.height_in))
    drawn.patch.set_alpha(0)
    left, right, top, bottom = margins
    w, h = axes.width_in, axes.height_in
    box = [left / w, bottom / h, 1 - (left + right) / w, 1 - (top + bottom) / h]
    plot = drawn.add_axes(box)
    plot.patch.set_alpha(0)
    for side in ("top", "right"):
        plot.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        plot.spines[side].set_color(STAND_IN["grid"])
    plot.tick_params(
        labelsize=FONT_POINTS, colors=STAND_IN["grid"], labelcolor=STAND_IN["soft"], length=3
    )
    plot.grid(True, color=STAND_IN["grid"], linewidth=0.6)
    plot.set_axisbelow(True)
    return drawn, plot


def label(plot, axes):
    """Names and forms of both axes."""
    style = {"color": STAND_IN["soft"], "fontsize": FONT_POINTS}
    plot.set_xlabel(axes.x, **style)
    plot.set_ylabel(axes.y, **style)
    for axis, form, log in (
        (plot.xaxis, axes.x_form, axes.x_log),
        (plot.yaxis, axes.y_form, axes.y_log),
    ):
        if not log:
            axis.get_major_locator().set_params(nbins=6)
        axis.set_major_formatter(lambda value, _, form=form: FORMS[form](value))
        axis.set_minor_formatter(lambda value, _: "")


def in_legend(name):
    """A name as it is; matplotlib leaves out those that begin with an underscore, so that one has nothing wide in front."""
    return "\u200b" + name if name.startswith("_") else name


def legend(plot, number):
    """The names of the series above the chart, where there are several."""
    if number > 1:
        plot.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=min(number, 5),
            frameon=False,
            fontsize=FONT_POINTS,
            labelcolor=STAND_IN["ink"],
            handlelength=1.4,
            columnspacing=1.4,
            borderaxespad=0.2,
        )


def finish(drawn, axes):
    """The drawing as a Picture."""
    sink = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that matplotlib's font lacks: the reader's font has it
        drawn.savefig(sink, format="svg", transparent=True, metadata={"Date": None})
    return Picture(axes.name, axes.title or axes.y or axes.name, sink.getvalue())


def colour_of(one, place):
    """A series' colour: its own, or the next of the list."""
    return STAND_IN[one.colour or f"s{place % SERIES_MAX}"]


def scales(plot, axes, xs):
    """Logarithmic axes where they are wanted; few xs are ticks of their own."""
    if axes.x_log:
        plot.set_xscale("log")
        if len(xs) <= TICKS_MAX:
            plot.set_xticks(xs)
            plot.minorticks_off()
    if axes.y_log:
        plot.set_yscale("log")


def lines(series, axes, steps=False):
    """A line a series, with its interval as a band; marks where points are few."""
    rows = (len(series) + 4) // 5 if len(series) > 1 else 0
    drawn, plot = figure(axes, (0.78, 0.2, 0.1 + 0.22 * rows, 0.5))
    scales(plot, axes, series[0].xs)
    for place, one in enumerate(series):
        colour = colour_of(one, place)
        plot.plot(
            one.xs,
            one.ys,
            color=colour,
            linewidth=1.6,
            label=in_legend(one.name),
            linestyle="--" if one.dashed else "-",
            marker="o" if len(one.xs) <= 24 and not steps else None,
            markersize=3.5,
            drawstyle="steps-post" if steps else "default",
        )
        if one.low and one.high:
            plot.fill_between(one.xs, one.low, one.high, color=colour, alpha=0.18, linewidth=0)
    if not axes.y_log:
        plot.set_ylim(bottom=0)
    if len(series[0].xs) > 24 and not axes.x_log:
        plot.margins(x=0)
    label(plot, axes)
    legend(plot, len(series))
    return finish(drawn, axes)


def steps(series, axes):
    """`lines` that keep each figure until the next."""
    return lines(series, axes, steps=True)


def areas(series, axes):
    """Series of the same xs on top of each other."""
    rows = (len(series) + 4) // 5 if len(series) > 1 else 0
    drawn, plot = figure(axes, (0.78, 0.2, 0.1 + 0.22 * rows, 0.5))
    plot.stackplot(
        series[0].xs,
        *[one.ys for one in series],
        colors=[colour_of(one, i) for i, one in enumerate(series)],
        labels=[in_legend(one.name) for one in series],
        alpha=0.85,
        linewidth=0,
    )
    plot.margins(x=0)
    plot.set_ylim(bottom=0)
    label(plot, axes)
    legend(plot, len(series))
    return finish(drawn, axes)


def bars(rows, axes):
    """Horizontal bars, first one on top, each with its figure and its interval; axes.x_form is that of the figures."""
    form = FORMS[axes.x_form]
    wide = min(2.6, max(len(row.name) for row in rows) * CHAR_INCHES + 0.15)
    axes.height_in = 0.3 * len(rows) + 0.62
    drawn, plot = figure(axes, (wide, 0.8, 0.06, 0.5))
    places = list(range(len(rows)))
    plot.barh(
        places,
        [row.value for row in rows],
        color=[STAND_IN[row.colour] for row in rows],
        height=0.62,
        alpha=0.85,
    )
    most = max([row.high or row.value for row in rows] + [1e-12])
    least = min([row.low if row.low is not None else row.value for row in rows] + [0])
    for place, row in enumerate(rows):
        if row.low is not None and row.high is not None:
            plot.plot([row.low, row.high], [place, place], color=STAND_IN["ink"], linewidth=1.3)
        at = max(row.high or row.value, row.value, 0) + 0.012 * (most - least)
        plot.text(
            at, place, form(row.value), va="center", fontsize=FONT_POINTS, color=STAND_IN["ink"]
        )
    plot.set_yticks(places, [ui.shorten(row.name, 32) for row in rows])
    plot.invert_yaxis()
    plot.set_xlim(min(0, least * 1.05), most * 1.02)
    plot.grid(False, axis="y")
    label_bars(plot, axes)
    return finish(drawn, axes)


def label_bars(plot, axes):
    """Names of the figures' axis; the other one has the rows' names."""
    plot.set_xlabel(axes.x, color=STAND_IN["soft"], fontsize=FONT_POINTS)
    plot.xaxis.get_major_locator().set_params(nbins=6)
    plot.xaxis.set_major_formatter(lambda value, _: FORMS[axes.x_form](value))
    plot.tick_params(axis="y", length=0, labelcolor=STAND_IN["ink"])


def heat(cells, axes):
    """A rectangle for each figure above 0; the darker the more, by its logarithm."""
    from math import log

    drawn, plot = figure(axes, (0.78, 0.1, 0.08, 0.52))
    most = max([v for row in cells.values for v in row if v] + [1])
    for y, row in enumerate(cells.values):
        for x, value in enumerate(row):
            if value:
                part = log(1 + value) / log(1 + most)
                level = min(HEAT_LEVELS - 1, int(part * HEAT_LEVELS))
                plot.add_patch(cell(x, y, f"h{level}"))
    plot.set_xlim(-0.5, len(cells.columns) - 0.5)
    plot.set_ylim(-0.5, len(cells.rows) - 0.5)
    plot.grid(False)
    plot.set_xlabel(axes.x, color=STAND_IN["soft"], fontsize=FONT_POINTS)
    plot.set_ylabel(axes.y, color=STAND_IN["soft"], fontsize=FONT_POINTS)
    room = max(1, int((axes.width_in - 0.9) / 0.62))
    sparse(plot.set_xticks, cells.columns, -(-len(cells.columns) // room))
    sparse(plot.set_yticks, cells.rows, max(1, -(-len(cells.rows) // int(axes.height_in * 4))))
    return finish(drawn, axes)


def cell(x, y, colour):
    """One rectangle of a heat map."""
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, facecolor=STAND_IN[colour], linewidth=0)


def sparse(set_ticks, names, every):
    """Every n-th name as a tick."""
    places = list(range(0, len(names), every))
    set_ticks(places, [names[i] for i in places])
