// What stands around the charts: theme, tables, and setting the charts up.

function say(text) {
  document.getElementById("status").textContent = text;
}

function setUpTheme() {
  const button = document.getElementById("theme");
  const prefers = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem("dladmm-theme");
  } catch {
    // a page opened from a file may have no storage: then the choice lasts as long as the page
  }
  const show = () => {
    const dark = chosen ? chosen === "dark" : prefers.matches;
    if (chosen) document.documentElement.dataset.theme = chosen;
    button.setAttribute("aria-pressed", String(dark));
  };
  button.addEventListener("click", () => {
    chosen = button.getAttribute("aria-pressed") === "true" ? "light" : "dark";
    try {
      localStorage.setItem("dladmm-theme", chosen);
    } catch {
      // as above
    }
    show();
  });
  prefers.addEventListener("change", show);
  button.hidden = false;
  show();
}

// Numbers by value, words as people order them; what is missing comes last either way.
function compareCells(a, b, descending) {
  const numeric = (cell) => cell.hasAttribute("data-numeric");
  const missing = (cell) => numeric(cell) ? !cell.hasAttribute("data-value") : cell.textContent === "–";
  if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
  const order =
    numeric(a) && numeric(b)
      ? Number(a.dataset.value) - Number(b.dataset.value)
      : a.textContent.localeCompare(b.textContent, "en", { numeric: true });
  return descending ? -order : order;
}

function setUpSorting(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, place) => {
    heading.querySelector("button").addEventListener("click", () => {
      const descending = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => compareCells(a.cells[place], b.cells[place], descending));
      body.append(...rows);
      say(`Sorted by ${heading.textContent}, ${descending ? "descending" : "ascending"}.`);
    });
  });
}

const report = JSON.parse(document.getElementById("report-data").textContent);
setUpTheme();
document.querySelectorAll("table.sortable").forEach(setUpSorting);
document.querySelectorAll("figure.chart").forEach((figure) => {
  new Chart(figure, report.figures[Number(figure.dataset.figure)], report.columns);
});
