// What a page looks like in a real browser, for tests/browser.py.
const scrolls = (e) => {
  for (; e && e !== document.body; e = e.parentElement)
    if (/auto|scroll|hidden/.test(getComputedStyle(e).overflowX)) return true;
  return false;
};
// Of a long table the first rows, which are like the others.
const spared = "tbody > tr:nth-child(n+30)";
// What is wider than the page and not inside a box that scrolls.
const overflow = () => {
  const page = document.documentElement, found = [];
  if (page.scrollWidth > innerWidth) found.push(`page ${page.scrollWidth} > ${innerWidth}`);
  for (const e of document.body.querySelectorAll(`:not(${spared}, ${spared} *)`)) {
    const right = e.getBoundingClientRect().right;
    if (right > innerWidth + 1 && e.checkVisibility() && !scrolls(e))
      found.push(`${e.tagName} ${e.id} ${e.className}: ${right}`);
  }
  return found.slice(0, 5);
};

// Texts whose contrast with what lies behind them is below `least`, by WCAG's formula.
const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
const over = ([r, g, b, a = 1], under) => [r, g, b].map((v, i) => v * a + under[i] * (1 - a));
const luminance = (rgb) => {
  const [r, g, b] = rgb.map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (e) => {
  const chain = [];
  for (; e; e = e.parentElement) chain.push(parse(getComputedStyle(e).backgroundColor));
  return chain.reverse().reduce((under, colour) => over(colour, under), [255, 255, 255]);
};
const faint = (least) => {
  const found = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const e = node.parentElement, text = node.textContent.trim();
    if (!text || !e.checkVisibility() || e.closest(`script, style, svg, ${spared}`)) continue;
    const under = behind(e), own = over(parse(getComputedStyle(e).color), under);
    const [more, less] = [luminance(own), luminance(under)].sort((x, y) => y - x);
    const ratio = (more + 0.05) / (less + 0.05);
    if (ratio < least) found.add(`${ratio.toFixed(1)}: ${e.tagName} ${text.slice(0, 40)}`);
  }
  return [...found].slice(0, 8);
};

// Texts of the report's charts that do not fit on their paper.
const clipped = () => {
  const found = [];
  for (const chart of document.querySelectorAll("svg.chart")) {
    const paper = chart.getBoundingClientRect();
    for (const e of chart.querySelectorAll("text")) {
      const r = e.getBoundingClientRect();
      if (r.left < paper.left - 1 || r.right > paper.right + 1 || r.top < paper.top - 1 ||
          r.bottom > paper.bottom + 1)
        found.push(`${chart.getAttribute("aria-label").slice(0, 40)}: ${e.textContent}`);
    }
  }
  return found.slice(0, 8);
};
