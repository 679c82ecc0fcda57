"""Fine-tunes as `kill_driver.py` does, while it watches for a spot interruption notice: `python spot_notice_driver.py JOB NOTICE`."""

import json
import sys
from pathlib import Path

from kill_driver import finetune

from steps.batch.spot_notice import sigterm_on_spot_notice

with sigterm_on_spot_notice(Path(sys.argv[2])):
    finetune(json.loads(sys.argv[1]))
