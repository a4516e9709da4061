"use strict";
const format = (value, data) => {
  const text = value.toFixed(data.decimals);
  const sign = Number(text) > 0 && data.signed === "1" ? "+" : "";
  return sign + text.replace("-", "\u2212") + (data.unit === "%" ? " %" : data.unit);
};
for (const plot of document.querySelectorAll(".plot")) {
  const data = plot.dataset, svg = plot.querySelector("svg.area");
  const hair = plot.querySelector(".hair"), out = plot.querySelector(".readout");
  const labels = data.labels.split("\n"), last = Math.max(labels.length - 1, 1);
  const shares = data.shares ? data.shares.split(" ").map(Number) : labels.map((_, i) => labels.length > 1 ? i / last : 0.5);
  const [low, high, top, floor] = [data.low, data.high, data.top, data.floor].map(Number);
  const lines = [...plot.querySelectorAll("path[data-label]")].reverse().map(path => ({
    path, points: (path.getAttribute("d").match(/[\d.-]+,[\d.-]+/g) || []).map(pair => pair.split(",").map(Number))
  }));
  let at = labels.length - 1;
  const nearest = (items, distance) => items.reduce((best, item, i) => distance(item) < distance(items[best]) ? i : best, 0);
  const show = index => {
    at = Math.min(Math.max(index, 0), labels.length - 1);
    const x = 1000 * shares[at], left = shares[at] * svg.clientWidth;
    hair.setAttribute("x1", left); hair.setAttribute("x2", left); hair.setAttribute("visibility", "visible");
    out.replaceChildren(Object.assign(document.createElement("b"), { textContent: labels[at] }));
    for (const { path, points } of lines.filter(line => line.points.length)) {
      const point = points[nearest(points, pair => Math.abs(pair[0] - x))];
      if (Math.abs(point[0] - x) > 6 && labels.length > 100) continue;
      const row = document.createElement("div"), name = document.createElement("span"), value = document.createElement("span");
      name.textContent = path.dataset.label;
      value.textContent = format(high - (point[1] - top) / (floor - top) * (high - low), data);
      row.append(name, value); out.append(row);
    }
    out.hidden = false;
    out.style.left = left > svg.clientWidth / 2 ? "auto" : left + 12 + "px";
    out.style.right = left > svg.clientWidth / 2 ? svg.clientWidth - left + 12 + "px" : "auto";
  };
  const hide = () => { out.hidden = true; hair.setAttribute("visibility", "hidden"); };
  svg.addEventListener("pointermove", event => {
    const share = (event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth;
    show(nearest(shares, value => Math.abs(value - share)));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", event => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === "Escape") hide();
    if (step) { event.preventDefault(); show(at + step); }
  });
}
for (const box of document.querySelectorAll(".scroll")) {
  const mark = () => {
    box.classList.toggle("before", box.scrollLeft > 1);
    box.classList.toggle("after", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  box.addEventListener("scroll", mark, { passive: true });
  new ResizeObserver(mark).observe(box);
}
addEventListener("beforeprint", () => document.querySelectorAll("details:not(.long)").forEach(box => { box.open = true; }));
