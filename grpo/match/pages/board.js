"use strict";
const PIECES = { p: "pawn", n: "knight", b: "bishop", r: "rook", q: "queen", k: "king" };
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

/** A new element with attributes and children; text is always text. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}
function makeSvg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
const percent = (chance) => (chance === null ? "–" : `${(100 * chance).toFixed(1)} %`);

/** Square name -> letter of its piece, from the first field of a FEN. */
function piecesOf(placement) {
  const found = {};
  placement.split("/").forEach((row, index) => {
    let file = 0;
    for (const letter of row) {
      if (letter >= "1" && letter <= "8") { file += Number(letter); continue; }
      found["abcdefgh"[file] + (8 - index)] = letter;
      file += 1;
    }
  });
  return found;
}
const pieceName = (letter) => `${letter === letter.toLowerCase() ? "black" : "white"} ${PIECES[letter.toLowerCase()]}`;

/** Draw a position. With `onSquare`, squares are buttons. `arrows` are [uci, kind]; `from` and `targets` are squares. */
function drawBoard(board, { placement, isFlipped = false, last = "", arrows = [], from = "", targets = [], onSquare = null }) {
  const pieces = piecesOf(placement);
  const focused = board.contains(document.activeElement) ? document.activeElement.dataset.square : "";
  const squares = [];
  for (let row = 0; row < 8; row += 1) {
    for (let column = 0; column < 8; column += 1) {
      const file = isFlipped ? 7 - column : column, rank = isFlipped ? row + 1 : 8 - row;
      const square = "abcdefgh"[file] + rank, letter = pieces[square];
      const classes = ["square"];
      if ((file + rank) % 2) classes.push("dark");
      if (last && (last.startsWith(square) || last.slice(2, 4) === square)) classes.push("last");
      if (from === square) classes.push("from");
      if (targets.includes(square)) classes.push(...(letter ? ["target", "taken"] : ["target"]));
      const label = letter ? `${square} ${pieceName(letter)}` : square;
      const cell = onSquare
        ? make("button", { class: classes.join(" "), type: "button", "data-square": square, "aria-label": label, onclick: () => onSquare(square) })
        : make("span", { class: classes.join(" "), "data-square": square });
      if (column === 0) cell.append(make("span", { class: "name", "aria-hidden": "true" }, String(rank)));
      if (row === 7) cell.append(make("span", { class: "name", "aria-hidden": "true", style: "left:auto;right:2px" }, square[0]));
      if (letter) {
        const name = (letter === letter.toLowerCase() ? "b" : "w") + letter.toUpperCase();
        cell.append(makeSvg("svg", { viewBox: "0 0 45 45", "aria-hidden": "true" }, makeSvg("use", { href: `#${name}` })));
      }
      squares.push(cell);
    }
  }
  board.replaceChildren(...squares, drawArrows(arrows, isFlipped));
  if (focused) board.querySelector(`[data-square="${focused}"]`)?.focus();
  if (!onSquare) {
    board.setAttribute("role", "img");
    board.setAttribute("aria-label", Object.entries(pieces).map(([square, letter]) => `${pieceName(letter)} ${square}`).join(", "));
  }
}
function drawArrows(arrows, isFlipped) {
  const place = (square) => {
    const file = "abcdefgh".indexOf(square[0]), rank = Number(square[1]) - 1;
    return isFlipped ? [7.5 - file, rank + 0.5] : [file + 0.5, 7.5 - rank];
  };
  const overlay = makeSvg("svg", { class: "arrows", viewBox: "0 0 8 8", "aria-hidden": "true" });
  for (const [uci, kind] of arrows) {
    const [x1, y1] = place(uci.slice(0, 2)), [x2, y2] = place(uci.slice(2, 4));
    const length = Math.hypot(x2 - x1, y2 - y1), [dx, dy] = [(x2 - x1) / length, (y2 - y1) / length];
    const [bx, by] = [x2 - 0.42 * dx, y2 - 0.42 * dy], colour = `var(--${kind})`;
    overlay.append(
      makeSvg("line", { x1, y1, x2: bx, y2: by, stroke: colour, "stroke-width": 0.14, "stroke-linecap": "round", opacity: 0.8 }),
      makeSvg("polygon", { points: `${x2},${y2} ${bx - 0.22 * dy},${by + 0.22 * dx} ${bx + 0.22 * dy},${by - 0.22 * dx}`, fill: colour, opacity: 0.9 }),
    );
  }
  return overlay;
}

/** A table of moves: [name, swatch, ...numbers] a row; `isPlayed` marks one. */
function drawTable(table, headers, rows) {
  table.replaceChildren(
    make("thead", {}, make("tr", {}, ...headers.map((header) => make("th", { scope: "col" }, header)))),
    make("tbody", {}, ...rows.map(({ cells, isPlayed = false, kinds = [] }) =>
      make("tr", { class: isPlayed ? "played" : null },
        make("td", {}, ...kinds.map((kind) => make("span", { class: `swatch ${kind}` })), cells[0] + (isPlayed ? " (played)" : "")),
        ...cells.slice(1).map((cell) => make("td", {}, cell))))),
  );
}
/** The buttons of a list of moves; `numberOf(ply)` is the text before a ply, "" for none. */
function drawMoves(list, sans, { startNumber, startsWhite, current, onPly }) {
  list.replaceChildren(...sans.map((san, index) => {
    const isWhite = (index % 2 === 0) === startsWhite;
    const number = startNumber + Math.floor((index + (startsWhite ? 0 : 1)) / 2);
    const before = isWhite ? `${number}.` : index === 0 ? `${number}…` : "";
    const button = make("button", { type: "button", "aria-current": index + 1 === current ? "true" : null }, san);
    if (onPly) button.addEventListener("click", () => onPly(index + 1));
    else button.disabled = true;
    return make("li", {}, make("span", { class: "number" }, before), button);
  }));
  const now = list.querySelector("[aria-current]");
  if (now) list.scrollTop = now.offsetTop - list.offsetTop - list.clientHeight / 2;
}
