"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const root = document.documentElement, place = document.getElementById("view"), door = document.getElementById("door");
  const live = document.getElementById("live"), SAMPLES = 600;
  let history = [], current = null, key = sessionStorage.getItem("longproof-key") || "";

  // ---- elements: h("p.small", {title: …}, "text", …). Text is only ever text.
  function make(space, spec, attributes, children) {
    const [tag, ...classes] = spec.split(".");
    const element = space ? document.createElementNS(space, tag) : document.createElement(tag);
    if (classes.length) element.setAttribute("class", classes.join(" "));
    for (const [name, value] of Object.entries(attributes || {}))
      if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    for (const child of children.flat(9))
      if (child !== null && child !== undefined && child !== false) element.append(child.nodeType ? child : String(child));
    return element;
  }
  const h = (spec, attributes, ...children) => make("", spec, attributes, children);
  const s = (spec, attributes, ...children) => make(SVG, spec, attributes, children);

  // ---- the page follows the view: what stays the same is left alone, so selections, focus and opened details survive
  function morph(old, fresh) {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || (old.dataset && old.dataset.key) !== (fresh.dataset && fresh.dataset.key))
      return old.replaceWith(fresh);
    if (old.nodeType === 3) { if (old.data !== fresh.data) old.data = fresh.data; return undefined; }
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const wanted = [...fresh.childNodes], keyed = new Map();
    for (const child of old.childNodes) if (child.dataset && child.dataset.key) keyed.set(child.dataset.key, child);
    wanted.forEach((child, at) => {
      const name = child.dataset && child.dataset.key, known = name && keyed.get(name);
      if (known && old.childNodes[at] !== known) old.insertBefore(known, old.childNodes[at] || null);
      if (old.childNodes[at]) morph(old.childNodes[at], child); else old.append(child);
    });
    while (old.childNodes.length > wanted.length) old.lastChild.remove();
    return undefined;
  }

  // ---- figures as people read them
  const count = value => value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US");
  const short = value => value === null || value === undefined ? "–" : Math.abs(value) < 10000 ? count(value)
    : new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 }).format(value);
  const percent = value => value === null || value === undefined ? "–" : value > 0 && value < .0005 ? "< 0.1 %" : `${(value * 100).toFixed(value > 0 && value < .0995 ? 1 : 0)} %`;
  function span(ns) {
    if (ns === null || ns === undefined) return "–";
    const seconds = ns / 1e9;
    if (seconds < .9995) return `${Math.max(0, Math.round(ns / 1e6))} ms`;
    if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
    if (seconds < 600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
    return seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
  }
  const usd = nano => nano === null || nano === undefined ? "–" : nano > 0 && nano < 1e5 ? "< $0.0001"
    : `$${(nano / 1e9).toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: Math.abs(nano) < 1e9 ? 4 : 2 })}`;
  const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many || one + "s"}`;

  // ---- parts
  const STATES = { up: ["good", "● up"], draining: ["caution", "◐ draining"], broken: ["bad-text", "✕ broken"], down: ["bad-text", "✕ down"], restarted: ["caution", "↻ restarted"] };
  function alarms(view) {
    const found = view.problems.map(text => ["bad", "Gateway", text]), now = view.fleet.at_ns;
    if (view.meter && view.meter.problem) found.push(["bad", "Metering", `nothing new is served: ${view.meter.problem}`]);
    for (const r of view.fleet.replicas) {
      if (r.state === "down") found.push(["bad", r.name, "is down"]);
      if (r.state === "broken") found.push(["bad", r.name, `failed too often; not asked again${r.available_at_ns > now ? ` for ${span(r.available_at_ns - now)}` : " yet"}`]);
      if (r.thrashing) found.push(["bad", r.name, `preempts requests although the ledger holds back (${plural(r.preemptions, "preemption")}): its capacity is not what is configured`]);
      for (const stage of r.stages) if (stage.stopped) found.push(["", `${r.name} ${stage.stage}`, `is above its watermark: nothing new until it is down to ${count(stage.resume_blocks)} blocks`]);
    }
    for (const i of view.index) if (i.degraded) found.push(["", `${i.replica} index=degraded`, i.degraded]);
    for (const p of view.pinned) if (p.problem) found.push(["", `Prefix ${p.name}`, p.problem]);
    for (const c of view.fleet.claims) if (c.problem) found.push(["", `Claim for ${c.model}`, c.problem]);
    return found.length ? h("ul.alarms", { "aria-label": "Needs attention" },
      found.map(([kind, who, what]) => h(`li${kind ? "." + kind : ""}`, {}, h("b", {}, `${kind ? "✕" : "▲"} ${who}`), what))) : null;
  }
  // the sample that was taken `seconds` before another, or the oldest there is
  function earlier(points, at, seconds) {
    let found = at;
    while (found > 0 && points[at].at_ns - points[found].at_ns < seconds * 1e9) found--;
    return points[found];
  }
  function rate(field) {
    const last = history[history.length - 1], first = history.length ? earlier(history, history.length - 1, 60) : last;
    return !last || last === first || last.at_ns <= first.at_ns ? null : (last[field] - first[field]) / ((last.at_ns - first.at_ns) / 6e10);
  }
  function tiles(view) {
    const f = view.fleet, c = f.counters, money = view.meter ? view.meter.by_sku.reduce((sum, row) => sum + row.sum.nano_usd, 0) : null;
    const unpriced = view.meter ? view.meter.by_sku.reduce((sum, row) => sum + row.sum.unpriced, 0) : 0;
    const tile = (name, value, unit, note) => h("div", {}, h("dt", {}, name), h("dd", {}, value, unit && h("small", {}, " " + unit)), note && h("p", {}, note));
    return h("dl.tiles", {},
      tile("Running", count(f.running_count), "", `${count(c.completed)} completed`),
      tile("Waiting", count(f.waiting_count), "", f.waiting_count ? `oldest ${span(f.oldest_wait_ns)}` : "nobody waits"),
      tile("Sent", rate("dispatched") === null ? "–" : short(rate("dispatched")), "/ min", `${count(c.dispatched)} in all`),
      tile("Refused", rate("refused") === null ? "–" : short(rate("refused")), "/ min", `${count(c.refused)} in all`),
      tile("Input from cache", percent(c.input_tokens ? c.cached_tokens / c.input_tokens : null), "", `${short(c.cached_tokens)} of ${short(c.input_tokens)} tokens`),
      tile("Earned", view.meter ? usd(money) : "–", "", view.meter ? unpriced ? `${plural(unpriced, "request")} without a price` : "since the start" : "no meter"));
  }
  function bar(stage) {
    const total = Math.max(1, stage.capacity_blocks), x = blocks => Math.min(1000, Math.max(0, blocks / total * 1000));
    const used = stage.used_blocks === null ? stage.private_blocks + stage.shared_blocks : stage.used_blocks;
    const filled = Math.max(0, Math.min(stage.private_blocks, used - stage.shared_blocks));
    const parts = [["shared", stage.shared_blocks], ["private", filled], ["reserved", stage.private_blocks - filled], ["foreign", stage.foreign_blocks + (stage.peer_blocks || 0)], ["evictable", stage.evictable_blocks || 0]];
    let at = 0;
    const rects = parts.map(([name, blocks]) => { const rect = s(`rect.${name}`, { x: at, y: 0, width: Math.min(x(blocks), 1000 - at), height: 20 }); at = Math.min(1000, at + x(blocks)); return rect; });
    const share = stage.capacity_blocks ? stage.held_blocks / stage.capacity_blocks : null;
    const words = `${stage.stage || "KV"}: ${percent(share)} held, watermark at ${percent(stage.stop_blocks / total)}`;
    return h("div", { "data-key": stage.stage },
      h("p.bar-head", {}, h("span", {}, h("b", {}, percent(share)), ` of ${stage.stage || "KV"} held`, stage.stopped && h("b.caution", {}, "  ▲ stopped")),
        h("span.muted", {}, `${short(stage.held_blocks)} of ${short(stage.capacity_blocks)} blocks of ${count(stage.block_tokens)}`)),
      s("svg.bar", { viewBox: "0 0 1000 20", preserveAspectRatio: "none", role: "img", "aria-label": words },
        s("rect.track", { x: 0, y: 0, width: 1000, height: 20 }), rects,
        s("line.mark.low", { x1: x(stage.resume_blocks), x2: x(stage.resume_blocks), y1: -2, y2: 22 }),
        s("line.mark", { x1: x(stage.stop_blocks), x2: x(stage.stop_blocks), y1: -2, y2: 22 })),
      h("p.facts", {},
        h("span", {}, h("b", {}, count(stage.requests)), stage.requests === 1 ? " request" : " requests"),
        h("span", {}, `stop ${percent(stage.stop_blocks / total)}, resume ${percent(stage.resume_blocks / total)}`),
        stage.drift_blocks !== null && h("span", { title: "the engine's own figure less ours" }, `engine ${stage.drift_blocks < 0 ? "−" : "+"}${count(Math.abs(stage.drift_blocks))} blocks`)));
  }
  function card(replica, view) {
    const [kind, word] = STATES[replica.state] || ["muted", replica.state], index = view.index.find(i => i.replica === replica.name);
    const fact = (value, what) => h("span", {}, h("b", {}, value), " " + what);
    return h(`article.card.is-${replica.state}`, { "data-key": replica.name },
      h("p.card-head", {}, h("span", {}, h("b", {}, replica.name), " ", h("span.muted.small", {}, replica.models.join(", "))), h(`span.state.${kind}`, {}, word)),
      replica.stages.map(bar),
      h("p.facts", {}, fact(count(replica.prefilling), "in prefill"), fact(count(replica.decoding), "decoding"), fact(short(replica.pending_prefill_tokens), "tokens to prefill"),
        replica.prefill_tokens_per_s !== null && fact(short(replica.prefill_tokens_per_s), `tokens/s prefill (${replica.prefill_source})`),
        replica.drain_blocks_per_s !== null && fact(short(replica.drain_blocks_per_s), "blocks/s freed"),
        replica.engine_waiting !== null && fact(`${count(replica.engine_running)} + ${count(replica.engine_waiting)}`, "running + waiting there"),
        replica.preemptions > 0 && fact(count(replica.preemptions), replica.preemptions === 1 ? "preemption" : "preemptions"),
        index && fact(short(index.blocks), index.source === "events" ? "blocks known from events" : "blocks inferred")),
      replica.emptying_for && h("p.small.caution", {}, `▲ being emptied for ${replica.emptying_for}, which has waited too long`));
  }
  function fleet(view) {
    const pools = new Map();
    for (const replica of view.fleet.replicas) pools.set(replica.pool, [...(pools.get(replica.pool) || []), replica]);
    const held = (stages, field) => stages.reduce((sum, stage) => sum + stage[field], 0);
    const swatch = (kind, text) => h("li", {}, s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, s("rect.track", { width: 10, height: 10 }), s(`rect.${kind}`, { width: 10, height: 10 })), text);
    const line = (kind, text) => h("li", {}, s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, s(`line.mark${kind}`, { x1: 5, x2: 5, y1: 0, y2: 10 })), text);
    return h("section", { "data-key": "fleet" }, h("h2", {}, "Replicas", h("small", {}, plural(view.fleet.replicas.length, "replica"))),
      view.fleet.replicas.length ? h("ul.key", {}, swatch("shared", "shared prefixes in use"), swatch("private", "one request's, filled"), swatch("reserved", "reserved for output"),
        view.fleet.replicas.some(r => r.stages.some(x => x.foreign_blocks || x.peer_blocks)) && swatch("foreign", "held by others"),
        view.fleet.replicas.some(r => r.stages.some(x => x.evictable_blocks)) && swatch("evictable", "cached, can be evicted"), line("", "stop"), line(".low", "resume"))
        : h("p.none", {}, "No replica is configured: every request is refused."),
      [...pools].map(([name, members]) => {
        const stages = members.flatMap(r => r.stages), capacity = held(stages, "capacity_blocks");
        return h("div.pool", { "data-key": name }, pools.size > 1 && h("h3", {}, `Pool ${name}`, h("small", {}, `${plural(members.length, "replica")}, ${percent(capacity ? held(stages, "held_blocks") / capacity : null)} held`)),
          h("div.cards", {}, members.map(r => card(r, view))));
      }));
  }
  function plot(title, lines, top, format) {
    const points = history.slice(-SAMPLES), from = points.length ? points[points.length - 1].at_ns - SAMPLES * 1e9 : 0;
    const seen = lines.flatMap(l => l.values.filter(v => v !== null)), most = Math.max(top || 0, 1e-9, ...seen);
    const path = values => { let d = "", pen = false; values.forEach((v, i) => { if (v === null) { pen = false; return; } d += `${pen ? "L" : "M"}${((points[i].at_ns - from) / (SAMPLES * 1e9) * 600).toFixed(1)} ${(100 - v / most * 100).toFixed(1)}`; pen = true; }); return d; };
    const last = line => line.values.length ? line.values[line.values.length - 1] : null;
    return h("figure", { "data-key": title }, h("h3", {}, title, seen.length > 0 && h("span.muted", {}, `peak ${format(Math.max(...seen))}`)),
      s("svg", { viewBox: "0 0 600 100", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${lines.map(l => `${l.name} ${format(last(l))}`).join(", ")}` },
        s("line.axis", { x1: 0, x2: 600, y1: 100, y2: 100 }), s("line.axis", { x1: 0, x2: 600, y1: 0, y2: 0 }),
        lines.map(l => s(`path.line.s-${l.colour}${l.dash ? "." + l.dash : ""}`, { d: path(l.values) }))),
      h("figcaption", {}, h("span", {}, "10 min ago"), h("span", {}, "now")),
      h("ul.key", {}, lines.map(l => h("li", {}, s("svg", { viewBox: "0 0 12 10", "aria-hidden": "true" }, s(`line.line.s-${l.colour}${l.dash ? "." + l.dash : ""}`, { x1: 0, x2: 12, y1: 5, y2: 5 })), `${l.name} ${format(last(l))}`))));
  }
  function overTime(view) {
    const points = history.slice(-SAMPLES), names = view.fleet.replicas.map(r => r.name), colours = ["cold", "warm", "tail", "refused", "bad", "ink"], dashes = ["", "dashed", "dotted"];
    const perSecond = field => points.map((p, i) => { const before = earlier(points, i, 5); return p.at_ns <= before.at_ns ? null : Math.max(0, (p[field] - before[field]) / ((p.at_ns - before.at_ns) / 1e9)); });
    const kv = names.slice(0, 12).map((name, i) => ({ name, colour: colours[i % 6], dash: dashes[Math.floor(i / 6)], values: points.map(p => p.kv[name] === undefined ? null : p.kv[name]) }));
    const share = points.map((p, i) => { const before = earlier(points, i, 60), input = p.input - before.input; return input > 0 ? (p.cached - before.cached) / input : null; });
    return h("section", { "data-key": "time" }, h("h2", {}, "Over ten minutes"), h("div.plots", {},
      plot("KV held, fullest stage", kv, 1, percent),
      plot("Requests per second", [{ name: "sent", colour: "cold", values: perSecond("dispatched") }, { name: "refused", colour: "bad", dash: "dashed", values: perSecond("refused") }], 0, v => v === null ? "–" : v < 10 ? v.toFixed(1) : count(v)),
      plot("At the gateway", [{ name: "running", colour: "cold", values: points.map(p => p.running) }, { name: "waiting", colour: "warm", dash: "dashed", values: points.map(p => p.waiting) }], 0, count),
      plot("Input from cache, last minute", [{ name: "hits", colour: "tail", values: share }], 1, percent)));
  }
  const table = (label, head, rows, foot) => h("div.scroll", { tabindex: 0, role: "region", "aria-label": label }, h("table", {}, h("thead", {}, h("tr", {}, head.map(([name, kind]) => h(`th${kind === "num" ? ".num" : ""}`, { scope: "col" }, name)))), h("tbody", {}, rows), foot && h("tfoot", {}, foot)));
  function queue(view) {
    const f = view.fleet, rows = f.waiting.map(w => h("tr", { "data-key": w.id }, h("th.id.mono", { scope: "row", title: w.id }, w.id), h("td.id", { title: `${w.tenant} ${w.model}` }, w.tenant || "–", h("small", {}, w.model)),
      h("td.num", {}, `${w.exact ? "" : "≤ "}${count(w.input_tokens)}`, h("small", {}, `${count(w.uncached_tokens)} new`)), h("td.num", {}, span(w.waited_ns), w.overdue && h("small.caution", {}, "▲ overdue")), h("td.why", {}, w.reason)));
    return h("section", { "data-key": "queue" }, h("h2", {}, "Queue", h("small", {}, `${plural(f.waiting_count, "request")} ${f.waiting_count === 1 ? "waits" : "wait"}${f.counting_count ? `, ${count(f.counting_count)} being counted` : ""}`)),
      rows.length ? table("Requests that wait", [["Request"], ["Tenant"], ["Input", "num"], ["Waited", "num"], ["Why"]], rows) : h("p.none", {}, "Nobody waits."),
      f.waiting_count > f.waiting.length && h("p.small.muted", {}, `The first ${count(f.waiting.length)} are shown.`));
  }
  const VERDICTS = { sent: ["good", "→ "], waits: ["caution", "… "], refused: ["refused", "✕ "] };
  function decisions(view) {
    const now = view.fleet.at_ns, rows = view.decisions.map(d => { const [kind, sign] = VERDICTS[d.verdict] || ["muted", ""]; return h("tr", { "data-key": `${d.id} ${d.at_ns}` },
      h("td.num", {}, span(now - d.at_ns)), h("th.id.mono", { scope: "row", title: d.id }, d.id, h("small", {}, d.tenant)), h(`td.verdict.${kind}`, {}, sign + d.verdict, h("small", {}, d.detail, d.waited_ns > 1e6 ? ` after ${span(d.waited_ns)}` : "")),
      h("td.why", {}, d.scores.length ? h("details", {}, h("summary", {}, d.reason), scores(d)) : d.reason)); });
    return h("section", { "data-key": "decisions" }, h("h2", {}, "Decisions", h("small", {}, "newest first")),
      rows.length ? table("Decisions", [["Ago", "num"], ["Request"], ["Verdict"], ["Why"]], rows) : h("p.none", {}, "Nothing was decided yet."));
  }
  const scores = d => h("table", {}, h("thead", {}, h("tr", {}, ["Replica", "cost", "cached", "new", "backlog", "restore", "until room"].map((name, i) => h(`th${i ? ".num" : ""}`, { scope: "col" }, name)))),
    h("tbody", {}, d.scores.map(x => h("tr", {}, h("td", {}, x.replica, x.note && h("small", {}, x.note)), h("td.num", {}, span(x.cost_ns)), h("td.num", {}, count(x.cached_tokens)), h("td.num", {}, count(x.uncached_tokens)), h("td.num", {}, span(x.backlog_ns)), h("td.num", {}, span(x.restore_ns)), h("td.num", {}, span(x.room_ns))))));
  function refusals(view) {
    const c = view.fleet.counters, codes = [...c.refused_by_code].sort((a, b) => b[1] - a[1]);
    const ends = [["completed", c.completed], ["client left", c.cancelled], ["failed", c.failed], ["rejected by the engine", c.rejected], ["running", view.fleet.running_count], ["waiting", view.fleet.waiting_count], ["refused here", c.refused]];
    const share = n => h("td.num", {}, percent(c.arrived ? n / c.arrived : null));
    return h("section", { "data-key": "refusals" }, h("h2", {}, "Arrivals", h("small", {}, `${count(c.arrived)} in all`)),
      table("What became of arrivals", [["What became of them"], ["Requests", "num"], ["Share", "num"]], [...ends.map(([name, n]) => h("tr", { "data-key": name }, h("th", { scope: "row" }, name), h("td.num", {}, count(n)), share(n))),
        ...codes.map(([code, n]) => h("tr", { "data-key": `refused ${code}` }, h("td.break.under", {}, h("code", {}, code)), h("td.num", {}, count(n)), share(n))),
        c.engine_refusals > 0 && h("tr", {}, h("td", {}, "refusals of engines, tried elsewhere"), h("td.num", {}, count(c.engine_refusals)), h("td", {}))]));
  }
  function tenants(view) {
    const rows = view.fleet.tenants.map(t => h("tr", { "data-key": t.name }, h("th.break", { scope: "row" }, t.name || "(no key)"), h("td.num", {}, String(t.weight)), h("td.num", {}, count(t.running)), h("td.num", {}, count(t.waiting)), h("td.num", {}, short(t.held_tokens)),
      h("td.num", {}, t.budget_token_seconds === null ? "no budget" : `${percent(t.balance_token_seconds / t.budget_token_seconds)} left`, t.budget_token_seconds !== null && h("small", {}, `of ${short(t.budget_token_seconds)} token·s`))));
    return h("section", { "data-key": "tenants" }, h("h2", {}, "Tenants"), rows.length ? table("Tenants", [["Tenant"], ["Weight", "num"], ["Running", "num"], ["Waiting", "num"], ["Tokens held", "num"], ["KV budget", "num"]], rows) : h("p.none", {}, "Nobody has asked yet."));
  }
  function prefixes(view) {
    if (!view.pinned.length) return null;
    return h("section", { "data-key": "pinned" }, h("h2", {}, "Pinned prefixes"), table("Pinned prefixes", [["Name"], ["Model"], ["Tokens", "num"], ["Held by"], ["Hit rate", "num"]], view.pinned.map(p => h("tr", { "data-key": p.name }, h("th.break", { scope: "row" }, p.name), h("td.break", {}, p.model), h("td.num", {}, count(p.tokens)),
      h("td.break", {}, p.replicas.join(", ") || h("span.caution", {}, "▲ nobody")), h("td.num", {}, percent(p.requests ? p.hits / p.requests : null), h("small", {}, `${count(p.hits)} of ${count(p.requests)}`))))));
  }
  function claims(view) {
    if (!view.fleet.claims.length) return null;
    return h("section", { "data-key": "claims" }, h("h2", {}, "What is proven"), table("Claims", [["Model"], ["Admitted", "num"], ["Effective", "num"], ["Beyond it"], ["Claim"]], view.fleet.claims.map(c => h("tr", { "data-key": c.model }, h("th.break", { scope: "row" }, c.model), h("td.num", {}, count(c.admitted_tokens)), h("td.num", {}, count(c.effective_tokens)), h("td", {}, c.on_excess),
      h("td.why", {}, c.claim, h(`small${c.problem ? ".caution" : ""}`, {}, c.problem ? `▲ ${c.problem}` : "holds"))))));
  }
  function money(view) {
    const m = view.meter;
    if (!m) return null;
    const kinds = [["Cold", "input_cold_tokens"], ["Cached", "input_cached_tokens"], ["Output", "output_tokens"]];
    const cells = sum => [h("td.num", {}, count(sum.requests)), kinds.map(([, field]) => h("td.num", { title: count(sum[field]) }, short(sum[field]))), h("td.num", {}, short(sum.kv_token_ms / 1000)), h("td.num", {}, usd(sum.nano_usd), sum.unpriced > 0 && h("small.caution", {}, `▲ ${count(sum.unpriced)} unpriced`))];
    const rows = list => list.map(row => h("tr", { "data-key": row.name || "-" }, h("th.break", { scope: "row" }, row.name === null ? "no price list" : row.name || "(no key)"), cells(row.sum)));
    const head = first => [[first], ["Requests", "num"], ...kinds.map(([name]) => [name, "num"]), ["KV token·s", "num"], ["USD", "num"]];
    return h("section", { "data-key": "money" }, h("h2", {}, "Usage and money", h("small", {}, "since the start; bills come from the ledger")),
      m.by_sku.length ? h("div.columns", {}, table("By what is sold", head("SKU"), rows(m.by_sku)), m.by_tenant.length > 0 && table("By tenant", head("Tenant"), rows(m.by_tenant))) : h("p.none", {}, "Nothing was used yet."),
      h("p.small.muted", {}, `Ledger ${m.ledger}: ${plural(m.open, "open request")}, ${short(m.journal_bytes)} bytes on the way`, m.recovered > 0 && `, ${plural(m.recovered, "request")} left by an earlier gateway settled`, m.unwritten > 0 && `, ${count(m.unwritten)} waiting for room on the disk`, "."));
  }
  function draw(view) {
    document.getElementById("name").textContent = view.name;
    document.title = `${view.fleet.waiting_count ? `(${view.fleet.waiting_count}) ` : ""}${view.name} – longproof`;
    const pattern = s("svg.off-screen", { "aria-hidden": "true" }, s("pattern", { id: "cached-light", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect.shared", { width: 2, height: 6 })));
    const fresh = h("main", { id: "view", "aria-live": "off" }, pattern, alarms(view), tiles(view), fleet(view), overTime(view),
      h("div.columns", { "data-key": "flow" }, queue(view), decisions(view)), h("div.columns", { "data-key": "who" }, refusals(view), tenants(view)),
      prefixes(view), claims(view), money(view));
    morph(place, fresh);
  }

  // ---- the stream
  function said(state, text) { live.className = `live ${state}`; live.lastElementChild.textContent = text; place.classList.toggle("stale", state === "off"); }
  function took(name, data) {
    if (name === "history") history = JSON.parse(data);
    if (name !== "view") return;
    current = JSON.parse(data);
    if (current.sample) { history.push(current.sample); if (history.length > SAMPLES) history.splice(0, history.length - SAMPLES); }
    door.hidden = true; said("on", "live"); draw(current);
  }
  async function follow() {
    const answer = await fetch("/dashboard/events", { headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store" });
    if (answer.status === 401 || answer.status === 403) {
      const body = await answer.json().catch(() => null);
      sessionStorage.removeItem("longproof-key");
      document.getElementById("refused").textContent = key ? (body && body.error && body.error.message) || "this key may not see the dashboard" : "";
      door.hidden = false; said("", "waiting for a key"); return false;
    }
    if (!answer.ok) throw new Error(`the gateway answered ${answer.status}`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", part; !(part = await reader.read()).done;) {
      const events = (rest + part.value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const lines = event.split("\n"), field = f => lines.filter(l => l.startsWith(f + ": ")).map(l => l.slice(f.length + 2)).join("\n");
        took(field("event"), field("data"));
      }
    }
    throw new Error("the stream ended");
  }
  async function stay() {
    for (let wait = 500; ; wait = Math.min(wait * 2, 8000)) {
      const before = current;
      try { if (!await follow()) return; } catch (problem) { said("off", "not connected; trying again"); }
      if (current !== before) wait = 500;
      await new Promise(done => setTimeout(done, wait));
    }
  }
  door.addEventListener("submit", event => { event.preventDefault(); key = document.getElementById("key").value.trim(); sessionStorage.setItem("longproof-key", key); stay(); });

  // ---- theme
  const button = document.getElementById("theme"), dark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
  const label = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; label(); });
  dark.addEventListener("change", label);
  label();
  stay();
})();
