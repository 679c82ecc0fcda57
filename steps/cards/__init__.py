"""Cards: pictures and numbers of each step, live where it works for long. Pages are pure; `live` alone here knows Metaflow."""
