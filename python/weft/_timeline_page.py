"""The page of `weft.timeline_page`: one file, no other resources. The data is JSON inside the page."""

from __future__ import annotations

__all__ = ["Page", "page"]

_HEIGHT = 600  # pixels of the frame in a notebook


class Page(str):
    """HTML as text, which a notebook shows as a page where it is the value of a cell."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        import base64

        # In a frame of its own: the page's styles and scripts are not the notebook's. As data, because a notebook's
        # server does not serve files from elsewhere.
        data = base64.b64encode(self.encode()).decode()
        return f'<iframe src="data:text/html;base64,{data}" width="100%" height="{_HEIGHT}" frameborder="0"></iframe>'

    def __repr__(self) -> str:
        return f"<the page of a timeline, {len(self)} characters of HTML>"


def page(data: str) -> Page:
    """The page with this data (JSON). Names come from user code: nothing in them may end the script element."""
    return Page(_PAGE.replace("@DATA@", data.replace("<", "\\u003c")))


_PAGE = r"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>weft timeline</title>
<style>
  :root { --back: #ffffff; --text: #1d2430; --soft: #697386; --line: #e3e7ee; --bar: #f6f7fa; --band: #fafbfd; }
  @media (prefers-color-scheme: dark) {
    :root { --back: #14171d; --text: #e6e9ef; --soft: #8b94a5; --line: #2a303b; --bar: #1b1f27; --band: #181c23; }
  }
  html, body { margin: 0; height: 100%; background: var(--back); color: var(--text);
               font: 13px/1.4 system-ui, -apple-system, "Segoe UI", sans-serif; }
  body { display: flex; flex-direction: column; }
  header { display: flex; gap: 10px; align-items: center; padding: 8px 14px; background: var(--bar);
           border-bottom: 1px solid var(--line); flex-wrap: wrap; }
  header b { font-size: 14px; }
  header .about { color: var(--soft); margin-left: auto; }
  button { font: inherit; color: inherit; background: var(--back); border: 1px solid var(--line); border-radius: 6px;
           min-width: 32px; padding: 3px 10px; cursor: pointer; }
  button:hover { border-color: var(--soft); }
  label { display: flex; gap: 6px; align-items: center; cursor: pointer; user-select: none; }
  main { position: relative; flex: 1; min-height: 120px; overflow: hidden; }
  canvas { position: absolute; inset: 0; width: 100%; height: 100%; cursor: grab; touch-action: none; }
  canvas.dragging { cursor: grabbing; }
  #tip { position: absolute; pointer-events: none; display: none; max-width: 420px; padding: 7px 10px;
         background: var(--back); border: 1px solid var(--line); border-radius: 6px; white-space: pre-wrap;
         box-shadow: 0 4px 16px rgb(0 0 0 / 18%); overflow-wrap: anywhere; }
</style>
</head>
<body>
<header>
  <b>weft timeline</b>
  <button id="out" title="zoom out (-)">&minus;</button>
  <button id="in" title="zoom in (+)">+</button>
  <button id="fit" title="show everything (0)">Fit</button>
  <label><input type="checkbox" id="flows"> Flow arrows</label>
  <span class="about" id="about"></span>
</header>
<main><canvas id="canvas"></canvas><div id="tip"></div></main>
<script type="application/json" id="data">@DATA@</script>
<script>
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("canvas"), tip = document.getElementById("tip");
  const paint = canvas.getContext("2d");
  const GUTTER = 170, AXIS = 26, ROW = 26, BAR = 18;
  // A slice: [row, begin, duration, name, outcome, task]. Times in nanoseconds from the first.
  const slices = data.slices, flows = data.flows;
  const perRow = data.rows.map(() => []);
  let end = 1;
  slices.forEach((slice, number) => { perRow[slice[0]].push(number); end = Math.max(end, slice[1] + slice[2]); });
  for (const flow of flows) end = Math.max(end, flow[2]);
  for (const row of perRow) row.sort((a, b) => slices[a][1] - slices[b][1]);
  // Hues a golden angle apart: neighbours in the list of names are far from each other in colour.
  const colours = data.names.map((_, i) => `hsl(${(210 + i * 137.508) % 360} 55% ${46 + i % 3 * 6}%)`);
  // The part that is shown, and what tests look at.
  const view = { begin: 0, span: end * 1.02, top: 0, arrows: false, drawn: 0, drawnFlows: 0, hover: -1 };
  window.weftTimeline = view;

  const width = () => Math.max(1, canvas.clientWidth - GUTTER);
  const toX = (t) => GUTTER + (t - view.begin) / view.span * width();
  const rowY = (row) => AXIS + row * ROW - view.top;
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

  function duration(ns) {
    for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["\u00b5s", 1e3]]) {
      if (Math.abs(ns) >= size) return +(ns / size).toPrecision(4) + " " + unit;
    }
    return Math.round(ns) + " ns";
  }
  // A time on the axis, with as many digits as tell two steps apart.
  function label(t, step) {
    const largest = Math.max(Math.abs(view.begin), view.begin + view.span);
    const units = [["s", 1e9], ["ms", 1e6], ["\u00b5s", 1e3]];
    const [unit, size] = units.find((each) => largest >= each[1] * 2) || ["ns", 1];
    return (t / size).toFixed(Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9))) + " " + unit;
  }
  // The first slice of a row that ends after t: durations do not overlap within a row.
  function firstAfter(row, t) {
    let low = 0, high = row.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (slices[row[middle]][1] + slices[row[middle]][2] < t) low = middle + 1; else high = middle;
    }
    return low;
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
      canvas.width = Math.round(w * ratio);
      canvas.height = Math.round(h * ratio);
    }
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.fillStyle = style("--back");
    paint.fillRect(0, 0, w, h);
    const text = style("--text"), soft = style("--soft"), line = style("--line");
    const until = view.begin + view.span;
    view.drawn = view.drawnFlows = 0;

    paint.font = "12px system-ui, sans-serif";
    paint.textBaseline = "middle";
    data.rows.forEach((title, row) => {
      const y = rowY(row);
      if (y > h || y + ROW < AXIS) return;
      if (row % 2) { paint.fillStyle = style("--band"); paint.fillRect(0, y, w, ROW); }
    });
    // The axis: steps of 1, 2 or 5 that leave room for their labels.
    let step = Math.pow(10, Math.floor(Math.log10(view.span / Math.max(1, width() / 110))));
    for (const times of [1, 2, 5, 10]) if (step * times / view.span * width() >= 100) { step *= times; break; }
    paint.strokeStyle = line;
    paint.fillStyle = soft;
    paint.textAlign = "left";
    for (let t = Math.ceil(view.begin / step) * step; t <= until; t += step) {
      const x = Math.round(toX(t)) + 0.5;
      if (x < GUTTER) continue;
      paint.beginPath(); paint.moveTo(x, AXIS - 6); paint.lineTo(x, h); paint.stroke();
      paint.fillText(label(t, step), x + 4, AXIS / 2);
    }

    paint.save();
    paint.beginPath(); paint.rect(GUTTER, AXIS, w - GUTTER, h - AXIS); paint.clip();
    perRow.forEach((row, number) => {
      const y = rowY(number) + (ROW - BAR) / 2;
      if (y > h || y + BAR < AXIS) return;
      let covered = -1;  // right edge of what this row has already: slices within one pixel are drawn once
      for (let i = firstAfter(row, view.begin); i < row.length; ++i) {
        const slice = slices[row[i]];
        if (slice[1] > until) break;
        const x = Math.max(GUTTER, toX(slice[1]));
        const right = Math.max(x + 1, Math.min(w, toX(slice[1] + slice[2])));
        if (right <= covered) continue;
        covered = Math.ceil(right);
        ++view.drawn;
        paint.fillStyle = colours[slice[3]];
        paint.globalAlpha = slice[4] === "FINISHED" || row[i] === view.hover ? 1 : 0.75;
        paint.fillRect(x, y, right - x, BAR);
        if (slice[4] !== "FINISHED") {
          paint.fillStyle = slice[4] === "RUNNING" ? "#2f9e44" : "#e03131";
          paint.fillRect(x, y + BAR - 3, right - x, 3);
        }
        paint.globalAlpha = 1;
        if (row[i] === view.hover) {
          paint.strokeStyle = text;
          paint.strokeRect(x + 0.5, y + 0.5, right - x - 1, BAR - 1);
        }
        if (right - x > 34) {
          paint.fillStyle = "#fff";
          paint.save();
          paint.beginPath(); paint.rect(x, y, right - x - 3, BAR); paint.clip();
          paint.fillText(data.names[slice[3]], x + 4, y + BAR / 2 + 0.5);
          paint.restore();
        }
      }
    });
    if (view.arrows) drawFlows(w, h, until);
    paint.restore();

    paint.fillStyle = style("--bar");
    paint.fillRect(0, 0, GUTTER, h);
    paint.strokeStyle = line;
    paint.beginPath(); paint.moveTo(GUTTER - 0.5, 0); paint.lineTo(GUTTER - 0.5, h);
    paint.moveTo(0, AXIS - 0.5); paint.lineTo(w, AXIS - 0.5); paint.stroke();
    paint.save();
    paint.beginPath(); paint.rect(0, AXIS, GUTTER - 6, h); paint.clip();
    paint.fillStyle = text;
    data.rows.forEach((title, row) => {
      const y = rowY(row);
      if (y <= h && y + ROW >= AXIS) paint.fillText(title, 10, y + ROW / 2);
    });
    paint.restore();
  }

  function drawFlows(w, h, until) {
    // Arrows that would lie on each other, to the pixel, are drawn once; and no more than the eye can tell apart.
    const seen = new Set();
    for (const [kind, row, at, target] of flows) {
      const slice = slices[target];
      if (Math.max(at, slice[1]) < view.begin || Math.min(at, slice[1]) > until) continue;
      const x1 = toX(at), x2 = toX(slice[1]), y1 = rowY(row) + ROW / 2, y2 = rowY(slice[0]) + ROW / 2;
      if ((y1 < AXIS && y2 < AXIS) || (y1 > h && y2 > h)) continue;
      const key = `${x1 | 0},${x2 | 0},${row},${slice[0]}`;
      if (seen.has(key)) continue;
      seen.add(key);
      if (++view.drawnFlows > 4000) return;
      paint.strokeStyle = kind ? "rgb(208 80 20 / 80%)" : "rgb(70 120 220 / 55%)";
      paint.lineWidth = kind ? 1.4 : 1;
      const bend = Math.max(12, Math.min(60, Math.abs(x2 - x1) / 2));
      paint.beginPath();
      paint.moveTo(x1, y1);
      paint.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
      paint.moveTo(x2 - 5, y2 - 3); paint.lineTo(x2, y2); paint.lineTo(x2 - 5, y2 + 3);
      paint.stroke();
    }
    paint.lineWidth = 1;
  }

  let asked = false;
  function redraw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  }
  function zoom(factor, x) {
    const at = view.begin + (x - GUTTER) / width() * view.span;
    const span = Math.min(end * 4, Math.max(50, view.span * factor));
    view.begin = at - (at - view.begin) * span / view.span;
    view.span = span;
    keepInside();
  }
  function keepInside() {
    view.begin = Math.min(Math.max(view.begin, -view.span * 0.5), end - view.span * 0.1);
    view.top = Math.min(Math.max(0, view.top), Math.max(0, data.rows.length * ROW - canvas.clientHeight + AXIS + 10));
    redraw();
  }
  const middle = () => GUTTER + width() / 2;
  const fit = () => { view.begin = -end * 0.01; view.span = end * 1.02; view.top = 0; keepInside(); };
  document.getElementById("in").onclick = () => zoom(1 / 1.6, middle());
  document.getElementById("out").onclick = () => zoom(1.6, middle());
  document.getElementById("fit").onclick = fit;
  document.getElementById("flows").onchange = (event) => { view.arrows = event.target.checked; redraw(); };
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const amount = event.deltaY || event.deltaX;
    if (event.shiftKey) view.top += amount;
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.begin += event.deltaX / width() * view.span;
    else return zoom(Math.exp(amount * 0.0015), Math.max(GUTTER, event.offsetX));
    keepInside();
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, begin: view.begin, top: view.top };
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("dragging");
    tip.style.display = "none";
  });
  canvas.addEventListener("pointerup", () => { drag = null; canvas.classList.remove("dragging"); });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      view.begin = drag.begin - (event.clientX - drag.x) / width() * view.span;
      view.top = drag.top - (event.clientY - drag.y);
      return keepInside();
    }
    hover(event.offsetX, event.offsetY);
  });
  canvas.addEventListener("pointerleave", () => { view.hover = -1; tip.style.display = "none"; redraw(); });
  function hover(x, y) {
    const row = perRow[Math.floor((y - AXIS + view.top) / ROW)];
    let found = -1;
    if (row && x >= GUTTER && y > AXIS) {
      const slack = view.span / width() * 2, t = view.begin + (x - GUTTER) / width() * view.span;
      const first = firstAfter(row, t - slack);
      if (first < row.length && slices[row[first]][1] <= t + slack) found = row[first];
    }
    if (found >= 0) {
      const [number, begin, took, name, outcome, task] = slices[found];
      tip.textContent = [data.names[name], `${duration(took)}, from ${duration(begin)}`,
                         `${outcome}, ${data.rows[number]}`, `task ${task}`].join("\n");
      tip.style.display = "block";
      tip.style.left = Math.min(x + 14, canvas.clientWidth - tip.offsetWidth - 8) + "px";
      tip.style.top = Math.min(y + 14, canvas.clientHeight - tip.offsetHeight - 8) + "px";
    } else tip.style.display = "none";
    if (found !== view.hover) { view.hover = found; redraw(); }
  }
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+" || event.key === "=") zoom(1 / 1.6, middle());
    else if (event.key === "-") zoom(1.6, middle());
    else if (event.key === "0") fit();
    else if (event.key === "ArrowLeft") { view.begin -= view.span / 10; keepInside(); }
    else if (event.key === "ArrowRight") { view.begin += view.span / 10; keepInside(); }
    else if (event.key === "ArrowUp") { view.top -= ROW; keepInside(); }
    else if (event.key === "ArrowDown") { view.top += ROW; keepInside(); }
  });
  addEventListener("resize", redraw);
  document.getElementById("about").textContent =
    `${slices.length.toLocaleString("en")} runs, ${data.rows.length} rows, ${duration(end)}` +
    (data.overwritten ? `; ${data.overwritten.toLocaleString("en")} older records are gone` : "");
  fit();
})();
</script>
</body>
</html>
"""
