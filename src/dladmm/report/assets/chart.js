// One chart: curves in SVG with a legend, a readout and a table of its data. What the hand does is in gestures.js.

const MARGIN = { left: 60, right: 16, top: 26, bottom: 42 };

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

class Chart {
  constructor(figure, spec, columns) {
    this.figure = figure;
    this.spec = spec;
    this.plot = figure.querySelector(".plot");
    this.svg = this.plot.querySelector("svg");
    this.entries = spec.entries.map((entry) => ({
      ...entry,
      shown: true,
      curves: entry.curves.map((c) => ({ ...c, iteration: columns[c.iteration], seconds: columns[c.seconds] })),
    }));
    this.log = spec.log;
    this.byTime = spec.byTime;
    this.byFinger = false;
    this.view = { x: null, y: null };
    this.cursor = null;
    this.width = 0;
    this.readout = make("div", { class: "readout", "aria-hidden": "true" });
    this.readout.hidden = true;
    this.plot.append(this.readout);
    this.note = make("p", { class: "hint" });
    this.plot.after(this.note);
    this.buildTools();
    this.buildLegend();
    this.buildData();
    setUpGestures(this);
    this.draw();
    new ResizeObserver(() => requestAnimationFrame(() => this.width !== this.plot.clientWidth && this.draw())).observe(this.plot);
  }

  svgElement(tag, attributes = {}, text = null) {
    const element = document.createElementNS(this.svg.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== null) element.textContent = text;
    return element;
  }

  // --- what stands around the plot ---

  button(label, name, action, pressed = null) {
    const button = make("button", { type: "button" }, label);
    if (name !== label) button.setAttribute("aria-label", name);
    if (label.length === 1) button.className = "sign";
    if (pressed !== null) button.setAttribute("aria-pressed", String(pressed));
    button.addEventListener("click", () => action(button));
    return button;
  }

  buildTools() {
    const toggle = (button, on) => button.setAttribute("aria-pressed", String(on));
    const tools = make("div", { class: "tools", role: "group", "aria-label": `View of ${this.spec.title}` });
    tools.append(
      this.button("+", "Zoom in", () => this.zoom(0.5)),
      this.button("−", "Zoom out", () => this.zoom(2)),
      this.button("Reset", "Reset zoom", () => this.reset()),
      this.button("Log", "Log axis", (button) => {
        this.log = !this.log;
        this.view.y = null;
        toggle(button, this.log);
        this.draw();
      }, this.log),
    );
    if (this.spec.hasSeconds) {
      tools.append(this.button("Seconds", "Seconds instead of iterations", (button) => {
        this.byTime = !this.byTime;
        this.cursor = null;
        this.view = { x: null, y: null };
        toggle(button, this.byTime);
        this.draw();
      }, this.byTime));
    }
    this.plot.before(tools);
  }

  buildLegend() {
    const list = make("ul", { class: "legend", "aria-label": `Curves of ${this.spec.title}` });
    for (const entry of this.entries) {
      const button = this.button("", entry.label, () => {
        entry.shown = !entry.shown;
        button.setAttribute("aria-pressed", String(entry.shown));
        this.draw();
      }, true);
      button.append(this.sample(entry, 26), make("span", {}, entry.label));
      list.append(make("li", {}, button));
    }
    this.note.after(list);
  }

  sample(entry, width) {
    const svg = this.svgElement("svg", { class: "sample", width, height: 10, "aria-hidden": "true" });
    const line = this.svgElement("line", { x1: 0, x2: width, y1: 5, y2: 5, "stroke-dasharray": entry.dash });
    line.style.stroke = `var(--s${entry.style})`;
    svg.append(line);
    return svg;
  }

  // The table is made when it is opened: a page of fifty runs would be slow with all of them.
  buildData() {
    const details = this.figure.querySelector("details.data");
    details.addEventListener("toggle", () => {
      if (!details.open || details.querySelector("table")) return;
      const mains = this.entries.map((entry) => entry.curves.at(-1));
      const lookups = mains.map((c) => new Map(c.iteration.map((k, i) => [k, c.values[i]])));
      const all = [...new Set(mains.flatMap((c) => c.iteration))].sort((a, b) => a - b);
      const every = Math.ceil(all.length / 250);
      const rows = all.filter((_, i) => i % every === 0 || i === all.length - 1);
      const averaged = this.entries.some((entry) => entry.curves.length > 1) ? ", means where there are several runs" : "";
      const caption = `${this.spec.title} by iteration${averaged}${every > 1 ? `, every ${every}th row` : ""}`;
      const heads = ["Iteration", ...this.entries.map((entry) => entry.label)];
      const table = make("table", {}, make("caption", {}, caption),
        make("thead", {}, make("tr", {}, ...heads.map((h) => make("th", { scope: "col", class: "numeric" }, h)))),
        make("tbody", {}, ...rows.map((k) => make("tr", {},
          make("th", { scope: "row", class: "numeric" }, inWords(k, 7)),
          ...lookups.map((lookup) => {
            const value = lookup.get(k);
            return make("td", { class: "numeric" }, value === null || value === undefined ? "–" : inWords(value, 5));
          })))));
      details.append(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table));
    });
  }

  // --- the plot ---

  xs(curve) {
    return this.byTime ? curve.seconds : curve.iteration;
  }

  drawable(x, y) {
    return x !== null && y !== null && (!this.log || y > 0);
  }

  // Full range of x over all curves, so that hiding one does not move the others sideways.
  fullX() {
    let low = Infinity, high = -Infinity;
    for (const entry of this.entries) for (const curve of entry.curves) for (const x of this.xs(curve)) {
      if (x !== null) { low = Math.min(low, x); high = Math.max(high, x); }
    }
    if (low > high) return [0, 1];
    return low === high ? [low - 1, high + 1] : [low, high];
  }

  fitY([from, to]) {
    let low = Infinity, high = -Infinity, dropped = 0;
    for (const entry of this.entries) if (entry.shown) for (const curve of entry.curves) {
      const xs = this.xs(curve);
      curve.values.forEach((y, i) => {
        if (xs[i] === null || y === null || xs[i] < from || xs[i] > to) return;
        if (!this.drawable(xs[i], y)) { dropped += 1; return; }
        low = Math.min(low, y); high = Math.max(high, y);
      });
    }
    const said = `${dropped} ${dropped === 1 ? "value is" : "values are"} 0 or less, which a logarithmic axis cannot show.`;
    const { floor } = this.spec;
    const cut = !this.log && floor !== null && low < floor && high > floor;
    if (cut) low = floor;
    this.note.textContent = dropped ? said : cut ? `Values below ${floor} are cut off; − shows more.` : "";
    return low > high ? (this.log ? [0.1, 1] : [0, 1]) : padded(low, high, this.log);
  }

  draw() {
    this.width = this.plot.clientWidth;
    this.height = Math.round(Math.min(340, Math.max(230, this.width * 0.58)));
    const rangeX = this.view.x || this.fullX();
    const fitted = this.fitY(rangeX);
    const rangeY = this.view.y || fitted;
    const right = this.width - MARGIN.right, bottom = this.height - MARGIN.bottom;
    this.x = makeScale(false, ...rangeX, MARGIN.left, right);
    this.y = makeScale(this.log, ...rangeY, bottom, MARGIN.top);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.setAttribute("height", this.height);
    const clip = `clip-${this.figure.dataset.figure}`;
    const defs = this.svgElement("defs");
    const path = this.svgElement("clipPath", { id: clip });
    path.append(this.svgElement("rect", { x: MARGIN.left, y: MARGIN.top - 3, width: right - MARGIN.left + 3, height: bottom - MARGIN.top + 6 }));
    defs.append(path);
    this.lines = this.svgElement("g", { "clip-path": `url(#${clip})` });
    this.overlay = this.svgElement("g");
    for (const entry of this.entries) if (entry.shown) for (const curve of entry.curves) this.drawCurve(entry, curve);
    this.svg.replaceChildren(defs, this.drawAxes(right, bottom), this.lines, this.overlay);
    this.showCursor();
  }

  drawAxes(right, bottom) {
    const group = this.svgElement("g");
    const rows = this.y.ticks(5), rowWords = tickWords(rows);
    for (const [i, v] of rows.entries()) {
      const y = this.y.map(v);
      group.append(this.svgElement("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y, y2: y }),
        this.svgElement("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, rowWords[i]));
    }
    const columns = this.x.ticks(Math.max(2, Math.floor(this.width / 90))), columnWords = tickWords(columns);
    for (const [i, v] of columns.entries()) {
      const x = this.x.map(v);
      group.append(this.svgElement("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 5 }),
        this.svgElement("text", { x, y: bottom + 19, "text-anchor": "middle" }, columnWords[i]));
    }
    group.append(
      this.svgElement("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }),
      this.svgElement("text", { x: 0, y: 12 }, `${this.spec.yLabel}${this.log ? " (logarithmic)" : ""}`),
      this.svgElement("text", { x: right, y: this.height - 5, "text-anchor": "end" }, this.byTime ? "seconds" : "iteration"),
    );
    return group;
  }

  // Gaps break the line; a point with gaps on both sides is a dot.
  drawCurve(entry, curve) {
    const xs = this.xs(curve);
    let line = "", dots = "", run = [];
    const flush = () => {
      if (run.length > 1) line += `M${run.join("L")}`;
      else if (run.length) dots += `M${run[0]}h0`;
      run = [];
    };
    curve.values.forEach((y, i) => {
      if (this.drawable(xs[i], y)) run.push(`${this.x.map(xs[i]).toFixed(1)} ${this.y.map(y).toFixed(1)}`);
      else flush();
    });
    flush();
    const add = (d, kind, dash) => {
      const path = this.svgElement("path", { class: `curve ${kind}`, d, "stroke-dasharray": dash });
      path.style.stroke = `var(--s${entry.style})`;
      this.lines.append(path);
    };
    if (line) add(line, curve.thin ? "thin" : "", curve.thin ? "" : entry.dash);
    if (dots) add(dots, curve.thin ? "thin dot" : "dot", "");
  }

  // --- reading values ---

  readable() {
    return this.entries.filter((entry) => entry.shown).map((entry) => [entry, entry.curves.at(-1)]);
  }

  positions() {
    const all = new Set();
    for (const [, curve] of this.readable()) {
      const xs = this.xs(curve);
      curve.values.forEach((y, i) => {
        if (this.drawable(xs[i], y) && xs[i] >= this.x.low && xs[i] <= this.x.high) all.add(xs[i]);
      });
    }
    return [...all].sort((a, b) => a - b);
  }

  // The measured point of a curve nearest to x; none where the curve has not begun or has ended.
  nearest(curve, x) {
    const xs = this.xs(curve);
    let best = null, first = Infinity, last = -Infinity;
    xs.forEach((v, i) => {
      if (!this.drawable(v, curve.values[i])) return;
      first = Math.min(first, v); last = Math.max(last, v);
      if (best === null || Math.abs(v - x) < Math.abs(xs[best] - x)) best = i;
    });
    return best === null || x < first || x > last ? null : { x: xs[best], y: curve.values[best] };
  }

  showCursor() {
    this.overlay.replaceChildren();
    const [low, high] = [this.x.low, this.x.high];
    const at = this.cursor;
    this.svg.setAttribute("aria-valuemin", low);
    this.svg.setAttribute("aria-valuemax", high);
    this.svg.setAttribute("aria-valuenow", at === null ? high : Math.min(Math.max(at, low), high));
    if (at === null || at < low || at > high) {
      this.readout.hidden = true;
      this.svg.setAttribute("aria-valuetext", "no point chosen");
      return;
    }
    const place = this.x.map(at);
    const unit = this.byTime ? `${inWords(at)} seconds` : `iteration ${inWords(at, 7)}`;
    this.overlay.append(this.svgElement("line", { class: "cursor", x1: place, x2: place, y1: MARGIN.top, y2: this.height - MARGIN.bottom }));
    const lines = [make("b", {}, unit)], spoken = [];
    for (const [entry, curve] of this.readable()) {
      const point = this.nearest(curve, at);
      if (!point) continue;
      const y = this.y.map(point.y);
      if (y >= MARGIN.top - 3 && y <= this.height - MARGIN.bottom + 3) {
        const dot = this.svgElement("circle", { class: "mark-point", cx: this.x.map(point.x), cy: y, r: 4.5 });
        dot.style.fill = `var(--s${entry.style})`;
        this.overlay.append(dot);
      }
      lines.push(make("div", {}, this.sample(entry, 18), make("span", {}, entry.label), make("span", {}, inWords(point.y))));
      spoken.push(`${entry.label} ${inWords(point.y)}`);
    }
    this.svg.setAttribute("aria-valuetext", `${unit}: ${spoken.join(", ") || "no values"}`);
    this.readout.replaceChildren(...lines);
    this.readout.hidden = false;
    const left = place < this.width / 2;
    this.readout.style.left = left ? `${place + 10}px` : "auto";
    this.readout.style.right = left ? "auto" : `${this.width - place + 10}px`;
  }
}
