"""Cards of the steps. Only `live` and `offline` import Metaflow."""
