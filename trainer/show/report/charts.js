"use strict";
// Text from a model is inserted with textContent, never as markup.
function el(tag, attrs, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs || {})) {
    if (k === "class") e.className = v;
    else if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (v !== undefined && v !== null) e.setAttribute(k, v);
  }
  for (const c of children.flat()) if (c !== null && c !== undefined) e.append(c);
  return e;
}
const byId = (id) => document.getElementById(id);
const num = (v, digits) => v.toFixed(digits === undefined ? 2 : digits).replace("-", "−");
const signed = (v) => (v > 0 ? "+" : "") + num(v);

// readOut shows the values of a chart's curves at the step that the pointer or the arrow keys select.
const tip = byId("tip");
function readOut(svg) {
  const curves = JSON.parse(svg.dataset.curves);
  const [x0, x1, left, right] = svg.dataset.x.split(" ").map(Number);
  const [, , , top] = svg.dataset.y.split(" ").map(Number);
  const bottom = Number(svg.dataset.y.split(" ")[2]);
  const steps = [...new Set(curves.flatMap((c) => c.p.map((p) => p[0])))].sort((a, b) => a - b);
  const hair = svg.querySelector(".hair");
  let at = -1;
  const show = (i) => {
    at = Math.max(0, Math.min(steps.length - 1, i));
    const step = steps[at];
    const x = left + (x1 > x0 ? (step - x0) / (x1 - x0) : .5) * (right - left);
    hair.setAttribute("d", `M${x} ${top}V${bottom}`);
    tip.replaceChildren(el("b", {}, "step " + step), ...curves.flatMap((c) => {
      const p = c.p.find((p) => p[0] === step);
      return p ? [el("div", {}, el("span", {}, c.n), el("b", {}, String(p[1]) + (p[2] ? " ± " + p[2] : "")))] : [];
    }));
    tip.hidden = false;
    const box = svg.getBoundingClientRect();
    const px = box.left + (x / 400) * box.width;
    tip.style.left = window.scrollX + Math.min(px + 12, document.documentElement.clientWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = window.scrollY + box.top + 4 + "px";
  };
  const hide = () => { hair.setAttribute("d", ""); tip.hidden = true; };
  svg.addEventListener("pointermove", (e) => {
    const box = svg.getBoundingClientRect();
    const step = x0 + (((e.clientX - box.left) / box.width) * 400 - left) / (right - left) * (x1 - x0);
    let best = 0;
    steps.forEach((s, i) => { if (Math.abs(s - step) < Math.abs(steps[best] - step)) best = i; });
    show(best);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (e) => {
    if (e.key !== "ArrowLeft" && e.key !== "ArrowRight") return;
    show(at + (e.key === "ArrowRight" ? 1 : -1));
    e.preventDefault();
    e.stopPropagation();
  });
}

// charted prepares the charts of a part of a page. The checkbox shows or hides the smoothed curves.
function charted(root) {
  root.querySelectorAll("svg.chart").forEach(readOut);
  const smooth = root.querySelector("#smooth");
  if (!smooth) return;
  smooth.checked = !document.body.classList.contains("rough");
  smooth.addEventListener("change", () => document.body.classList.toggle("rough", !smooth.checked));
}
