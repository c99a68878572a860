// Zooming, panning and reading a chart by mouse, finger and keyboard.

Object.assign(Chart.prototype, {
  // Zoom along x around the point being read, or the middle; y fits what is then to be seen.
  zoom(factor, centre = null) {
    const [low, high] = [this.x.low, this.x.high];
    const read = this.cursor !== null && this.cursor >= low && this.cursor <= high ? this.cursor : (low + high) / 2;
    const at = centre === null ? read : centre;
    this.setX(at - (at - low) * factor, at + (high - at) * factor);
  },

  pan(share) {
    const [from, to] = this.fullX();
    const by = (this.x.high - this.x.low) * share;
    const allowed = Math.min(Math.max(by, from - this.x.low), to - this.x.high);
    if (allowed) this.setX(this.x.low + allowed, this.x.high + allowed);
  },

  setX(low, high, rangeY = null) {
    const [from, to] = this.fullX();
    const least = (to - from) / 500;
    if (high - low < least) [low, high] = [(low + high - least) / 2, (low + high + least) / 2];
    const all = low <= from && high >= to;
    this.view = { x: all && !rangeY ? null : [Math.max(low, from), Math.min(high, to)], y: rangeY };
    this.draw();
    say(`${this.spec.title}: ${this.byTime ? "seconds" : "iterations"} ${inWords(this.x.low)} to ${inWords(this.x.high)}.`);
  },

  reset() {
    this.view = { x: null, y: null };
    this.draw();
    say(`${this.spec.title}: all of it.`);
  },

  // Move by so many measured points; beyond the ends stay at the end.
  step(by) {
    const positions = this.positions();
    if (!positions.length) return;
    const here = this.cursor === null ? -1 : positions.findIndex((x) => x >= this.cursor);
    const from = here < 0 ? (this.cursor === null && by > 0 ? -1 : positions.length) : here;
    this.cursor = positions[Math.min(Math.max(from + by, 0), positions.length - 1)];
    this.showCursor();
  },

  readAt(pixel) {
    const x = this.x.invert(pixel);
    const positions = this.positions();
    if (!positions.length) return;
    this.cursor = positions.reduce((best, p) => (Math.abs(p - x) < Math.abs(best - x) ? p : best), positions[0]);
    this.showCursor();
  },
});

const KEYS = {
  ArrowRight: (chart, shift) => (shift ? chart.pan(0.25) : chart.step(1)),
  ArrowLeft: (chart, shift) => (shift ? chart.pan(-0.25) : chart.step(-1)),
  PageUp: (chart) => chart.step(10),
  PageDown: (chart) => chart.step(-10),
  Home: (chart) => chart.step(-Infinity),
  End: (chart) => chart.step(Infinity),
  "+": (chart) => chart.zoom(0.5),
  "=": (chart) => chart.zoom(0.5),
  "-": (chart) => chart.zoom(2),
  0: (chart) => chart.reset(),
  Escape: (chart) => chart.forgetCursor(),
};
KEYS.ArrowUp = KEYS.ArrowRight; // as a slider does
KEYS.ArrowDown = KEYS.ArrowLeft;

Chart.prototype.forgetCursor = function forgetCursor() {
  this.cursor = null;
  this.showCursor();
};

// A slider is the role screen readers know for "arrow keys move, a value is spoken".
function setUpKeyboard(chart) {
  const { svg, spec } = chart;
  const roles = { role: "slider", tabindex: "0", "aria-orientation": "horizontal", "aria-label": `${spec.title}: read the curves`, "aria-describedby": "chart-help" };
  for (const [name, value] of Object.entries(roles)) svg.setAttribute(name, value);
  svg.removeAttribute("aria-hidden");
  svg.addEventListener("keydown", (event) => {
    const action = KEYS[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action(chart, event.shiftKey);
  });
  svg.addEventListener("focus", () => {
    if (chart.cursor === null && svg.matches(":focus-visible")) chart.step(Infinity);
  });
  // Going from the point being read to a button of the same chart keeps the point: zooming goes there. A finger keeps
  // it in any case, since not every browser focuses a button that is tapped.
  chart.figure.addEventListener("focusout", (event) => {
    if (!chart.byFinger && !chart.figure.contains(event.relatedTarget)) chart.forgetCursor();
  });
}

// A mouse draws a box to zoom into. A finger reads values, and moves along once zoomed; up and down scroll the page.
function setUpPointer(chart) {
  const { svg } = chart;
  let start = null, box = null;
  const at = (event) => {
    const frame = svg.getBoundingClientRect();
    const clamp = (v, low, high) => Math.min(Math.max(v, low), high);
    return {
      x: clamp(event.clientX - frame.left, MARGIN.left, chart.width - MARGIN.right),
      y: clamp(event.clientY - frame.top, MARGIN.top, chart.height - MARGIN.bottom),
    };
  };
  const end = () => {
    if (box) box.remove();
    start = box = null;
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    start = at(event);
    chart.byFinger = event.pointerType !== "mouse";
    if (event.pointerType === "mouse") svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    const here = at(event);
    if (start && event.pointerType === "mouse") {
      if (!box && Math.abs(here.x - start.x) > 6) {
        box = chart.svgElement("rect", { class: "box" });
        chart.forgetCursor();
        svg.append(box);
      }
      if (box) {
        const tall = Math.abs(here.y - start.y) > 24;
        box.setAttribute("x", Math.min(start.x, here.x));
        box.setAttribute("width", Math.abs(here.x - start.x));
        box.setAttribute("y", tall ? Math.min(start.y, here.y) : MARGIN.top);
        box.setAttribute("height", tall ? Math.abs(here.y - start.y) : chart.height - MARGIN.top - MARGIN.bottom);
      }
      return;
    }
    if (start && chart.view.x) {
      chart.pan((start.x - here.x) / (chart.width - MARGIN.left - MARGIN.right));
      start = here;
    } else chart.readAt(here.x);
  });
  svg.addEventListener("pointerup", (event) => {
    const here = at(event);
    const drawn = box && start;
    const [x0, x1] = drawn ? [start.x, here.x].sort((a, b) => a - b) : [0, 0];
    const [y0, y1] = drawn ? [start.y, here.y].sort((a, b) => a - b) : [0, 0];
    end();
    if (!drawn) chart.readAt(here.x);
    else if (x1 - x0 > 6) {
      const rangeY = y1 - y0 > 24 ? [chart.y.invert(y1), chart.y.invert(y0)] : null;
      chart.setX(chart.x.invert(x0), chart.x.invert(x1), rangeY);
    }
  });
  svg.addEventListener("pointercancel", end);
  svg.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse" && !start && document.activeElement !== svg) chart.forgetCursor();
  });
  svg.addEventListener("dblclick", () => chart.reset());
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // a plain wheel scrolls the page
    event.preventDefault();
    chart.zoom(event.deltaY < 0 ? 0.8 : 1.25, chart.x.invert(at(event).x));
  }, { passive: false });
}

function setUpGestures(chart) {
  setUpKeyboard(chart);
  setUpPointer(chart);
}
