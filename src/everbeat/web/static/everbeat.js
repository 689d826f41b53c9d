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
    // A button with data-copy copies the text of the element with this id.
    const copy = event.target.closest("[data-copy]");
    if (copy && navigator.clipboard) {
      navigator.clipboard.writeText(document.getElementById(copy.dataset.copy).textContent).then(() => { copy.textContent = "Copied"; });
    }
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

  // A button with data-confirm-button asks before its form is sent.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-confirm-button]");
    if (button && !window.confirm(button.dataset.confirmButton)) event.preventDefault();
  });

  // A select with data-shows shows the parts of the form that belong to its value.
  const showParts = (root) => {
    for (const select of root.querySelectorAll("select[data-shows]")) {
      for (const part of document.querySelectorAll(`[data-shown-for^="${select.dataset.shows}:"]`)) {
        part.hidden = !part.dataset.shownFor.split(" ").includes(`${select.dataset.shows}:${select.value}`);
        if ("disables" in part.dataset) for (const input of part.querySelectorAll("input")) input.disabled = part.hidden;
      }
    }
  };
  document.addEventListener("change", (event) => {
    if (event.target.matches("select[data-shows]")) showParts(document);
    if (event.target.matches("select[data-preset]") && event.target.value) {
      const input = document.getElementById(event.target.dataset.preset);
      input.value = event.target.value;
      input.dispatchEvent(new Event("input", { bubbles: true }));
    }
  });
  document.addEventListener("DOMContentLoaded", () => showParts(document));

  // A part that is about to be replaced keeps the selected rows, the open details, and the position in a log.
  let kept = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const root = event.detail.target;
    if (!root || root.id !== "live") return;
    if (root.contains(document.activeElement) && document.activeElement.matches("input:not([type=checkbox]), select, textarea")) {
      event.detail.shouldSwap = false;
      return;
    }
    kept = {
      selected: [...root.querySelectorAll('input[type="checkbox"][name]:checked')].map((box) => box.value),
      open: [...root.querySelectorAll("details")].map((one) => one.open),
      focus: focusPath(root),
    };
  });
  const focusPath = (root) => {
    const active = document.activeElement;
    if (!root.contains(active) || !active.matches("a, button, input, summary")) return null;
    return [...root.querySelectorAll("a, button, input, summary")].indexOf(active);
  };
  document.addEventListener("htmx:afterSettle", () => {
    const root = document.getElementById("live");
    for (const log of document.querySelectorAll("pre.log")) log.scrollTop = log.scrollHeight;
    if (!root || !kept) return;
    for (const box of root.querySelectorAll('input[type="checkbox"][name]')) box.checked = kept.selected.includes(box.value);
    root.querySelectorAll("details").forEach((one, index) => { if (kept.open[index]) one.open = true; });
    if (kept.focus !== null && kept.focus >= 0) root.querySelectorAll("a, button, input, summary")[kept.focus]?.focus({ preventScroll: true });
    kept = null;
  });

  // A checkbox with data-check-all sets all checkboxes of its form.
  document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-check-all]")) return;
    for (const box of event.target.closest("form").querySelectorAll('input[type="checkbox"][name]')) box.checked = event.target.checked;
  });

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const MAX_POINTS = 1200;
  const lagTimes = [], lagValues = [];
  let lagChart = null, ticksSeen = 0;
  const makeLagChart = (element) => {
    const axis = { stroke: color("--muted"), grid: { stroke: color("--border"), width: 1 }, ticks: { stroke: color("--border") } };
    const size = () => ({ width: element.clientWidth, height: 200 });
    const series = [{}, { label: "lag", stroke: color("--accent"), width: 2, points: { size: 5 } }];
    const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
    const axes = [{ ...axis, space: 80, values: (_, times) => times.map(clock) }, { ...axis, size: 70, values: (_, values) => values.map((one) => `${one} ms`) }];
    const chart = new uPlot({ ...size(), series, axes, legend: { show: false }, scales: { y: { range: (_, low, high) => [0, Math.max(high, 10)] } } }, [lagTimes, lagValues], element);
    new ResizeObserver(() => chart.setSize(size())).observe(element);
    return chart;
  };
  // The server knows the worst lag of all nodes in the last hour; it is shown until ticks fire.
  const drawLag = (element) => {
    if (lagTimes.length < 2) return;
    lagChart = lagChart || makeLagChart(element);
    lagChart.setData([lagTimes, lagValues]);
  };
  document.addEventListener("DOMContentLoaded", () => {
    const element = document.querySelector("[data-lag-chart]");
    if (!element || !window.uPlot) return;
    for (const [at, lag] of JSON.parse(element.dataset.lagChart || "[]")) { lagTimes.push(at); lagValues.push(lag); }
    drawLag(element);
  });
  // The server sends at most one summary per second: the worst lag of the ticks that fired, and how many they were.
  const showLag = (summary) => {
    const element = document.querySelector("[data-lag-chart]");
    if (!element || !window.uPlot) return;
    if (lagTimes.length && summary.at < lagTimes[lagTimes.length - 1]) return;
    lagTimes.push(summary.at);
    lagValues.push(Math.max(0, summary.ms));
    if (lagTimes.length > MAX_POINTS) { lagTimes.shift(); lagValues.shift(); }
    ticksSeen += summary.ticks;
    drawLag(element);
    const note = document.querySelector("[data-lag-note]");
    note.textContent = `${ticksSeen} ${ticksSeen === 1 ? "tick" : "ticks"} since this page was opened. The worst lag of the last second with ticks: ${summary.ms < 10 ? summary.ms : Math.round(summary.ms)} ms.`;
  };

  // Elements with data-live name the changes that concern them. The server says when to load them again. A page that is not
  // visible neither listens nor loads: browsers allow few connections to one server, and all tabs share them.
  const RETRY_MS = 5000;
  let stream = null, retry = null, isStale = false;
  const held = new Set();
  const refresh = () => {
    isStale = false;
    for (const element of new Set([...document.querySelectorAll("[data-live][hx-get]"), ...held])) htmx.trigger(element, "refresh");
    held.clear();
  };
  const disconnect = () => {
    clearTimeout(retry);
    if (stream) stream.close();
    stream = null;
  };
  const connect = () => {
    const names = new Set([...document.querySelectorAll("[data-live]")].flatMap((one) => one.dataset.live.split(",")));
    if (stream || document.hidden || !names.size) return;
    stream = new EventSource(`/live?on=${[...names].map(encodeURIComponent).join(",")}`);
    stream.onopen = () => { if (isStale) refresh(); };
    stream.addEventListener("refresh", refresh);
    stream.addEventListener("lag", (event) => showLag(JSON.parse(event.data)));
    stream.onerror = () => {
      isStale = true;
      if (stream.readyState !== EventSource.CLOSED) return;
      disconnect();
      retry = setTimeout(connect, RETRY_MS);
    };
  };
  document.addEventListener("DOMContentLoaded", connect);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { isStale = true; disconnect(); return; }
    connect();
    if (isStale) refresh();
  });
  window.addEventListener("pagehide", disconnect);
  window.addEventListener("pageshow", (event) => { if (event.persisted) { isStale = true; connect(); } });
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (!document.hidden || !event.detail.elt.matches("[hx-trigger*=every], [data-live]")) return;
    event.preventDefault();
    held.add(event.detail.elt);
    isStale = true;
  });
})();
