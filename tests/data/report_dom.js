"use strict";
// As much of a document as report.js asks for: two tables and a drawing, then what a reader does.
const fs = require("fs");
const vm = require("vm");

class Element {
  constructor(tag, dataset = {}, children = []) {
    Object.assign(this, { tag, dataset, children: [], own: "", attributes: {}, heard: {}, hidden: false, value: "" });
    this.classes = new Set();
    this.classList = {
      add: (c) => this.classes.add(c), remove: (c) => this.classes.delete(c),
      toggle: (c, on) => (on ? this.classes.add(c) : this.classes.delete(c)),
    };
    this.append(...children);
  }
  get textContent() { return this.own + this.children.map((c) => c.textContent).join(""); }
  set textContent(text) { this.own = text; this.children = []; }
  append(...others) {
    for (const other of others) {
      const child = typeof other === "string" ? Object.assign(new Element("#"), { own: other }) : other;
      if (child.parent) child.parent.children = child.parent.children.filter((c) => c !== child);
      child.parent = this;
      this.children.push(child);
    }
  }
  replaceChildren(...others) { this.own = ""; this.children = []; this.append(...others); }
  before(other) { other.parent = this.parent; this.parent.children.splice(this.parent.children.indexOf(this), 0, other); }
  after(other) { other.parent = this.parent; this.parent.children.splice(this.parent.children.indexOf(this) + 1, 0, other); }
  closest() { return this.parent; }
  get rows() { return this.children; }
  get cells() { return this.children; }
  get tHead() { return this.children[0]; }
  get tBodies() { return [this.children[1]]; }
  setAttribute(name, value) { this.attributes[name] = value; }
  getAttribute(name) { return this.attributes[name] ?? null; }
  removeAttribute(name) { delete this.attributes[name]; }
  addEventListener(kind, heard) { this.heard[kind] = heard; }
  scrollIntoView() { this.seen = true; }
  querySelectorAll() { return this.children.filter((c) => c.tag === "use"); }
}
const text = (tag, own, dataset) => Object.assign(new Element(tag, dataset), { own });
const row = (...cells) => new Element("tr", {}, cells.map((c) => text("td", c)));
const table = new Element("table", { filter: "" }, [
  new Element("thead", {}, [new Element("tr", {}, [
    text("th", "layout", { key: "layout", choose: "" }), text("th", "K", { key: "k" }),
    text("th", "ratio", { key: "ratio" }),
  ])]),
  new Element("tbody", {}, [row("NT", "9", "1.5x"), row("NN", "64", "-"), row("NT", "1000", "0.5x")]),
]);
const drawing = new Element("svg", { points: "t 0" }, [1, 2, 3].map(() => new Element("use")));
const body = new Element("body", {}, [drawing, new Element("div", {}, [table])]);
const document = {
  createElement: (tag) => new Element(tag),
  getElementById: () => table,
  querySelectorAll: (selector) => ({ "[data-points]": [drawing], "table:not(.heat)": [table] })[selector] ?? [],
};
vm.runInNewContext(fs.readFileSync(process.argv[2], "utf8"), { document });

const values = (column) => table.tBodies[0].rows.filter((r) => !r.hidden).map((r) => r.cells[column].textContent);
const tools = body.children.find((c) => c.className === "tools");
const [field, list] = [tools.children[0].children.at(-1), tools.children[1].children.at(-1)];
const count = tools.children.at(-1);
const said = [];
const filter = (words, chosen = "") => {
  Object.assign(field, { value: words });
  Object.assign(list, { value: chosen });
  tools.heard.input();
  said.push([words + chosen, values(1), count.textContent, drawing.children.map((m) => m.classes.has("off"))]);
};
filter("");
filter("nt k<=64");
filter("ratio<1");
filter("layout=nn");
filter("", "NT");
filter("nothing");
filter("");
const press = (column) => {
  const head = table.tHead.rows[0].cells[column];
  head.children[0].heard.click();
  said.push([head.getAttribute("aria-sort"), values(column)]);
};
for (const column of [1, 1, 2, 2, 0]) press(column);
drawing.heard.pointerover({ target: drawing.children[0] });
drawing.heard.click({ target: drawing.children[2] });
said.push([body.children[1].textContent, table.tBodies[0].rows.filter((r) => r.seen).map((r) => r.cells[1].textContent)]);
process.stdout.write(JSON.stringify(said));
