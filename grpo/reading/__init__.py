"""Parsers from bytes to games and positions: S3, compression, PGN, EPD, puzzle tables; no engine is involved."""
