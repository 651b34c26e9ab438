"use strict";
// Tables sort by their headings and filter by words, conditions and lists; marks of charts with
// data-points="TABLE FIRST" are rows of a table from FIRST on, are hidden with them, and tell them.
const make = (tag, attributes = {}, text = "") => {
  const element = Object.assign(document.createElement(tag), attributes);
  element.textContent = text;
  return element;
};
const marksOf = new Map(); // a row's mark, by the row
const OPERATIONS = {
  "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b,
  "=": (a, b) => a === b, "!=": (a, b) => a !== b,
};

const sortable = (table, heads, body) => {
  heads.forEach((head, column) => {
    const button = make("button", { type: "button" }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      const keyed = [...body.rows].map((row) => {
        const text = row.cells[column].textContent.trim();
        return [row, text, Number(text.replace(/[x%]$/, ""))];
      });
      keyed.sort(([, s, a], [, t, b]) => {
        const [noA, noB] = [Number.isNaN(a) || s === "", Number.isNaN(b) || t === ""];
        if (noA || noB) return noA && noB ? sign * s.localeCompare(t) : noA - noB;
        return sign * (a - b);
      });
      body.append(...keyed.map(([row]) => row));
    });
  });
};

const tests = (text, keys) => text.trim().toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
  const found = /^([\w.]+)(<=|>=|!=|<|>|=)(.+)$/.exec(word);
  const column = found ? keys.indexOf(found[1]) : -1;
  if (column < 0) return (row) => row.textContent.toLowerCase().includes(word);
  const limit = Number(found[3]);
  return (row) => {
    const value = row.cells[column].textContent.trim().toLowerCase();
    return Number.isNaN(limit)
      ? OPERATIONS[found[2]](value, found[3])
      : OPERATIONS[found[2]](Number(value.replace(/[x%]$/, "")), limit);
  };
});

const filterable = (table, heads, body) => {
  const keys = heads.map((head) => head.dataset.key.toLowerCase());
  const tools = make("div", { className: "tools" });
  const field = make("label", {}, "filter ");
  const numeric = keys.filter((_, i) => !Number.isNaN(Number(body.rows[0]?.cells[i].textContent)));
  const input = make("input", { type: "search", placeholder: numeric[0] ? `words, ${numeric.at(-1)}<1` : "words" });
  input.title = `words, and conditions by: ${keys.join(", ")}`;
  field.append(input);
  tools.append(field);
  const lists = [];
  heads.forEach((head, column) => {
    if (head.dataset.choose === undefined) return;
    const values = [...new Set([...body.rows].map((row) => row.cells[column].textContent.trim()))];
    if (values.length < 2) return;
    const label = make("label", {}, `${head.textContent} `);
    const list = make("select");
    list.append(make("option", { value: "" }, "all"), ...values.sort().map((v) => make("option", { value: v }, v)));
    label.append(list);
    tools.append(label);
    lists.push([column, list]);
  });
  const count = make("output");
  count.setAttribute("aria-live", "polite");
  tools.append(count);
  const apply = () => {
    const wanted = tests(input.value, keys);
    let shown = 0;
    for (const row of body.rows) {
      const on = lists.every(([c, list]) => !list.value || row.cells[c].textContent.trim() === list.value)
        && wanted.every((test) => test(row));
      row.hidden = !on;
      marksOf.get(row)?.classList.toggle("off", !on);
      shown += on;
    }
    count.textContent = `${shown} of ${body.rows.length} rows`;
  };
  tools.addEventListener("input", apply);
  table.closest(".box").before(tools);
  apply();
};

for (const drawing of document.querySelectorAll("[data-points]")) {
  const [name, first] = drawing.dataset.points.split(" ");
  const table = document.getElementById(name);
  const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
  const marks = [...drawing.querySelectorAll(":scope > use")];
  const rows = marks.map((_, i) => table.tBodies[0].rows[Number(first) + i]);
  marks.forEach((mark, i) => marksOf.set(rows[i], mark));
  const said = make("p", { className: "said" });
  drawing.after(said);
  const rowOf = (event) => rows[marks.indexOf(event.target)];
  drawing.addEventListener("pointerover", (event) => {
    const row = rowOf(event);
    if (row) said.textContent = [...row.cells].map((c, i) => `${heads[i]} ${c.textContent.trim()}`).join(", ");
  });
  drawing.addEventListener("click", (event) => {
    const row = rowOf(event);
    if (!row) return;
    for (const old of document.querySelectorAll(".at")) old.classList.remove("at");
    row.classList.add("at");
    event.target.classList.add("at");
    row.scrollIntoView({ block: "center" });
  });
}
for (const table of document.querySelectorAll("table:not(.heat)")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  if (table.dataset.filter !== undefined) filterable(table, heads, body);
  sortable(table, heads, body);
}
