"""Cards: pictures and numbers of each step, live where it works for long. Pages are pure; `live` and `offline` alone here know Metaflow."""
