"""Cards of the steps: pages of charts and text in Metaflow. Only `live` and `offline` import Metaflow."""
