// Enhancements of the dashboard: keyboard shortcuts, the palette, confirmations and charts. Every page works without them.
"use strict";
(() => {
  const palette = document.getElementById("palette");
  const openPalette = () => {
    if (!palette || palette.open) return;
    palette.showModal();
    const input = document.getElementById("palette-input");
    input.value = "";
    input.focus();
    htmx.ajax("GET", "/search", { target: "#palette-results" });
  };
  const isTyping = (element) => element && (/^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName) || element.isContentEditable);

  document.addEventListener("click", (event) => {
    const action = event.target.closest("[data-action]");
    if (action && action.dataset.action === "palette") openPalette();
    if (event.target === palette) palette.close();
  });

  let afterG = 0;
  document.addEventListener("keydown", (event) => {
    if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      openPalette();
      return;
    }
    if (event.metaKey || event.ctrlKey || event.altKey || isTyping(document.activeElement)) return;
    if (event.key === "/") {
      const search = document.querySelector("[data-search]");
      if (search) { event.preventDefault(); search.focus(); } else { event.preventDefault(); openPalette(); }
    } else if (event.key === "g") {
      afterG = Date.now();
    } else if (Date.now() - afterG < 1500) {
      const link = document.querySelector(`.sidebar a[data-key="${CSS.escape(event.key)}"]`);
      afterG = 0;
      if (link) link.click();
    }
  });

  if (palette) {
    palette.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
      const links = [...palette.querySelectorAll("#palette-results a")];
      if (!links.length) return;
      event.preventDefault();
      const at = links.indexOf(document.activeElement);
      links[(at + (event.key === "ArrowDown" ? 1 : links.length - (at < 0 ? 0 : 1))) % links.length].focus();
    });
  }

  // A form with data-confirm asks before it is sent. The server asks again where it matters.
  document.addEventListener("submit", (event) => {
    const text = event.target.dataset.confirm;
    if (text && !window.confirm(text)) event.preventDefault();
  });

  // A checkbox with data-check-all sets all checkboxes of its form.
  document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-check-all]")) return;
    for (const box of event.target.closest("form").querySelectorAll('input[type="checkbox"][name]')) box.checked = event.target.checked;
  });

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const drawCharts = (root) => {
    if (!window.uPlot) return;
    for (const element of root.querySelectorAll("[data-chart]:not([data-drawn])")) {
      element.dataset.drawn = "1";
      const data = JSON.parse(document.getElementById(element.dataset.chart).textContent);
      const axis = { stroke: color("--muted"), grid: { stroke: color("--border"), width: 1 }, ticks: { stroke: color("--border") } };
      const series = [{}, ...data.series.map((one) => ({ label: one.label, stroke: color(one.color), width: 2, points: { show: data.x.length < 60 } }))];
      const chart = new uPlot({ width: element.clientWidth, height: 220, series, axes: [axis, { ...axis, size: 64, values: (_, values) => values.map((v) => v + (data.unit || "")) }] },
        [data.x, ...data.series.map((one) => one.values)], element);
      new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: 220 })).observe(element);
    }
  };
  document.addEventListener("DOMContentLoaded", () => drawCharts(document));
  document.addEventListener("htmx:afterSwap", (event) => drawCharts(event.target));
})();
