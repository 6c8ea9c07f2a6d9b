
// The page of a running training. The server escapes all text in the events' HTML.
const since = () => document.querySelectorAll("[data-since]").forEach((e) => {
  const s = Math.max(0, Math.round((Date.now() - Number(e.dataset.since)) / 1000));
  e.textContent = "for " + (s < 120 ? s + " s" : s < 7200 ? Math.floor(s / 60) + " min" : Math.floor(s / 3600) + " h");
});
setInterval(since, 1000);

// fill replaces a section's content and keeps its open details open.
function fill(section, html) {
  const unfolded = [...section.querySelectorAll("details[open] > summary")].map((s) => s.textContent);
  section.innerHTML = html;
  section.querySelectorAll("details > summary").forEach((s) => { s.parentElement.open = unfolded.includes(s.textContent); });
  tip.hidden = true;
  charted(section);
  since();
}

const line = byId("line");
function listen() {
  const source = new EventSource("live/events");
  source.addEventListener("open", () => { line.textContent = "live"; line.className = "on"; });
  source.addEventListener("error", () => {
    line.className = "off";
    line.textContent = "not connected: the run has ended, or cannot be reached";
    if (source.readyState !== EventSource.CLOSED) return; // the browser connects again by itself
    source.close();
    setTimeout(listen, 5000);
  });
  for (const name of ["team", "rollouts", "report"]) source.addEventListener(name, (e) => fill(byId(name), JSON.parse(e.data)));
}
listen();
