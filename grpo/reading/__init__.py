"""Bytes to games and positions: S3, compression, PGN, EPD; knows no engine."""
