"use strict";
const PIECES = { p: "pawn", n: "knight", b: "bishop", r: "rook", q: "queen", k: "king" };
const DRAWN = new Set(["svg", "use", "line", "polyline", "text"]);
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const percent = (chance) => (chance === null ? "–" : `${(100 * chance).toFixed(1)} %`);
const pieceName = (letter) => `${letter === letter.toLowerCase() ? "black" : "white"} ${PIECES[letter.toLowerCase()]}`;

/** Return a new element with attributes and children; strings become text, never HTML. */
function make(name, attributes = {}, ...children) {
  const element = document.createElementNS(DRAWN.has(name) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml", name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") element.onclick = value;
    else if (value !== null) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

/** Return square name -> letter of the piece there, from the first field of a FEN. */
function piecesOf(placement) {
  const rows = placement.replace(/\d/g, (digit) => " ".repeat(Number(digit))).split("/");
  const named = rows.flatMap((row, index) => [...row].map((letter, file) => ["abcdefgh"[file] + (8 - index), letter]));
  return Object.fromEntries(named.filter(([, letter]) => letter !== " "));
}

/** Draw a position. With `onSquare`, squares are buttons that call it. `placement` is the first field of a FEN; `last` is the last move (UCI);
 * `arrows` are ["policy" or "engine", uci]; `from` and `targets` are squares. */
function drawBoard({ placement, isFlipped = false, last = "", arrows = [], from = "", targets = [], onSquare = null }) {
  const board = byId("board"), pieces = piecesOf(placement), squares = [];
  const focused = board.contains(document.activeElement) ? document.activeElement.dataset.square : "";
  for (let index = 0; index < 64; index += 1) {
    const row = Math.floor(index / 8), column = index % 8;
    const file = isFlipped ? 7 - column : column, rank = isFlipped ? row + 1 : 8 - row;
    const square = "abcdefgh"[file] + rank, letter = pieces[square];
    const marks = {
      dark: (file + rank) % 2, last: last.slice(0, 2) === square || last.slice(2, 4) === square, from: from === square,
      target: targets.includes(square), taken: letter && targets.includes(square),
    };
    const classes = ["square", ...Object.keys(marks).filter((name) => marks[name])].join(" ");
    const cell = onSquare
      ? make("button", { class: classes, type: "button", "aria-label": letter ? `${square} ${pieceName(letter)}` : square, onclick: () => onSquare(square) })
      : make("span", { class: classes });
    cell.dataset.square = square;
    if (column === 0) cell.append(make("span", { class: "name", "aria-hidden": "true" }, String(rank)));
    if (row === 7) cell.append(make("span", { class: "name", "aria-hidden": "true", style: "left:auto;right:2px" }, square[0]));
    if (letter) cell.append(drawPiece(letter));
    squares.push(cell);
  }
  board.replaceChildren(...squares, make("svg", { class: "arrows", viewBox: "0 0 8 8", "aria-hidden": "true" }, ...arrows.map((each) => arrow(each, isFlipped))));
  if (focused) board.querySelector(`[data-square="${focused}"]`)?.focus();
  if (!onSquare) {
    board.setAttribute("role", "img");
    board.setAttribute("aria-label", Object.entries(pieces).map(([square, letter]) => `${pieceName(letter)} ${square}`).join(", "));
  }
}
function drawPiece(letter) {
  const name = (letter === letter.toLowerCase() ? "b" : "w") + letter.toUpperCase();
  return make("svg", { viewBox: "0 0 45 45", "aria-hidden": "true" }, make("use", { href: `#${name}` }));
}
function arrow([kind, uci], isFlipped) {
  const place = (square) => {
    const file = "abcdefgh".indexOf(square[0]), rank = Number(square[1]) - 1;
    return isFlipped ? [7.5 - file, rank + 0.5] : [file + 0.5, 7.5 - rank];
  };
  const [x1, y1] = place(uci.slice(0, 2)), [x2, y2] = place(uci.slice(2, 4));
  return make("line", { x1, y1, x2, y2, stroke: `var(--${kind})`, "stroke-width": 0.14, opacity: 0.85, "marker-end": "url(#head)" });
}

/** Draw a table of moves. `kinds` are swatches before a row's first cell; `isPlayed` marks a row. */
function drawTable(table, headers, rows) {
  table.replaceChildren(make("tr", {}, ...headers.map((header) => make("th", { scope: "col" }, header))),
    ...rows.map(({ cells: [move, ...numbers], isPlayed = false, kinds = [] }) => make("tr", { class: isPlayed ? "played" : null },
      make("td", {}, ...kinds.map((kind) => make("span", { class: `swatch ${kind}` })), move + (isPlayed ? " (played)" : "")),
      ...numbers.map((number) => make("td", {}, number)))));
}

/** Draw a game's moves from a FEN, as buttons that call `onPly` with the ply. */
function drawMoves(sans, start, current, onPly = null) {
  const [, turn, , , , number] = start.split(" "), isBlackFirst = turn === "b" ? 1 : 0;
  byId("moves").replaceChildren(...sans.map((san, index) => {
    const isWhite = (index + isBlackFirst) % 2 === 0, at = Number(number) + Math.floor((index + isBlackFirst) / 2);
    const button = make("button", { type: "button", "aria-current": index + 1 === current ? "true" : null, onclick: () => onPly(index + 1) }, san);
    button.disabled = !onPly;
    return make("li", {}, make("span", { class: "number" }, isWhite ? `${at}.` : index === 0 ? `${at}…` : ""), button);
  }));
  const list = byId("moves"), now = list.querySelector("[aria-current]");
  if (now) list.scrollTop = now.offsetTop - list.offsetTop - list.clientHeight / 2;
}
