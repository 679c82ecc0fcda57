"""One position: bytes, action ids, attacks, phase, drawn by rule."""
