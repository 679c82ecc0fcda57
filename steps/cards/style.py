"""The style sheet of all cards: light and dark mode, responsive, without external resources."""

from typing import Final

from steps.cards.html import Html

FONT: Final = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, sans-serif"
"""Font of text and charts; a fixed list, because Vega measures labels to lay out a chart."""
_SHEET: Final = """
:root { color-scheme: light dark; --line: #d8dce3; --good: #1f8a4c; --warn: #b26a00; --bad: #c8372d; --soft: #5d6673; }
@media (prefers-color-scheme: dark) {
  :root { --bg: #14181f; --black: #e6e9ee; --white: #14181f; --dk-grey: #a7afbc; --lt-grey: #232a34; --lt-lt-grey: #1b212a;
    --grey: #3a4350; --line: #37404d; --good: #4cc38a; --warn: #e3a23c; --bad: #f0766c; --soft: #a7afbc; }
}
html, body { background: var(--bg); }
.mf-card, .mf-card * { font-family: FONT; }
.mf-card code, .mf-card code * { font-family: var(--mono-font); }
.mf-card aside { display: none !important; }
.mf-card :is(.heading, hr) { display: none; } .mf-card .container { padding: 0; }
.mf-card main { margin: 0 auto !important; width: 100%; max-width: 76rem; padding: 1rem; }
.mf-card .sectionItems { display: block; columns: 2; column-gap: 2rem; }
.mf-card .sectionItems > * { width: 100%; min-width: 0; margin: 0; break-inside: avoid; }
.mf-card .sectionItems > :is(.wide, nav) { column-span: all; }
.mf-card .sectionItems > .vega-embed { display: block; break-after: avoid; } .mf-card .sectionItems > .numbers { padding-bottom: 1rem; }
.mf-card nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: .25rem 0; }
.mf-card .intervals { padding: .5rem 0 1rem; } .mf-card .intervals table { width: 100%; table-layout: fixed; }
.mf-card .intervals :is(th, td) { border: none; padding: 0 .4rem 0 0; vertical-align: middle; font-weight: 400; overflow-wrap: anywhere; }
.mf-card .intervals th { width: 30%; white-space: normal; } .mf-card .intervals .number { width: 30%; }
.mf-card .intervals .bar { padding: 0; } .mf-card .intervals svg { display: block; width: 100%; height: 1.7rem; overflow: visible; }
.mf-card .flow table { width: 100%; } .mf-card .flow td:last-child { width: 55%; padding: 0; }
.mf-card .flow svg { display: block; width: 100%; height: 1.6rem; }
.mf-card .intervals .scale svg { height: 1.2rem; } .mf-card .intervals text { fill: var(--soft); font-size: .75rem; }
.mf-card .intervals .tick { stroke: var(--line); } .mf-card .intervals .zero { stroke: var(--soft); stroke-dasharray: 4 3; }
.mf-card h1 { font-size: 1.5rem; } .mf-card h2 { font-size: 1.15rem; margin-top: 1rem; } .mf-card h3 { font-size: 1rem; }
.mf-card p, .mf-card li { overflow-wrap: anywhere; } .mf-card p { margin: .25rem 0 .5rem; } .mf-card ul { padding-left: 1.2rem; }
.mf-card .soft, .mf-card caption, .mf-card figcaption { color: var(--soft); }
.mf-card article { border-left: 3px solid var(--line); padding-left: .75rem; margin: .75rem 0; }
.mf-card dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .1rem .75rem; margin: .25rem 0; }
.mf-card dt { color: var(--soft); } .mf-card dd { margin: 0; overflow-wrap: anywhere; }
.mf-card .scroll { overflow-x: auto; max-width: 100%; }
.mf-card table { min-width: 0; width: auto; max-width: none; border-collapse: collapse; border-spacing: 0; }
.mf-card caption { text-align: left; padding: .2rem 0; max-width: calc(100vw - 1.5rem); }
.mf-card th, .mf-card td { padding: .3rem .6rem; text-align: left; background: none; border-bottom: 1px solid var(--line);
  vertical-align: top; position: static; }
.mf-card th { font-weight: 600; white-space: nowrap; } .mf-card .numbers th:not(:first-child) { text-align: right; }
.mf-card .numbers td:first-child { white-space: normal; min-width: 6.5rem; } .mf-card .numbers table { width: 100%; }
.mf-card .numbers th, .mf-card .numbers td { padding: .2rem .35rem; font-size: .8rem; } .mf-card td { white-space: nowrap; }
.mf-card td.number { text-align: right; font-variant-numeric: tabular-nums; }
.mf-card td.words { white-space: normal; min-width: 14rem; }
.mf-card .badge { display: inline-block; border: 1px solid currentColor; border-radius: .6rem; padding: 0 .5rem; font-weight: 600;
  white-space: nowrap; }
.mf-card .badge.good { color: var(--good); } .mf-card .badge.warning { color: var(--warn); } .mf-card .badge.bad { color: var(--bad); }
.mf-card .swatch { display: inline-block; width: 1.1em; height: .25em; margin-right: .4em; vertical-align: middle; }
.mf-card .progress { display: flex; flex-wrap: wrap; gap: .25rem .75rem; align-items: center; }
.mf-card .progress progress { flex: 1 1 14rem; height: .7rem; appearance: none; border: none;
  border-radius: .35rem; overflow: hidden; background: var(--line); }
.mf-card progress::-webkit-progress-bar { background: var(--line); } .mf-card progress::-webkit-progress-value { background: #3b82c4; }
.mf-card progress::-moz-progress-bar { background: #3b82c4; }
.mf-card details { margin: .25rem 0; } .mf-card summary { cursor: pointer; font-weight: 600; }
.mf-card .numbers summary { font-weight: 400; } .mf-card summary .line { display: inline-block; margin-right: .6rem; }
.mf-card .boards { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem; }
.mf-card .boards figure { margin: 0; } .mf-card .boards img { width: 100%; max-width: 22rem; height: auto; display: block; }
.mf-card .boards figcaption { font-size: .85rem; } .mf-card a { color: #3b82c4; }
.mf-card iframe { width: 100%; height: 62rem; border: 1px solid var(--line); border-radius: .4rem; background: none; }
.vega-embed svg { max-width: 100%; }
.vega-embed svg text { fill: var(--soft) !important; }
@media (max-width: 900px) { .mf-card .sectionItems { columns: 1; } }
@media (max-width: 48rem) {
  .mf-card .intervals tr { display: grid; grid-template-columns: 1fr max-content; }
  .mf-card .intervals :is(th, .number) { width: auto; } .mf-card .intervals .bar { grid-column: 1 / -1; grid-row: 2; }
  .mf-card main { padding: .75rem; } .mf-card iframe { height: 104rem; }
  .mf-card .boards { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: .75rem; }
  .mf-card .boards dl { display: block; } .mf-card .boards :is(dt, dd) { display: inline; } .mf-card .boards dt { margin-right: .3rem; }
  .mf-card .boards dd::after { content: "\\A"; white-space: pre; }
  .mf-card .latest :is(th, td):nth-child(4) { display: none; } .mf-card .latest td { white-space: normal; }
  .mf-card th, .mf-card td { padding: .25rem .35rem; } .mf-card td.words { min-width: 7rem; }
  .mf-card .scroll th { white-space: normal; }
}
"""

STYLE: Final = Html(f"<style>{' '.join(_SHEET.replace('FONT', FONT).split())}</style>")
"""The first part of every card."""
