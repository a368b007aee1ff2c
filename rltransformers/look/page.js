"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
const COLORS = ["--second", "--accent", "--third", "--fourth"];
const heads = data.layers.flatMap((layer, number) =>
  Array.from({ length: layer.heads }, (_, head) => ({ layer: number, head, name: `${layer.name}, head ${head}` })));
let episode = 0, step = 0, head = 0, timer = null;

const make = (tag, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
};
const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const text = value => value === null || value === undefined ? "–" : String(value);
const percent = weight => `${(100 * weight).toFixed(weight < 0.0995 ? 1 : 0)} %`;
const shown = () => data.episodes[episode];
const picture = (of, place) => of.picture.length ? data.pictures[of.picture[Math.min(place, of.picture.length - 1)]] : null;
const source = coded => `data:image/webp;base64,${coded}`;
const sharpen = event => event.target.classList.toggle("small", event.target.naturalWidth <= 64);  // pixels stay pixels

// Attention: a byte per layer, head, step, step back (newest first) and token of a step; the square root of a weight.

async function unpack(coded) {
  const bytes = Uint8Array.from(atob(coded), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function place(of) {  // where each head of an episode begins
  let first = 0;
  return heads.map(({ layer }) => {
    const own = first;
    for (let t = 0; t < of.steps; t++) first += Math.min(t + 1, data.layers[layer].steps) * data.kinds.length;
    return own;
  });
}

function weights(of, which, t) {  // rows by step back, of the tokens of a step
  const reach = data.layers[heads[which].layer].steps, kinds = data.kinds.length;
  const before = t <= reach ? t * (t + 1) / 2 : reach * (reach + 1) / 2 + (t - reach) * reach;
  const begin = of.begins[which] + before * kinds;
  const rows = Array.from({ length: Math.min(t + 1, reach) }, (_, back) =>
    Array.from({ length: kinds }, (_, kind) => of.bytes[begin + back * kinds + kind] ** 2));
  const scale = (of.sums?.[which][t] ?? 1) / (sum(rows.flat()) || 1);
  return rows.map(row => row.map(weight => weight * scale));
}

const sum = numbers => numbers.reduce((total, number) => total + number, 0);

// Canvases: each is drawn in pixels of the screen; x is the step, as on the slider, whose thumb is 16 pixels wide.

const EDGE = 8;

function pen(canvas, height) {
  const width = canvas.clientWidth, ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return { context, width, height };
}

const x_of = (t, width) => EDGE + (shown().steps > 1 ? t / (shown().steps - 1) : 0.5) * (width - 2 * EDGE);
const cell = width => Math.max((width - 2 * EDGE) / Math.max(shown().steps - 1, 1), 1);

function step_at(event) {
  const box = event.currentTarget.getBoundingClientRect();
  const share = (event.clientX - box.left - EDGE) / (box.width - 2 * EDGE);
  return Math.round(share * (shown().steps - 1));
}

function cursor({ context, width, height }) {
  context.fillStyle = color("--mark");
  context.fillRect(x_of(step, width) - 0.75, 0, 1.5, height);
}

function draw_strip(canvas, which, by_kind) {
  const kinds = by_kind ? data.kinds.length : 1, brush = pen(canvas, by_kind ? 18 * kinds + 6 : 14);
  const { context, width, height } = brush, tall = height / kinds, wide = cell(width);
  context.fillStyle = color("--panel");
  context.fillRect(0, 0, width, height);
  context.fillStyle = color("--accent");
  const rows = weights(shown(), which, step).map(row => by_kind ? row : [sum(row)]), most = Math.max(...rows.flat()) || 1;
  rows.forEach((row, back) => row.forEach((weight, kind) => {
    context.globalAlpha = Math.sqrt(weight / most);
    context.fillRect(x_of(step - back, width) - wide / 2, kind * tall, wide, tall - (kinds > 1 ? 1 : 0));
  }));
  context.globalAlpha = 1;
  cursor(brush);
}

function draw_lines(canvas, track) {
  const brush = pen(canvas, 44), { context, width, height } = brush;
  const values = track.lines.flatMap(line => line.values).filter(value => value !== null);
  const low = Math.min(...values), high = Math.max(...values), range = high - low || 1;
  const y_of = value => high === low ? height / 2 : height - 5 - (value - low) / range * (height - 10);
  context.fillStyle = color("--panel");
  context.fillRect(0, 0, width, height);
  if (low < 0 && high > 0) {
    context.fillStyle = color("--line");
    context.fillRect(0, y_of(0), width, 1);
  }
  track.lines.forEach((line, number) => {
    context.strokeStyle = context.fillStyle = color(COLORS[number % COLORS.length]);
    context.lineWidth = 1.5;
    context.setLineDash(number < COLORS.length ? [] : [4, 3]);
    context.beginPath();
    let joined = false;
    line.values.forEach((value, t) => {
      if (value !== null) context[joined ? "lineTo" : "moveTo"](x_of(t, width), y_of(value));
      joined = value !== null;
    });
    context.stroke();
    if (line.values[step] !== null && line.values[step] !== undefined) {
      context.beginPath();
      context.arc(x_of(step, width), y_of(line.values[step]), 3, 0, 7);
      context.fill();
    }
  });
  cursor(brush);
  return low === high ? [low] : [high, low];
}

function draw_seen(canvas, seen) {
  const rows = seen.low.length, tall = Math.max(Math.min(14, 160 / rows), 4);
  const brush = pen(canvas, rows * tall), { context, width } = brush, wide = cell(width);
  context.fillStyle = color("--panel");
  context.fillRect(0, 0, width, rows * tall);
  context.fillStyle = color("--second");
  seen.values.forEach((values, t) => values.forEach((value, row) => {
    context.globalAlpha = (value - seen.low[row]) / (seen.high[row] - seen.low[row] || 1);
    context.fillRect(x_of(t, width) - wide / 2, row * tall, wide, tall - (tall > 6 ? 1 : 0));
  }));
  context.globalAlpha = 1;
  cursor(brush);
}

function draw_numbers() {  // the observation of a step where there is no picture
  const { context, width, height } = pen(at("numbers"), 180);
  const values = shown().seen.flatMap(seen => seen.values[step].map((value, row) => [value, seen.low[row], seen.high[row]]));
  const wide = (width - 20) / Math.max(values.length, 1);
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "center";
  values.forEach(([value, low, high], number) => {
    const bottom = Math.min(low, 0), range = Math.max(high, 0) - bottom || 1, scale = (height - 50) / range;
    const x = 10 + number * wide, y = height - 25 - (Math.max(value, 0) - bottom) * scale;
    context.fillStyle = color("--second");
    context.fillRect(x + wide * 0.1, y, wide * 0.8, Math.max(Math.abs(value) * scale, 1));
    context.fillStyle = color("--quiet");
    context.fillRect(x, height - 25 + bottom * scale, wide, 1);
    if (wide > 26) context.fillText(text(value), x + wide / 2, height - 8);
  });
  at("numbers").ariaLabel = `observation at step ${step}: ${values.map(([value]) => text(value)).join(", ")}`;
}

function map_image() {  // the whole map of a head, a pixel per pair of steps; made once
  const of = shown(), key = `${episode} ${head}`;
  of.maps ??= new Map();
  if (!of.maps.has(key)) {
    const canvas = make("canvas", { width: of.steps, height: of.steps });
    const context = canvas.getContext("2d"), image = context.createImageData(of.steps, of.steps);
    for (let t = 0; t < of.steps; t++) {
      const row = weights(of, head, t).map(sum), most = Math.max(...row) || 1;
      row.forEach((weight, back) => { image.data[4 * (t * of.steps + t - back) + 3] = Math.round(255 * Math.sqrt(weight / most)); });
    }
    context.putImageData(image, 0, 0);
    context.globalCompositeOperation = "source-in";
    context.fillStyle = color("--accent");
    context.fillRect(0, 0, of.steps, of.steps);
    of.maps.set(key, canvas);
  }
  return of.maps.get(key);
}

function draw_map() {
  const canvas = at("map"), side = Math.min(canvas.clientWidth, 480), { context, width } = pen(canvas, side);
  const scale = side / shown().steps;
  context.fillStyle = color("--panel");
  context.fillRect(0, 0, width, side);
  context.imageSmoothingEnabled = scale < 1;
  context.drawImage(map_image(), 0, 0, width, side);
  context.strokeStyle = color("--mark");
  context.lineWidth = 1;
  context.strokeRect(0.5, step * scale + 0.5, width - 1, Math.max(scale - 1, 1));
  canvas.ariaLabel = `attention of ${heads[head].name} of every step to every earlier step; the frame marks step ${step}`;
}

// Parts of the page

function describe(rows) {  // the most looked-at steps in words
  const most = rows.map((row, back) => [sum(row), step - back]).filter(([weight]) => weight > 0);
  return most.sort((a, b) => b[0] - a[0]).slice(0, 6);
}

function show_attention() {
  const rows = weights(shown(), head, step), most = describe(rows);
  at("head").textContent = `of ${heads[head].name} at step ${step}${data.kinds.length > 1 ? `; its rows: ${data.kinds.join(", ")}` : ""}`;
  [...at("strips").children].forEach((row, which) => {
    row.firstChild.ariaPressed = String(which === head);
    draw_strip(row.children[1], which, which === head && data.kinds.length > 1);
    const all = weights(shown(), which, step).map(sum);
    row.ends(`${(sum(all.map((weight, back) => back * weight)) / (sum(all) || 1)).toFixed(1)} back`);
  });
  const words = most.map(([weight, t]) => `${percent(weight)} to step ${t}`).join(", ");
  at("strips").children[head].children[1].ariaLabel = `${heads[head].name} at step ${step} looks: ${words || "at nothing"}`;
  at("looked").replaceChildren(...most.map(([weight, t]) => {
    const coded = picture(shown(), t), button = make("button", { type: "button", onclick: () => go(t) });
    if (coded) button.append(make("img", { src: source(coded), alt: `step ${t}`, onload: sharpen }));
    const bar = make("span", { className: "weight" });
    bar.style.width = `${Math.max(100 * weight, 2)}%`;
    button.append(bar, `step ${t}`, make("br"), percent(weight));
    return button;
  }));
  const nothing = 1 - (shown().sums?.[head][step] ?? 1);
  if (nothing >= 0.0005) at("looked").append(make("p", { className: "quiet", textContent: `${percent(nothing)} to nothing` }));
  draw_map();
}

function choice(name, value, marks, taken) {
  const bar = make("div", { className: "bar" });
  for (const [tag, left, width, kind] of marks) {
    const mark = make(tag, { className: kind || "" });
    mark.style.left = `${100 * left}%`;
    if (width !== null) mark.style.width = `${100 * width}%`;
    bar.append(mark);
  }
  return make("div", { className: `choice${taken ? " taken" : ""}` }, make("span", { textContent: name }), bar,
    make("span", { className: "value", textContent: value }));
}

function box_rows(kind, leaf) {
  return leaf.action[step].map((action, number) => {
    const mean = leaf.mean?.[step][number], deviation = leaf.deviation?.[step][number] ?? 0;
    const ends = [action, kind.low[number], kind.high[number]].filter(value => value !== null && Math.abs(value) < 1e29);
    const low = Math.min(...ends), range = Math.max(...ends) - low || 1;
    const share = value => Math.min(Math.max((value - low) / range, 0), 1);
    const marks = [["b", share(action), null]];
    if (mean !== undefined && mean !== null) {
      const from = share(mean - deviation);
      marks.unshift(["i", from, Math.max(share(mean + deviation) - from, 0.01), "range"]);
    }
    const row = choice(`[${number}]`, text(action), marks, true), spread = leaf.deviation ? ` ± ${text(deviation)}` : "";
    if (mean !== undefined) row.lastChild.append(make("small", { textContent: `${text(mean)}${spread}` }));
    return row;
  });
}

function class_rows(kind, leaf) {
  const of_class = leaf.q_values ?? leaf.probabilities, scores = of_class?.[step], rows = [];
  let first = 0;
  const every = leaf.q_values?.flat().filter(value => value !== null) ?? [0];
  const low = Math.min(...every), range = Math.max(...every) - low || 1;
  (kind.sizes ?? []).forEach((size, part) => {
    for (let index = 0; index < size; index++) {
      const score = scores?.[first + index], label = `${kind.sizes.length > 1 ? `${part}: ` : ""}${kind.starts[part] + index}`;
      const share = score === undefined || score === null ? 0 : leaf.q_values ? (score - low) / range : score;
      const told = score === undefined ? "" : leaf.q_values ? text(score) : percent(score);
      rows.push(choice(label, told, [["i", 0, share]], leaf.action[step][part] === kind.starts[part] + index));
    }
    first += size;
  });
  for (let bit = 0; bit < (kind.bits ?? 0); bit++) {
    rows.push(choice(`bit ${bit}: ${leaf.action[step][bit]}`, scores ? percent(scores[bit]) : "", [["i", 0, scores?.[bit] ?? 0]],
      leaf.action[step][bit] === 1));
  }
  return rows;
}

function show_now() {
  const of = shown(), coded = picture(of, step), whole = of.length > of.steps ? `, shown of ${of.length}` : "";
  at("frame").hidden = !coded;
  at("numbers").hidden = Boolean(coded) || !of.seen.length;
  if (coded) {
    at("frame").src = source(coded);
    at("frame").alt = `what the agent sees before step ${step}`;
  } else if (of.seen.length) draw_numbers();
  const facts = [["step", `${step} (0 to ${of.steps - 1}${whole})`]];
  for (const track of of.tracks) {
    if (track.lines.length === 1) facts.push([track.name, text(track.lines[0].values[step])]);
  }
  at("facts").replaceChildren(...facts.slice(0, 7).map(([name, value]) =>
    make("tr", {}, make("th", { scope: "row", textContent: name }), make("td", { textContent: value }))));
  at("actions").replaceChildren(...data.actions.flatMap((kind, number) => {
    const leaf = of.actions[number], rows = kind.low ? box_rows(kind, leaf) : class_rows(kind, leaf);
    const what = kind.low ? `taken${leaf.mean ? ", mean" : ""}${leaf.deviation ? " ± deviation" : ""}` : leaf.q_values ? "values"
      : leaf.probabilities ? "probabilities" : "taken";
    return [make("h3", { textContent: `${kind.name}: ${what}` }), make("div", { className: "choices" }, ...rows)];
  }));
}

function show_tracks() {
  [...at("tracks").children].forEach(row => row.draw());
}

function show_cards() {
  [...at("cards").children].forEach((card, number) => {
    const of = data.episodes[number], coded = picture(of, step), image = card.querySelector("img");
    card.ariaPressed = String(number === episode);
    if (image && coded) image.src = source(coded);
  });
}

function show() {
  at("step").value = step;
  at("step").ariaValueText = `step ${step} of ${shown().length}`;
  at("where").replaceChildren(make("span", { textContent: `step ${step}` }));
  show_now();
  if (heads.length) show_attention();
  show_tracks();
  show_cards();
}

function go(t) {
  step = Math.min(Math.max(t, 0), shown().steps - 1);
  show();
}

function play(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => step + 1 < shown().steps ? go(step + 1) : play(false), 1000 / at("speed").value) : null;
  at("play").textContent = on ? "❚❚" : "▶\uFE0E";
  at("play").ariaLabel = on ? "Pause" : "Play";
}

function row(label, draw) {
  const canvas = make("canvas", { onclick: event => go(step_at(event)) });
  canvas.setAttribute("role", "img");
  const ends = make("div", { className: "ends" });
  const node = make("div", { className: "row" }, label, canvas, ends);
  node.ends = (...words) => {
    ends.style.height = canvas.style.height;
    ends.replaceChildren(...words.map(word => make("span", { textContent: word })));
  };
  node.draw = () => node.ends(...(draw(canvas) ?? []).map(text));
  return node;
}

function track_row(track) {
  const values = track.lines.map((line, number) => {
    const key = make("span", { className: "key" });
    key.style.background = `var(${COLORS[number % COLORS.length]})`;
    const value = make("span", { className: "value" });
    value.tell = () => { value.textContent = `${track.lines.length > 1 ? `${line.name} ` : ""}${text(line.values[step])}`; };
    return { value, node: make("div", {}, key, value) };
  });
  const label = make("div", { className: "label", title: track.about }, track.name, ...values.map(({ node }) => node));
  return row(label, canvas => {
    values.forEach(({ value }) => value.tell());
    canvas.ariaLabel = `${track.name} of every step (${track.about}); at step ${step} ${values.map(({ value }) => value.textContent).join(", ")}`;
    return draw_lines(canvas, track);
  });
}

function seen_row(seen) {
  const several = seen.low.length > 1 ? `, ${seen.low.length} numbers${seen.of > seen.low.length ? ` of ${seen.of}` : ""}` : "";
  const label = make("div", { className: "label", title: "a row per number; full color is its largest value in the episode" },
    `${seen.name}${several}`);
  return row(label, canvas => {
    canvas.ariaLabel = `${seen.name} of every step; at step ${step} ${seen.values[step].map(text).join(", ")}`;
    draw_seen(canvas, seen);
  });
}

async function open(number) {
  const of = data.episodes[number];
  if (heads.length && !of.bytes) {
    of.bytes = await unpack(of.attention);
    of.begins = place(of);
  }
  episode = number;
  step = Math.min(step, of.steps - 1);
  at("episode").value = number;
  at("cards").children[number].scrollIntoView({ block: "nearest", inline: "nearest" });
  at("episode").ariaValueText = name_of(of, number);
  at("step").max = of.steps - 1;
  at("tracks").replaceChildren(...of.tracks.map(track_row), ...of.seen.map(seen_row));
  at("meanings").replaceChildren(...of.tracks.flatMap(({ name, about }) =>
    [make("dt", { textContent: name }), make("dd", { textContent: about })]));
  show();
}

const name_of = (of, number) => of.target === null ? `episode ${number + 1}` : `asked for ${of.target}`;

function build() {
  at("title").textContent = data.title;
  at("about").textContent = data.about;
  at("note").textContent = data.note;
  at("note").hidden = !data.note;
  at("looked").hidden = at("head").hidden = at("whole").hidden = !heads.length;
  const asked = data.episodes.some(of => of.target !== null);
  at("choice").firstChild.textContent = asked ? "Return asked for " : "Episode ";
  at("episode").max = data.episodes.length - 1;
  at("episodes").hidden = data.episodes.length === 1 && !asked;
  at("choice").hidden = data.episodes.length === 1;
  at("cards").replaceChildren(...data.episodes.map((of, number) => {
    const won = of.success === null ? "" : of.success ? ", success" : ", no success";
    const card = make("button", { type: "button", className: "card", onclick: () => open(number) });
    if (of.picture.length) card.append(make("img", { alt: "", onload: sharpen }));
    card.append(make("b", { textContent: name_of(of, number) }), make("br"), `returned ${of.total}${won}`, make("br"),
      `${of.length} steps, seed ${of.seed}`);
    return card;
  }));
  if (data.episodes.length === 1 && !asked) {
    const of = data.episodes[0], won = of.success === null ? "" : of.success ? ", success" : ", no success";
    at("about").textContent += `; returned ${of.total} in ${of.length} steps${won}; seed ${of.seed}`;
  }
  at("strips").replaceChildren(...heads.map(({ name }, which) => {
    const button = make("button", { type: "button", className: "label", textContent: name, onclick: () => choose(which) });
    const strip = row(button, () => {});
    strip.children[1].ariaLabel = `attention of ${name}`;
    return strip;
  }));
}

function choose(which) {
  head = (which + heads.length) % heads.length;
  show_attention();
  at("strips").children[head].scrollIntoView({ block: "nearest" });
}

function press(event) {
  const tag = event.target.tagName;
  if (event.ctrlKey || event.metaKey || event.altKey || tag === "SELECT" || (tag === "BUTTON" && event.key === " ")) return;
  const keys = {
    ArrowRight: () => go(step + (event.shiftKey ? 10 : 1)), ArrowLeft: () => go(step - (event.shiftKey ? 10 : 1)),
    Home: () => go(0), End: () => go(shown().steps - 1), " ": () => play(timer === null),
    ArrowDown: () => heads.length && choose(head + 1), ArrowUp: () => heads.length && choose(head - 1),
    "]": () => open((episode + 1) % data.episodes.length),
    "[": () => open((episode + data.episodes.length - 1) % data.episodes.length),
  };
  if (!keys[event.key] || (event.target.id === "episode" && event.key.length > 1)) return;
  event.preventDefault();
  keys[event.key]();
}

function from_address() {  // look.html#step=12&head=5&episode=1
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name, most) => Math.min(Math.max(Number(given.get(name)) || 0, 0), Math.max(most - 1, 0));
  head = number("head", heads.length);
  step = Number(given.get("step")) || 0;
  return open(number("episode", data.episodes.length));
}

build();
at("frame").onload = sharpen;
at("step").oninput = event => go(Number(event.target.value));
at("episode").oninput = event => open(Number(event.target.value));
at("play").onclick = () => play(timer === null);
at("speed").onchange = () => timer !== null && play(true);
at("map").onclick = event => {
  const box = event.currentTarget.getBoundingClientRect();
  go(Math.floor((event.clientY - box.top) / box.height * shown().steps));
};
document.addEventListener("keydown", press);
addEventListener("resize", show);
addEventListener("hashchange", from_address);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  data.episodes.forEach(of => of.maps?.clear());
  show();
});
from_address();
