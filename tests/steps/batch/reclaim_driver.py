"""Fine-tunes as `kill_driver.py` does, while it watches for a notice: `python reclaim_driver.py JOB NOTICE`."""

import json
import sys
from pathlib import Path

from kill_driver import finetune

from steps.batch.spot_notice import watching

with watching(Path(sys.argv[2])):
    finetune(json.loads(sys.argv[1]))
