"""Cards: charts and numbers of each step, updated during long steps. Only `live` and `offline` import Metaflow."""
