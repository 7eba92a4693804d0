"""How the heat map looks and moves: colours, style sheet and script, which the page carries in itself."""

from __future__ import annotations

Colours = tuple[str, str]

# Background and text of each level, from sure to surprised: on a light page, and on a dark one.
LEVELS: tuple[tuple[Colours, Colours], ...] = (
    (("#f3f4f1", "#1b1b1b"), ("#202226", "#d8d8d8")),
    (("#fdf0cf", "#1b1b1b"), ("#33302a", "#e6e0d4")),
    (("#fde09a", "#1b1b1b"), ("#483a20", "#f2e7cf")),
    (("#fdc766", "#1b1b1b"), ("#604713", "#fff3d8")),
    (("#fba94b", "#1b1b1b"), ("#7a5408", "#ffffff")),
    (("#f08640", "#1b1b1b"), ("#9a5a00", "#ffffff")),
    (("#d9573c", "#000000"), ("#cf7d1c", "#000000")),
    (("#b03034", "#ffffff"), ("#f0a244", "#000000")),
    (("#6d1226", "#ffffff"), ("#ffd99a", "#000000")),
)

STYLE = """
:root { --page: #ffffff; --ink: #1b1b1b; --soft: #5c5c5c; --line: #d4d4d0; --mark: #1f5fa8; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15161a; --ink: #e6e6e6; --soft: #a6a6a6; --line: #3a3c42; --mark: #7db6ff; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 75rem; padding: 1rem 1rem 9rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .5rem; }
h2 { font-size: 1.05rem; margin: 1.5rem 0 .25rem; }
p { max-width: 48rem; margin: .25rem 0 .5rem; }
.legend { display: flex; flex-wrap: wrap; gap: .35rem 1.1rem; list-style: none; margin: .25rem 0; padding: 0;
  font-size: .875rem; }
.swatch { display: inline-block; min-width: 2.1rem; padding: 0 .3rem; text-align: center;
  border: 1px solid var(--line); border-radius: .2rem; }
.text { margin: 1rem 0; line-height: 0; border-radius: .25rem; }
.c { display: inline-block; margin: 0 1px 4px 0; vertical-align: top; text-align: center; line-height: 1.2;
  cursor: default; border-left: 2px solid transparent; }
.c b { display: block; min-width: 1.15em; padding: 0 2px; font-weight: 400; font-size: 1.125rem;
  line-height: 1.6; white-space: pre; border-radius: .2rem .2rem 0 0; }
.c b.u { font: .625rem/2.88 ui-monospace, monospace; }
.c u { display: flex; text-decoration: none; }
.c i { flex: 1; padding: 0 1px; font: .625rem/1.6 ui-monospace, monospace; }
.c.end { padding: 0 .6rem; font-size: .8125rem; line-height: 1.7; border: 2px solid var(--mark);
  border-radius: 1rem; margin: .2rem 0 .5rem; }
.c.end i { font-size: inherit; font-weight: 700; }
.n { background: transparent; color: var(--soft); }
.w { border-left-color: var(--mark); }
.gap { line-height: 1.5; color: var(--soft); margin: .75rem 0; }
.c.on { outline: 2px solid var(--mark); outline-offset: 1px; }
.swatch.w { border-left: 3px solid var(--mark); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; }
caption { text-align: left; color: var(--soft); padding: .25rem 0; }
th, td { padding: .2rem .5rem; text-align: right; vertical-align: bottom;
  border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; }
tbody th { font-weight: 400; }
small { font-size: inherit; color: var(--soft); white-space: nowrap; }
#panel { position: fixed; left: 50%; bottom: .5rem; transform: translateX(-50%); width: min(34rem, 96vw);
  padding: .6rem .9rem; background: var(--page); color: var(--ink); border: 1px solid var(--mark);
  border-radius: .5rem; box-shadow: 0 2px 12px #0006; white-space: pre-wrap;
  font: .8125rem/1.5 ui-monospace, monospace; }
#panel[hidden] { display: none; }
"""

# Without the script, a mouse still shows each title. With it, a finger and the arrow keys do too.
SCRIPT = """
"use strict";
const text = document.getElementById("text"), panel = document.getElementById("panel");
let on = null;
function show(cell) {
  if (on) on.classList.remove("on");
  on = cell;
  panel.hidden = !cell;
  if (!cell) return;
  cell.classList.add("on");
  panel.textContent = cell.dataset.about;
}
for (const cell of text.querySelectorAll(".c")) {
  cell.dataset.about = cell.title;
  cell.removeAttribute("title");
}
text.addEventListener("pointerover", event => {
  const cell = event.target.closest(".c");
  if (cell) show(cell);
});
text.addEventListener("click", event => show(event.target.closest(".c")));
text.addEventListener("keydown", event => {
  const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  if (event.key === "Escape") show(null);
  if (!step) return;
  event.preventDefault();
  let cell = on ? on[step] : text.querySelector(".c");
  while (cell && !cell.classList.contains("c")) cell = cell[step];
  if (cell) { show(cell); cell.scrollIntoView({ block: "nearest" }); }
});
"""
