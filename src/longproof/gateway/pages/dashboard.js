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
    : `$${(nano / 1e9).toLocaleString("en-US", { minimumFractionDigits: nano && Math.abs(nano) < 1e9 ? 4 : 2, maximumFractionDigits: nano && Math.abs(nano) < 1e9 ? 4 : 2 })}`;
  const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many || one + "s"}`;

  // ---- parts
  const STATES = { up: ["good", "● up"], draining: ["caution", "◐ draining"], broken: ["bad-text", "✕ broken"], down: ["bad-text", "✕ down"], restarted: ["caution", "↻ restarted"] };
  // what is wrong, worst first: [kind, who, kind of thing, what]; the same of several is one line
  function troubles(view) {
    const f = view.fleet, now = f.at_ns, found = view.problems.map(text => ["bad", "Gateway", "", text]);
    const why = name => { const t = view.troubles.find(x => x.replica === name); return t ? `${t.at_ns === null ? "" : `${span(now - t.at_ns)} ago `}${t.why}` : ""; };
    const because = name => why(name) ? `: ${why(name)}` : "";
    if (!f.replicas.some(r => r.state === "up") && f.replicas.length) found.push(["bad", "Fleet", "", "no replica is up: every request is refused"]);
    if (view.meter && view.meter.problem) found.push(["bad", "Metering", "", `nothing new is served: ${view.meter.problem}`]);
    for (const r of f.replicas) {
      if (r.state === "down") found.push(["bad", r.name, "", `is down${because(r.name)}`]);
      if (r.state === "broken") found.push(["bad", r.name, "", `failed too often; not asked again${r.available_at_ns > now ? ` for ${span(r.available_at_ns - now)}` : " yet"}${because(r.name)}`]);
      if (r.thrashing) found.push(["bad", r.name, "", `preempts requests although the ledger holds back (${plural(r.preemptions, "preemption")}): its capacity is not what is configured`]);
    }
    const failed = inLastMinute("failed"), last = view.troubles.filter(t => t.at_ns !== null).sort((x, y) => y.at_ns - x.at_ns)[0];
    if (failed > 0) found.push(["bad", "Requests", "", `${count(failed)} failed in the last minute${last ? `; the last at ${last.replica}: ${last.why}` : ""}`]);
    const old = f.waiting.filter(w => w.overdue);
    if (old.length) found.push(["", "Queue", "", `${plural(f.waiting_count, "request")} ${f.waiting_count === 1 ? "waits" : "wait"}, the oldest for ${span(f.oldest_wait_ns)}: ${old[0].reason}`]);
    for (const r of f.replicas) for (const stage of r.stages)
      if (stage.stopped) found.push(["", `${r.name} ${stage.stage}`, "", `is above its watermark: nothing new until it is down to ${percent(stage.resume_blocks / Math.max(1, stage.capacity_blocks))}`]);
    const up = new Set(f.replicas.filter(r => r.state === "up").map(r => r.name));
    for (const i of view.index.filter(i => up.has(i.replica))) {
      if (i.degraded) found.push(["", i.replica, "index=degraded", `${i.degraded}; requests are routed there by guesses`]);
      else if (i.inferred) found.push(["", i.replica, "index=inferred", `its KV events are not used: ${i.inferred}`]);
    }
    for (const p of view.pinned) if (p.problem) found.push(["", `Prefix ${p.name}`, "", p.problem, "prefix"]);
    for (const c of f.claims) if (c.problem) found.push(["", `Claim for ${c.model}`, "", c.problem, "claim"]);
    const lines = new Map();
    for (const [kind, who, sort, what, noun = "replica"] of found) {
      const key = `${kind} ${sort} ${what}`, line = lines.get(key);
      if (line) line.names.push(who); else lines.set(key, { kind, sort, what, noun, names: [who] });
    }
    return [...lines.values()];
  }
  const NAMED = 3;
  const alarms = lines => lines.length ? h("ul.alarms", { "aria-label": "Needs attention" }, lines.map(({ kind, sort, what, names, noun }) => h(`li${kind ? "." + kind : ""}`, { "data-key": `${sort} ${names[0]} ${what.slice(0, 24)}` },
    h("b", {}, `${kind ? "✕" : "▲"} ${names.length > NAMED ? plural(names.length, noun, noun === "prefix" ? "prefixes" : null) : names.join(", ")}${sort ? " " + sort : ""}`), " ", names.length > NAMED && "each ", what,
    names.length > NAMED && h("details", {}, h("summary.small", {}, `which ${names.length}`), h("p.small", {}, names.join(", ")))))) : null;
  // places for sequences and an engine that tells no capacity are no KV that could be full
  const UNBOUNDED = 2 ** 40, isSlots = stage => stage.stage.endsWith("slots"), isKv = stage => !isSlots(stage) && stage.capacity_blocks < UNBOUNDED;
  function held(replicas) {
    const tokens = field => replicas.flatMap(r => r.stages).filter(isKv).reduce((sum, stage) => sum + stage[field] * stage.block_tokens, 0);
    return tokens("capacity_blocks") ? tokens("held_blocks") / tokens("capacity_blocks") : null;
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
  // how much a total has grown in the last minute
  function inLastMinute(field) {
    const last = history[history.length - 1];
    return last ? Math.max(0, last[field] - earlier(history, history.length - 1, 60)[field]) : 0;
  }
  function mostRefused() {
    const last = history[history.length - 1];
    if (!last) return "";
    const before = earlier(history, history.length - 1, 60).refused_by, grown = Object.entries(last.refused_by).map(([code, n]) => [code, n - (before[code] || 0)]).filter(([, n]) => n > 0);
    return grown.length ? grown.sort((a, b) => b[1] - a[1])[0][0] : "";
  }
  function tiles(view) {
    const f = view.fleet, c = f.counters, money = view.meter ? view.meter.by_sku.reduce((sum, row) => sum + row.sum.nano_usd, 0) : null;
    const unpriced = view.meter ? view.meter.by_sku.reduce((sum, row) => sum + row.sum.unpriced, 0) : 0;
    const tile = (name, value, unit, note, kind) => h("div", {}, h("dt", {}, name), h(`dd${kind ? "." + kind : ""}`, {}, value, unit && h("small", {}, " " + unit)), note && h("p", {}, note));
    const up = f.replicas.filter(r => r.state === "up").length;
    const stopped = f.replicas.filter(r => r.stages.some(stage => stage.stopped)).length, most = mostRefused(), perMinute = field => rate(field) === null ? "–" : short(rate(field));
    const others = ["draining", "broken", "down"].map(state => [f.replicas.filter(r => r.state === state).length, state]).filter(([n]) => n).map(([n, state]) => `${n} ${state}`).join(", ");
    return h("dl.tiles", {},
      tile("Replicas up", up === f.replicas.length ? count(up) : `✕ ${count(up)}`, `of ${count(f.replicas.length)}`, others || "all of them", up < f.replicas.length && "bad-text"),
      tile("KV held", percent(held(f.replicas)), "", stopped ? `▲ ${plural(stopped, "replica")} stopped` : "of all replicas"),
      tile("Running", count(f.running_count), "", `${perMinute("dispatched")} / min sent`),
      tile("Waiting", count(f.waiting_count), "", f.waiting_count ? `oldest ${span(f.oldest_wait_ns)}` : "nobody waits"),
      tile("Refused", perMinute("refused"), "/ min", most ? h("span", {}, "most: ", h("code", {}, most)) : `${count(c.refused)} in all`),
      tile("Failed", perMinute("failed"), "/ min", `${short(c.failed)} failed, ${short(c.completed)} completed`, rate("failed") > 0 && "bad-text"),
      tile("Input from cache", percent(c.input_tokens ? c.cached_tokens / c.input_tokens : null), "", `${short(c.cached_tokens)} of ${short(c.input_tokens)} tokens`),
      tile("Earned", view.meter ? money < 1e15 ? usd(money) : `$${short(money / 1e9)}` : "–", "", view.meter ? unpriced ? `${plural(unpriced, "request")} without a price` : "since the start" : "no meter"));
  }
  function bar(stage, dense) {
    if (stage.capacity_blocks >= UNBOUNDED) return h("p.small.muted", { "data-key": stage.stage }, `${short(stage.held_blocks)} blocks of ${stage.stage} held; it does not tell how many it has`);
    if (isSlots(stage)) return h("p.small", { "data-key": stage.stage }, h("b", {}, `${count(stage.held_blocks)} of ${count(stage.capacity_blocks)}`), ` ${stage.stage} taken`, stage.held_blocks >= stage.capacity_blocks && h("b.caution", {}, "  ▲ all"));
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
        h("span.muted", {}, `${short(stage.held_blocks)} of ${short(stage.capacity_blocks)} blocks${dense ? "" : ` of ${count(stage.block_tokens)}`}`)),
      s("svg.bar", { viewBox: "0 0 1000 20", preserveAspectRatio: "none", role: "img", "aria-label": words },
        s("rect.track", { x: 0, y: 0, width: 1000, height: 20 }), rects,
        s("line.mark.low", { x1: x(stage.resume_blocks), x2: x(stage.resume_blocks), y1: -2, y2: 22 }),
        s("line.mark", { x1: x(stage.stop_blocks), x2: x(stage.stop_blocks), y1: -2, y2: 22 })));
  }
  const fact = (value, what, title) => h("span", { title }, h("b", {}, value), " " + what);
  const inStage = (replica, stage) => replica.stages.filter(isKv).length > 1 ? `${stage.stage}: ` : "";
  function card(replica, view, dense) {
    const [kind, word] = STATES[replica.state] || ["muted", replica.state], index = view.index.find(i => i.replica === replica.name);
    const requests = replica.prefilling + replica.decoding, per = stage => stage.capacity_blocks || 1;
    const more = [
      replica.stages.filter(isKv).map(stage => fact(`${percent(stage.stop_blocks / per(stage))}, ${percent(stage.resume_blocks / per(stage))}`, `${inStage(replica, stage)}stop, resume`)),
      dense && replica.stages.filter(isKv).map(stage => fact(count(stage.block_tokens), `${inStage(replica, stage)}tokens per block`)),
      replica.stages.map(stage => stage.drift_blocks ? fact(count(Math.abs(stage.drift_blocks)), `${inStage(replica, stage)}blocks ${stage.drift_blocks < 0 ? "fewer" : "more"} in use by the engine's own count than by the ledger's`) : null),
      replica.prefill_tokens_per_s !== null && fact(short(replica.prefill_tokens_per_s), `tokens/s prefill (${replica.prefill_source})`),
      replica.drain_blocks_per_s !== null && fact(short(replica.drain_blocks_per_s), "blocks/s freed"),
      replica.engine_running !== null && fact(count(replica.engine_running), "running in the engine"),
      index && fact(short(index.blocks), index.source === "events" ? "cached blocks known from its events" : "cached blocks inferred from our traffic")];
    return h(`article.card.is-${replica.state}`, { "data-key": replica.name },
      h("p.card-head", {}, h("span", {}, h("b", {}, replica.name), " ", !dense && h("span.muted.small", {}, replica.models.join(", "))), h(`span.state.${kind}`, {}, word)),
      replica.stages.map(stage => bar(stage, dense)),
      h("p.facts", {}, fact(count(requests), requests === 1 ? "request" : "requests"), requests > 0 && fact(`${count(replica.prefilling)} + ${count(replica.decoding)}`, "in prefill + decoding"),
        replica.pending_prefill_tokens > 0 && fact(short(replica.pending_prefill_tokens), "tokens to prefill"),
        replica.engine_waiting > 0 && h("span.caution", {}, `▲ ${count(replica.engine_waiting)} waiting in the engine`),
        replica.preemptions > 0 && fact(count(replica.preemptions), replica.preemptions === 1 ? "preemption" : "preemptions"),
        !dense && more),
      dense && h("details", {}, h("summary.small.muted", {}, "more"), h("p.facts", {}, dense && fact(replica.models.join(", "), ""), more)),
      replica.emptying_for && h("p.small.caution", {}, `▲ being emptied for ${replica.emptying_for}, which has waited too long`));
  }
  const DENSE_FROM = 8;
  function fleet(view) {
    const pools = new Map(), dense = view.fleet.replicas.length > DENSE_FROM;
    for (const replica of view.fleet.replicas) pools.set(replica.pool, [...(pools.get(replica.pool) || []), replica]);
    const swatch = (kind, text) => h("li", {}, s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, s("rect.track", { width: 10, height: 10 }), s(`rect.${kind}`, { width: 10, height: 10 })), text);
    const line = (kind, text) => h("li", {}, s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, s(`line.mark${kind}`, { x1: 5, x2: 5, y1: 0, y2: 10 })), text);
    return h("section", { "data-key": "fleet" }, h("h2", {}, "Replicas", h("small", {}, plural(view.fleet.replicas.length, "replica"))),
      view.fleet.replicas.length ? h("ul.key", {}, swatch("shared", "shared prefixes in use"), swatch("private", "one request's, filled"), swatch("reserved", "reserved for output"),
        view.fleet.replicas.some(r => r.stages.some(x => x.foreign_blocks || x.peer_blocks)) && swatch("foreign", "held by others"),
        view.fleet.replicas.some(r => r.stages.some(x => x.evictable_blocks)) && swatch("evictable", "cached, can be evicted"), line("", "stop"), line(".low", "resume"))
        : h("p.none", {}, "No replica is configured: every request is refused."),
      [...pools].map(([name, members]) => {
        return h("div.pool", { "data-key": name }, pools.size > 1 && h("h3", {}, `Pool ${name}`, h("small", {}, `${plural(members.length, "replica")}, ${percent(held(members))} held`)),
          h(`div.cards${dense ? ".dense" : ""}`, {}, members.map(r => card(r, view, dense))));
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
    const ranked = points.map(p => Object.entries(p.kv).filter(([, share]) => share !== null).sort((a, b) => b[1] - a[1])), fullest = ranked.length && ranked[ranked.length - 1].length ? ranked[ranked.length - 1][0][0] : "";
    const at = (name, colour, dash, place) => ({ name, colour, dash, values: ranked.map(list => list.length ? list[place(list.length - 1)][1] : null) });
    const kv = names.length > 6 ? [at(`fullest (now ${fullest})`, "cold", "", () => 0), at("median", "warm", "dashed", last => last >> 1), at("emptiest", "tail", "dotted", last => last)]
      : names.map((name, i) => ({ name, colour: colours[i], dash: dashes[i % 3], values: points.map(p => p.kv[name] === undefined ? null : p.kv[name]) }));
    const share = points.map((p, i) => { const before = earlier(points, i, 60), input = p.input - before.input; return input > 0 ? (p.cached - before.cached) / input : null; });
    return h("section", { "data-key": "time" }, h("h2", {}, "Over ten minutes"), h("div.plots", {},
      plot("KV held", kv, 1, percent),
      plot("Requests per second", [{ name: "sent", colour: "cold", values: perSecond("dispatched") }, { name: "refused", colour: "refused", dash: "dashed", values: perSecond("refused") }, { name: "failed", colour: "bad", dash: "dotted", values: perSecond("failed") }], 0, v => v === null ? "–" : v < 10 ? v.toFixed(1) : count(v)),
      plot("At the gateway", [{ name: "running", colour: "cold", values: points.map(p => p.running) }, { name: "waiting", colour: "warm", dash: "dashed", values: points.map(p => p.waiting) }], 0, count),
      plot("Input from cache, last minute", [{ name: "hits", colour: "tail", values: share }], 1, percent)));
  }
  const table = (label, head, rows, foot) => h("div.scroll", { tabindex: 0, role: "region", "aria-label": label }, h("table", {}, h("thead", {}, h("tr", {}, head.map(([name, kind]) => h(`th${kind === "num" ? ".num" : ""}`, { scope: "col" }, name)))), h("tbody", {}, rows), foot && h("tfoot", {}, foot)));
  // the same reason with other numbers in it is one reason
  function reasons(waiting) {
    const groups = new Map();
    for (const w of waiting) { const key = w.reason.replace(/[\d,.]+/g, "…"), group = groups.get(key) || { n: 0, text: w.reason }; group.n++; groups.set(key, group); }
    return [...groups].map(([key, group]) => [group.n, group.n > 1 ? key : group.text]).sort((a, b) => b[0] - a[0]);
  }
  function queue(view) {
    const f = view.fleet, rows = f.waiting.map(w => h("tr", { "data-key": w.id }, h("td.num", {}, span(w.waited_ns), w.overdue && h("small.caution", {}, "▲ overdue")), h("th.id", { scope: "row", title: `${w.id}, ${w.tenant}, ${w.model}` }, h("span.mono", {}, w.id), h("small", {}, w.tenant || "(no key)", ", ", w.model)),
      h("td.num", {}, `${w.exact ? "" : "≤ "}${count(w.input_tokens)}`, h("small", {}, `${count(w.uncached_tokens)} new`)), h("td.why", {}, w.reason)));
    const groups = reasons(f.waiting);
    return h("section", { "data-key": "queue" }, h("h2", {}, "Queue", h("small", {}, `${plural(f.waiting_count, "request")} ${f.waiting_count === 1 ? "waits" : "wait"}${f.counting_count ? `, ${count(f.counting_count)} being counted` : ""}`)),
      f.waiting.length > groups.length && h("ul.reasons", { "aria-label": "Why they wait" }, groups.slice(0, 4).map(([n, text]) => h("li", {}, h("b", {}, count(n)), " ", text)), groups.length > 4 && h("li.muted", {}, `and ${groups.length - 4} other reasons`)),
      rows.length ? table("Requests that wait", [["Waited", "num"], ["Request"], ["Input", "num"], ["Why"]], rows) : h("p.none", {}, "Nobody waits."),
      f.waiting_count > f.waiting.length && h("p.small.muted", {}, `The first ${count(f.waiting.length)} are shown.`));
  }
  const VERDICTS = { sent: ["good", "→ "], waits: ["caution", "… "], refused: ["refused", "✕ "] };
  function decisions(view) {
    // that it waits is news only until the next word about it
    const seen = new Set(), newest = view.decisions.filter(d => { const over = d.verdict === "waits" && seen.has(d.id); seen.add(d.id); return !over; });
    const now = view.fleet.at_ns, rows = newest.map(d => { const [kind, sign] = VERDICTS[d.verdict] || ["muted", ""]; return h("tr", { "data-key": `${d.id} ${d.at_ns}` },
      h("td.num", {}, span(now - d.at_ns)), h("th.id", { scope: "row", title: d.id }, h("span.mono", {}, d.id), h("small", {}, d.tenant)), h(`td.verdict.${kind}`, {}, sign + d.verdict, h("small", {}, d.detail, d.waited_ns > 1e6 ? ` after ${span(d.waited_ns)}` : "")),
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
    const lines = troubles(view), bad = lines.filter(line => line.kind).length;
    document.title = `${bad ? `✕ ${bad} ` : lines.length ? "▲ " : ""}${view.fleet.waiting_count ? `(${view.fleet.waiting_count}) ` : ""}${view.name} – longproof`;
    const pattern = s("svg.off-screen", { "aria-hidden": "true" }, s("pattern", { id: "cached-light", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect.shared", { width: 2, height: 6 })));
    const fresh = h("main", { id: "view", "aria-live": "off" }, pattern, alarms(lines), tiles(view), fleet(view), overTime(view),
      h("div.columns", { "data-key": "flow" }, queue(view), decisions(view)), h("div.columns", { "data-key": "who" }, refusals(view), tenants(view)),
      prefixes(view), claims(view), money(view));
    morph(place, fresh);
  }

  // ---- the stream
  const QUIET_MS = 5000, GIVE_UP_MS = 20000;
  let heardMs = 0, seenAt = "", asking = null;
  // a gateway that is frozen, or a network that swallows everything, ends no stream: only the clock tells
  setInterval(() => {
    if (!asking || !heardMs) return;
    const quiet = Date.now() - heardMs;
    if (quiet > GIVE_UP_MS) asking.abort();
    else if (quiet > QUIET_MS) said("off", `nothing heard${seenAt ? ` since ${seenAt}` : ""}`);
  }, 1000);
  function said(state, text) { live.className = `live ${state}`; live.lastElementChild.textContent = text; place.classList.toggle("stale", state === "off"); }
  function took(name, data) {
    if (name === "history") history = JSON.parse(data);
    if (name !== "view") return;
    current = JSON.parse(data); heardMs = Date.now(); seenAt = new Date().toLocaleTimeString();
    if (current.sample) { history.push(current.sample); if (history.length > SAMPLES) history.splice(0, history.length - SAMPLES); }
    door.hidden = true; said("on", "live"); draw(current);
  }
  async function follow() {
    asking = new AbortController(); heardMs = Date.now();
    const answer = await fetch("/dashboard/events", { signal: asking.signal, headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store" });
    if (answer.status === 401 || answer.status === 403) {
      const body = await answer.json().catch(() => null);
      sessionStorage.removeItem("longproof-key");
      document.getElementById("refused").textContent = key ? (body && body.error && body.error.message) || "this key may not see the dashboard" : "";
      asking = null; door.hidden = false; said("", "waiting for a key"); return false;
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
      try { if (!await follow()) return; } catch (problem) { asking = null; said("off", `not connected${seenAt ? ` since ${seenAt}` : ""}; trying again`); }
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
