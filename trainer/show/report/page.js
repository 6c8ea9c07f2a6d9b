charted(document);

// Trajectories: a filtered list of rollouts, and the one that is shown.
const data = JSON.parse(byId("data").textContent);
function reader() {
  const controls = ["phase", "query", "reward", "find"].map(byId);
  const [phase, query, reward, find] = controls;
  const shade = byId("shade");
  let list = [], at = 0;

  data.phases.forEach((label, i) => phase.append(el("option", { value: i }, label)));
  phase.prepend(el("option", { value: "" }, "all"));
  phase.value = "";
  const fillQueries = () => {
    const kept = query.value;
    const ids = [...new Set(data.rollouts.filter((r) => phase.value === "" || r.phase === +phase.value).map((r) => r.query))];
    query.replaceChildren(el("option", { value: "" }, "all"), ...ids.map((id) => el("option", { value: id }, id)));
    if (ids.includes(kept)) query.value = kept;
  };

  const rewardOf = (r) => (r.main || (r.subs || [])[0] || {}).reward;
  const texts = (t) => [t.task, t.answer, ...t.turns.map((u) => u.text || (u.tokens || []).map((k) => k[0]).join(""))];
  const haystack = (r) => [r.query, ...[r.main, ...(r.subs || [])].filter(Boolean).flatMap(texts)].join("\n").toLowerCase();
  const fits = {
    "": () => true, none: (v) => v === undefined,
    high: (v) => v !== undefined && v >= .5, low: (v) => v !== undefined && v < .5,
  };
  const filter = () => {
    const shown = list[at], needle = find.value.trim().toLowerCase();
    list = data.rollouts.filter((r) => (phase.value === "" || r.phase === +phase.value) &&
      (query.value === "" || r.query === query.value) && fits[reward.value](rewardOf(r)) &&
      (needle === "" || haystack(r).includes(needle)));
    at = Math.max(0, list.indexOf(shown));
    draw();
  };

  const go = (i) => { if (i >= 0 && i < list.length) { at = i; draw(); } };
  const open = (r) => {
    if (!list.includes(r)) { reward.value = ""; find.value = ""; filter(); }
    go(list.indexOf(r));
  };

  const draw = () => {
    const r = list[at];
    byId("count").textContent = r ? `${at + 1} of ${list.length}` : "none";
    byId("prev").disabled = at <= 0;
    byId("next").disabled = at >= list.length - 1;
    byId("rollout").replaceChildren(...(r ? [group(r), pair(r)] : [el("p", { class: "empty" }, "No rollout fits. Widen the filters.")]));
    if (r) history.replaceState(null, "", "#" + address(r));
  };
  const address = (r) => "t/" + [r.phase, encodeURIComponent(r.query), r.k].join("/");

  // All rollouts of a query, with reward and advantage, because the advantage compares them with each other.
  const group = (r) => {
    const peers = data.rollouts.filter((o) => o.phase === r.phase && o.query === r.query);
    return el("div", { class: "group" }, el("span", {}, data.phases[r.phase]), el("b", {}, r.query), el("span", {}, "rollouts, with reward:"),
      el("div", { class: "attempts" }, peers.map((o) => {
        const v = rewardOf(o), main = o.main || {};
        const b = el("button", { onclick: () => open(o), title: "rollout " + o.k + (main.adv ? ", advantage " + signed(main.adv) : "") }, v === undefined ? "#" + o.k : num(v));
        if (main.adv) b.style.background = tint(main.adv);
        if (o === r) b.setAttribute("aria-current", "true");
        return b;
      })));
  };

  const pair = (r) => {
    const main = r.main ? talk(r.main, r) : el("p", { class: "empty" }, "The main agent's trajectory is in another folder.");
    const subs = (r.subs || []).map((t) => talk(t, r));
    const absent = Object.entries((r.main && r.main.calls) || {}).flatMap(([name, n]) => {
      const here = (r.subs || []).filter((t) => data.agents[t.agent] === name).length;
      return here < n ? [el("p", { class: "empty" }, `${n - here} of ${n} trajectories of ${name} are not here.`)] : [];
    });
    const right = subs.concat(absent);
    return el("div", { class: "pair" }, el("div", { class: "column" }, main),
      el("div", { class: "column" }, right.length ? right : el("p", { class: "empty" }, "Nothing was delegated.")));
  };

  const talk = (t, r) => {
    const name = data.agents[t.agent], sub = t !== r.main;
    const trained = t.reward !== undefined;
    const chips = [
      trained && chip("reward " + num(t.reward)),
      trained && t.weight > 0 && chip("advantage " + signed(t.adv), t.adv > 0 ? "plus" : t.adv < 0 ? "minus" : ""),
      trained && sub && t.weight !== 1 && chip(t.weight === 0 ? "dropped by alignment" : "× " + +t.weight.toFixed(2)),
      t.expert !== undefined && chip("expert " + num(t.expert)),
      !t.valid && chip("invalid format", "minus"),
      t.malformed && chip(t.malformed + " malformed"),
      chip("ends: " + t.finish), t.tokens && chip(`${t.sampled} of ${t.tokens} tokens sampled`),
    ];
    return el("article", { class: "talk", "aria-label": name },
      el("h3", { class: "c" + (t.agent % 8) }, el("span", {}, name + (sub ? " · call " + (t.i + 1) : "")), chips.filter(Boolean)),
      t.turns.map((u) => turn(u, t)));
  };
  const chip = (text, kind) => el("span", { class: "chip " + (kind || "") }, text);

  const turn = (u, t) => {
    const sampled = u.role === "assistant";
    const what = el("div", { class: "what" });
    if (u.tokens) u.tokens.forEach(([text, logp]) => what.append(token(text, t, logp)));
    else what.append(sampled ? token(u.text || "", t) : u.text || "");
    if (u.cut) what.append(el("span", { class: "more" }, ` … ${u.cut} more`));
    return el("div", { class: "turn " + (sampled ? "said" : "read") },
      el("div", { class: "who" }, { prompt: "prompt", assistant: "says", observed: "reads" }[u.role] || u.role), what);
  };

  const token = (text, t, logp) => {
    const trained = t.reward !== undefined && t.weight > 0;
    const e = el("span", { class: "t" }, text);
    if (shade.value === "surprise" && logp !== undefined) e.style.background = `rgba(var(--odd), ${Math.min(.7, -logp * .16).toFixed(3)})`;
    else if (shade.value === "advantage" && trained) {
      e.style.background = tint(t.adv);
      if (t.adv < 0) e.classList.add("minus");
    }
    const facts = [];
    if (logp !== undefined) facts.push("log p " + num(logp, 3), "p " + num(Math.exp(logp), 3));
    if (trained) facts.push("advantage " + signed(t.adv));
    if (facts.length) e.title = facts.join(", ");
    return e;
  };
  const tint = (adv) => `rgba(var(--${adv < 0 ? "minus" : "plus"}), ${Math.min(.6, adv === 0 ? 0 : .14 + Math.abs(adv) * .24).toFixed(3)})`;

  phase.addEventListener("change", () => { fillQueries(); filter(); });
  [query, reward].forEach((c) => c.addEventListener("change", filter));
  find.addEventListener("input", filter);
  shade.addEventListener("change", draw);
  byId("prev").addEventListener("click", () => go(at - 1));
  byId("next").addEventListener("click", () => go(at + 1));
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName)) return;
    if (e.key === "ArrowLeft" || e.key === "k") go(at - 1);
    else if (e.key === "ArrowRight" || e.key === "j") go(at + 1);
  });

  // Show the rollout that the address names. Without one, show a rollout of the last step that was better than its group and
  // delegated about twice.
  fillQueries();
  const wanted = decodeURIComponent(location.hash);
  const named = data.rollouts.find((r) => "#t/" + [r.phase, r.query, r.k].join("/") === wanted);
  const telling = data.rollouts.filter((r) => r.main && r.main.adv > 0 && r.main.valid && (r.subs || []).length)
    .sort((a, b) => a.phase - b.phase || rewardOf(a) - rewardOf(b) || Math.abs(b.subs.length - 2) - Math.abs(a.subs.length - 2));
  list = data.rollouts;
  at = Math.max(0, list.indexOf(named || telling[telling.length - 1]));
  draw();
}
if (byId("rollout")) reader();
